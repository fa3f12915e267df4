/* Setting up a run from a configuration. */
#include "codelets.h"
#include "run_impl.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MiB = 1 << 20 };

static tess_status open_tokenizer(tess_run *r)
{
    if (!tess_model_dir(r->model)) return TESS_OK;
    char *path = tess_format("%s/tokenizer.json", tess_model_dir(r->model));
    tess_status status = access(path, F_OK) ? TESS_OK : tess_tokenizer_open(path, &r->tokenizer);
    free(path);
    return status;
}

/* What the rooms below call it, and the key that says it here. */
static tess_status at_key(tess_status status)
{
    static const char *const key[][2] = {{"RAM", "memory.cpu"},
                                         {"GPU", "memory.gpu"},
                                         {"grid", "parallel.pipeline"},
                                         {"sequence length", "data.seq_length"}};
    for (size_t k = 0; k < sizeof key / sizeof key[0]; k++) tess_error_at(status, key[k][0], key[k][1]);
    return status;
}

tess_status tess_run_open(const tess_config *c, int rank, tess_run *r)
{
    *r = (tess_run){.c = c,
                    .rank = rank,
                    .length = c->data.seq_length,
                    .batch = c->train_batch_size,
                    .micro = c->train_batch_size / c->train_micro_batch_size_per_gpu,
                    .micro_batch = c->train_micro_batch_size_per_gpu};
    r->evaluated = tess_ranks() / (c->parallel.tensor * c->parallel.pipeline);
    TESS_TRY(tess_config_require(c, "model"));
    TESS_TRY(tess_model_open(c->model, c->model_json, &r->model));
    TESS_TRY(open_tokenizer(r));
    tess_grid grid = {.rank = rank,
                      .tensor = (int)c->parallel.tensor,
                      .pipeline = (int)c->parallel.pipeline,
                      .interleave = (int)c->parallel.interleave,
                      .data = tess_ranks() / (int)(c->parallel.tensor * c->parallel.pipeline),
                      .stage = (int)c->zero_optimization.stage,
                      .persist = c->zero_optimization.stage3_param_persistence_threshold,
                      .live = c->zero_optimization.stage3_max_live_parameters,
                      .reuse = c->zero_optimization.stage3_max_reuse_distance};
    tess_graph_conf conf = {.dtype = c->bf16.enabled ? TESS_BF16 : TESS_F32, .grid = grid};
    if (tess_gpus() > 0) { /* what keeps a core busy for a second a GPU does before the next task is on its way */
        conf.tile_rows = 8192;
        conf.tile_elements = 48 << 20;
        conf.loss_rows = 2048;
    }
    r->g = tess_graph_new(&conf);
    return at_key(tess_model_build(r->model, r->g, r->micro_batch, r->length, TESS_FOR_LOSS, &r->net));
}

void tess_run_close(tess_run *r)
{
    tess_graph_free(r->g);
    tess_tokenizer_free(r->tokenizer);
    tess_model_close(r->model);
    *r = (tess_run){0};
}

tess_status tess_run_data(const tess_run *r, const char *key, const char *path, bool shuffle, tess_data **data)
{
    TESS_TRY(tess_config_require(r->c, key));
    char where[512];
    snprintf(where, sizeof where, "%.300s: %s", r->c->file, key);
    tess_data_conf conf = {.seq_length = r->length,
                           .vocab = tess_model_vocab(r->model),
                           .shuffle = shuffle,
                           .seed = (uint64_t)r->c->seed,
                           .key = where};
    TESS_TRY(tess_data_open(path, r->tokenizer, &conf, data));
    if (shuffle || strcmp(key, "data.valid") || tess_data_sources(*data) == 1) return TESS_OK;
    return tess_error(TESS_INVALID, where,
                      "has weights, but its loss is the mean over all of its samples (list paths alone)");
}

static tess_step_conf step_conf(const tess_run *r)
{
    const tess_config *c = r->c;
    return (tess_step_conf){
        .train = true,
        .micro = r->micro,
        .deterministic = c->deterministic,
        .recompute_every = c->activation_checkpointing.enabled ? (int)c->activation_checkpointing.every : 0,
        .optimizer = {.beta1 = c->optimizer.params.betas[0],
                      .beta2 = c->optimizer.params.betas[1],
                      .eps = c->optimizer.params.eps,
                      .weight_decay = c->optimizer.params.weight_decay,
                      .l2 = c->optimizer.type == TESS_OPTIMIZER_ADAM && !c->optimizer.params.adam_w_mode,
                      .no_decay_1d = c->optimizer.params.no_decay_1d,
                      .clip = c->gradient_clipping}};
}

tess_status tess_run_step(const tess_run *r, tess_step **step)
{
    const tess_step_conf conf = step_conf(r);
    return at_key(tess_step_new(r->net.output, &conf, step));
}

/* The share of the optimizer's states that may live on the GPU. */
static double states_on_gpu(const tess_config *c)
{
    const tess_offload device = c->zero_optimization.offload_optimizer.device;
    if (device == TESS_OFFLOAD_CPU) return 1 - c->zero_optimization.offload_optimizer.ratio;
    return device == TESS_OFFLOAD_DISK ? 0 : 1;
}

/* What of a GPU's memory tiles may have, for a step that nothing was placed for yet; none without a plan. */
static tess_gpu_conf gpu_conf(const tess_run *r)
{
    const uint64_t cap = r->c->memory.gpu > 0 ? (uint64_t)r->c->memory.gpu : 0;
    return (tess_gpu_conf){.memory = r->c->memory.gpu_plan ? tess_gpu_tiles(cap) : 0,
                           .all = true,
                           .messages = r->messages_on_gpu,
                           .states = states_on_gpu(r->c)};
}

static tess_status too_little_gpu(const tess_run *r, uint64_t needed)
{
    const uint64_t cap = r->c->memory.gpu > 0 ? (uint64_t)r->c->memory.gpu : 0;
    return tess_error(TESS_INVALID, "memory.gpu", "%s, which is too little for any step of this run (%lluMiB would do)",
                      tess_human_bytes((double)tess_gpu_bytes(cap)),
                      (unsigned long long)(tess_gpu_cap(needed) / MiB + 1));
}

tess_status tess_run_place_gpu(const tess_run *r, tess_step *step, tess_gpu_placement *out)
{
    const tess_gpu_conf conf = gpu_conf(r);
    *out = (tess_gpu_placement){0};
    if (!conf.memory) return TESS_OK;
    const tess_status status = tess_step_place_gpu(step, &conf, out);
    return status == TESS_INVALID ? too_little_gpu(r, out->needed) : status;
}

/* Where the disk tier is: ours or one of DeepSpeed's names for it, which do not contradict each other; NULL: there is
 * none. */
static const char *disk_path(const tess_config *c)
{
    const char *path = c->memory.path;
    if (!path && c->zero_optimization.offload_optimizer.device == TESS_OFFLOAD_DISK)
        path = c->zero_optimization.offload_optimizer.nvme_path;
    if (!path && c->zero_optimization.offload_param.device == TESS_OFFLOAD_DISK)
        path = c->zero_optimization.offload_param.nvme_path;
    return path;
}

/* The roles that a device says must rest on disk, and those that it says must not. */
static void pin(tess_place_conf *conf, tess_offload device, unsigned roles)
{
    if (device == TESS_OFFLOAD_DISK) conf->away |= roles;
    if (device == TESS_OFFLOAD_NONE || device == TESS_OFFLOAD_CPU) conf->stay |= roles;
}

/* What DeepSpeed's keys say of where tiles live. offload_param acts in stage 3 alone, as there. */
static void read_offload(const tess_config *c, tess_place_conf *conf)
{
    const unsigned states = 1u << TESS_ROLE_MASTER | 1u << TESS_ROLE_MOMENT, weights = 1u << TESS_ROLE_WEIGHT;
    const uint64_t size = tess_dtype_size(c->bf16.enabled ? TESS_BF16 : TESS_F32);
    bool params = c->zero_optimization.stage == 3;
    pin(conf, c->zero_optimization.offload_optimizer.device, states);
    pin(conf, params ? c->zero_optimization.offload_param.device : TESS_OFFLOAD_AUTO, weights);
    pin(conf, c->activation_checkpointing.offload, 1u << TESS_ROLE_ACTIVATION);
    if (params) conf->weights_in_ram = (uint64_t)c->zero_optimization.offload_param.max_in_cpu * size;
    int64_t buffers = c->zero_optimization.offload_param.buffer_count,
            tiles = c->zero_optimization.offload_optimizer.buffer_count;
    if (params && buffers != TESS_CONFIG_AUTO)
        conf->slack = (uint64_t)(buffers * c->zero_optimization.offload_param.buffer_size) * size;
    if (tiles != TESS_CONFIG_AUTO) conf->slack_states = (uint64_t)tiles;
}

static tess_status no_directory(const tess_config *c)
{
    const char *key = c->zero_optimization.offload_optimizer.device == TESS_OFFLOAD_DISK
                          ? "zero_optimization.offload_optimizer.device"
                      : c->zero_optimization.offload_param.device == TESS_OFFLOAD_DISK
                          ? "zero_optimization.offload_param.device"
                          : "activation_checkpointing.offload";
    char where[512];
    snprintf(where, sizeof where, "%s: %s", c->file ? c->file : "configuration", key);
    return tess_error(TESS_INVALID, where,
                      "puts tiles on disk, but no directory for them is named (set memory.path, or the nvme_path "
                      "beside the device)");
}

uint64_t tess_run_cap(uint64_t bytes)
{
    return (bytes / MiB + 1) * MiB;
}

/* What of the evaluation's tiles stays in RAM beside a step that trains. */
static tess_status eval_bytes(const tess_run *r, uint64_t *bytes)
{
    tess_step *step;
    tess_plan plan;
    *bytes = 0;
    if (!r->c->data.valid) return TESS_OK;
    TESS_TRY(tess_step_new(r->net.output, &(tess_step_conf){.micro = r->evaluated}, &step));
    tess_step_plan(step, &plan);
    *bytes = tess_plan_fixed(&plan, r->conf.workers);
    tess_step_free(step);
    return TESS_OK;
}

/* The step in the way that suits its rooms best, whose RAM is as conf says; *guess: where RAM is too little, what may
 * do, else 0. */
static tess_status lay_out(tess_run *r, const tess_place_conf *conf, tess_step **step, uint64_t *guess)
{
    const tess_step_conf of = step_conf(r);
    const tess_rooms rooms = {.gpu = gpu_conf(r), .ram = *conf};
    tess_layout layout;
    const tess_status status = at_key(tess_step_lay_out(r->net.output, &of, &rooms, step, &layout));
    const bool lacks = status == TESS_INVALID;
    *guess = lacks && layout.lacks == TESS_TIER_CPU ? layout.ram.needed : 0;
    if (lacks && layout.lacks == TESS_TIER_GPU && layout.gpu.needed) return too_little_gpu(r, layout.gpu.needed);
    if (status != TESS_OK) return status;
    r->place = layout.ram;
    r->gpu = layout.gpu;
    r->by_layer = layout.by_layer;
    r->late = layout.late;
    return TESS_OK;
}

uint64_t tess_run_cpu_cap(const tess_config *c, const char **where)
{
    const uint64_t limit = tess_cpu_limit(where), ours = c->memory.cpu > 0 ? (uint64_t)c->memory.cpu : 0;
    if (limit && (!ours || limit < ours)) return limit;
    *where = "memory.cpu";
    return ours;
}

/* RAM that an evaluation beside the step just placed would need, if it has too little; 0: it has enough. */
static uint64_t eval_lacks(tess_run *r, const tess_place_conf *conf)
{
    tess_place_conf beside = *conf;
    tess_placement placement = {0};
    tess_step *step = NULL;
    if (!r->c->data.valid) return 0;
    beside.slack = beside.slack_states = 0;
    beside.taken = r->place.fixed - r->beside;
    tess_status status = tess_step_new(r->net.output, &(tess_step_conf){.micro = r->evaluated}, &step);
    if (status == TESS_OK) status = tess_step_place(step, &beside, &placement);
    tess_step_free(step);
    int64_t needed = status == TESS_OK ? 0 : (int64_t)placement.needed;
    tess_ranks_most(&needed, 1);
    return (uint64_t)needed;
}

/* The least RAM that would do, from a guess that may be too small; 0: none is found. What a placement asks for may lack
 * something else, so it is tried. */
static uint64_t find_least(tess_run *r, const tess_place_conf *conf, uint64_t guess)
{
    tess_place_conf tried = *conf;
    tess_step *step = NULL;
    tried.rates = (tess_rates){0};
    tried.ram = 0;
    while (guess > tried.ram) {
        tried.ram = guess;
        const tess_status status = lay_out(r, &tried, &step, &guess);
        tess_step_free(step);
        if (status == TESS_OK && !(guess = eval_lacks(r, &tried))) return tried.ram;
    }
    return 0;
}

uint64_t tess_run_least(tess_run *r)
{
    if (eval_bytes(r, &r->beside) != TESS_OK) return 0;
    r->conf.taken = r->beside;
    const uint64_t least = find_least(r, &r->conf, 1);
    return least ? tess_run_cap(least) : 0;
}

/* Names the cap that would do. */
static tess_status too_little_ram(tess_run *r, const tess_place_conf *conf, uint64_t guess)
{
    const uint64_t least = find_least(r, conf, guess);
    char would[64] = "";
    const char *name;
    tess_run_cpu_cap(r->c, &name);
    if (least) snprintf(would, sizeof would, " (%lluMiB would do)", (unsigned long long)(tess_run_cap(least) / MiB));
    return tess_error(TESS_INVALID, name, "%s, which is too little for any step of this run%s",
                      tess_human_bytes((double)r->ram), would);
}

tess_status tess_run_tiers(tess_run *r, const char *made)
{
    const tess_config *c = r->c;
    const uint64_t ram = tess_ram_free();
    r->messages_on_gpu = tess_messages_can_gpu() && c->parallel.nccl;
    r->disk = disk_path(c);
    r->conf = (tess_place_conf){.workers = tess_cores(), .worker_bytes = tess_mm_bytes(2) - tess_mm_bytes(1)};
    read_offload(c, &r->conf);
    if (!r->disk && r->conf.away) return no_directory(c);
    const char *name;
    r->ram = tess_run_cpu_cap(c, &name);
    if (c->memory.cpu > 0 && r->ram < (uint64_t)c->memory.cpu)
        tess_note("%s, %s, is less than memory.cpu, and is the cap", name, tess_human_bytes((double)r->ram));
    if (!r->disk) return TESS_OK;
    if (!r->ram) r->ram = ram - ram / 8;
    r->conf.ram = r->ram;
    TESS_TRY(tess_disk_check(r->disk, made));
    return tess_run_rates(r, &r->conf.rates);
}

/* The disk tier's size; none where nothing rests there. */
static tess_status size_disk(tess_run *r)
{
    const tess_config *c = r->c;
    uint64_t room = (r->place.disk + r->place.disk / 16) / MiB * MiB + 64 * MiB;
    if (c->memory.disk > 0 && (uint64_t)c->memory.disk < room)
        return tess_error(TESS_INVALID, "memory.disk",
                          "%s, but the run needs %lluMiB there (memory.disk=%lluMiB would do)",
                          tess_human_bytes((double)c->memory.disk), (unsigned long long)(room / MiB),
                          (unsigned long long)(room / MiB));
    r->disk_bytes = c->memory.disk > 0 ? (uint64_t)c->memory.disk : room;
    if (r->place.disk == 0) r->disk = NULL;
    return TESS_OK;
}

/* With ranks, room for what the list of tasks holds at a time and what is gathered ahead of it; else no bound. */
static uint64_t ahead(const tess_run *r, const tess_plan *plan)
{
    if (tess_ranks() == 1) return 0;
    uint64_t flows = plan->peak_ram - plan->resident[TESS_ROLE_INPUT] - plan->resident[TESS_ROLE_SCALAR] -
                     plan->resident[TESS_ROLE_SCRATCH];
    return flows + (uint64_t)r->c->zero_optimization.stage3_prefetch_bucket_size *
                       tess_dtype_size(r->c->bf16.enabled ? TESS_BF16 : TESS_F32);
}

/* A step whose tiles all live in RAM, or on the GPU. Under a cap the rest of it is room for those that come and go: no
 * less than the plan says, so that a task in its turn never lacks any. Beside several GPUs StarPU keeps the cap. */
static tess_status fit(tess_run *r, const tess_step *step, bool train)
{
    tess_plan plan;
    uint64_t beside = 0;
    tess_step_plan(step, &plan);
    if (train) TESS_TRY(eval_bytes(r, &beside));
    r->beside = beside;
    TESS_TRY(tess_run_fits(r, train, &plan, beside));
    r->place.room = r->ram && (r->gpu.room || !tess_gpus()) ? r->ram - tess_plan_fixed(&plan, r->conf.workers) - beside
                                                            : ahead(r, &plan);
    return TESS_OK;
}

tess_status tess_run_train_step(tess_run *r, tess_step **step)
{
    uint64_t guess;
    if (!r->disk) {
        TESS_TRY(lay_out(r, &(tess_place_conf){0}, step, &guess));
        return fit(r, *step, true);
    }
    TESS_TRY(eval_bytes(r, &r->beside));
    r->conf.taken = r->beside;
    const tess_status status = lay_out(r, &r->conf, step, &guess);
    if (status != TESS_OK) return guess ? too_little_ram(r, &r->conf, guess) : status;
    return size_disk(r);
}

tess_status tess_run_eval_step(tess_run *r, bool alone, tess_step **step)
{
    TESS_TRY(at_key(tess_step_new(r->net.output, &(tess_step_conf){.micro = r->evaluated}, step)));
    if (alone) TESS_TRY(tess_run_place_gpu(r, *step, &r->gpu));
    tess_gpu_placement gpu;
    const tess_gpu_conf beside = {.memory = r->gpu.room}; /* what has no room even so makes some */
    const tess_status fits = !alone && r->gpu.room ? tess_step_place_gpu(*step, &beside, &gpu) : TESS_OK;
    if (fits != TESS_OK && fits != TESS_INVALID) return fits;
    if (!r->disk) return alone && r->ram ? fit(r, *step, false) : TESS_OK;
    tess_placement placement;
    tess_place_conf conf = r->conf;
    conf.alone = alone;
    conf.taken = alone ? 0 : r->place.fixed - r->beside; /* the training step's */
    conf.slack = conf.slack_states = 0;
    TESS_TRY(at_key(tess_step_place(*step, &conf, &placement)));
    if (!alone) {
        r->disk_bytes += placement.disk; /* of its own tiles */
        return TESS_OK;
    }
    r->place = placement;
    return size_disk(r);
}

tess_status tess_run_start(const tess_run *r, bool profile)
{
    int64_t block = r->c->aio.block_size, depth = r->c->aio.queue_depth;
    return at_key(tess_start(&(tess_machine){.cpu_bytes = r->ram,
                                             .cpu_tiles = r->place.room,
                                             .gpu_bytes = r->c->memory.gpu > 0 ? (uint64_t)r->c->memory.gpu : 0,
                                             .gpu_tiles = r->gpu.room,
                                             .gpu_states = r->gpu.states,
                                             .by_mpi = !r->c->parallel.nccl,
                                             .profile = profile,
                                             .disk = r->disk,
                                             .disk_bytes = r->disk_bytes,
                                             .disk_checksum = r->c->memory.checksum,
                                             .disk_block = block == TESS_CONFIG_AUTO ? 0 : (uint64_t)block,
                                             .disk_depth = depth == TESS_CONFIG_AUTO ? 0 : (unsigned)depth}));
}

/* Samples [first, first + n) of the data to a step whose micro-batches take `room` of them on all ranks together: to
 * this rank its own, and of what lies beyond the n-th targets that count for nothing. */
static tess_status feed(const tess_run *r, tess_step *step, const tess_data *data, uint64_t first, int64_t n)
{
    int64_t T = r->length, micro, micros;
    tess_step_share(step, &micro, &micros);
    int64_t begin = micro * r->micro_batch, room = micros * r->micro_batch;
    int32_t *ids = tess_alloc((size_t)(2 * room * T) * sizeof *ids), *targets = ids + room * T;
    tess_status status = TESS_OK;
    for (int64_t i = 0; i < room && status == TESS_OK; i++)
        if (begin + i < n)
            status =
                tess_data_get(data, tess_data_order(data, first + (uint64_t)(begin + i)), ids + i * T, targets + i * T);
        else
            for (int64_t t = 0; t < T; t++) targets[i * T + t] = -100;
    if (status == TESS_OK) status = tess_step_feed(step, r->net.ids, ids);
    if (status == TESS_OK) status = tess_step_feed(step, r->net.targets, targets);
    free(ids);
    return status;
}

tess_status tess_run_feed(const tess_run *r, tess_step *step, const tess_data *data, uint64_t first)
{
    return feed(r, step, data, first, r->batch);
}

tess_status tess_run_evaluate(const tess_run *r, tess_step *step, const tess_data *data, double *loss)
{
    double sum = 0, targets = 0;
    uint64_t samples = tess_data_samples(data), batch = (uint64_t)(r->micro_batch * r->evaluated);
    for (uint64_t at = 0; at < samples; at += batch) {
        int64_t n = (int64_t)(samples - at < batch ? samples - at : batch);
        tess_step_result result;
        TESS_TRY(tess_ranks_agree(feed(r, step, data, at, n)));
        TESS_TRY(tess_step_run(step, &(tess_step_input){0}, &result));
        sum += result.loss * (double)result.targets;
        targets += (double)result.targets;
    }
    *loss = sum / targets;
    return TESS_OK;
}
