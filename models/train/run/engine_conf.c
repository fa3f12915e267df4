/* The configuration in the terms of the rooms below, and what they say in terms of the configuration. */
#include "models/train/rates/yardstick.h"
#include "models/train/run/run.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tess_dtype tess_run_dtype(const tess_config *c)
{
    return c->bf16.enabled ? TESS_BF16 : c->fp16.enabled ? TESS_F16 : TESS_F32;
}

const char *tess_run_dtype_name(tess_dtype t)
{
    static const char *const name[] = {[TESS_F32] = "fp32", [TESS_BF16] = "bf16", [TESS_F16] = "fp16"};
    return name[t];
}

tess_dtype tess_yardstick_for(tess_dtype t)
{
    return t == TESS_F16 ? tess_gpus() > 0 ? TESS_BF16 : TESS_F32 : t;
}

/* Returns the optimizer that a configuration asks for. */
static tess_optimizer optimizer_of(const tess_config *c)
{
    static const tess_keeping keeping[] = {
        [TESS_STATES_FP32] = TESS_KEEP_F32, [TESS_STATES_BF16] = TESS_KEEP_BF16, [TESS_STATES_8BIT] = TESS_KEEP_INT8};
    const bool may_have_l2 = c->optimizer.type == TESS_OPTIMIZER_ADAM || c->optimizer.type == TESS_OPTIMIZER_MUON;
    return (tess_optimizer){.type = (tess_optimizer_type)c->optimizer.type,
                            .beta1 = c->optimizer.params.betas[0],
                            .beta2 = c->optimizer.params.betas[1],
                            .eps = c->optimizer.params.eps,
                            .weight_decay = c->optimizer.params.weight_decay,
                            .l2 = may_have_l2 && !c->optimizer.params.adam_w_mode,
                            .no_decay_1d = c->optimizer.params.no_decay_1d,
                            .clip = c->gradient_clipping,
                            .momentum = c->optimizer.params.momentum,
                            .dampening = c->optimizer.params.dampening,
                            .nesterov = c->optimizer.params.nesterov,
                            .lr_decay = c->optimizer.params.lr_decay,
                            .initial = c->optimizer.params.initial_accumulator_value,
                            .ns_steps = (int)c->optimizer.params.ns_steps,
                            .eps2 = c->optimizer.params.eps2,
                            .clip_threshold = c->optimizer.params.clip_threshold,
                            .decay_rate = c->optimizer.params.decay_rate,
                            .scale_parameter = c->optimizer.params.scale_parameter,
                            .relative_step = c->optimizer.params.relative_step,
                            .warmup_init = c->optimizer.params.warmup_init,
                            .match_rms = c->optimizer.params.adjust_lr_fn,
                            .keeping = keeping[c->optimizer_states],
                            .gradients = (tess_dtype)c->data_types.grad_accum_dtype};
}

static uint64_t at_least_none(int64_t bytes)
{
    return bytes > 0 ? (uint64_t)bytes : 0;
}

static tess_run_caps caps_of(const tess_config *c)
{
    tess_run_caps caps = {.cpu = at_least_none(c->memory.cpu),
                          .gpu = at_least_none(c->memory.gpu),
                          .disk = at_least_none(c->memory.disk),
                          .cpu_key = "memory.cpu",
                          .gpu_plan = c->memory.gpu_plan};
    const tess_offload states = c->zero_optimization.offload_optimizer.device;
    caps.states_on_gpu = states == TESS_OFFLOAD_CPU    ? 1 - c->zero_optimization.offload_optimizer.ratio
                         : states == TESS_OFFLOAD_DISK ? 0
                                                       : 1;
    const char *variable;
    const uint64_t limit = tess_cpu_limit(&variable);
    if (limit && (!caps.cpu || limit < caps.cpu)) caps.cpu = limit, caps.cpu_key = variable;
    return caps;
}

/* What is asked to be elsewhere is updated there, piece by piece. */
static uint64_t chains_of(const tess_run *r)
{
    return r->caps.states_on_gpu >= 1 && r->caps.gpu_plan ? tess_gpu_tiles(r->caps.gpu) : 0;
}

int64_t tess_run_tokens(const tess_run *r)
{
    return r->batch * r->sequences * r->length;
}

bool tess_run_refers(const tess_run *r)
{
    return r->c->preference.loss == TESS_PREFERENCE_DPO || tess_run_judged(r);
}

bool tess_run_judged(const tess_run *r)
{
    return r->c->preference.loss == TESS_PREFERENCE_KTO;
}

void tess_run_terms(const tess_config *c, int rank, tess_run *r)
{
    const int tensor = (int)c->parallel.tensor, pipeline = (int)c->parallel.pipeline,
              data = tess_ranks() / (tensor * pipeline), group = tess_config_group(c);
    *r = (tess_run){
        .c = c,
        .rank = rank,
        .grid = {.rank = rank,
                 .tensor = tensor,
                 .pipeline = pipeline,
                 .interleave = c->parallel.interleave == 1 && c->parallel.schedule == TESS_ZB_V && pipeline > 1
                                   ? 2
                                   : (int)c->parallel.interleave,
                 .blocks = c->parallel.blocks,
                 .schedule = (tess_schedule)c->parallel.schedule,
                 .data = data,
                 .sequence = (int)c->parallel.sequence,
                 .rows = tensor > 1 && c->activation_checkpointing.partition_activations,
                 .sent = (tess_dtype)c->communication_data_type,
                 .gradient_codes = c->zero_optimization.zero_quantized_gradients && data > 1,
                 .weight_codes = c->zero_optimization.zero_quantized_weights,
                 .stage = (int)c->zero_optimization.stage,
                 .states = c->parallel.state_shares,
                 .group = group,
                 .copies = c->zero_optimization.mics_shard_size <= 0 && group > 0 && group < data,
                 .persist = c->zero_optimization.stage3_param_persistence_threshold,
                 .live = c->zero_optimization.stage3_max_live_parameters,
                 .reuse = c->zero_optimization.stage3_max_reuse_distance},
        .dtype = tess_run_dtype(c),
        .caps = caps_of(c),
        .sequences = c->preference.loss && c->preference.loss != TESS_PREFERENCE_KTO ? 2 : 1,
        .length = c->data.seq_length,
        .batch = c->train_batch_size,
        .micro = c->train_batch_size / c->train_micro_batch_size_per_gpu,
        .micro_batch = c->train_micro_batch_size_per_gpu,
        .evaluated = tess_ranks() / (int)(tensor * pipeline * c->parallel.sequence),
    };
    r->evaluates = c->data.valid || tess_run_refers(r); /* so it begins */
    r->conf = (tess_step_conf){.train = true,
                               .micro = r->micro,
                               .shares = c->parallel.shares,
                               .deterministic = c->deterministic != TESS_DETERMINISTIC_NO,
                               .recompute_every =
                                   c->activation_checkpointing.enabled ? (int)c->activation_checkpointing.every : 0,
                               .inputs_alone = !c->activation_checkpointing.keep_more,
                               .skips = c->fp16.enabled || c->on_spike.skip > 0,
                               .chains = chains_of(r),
                               .local = {c->parallel.local_steps, c->parallel.outer_lr, c->parallel.outer_momentum},
                               .optimizer = optimizer_of(c)};
    tess_run_share_out(r, NULL);
}

tess_status tess_run_at_key(tess_status status)
{
    static const char *const key[][2] = {{"RAM", "memory.cpu"},
                                         {"GPU", "memory.gpu"},
                                         {"grid", "parallel.pipeline"},
                                         {"carrier", "parallel.carrier"},
                                         {"experts", "parallel.expert"},
                                         {"optimizer", "optimizer.params"},
                                         {"moments", "optimizer_states"},
                                         {"local steps", "parallel.local_steps"},
                                         {"shares", "parallel.shares"},
                                         {"states", "parallel.state_shares"},
                                         {"sequence length", "data.seq_length"}};
    for (size_t k = 0; k < sizeof key / sizeof key[0]; k++) tess_error_at(status, key[k][0], key[k][1]);
    return status;
}

/* ---- a path that is not there ---- */

/* The directory of a file, without links; NULL: it cannot be told. */
static char *directory_of(const char *file)
{
    char *path = realpath(file, NULL), *slash = path ? strrchr(path, '/') : NULL;
    if (slash) slash[slash == path] = 0;
    return path;
}

static bool is_there(const char *path)
{
    static const char *const with[] = {"", ".idx", ".bin"};
    bool there = false;
    for (size_t i = 0; i < sizeof with / sizeof *with && !there; i++) {
        TESS_FREED char *file = tess_format("%s%s", path, with[i]);
        there = access(file, F_OK) == 0;
    }
    return there;
}

tess_status tess_run_lost(const tess_config *c, const char *path, tess_status status)
{
    char here[PATH_MAX];
    if (status == TESS_OK || !path || strchr("/[", *path) || is_there(path) || !getcwd(here, sizeof here))
        return status;
    TESS_FREED char *lies = c->file ? directory_of(c->file) : NULL;
    const bool other = lies && strcmp(lies, here);
    char *text = tess_format("%s; looked in %s%s%s%s%s", tess_error_text(), here, other ? ", " : "",
                             other ? c->file : "", other ? " lies in " : "", other ? lies : "");
    tess_error_restore(text);
    free(text);
    return status;
}
