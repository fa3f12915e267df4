/* The configuration in the terms of the rooms below, and what they say in terms of the configuration. */
#include "run.h"

tess_dtype tess_run_dtype(const tess_config *c)
{
    return c->bf16.enabled ? TESS_BF16 : c->fp16.enabled ? TESS_F16 : TESS_F32;
}

const char *tess_run_dtype_name(const tess_config *c)
{
    static const char *const name[] = {[TESS_F32] = "fp32", [TESS_BF16] = "bf16", [TESS_F16] = "fp16"};
    return name[tess_run_dtype(c)];
}

tess_dtype tess_yardstick_for(tess_dtype t)
{
    return t == TESS_F16 ? tess_gpus() > 0 ? TESS_BF16 : TESS_F32 : t;
}

tess_dtype tess_run_yardstick(const tess_config *c)
{
    return tess_yardstick_for(tess_run_dtype(c));
}

tess_optimizer tess_run_optimizer(const tess_config *c)
{
    static const tess_keeping keeping[] = {
        [TESS_STATES_FP32] = TESS_KEEP_F32, [TESS_STATES_BF16] = TESS_KEEP_BF16, [TESS_STATES_8BIT] = TESS_KEEP_INT8};
    return (tess_optimizer){.type = (tess_optimizer_type)c->optimizer.type,
                            .beta1 = c->optimizer.params.betas[0],
                            .beta2 = c->optimizer.params.betas[1],
                            .eps = c->optimizer.params.eps,
                            .weight_decay = c->optimizer.params.weight_decay,
                            .l2 = c->optimizer.type == TESS_OPTIMIZER_ADAM && !c->optimizer.params.adam_w_mode,
                            .no_decay_1d = c->optimizer.params.no_decay_1d,
                            .clip = c->gradient_clipping,
                            .momentum = c->optimizer.params.momentum,
                            .dampening = c->optimizer.params.dampening,
                            .nesterov = c->optimizer.params.nesterov,
                            .lr_decay = c->optimizer.params.lr_decay,
                            .initial = c->optimizer.params.initial_accumulator_value,
                            .keeping = keeping[c->optimizer_states]};
}

tess_status tess_run_at_key(tess_status status)
{
    static const char *const key[][2] = {{"RAM", "memory.cpu"},
                                         {"GPU", "memory.gpu"},
                                         {"grid", "parallel.pipeline"},
                                         {"carrier", "parallel.carrier"},
                                         {"optimizer", "optimizer.params"},
                                         {"moments", "optimizer_states"},
                                         {"sequence length", "data.seq_length"}};
    for (size_t k = 0; k < sizeof key / sizeof key[0]; k++) tess_error_at(status, key[k][0], key[k][1]);
    return status;
}
