/* Setting up a run from a configuration. */
#include "run_impl.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tess_status open_tokenizer(tess_run *r)
{
    if (!tess_model_dir(r->model)) return TESS_OK;
    char *path = tess_format("%s/tokenizer.json", tess_model_dir(r->model));
    tess_status status = access(path, F_OK) ? TESS_OK : tess_tokenizer_open(path, &r->tokenizer);
    free(path);
    return status;
}

tess_status tess_run_open(const tess_config *c, tess_run *r)
{
    *r = (tess_run){.c = c,
                    .length = c->data.seq_length,
                    .batch = c->train_batch_size,
                    .micro = c->gradient_accumulation_steps,
                    .micro_batch = c->train_micro_batch_size_per_gpu};
    TESS_TRY(tess_config_require(c, "model"));
    TESS_TRY(tess_model_open(c->model, c->model_json, &r->model));
    TESS_TRY(open_tokenizer(r));
    r->g = tess_graph_new(&(tess_graph_conf){.dtype = c->bf16.enabled ? TESS_BF16 : TESS_F32});
    return tess_model_build(r->model, r->g, r->micro_batch, r->length, TESS_FOR_LOSS, &r->net);
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
    tess_data_conf conf = {
        .seq_length = r->length, .vocab = tess_model_vocab(r->model), .shuffle = shuffle, .seed = (uint64_t)r->c->seed};
    return tess_data_open(path, r->tokenizer, &conf, data);
}

tess_status tess_run_train_step(const tess_run *r, tess_step **step)
{
    const tess_config *c = r->c;
    tess_step_conf conf = {
        .train = true,
        .micro = r->micro,
        .recompute_every = c->activation_checkpointing.enabled ? (int)c->activation_checkpointing.every : 0,
        .optimizer = {.beta1 = c->optimizer.params.betas[0],
                      .beta2 = c->optimizer.params.betas[1],
                      .eps = c->optimizer.params.eps,
                      .weight_decay = c->optimizer.params.weight_decay,
                      .l2 = c->optimizer.type == TESS_OPTIMIZER_ADAM && !c->optimizer.params.adam_w_mode,
                      .no_decay_1d = c->optimizer.params.no_decay_1d,
                      .clip = c->gradient_clipping}};
    return tess_step_new(r->net.output, &conf, step);
}

tess_status tess_run_eval_step(const tess_run *r, tess_step **step)
{
    return tess_step_new(r->net.output, &(tess_step_conf){.micro = 1}, step);
}

/* Where the disk tier is: ours or DeepSpeed's name for it; NULL: there is none. */
static const char *disk_path(const tess_config *c)
{
    if (c->memory.path) return c->memory.path;
    if (c->zero_optimization.offload_optimizer.device == TESS_OFFLOAD_DISK)
        return c->zero_optimization.offload_optimizer.nvme_path;
    return c->zero_optimization.offload_param.device == TESS_OFFLOAD_DISK ? c->zero_optimization.offload_param.nvme_path
                                                                          : NULL;
}

static unsigned away(const tess_config *c)
{
    unsigned roles = 0;
    if (c->zero_optimization.offload_optimizer.device == TESS_OFFLOAD_DISK)
        roles |= 1u << TESS_ROLE_MASTER | 1u << TESS_ROLE_MOMENT;
    if (c->zero_optimization.offload_param.device == TESS_OFFLOAD_DISK) roles |= 1u << TESS_ROLE_WEIGHT;
    return roles;
}

tess_status tess_run_place(tess_run *r, tess_step *step)
{
    tess_hardware h;
    tess_plan plan;
    const tess_config *c = r->c;
    tess_hardware_read(&h);
    tess_step_plan(step, &plan);
    r->disk = disk_path(c);
    if (!r->disk && away(c))
        return tess_error(TESS_INVALID, c->file ? c->file : "configuration",
                          "device nvme, but no directory for it (set "
                          "memory.path or the nvme_path beside the device)");
    if (!r->disk) return tess_run_fits(c, &plan);
    r->ram = c->memory.cpu > 0 ? (uint64_t)c->memory.cpu : h.ram_free_bytes - h.ram_free_bytes / 8;
    /* A part of the cap is for what tiles take beyond their bytes: whole pages, spare buffers. */
    tess_place_conf conf = {.ram = r->ram - r->ram / 32, .workers = h.cores, .away = away(c)};
    TESS_TRY(tess_step_place(step, &conf, &r->place));
    uint64_t room = r->place.disk + r->place.disk / 16 + (64 << 20);
    if (c->memory.disk > 0 && (uint64_t)c->memory.disk < room)
        return tess_error(TESS_INVALID, "memory.disk", "%s, but %s will be on disk",
                          tess_human_bytes((double)c->memory.disk), tess_human_bytes((double)room));
    r->disk_bytes = c->memory.disk > 0 ? (uint64_t)c->memory.disk : room;
    if (r->place.disk == 0) r->disk = NULL;
    return TESS_OK;
}

tess_status tess_run_start(const tess_run *r, bool profile)
{
    uint64_t cap = r->disk ? r->ram : r->c->memory.cpu > 0 ? (uint64_t)r->c->memory.cpu : 0;
    tess_flow_room(r->disk ? r->place.room : 0);
    return tess_start(&(tess_machine){.cpu_bytes = cap,
                                      .profile = profile,
                                      .disk = r->disk,
                                      .disk_bytes = r->disk_bytes,
                                      .disk_checksum = r->c->memory.checksum});
}

/* Samples [first, first + n) into the inputs of `step`, which takes `room` of them; the rest counts for nothing. */
static tess_status feed(const tess_run *r, tess_step *step, const tess_data *data, uint64_t first, int64_t n,
                        int64_t room)
{
    int64_t T = r->length;
    int32_t *ids = tess_alloc((size_t)(2 * room * T) * sizeof *ids), *targets = ids + room * T;
    tess_status status = TESS_OK;
    for (int64_t i = 0; i < n && status == TESS_OK; i++)
        status = tess_data_get(data, tess_data_order(data, first + (uint64_t)i), ids + i * T, targets + i * T);
    for (int64_t i = n * T; i < room * T; i++) targets[i] = -100;
    if (status == TESS_OK) status = tess_step_feed(step, r->net.ids, ids);
    if (status == TESS_OK) status = tess_step_feed(step, r->net.targets, targets);
    free(ids);
    return status;
}

tess_status tess_run_feed(const tess_run *r, tess_step *step, const tess_data *data, uint64_t first)
{
    return feed(r, step, data, first, r->batch, r->batch);
}

tess_status tess_run_evaluate(const tess_run *r, tess_step *step, const tess_data *data, double *loss)
{
    double sum = 0, targets = 0;
    uint64_t samples = tess_data_samples(data);
    for (uint64_t at = 0; at < samples; at += (uint64_t)r->micro_batch) {
        int64_t n = samples - at < (uint64_t)r->micro_batch ? (int64_t)(samples - at) : r->micro_batch;
        tess_step_result result;
        TESS_TRY(feed(r, step, data, at, n, r->micro_batch));
        TESS_TRY(tess_step_run(step, &(tess_step_input){0}, &result));
        sum += result.loss * (double)result.targets;
        targets += (double)result.targets;
    }
    *loss = sum / targets;
    return TESS_OK;
}
