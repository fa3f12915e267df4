/* The step as the configuration asks for it, and its plan for a GPU, before RAM and disk come into it. */
#include "codelets.h"
#include "run_impl.h"

enum { MiB = 1 << 20 };

tess_dtype tess_run_dtype(const tess_config *c)
{
    return c->bf16.enabled ? TESS_BF16 : c->fp16.enabled ? TESS_F16 : TESS_F32;
}

const char *tess_run_dtype_name(const tess_config *c)
{
    static const char *const name[] = {[TESS_F32] = "fp32", [TESS_BF16] = "bf16", [TESS_F16] = "fp16"};
    return name[tess_run_dtype(c)];
}

tess_dtype tess_run_yardstick(const tess_config *c)
{
    const tess_dtype t = tess_run_dtype(c);
    return t == TESS_F16 ? tess_gpus() > 0 ? TESS_BF16 : TESS_F32 : t;
}

tess_optimizer tess_run_optimizer(const tess_config *c)
{
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
                            .initial = c->optimizer.params.initial_accumulator_value};
}

tess_step_conf tess_run_step_conf(const tess_run *r)
{
    const tess_config *c = r->c;
    return (tess_step_conf){.train = true,
                            .micro = r->micro,
                            .deterministic = c->deterministic,
                            .recompute_every =
                                c->activation_checkpointing.enabled ? (int)c->activation_checkpointing.every : 0,
                            .skips = c->fp16.enabled,
                            .optimizer = tess_run_optimizer(c)};
}

tess_status tess_run_step(const tess_run *r, bool train, tess_step **step)
{
    const tess_step_conf conf = train ? tess_run_step_conf(r) : (tess_step_conf){.micro = r->evaluated};
    return tess_run_at_key(tess_step_new(r->net.output, &conf, step));
}

tess_status tess_run_too_little_gpu(const tess_run *r, uint64_t needed)
{
    const uint64_t cap = r->c->memory.gpu > 0 ? (uint64_t)r->c->memory.gpu : 0;
    return tess_error(
        TESS_INVALID, "memory.gpu", "%s, which is too little for any step of this run (memory.gpu=%lluMiB would do)",
        tess_human_bytes((double)tess_gpu_bytes(cap)), (unsigned long long)(tess_gpu_cap(needed) / MiB + 1));
}

tess_status tess_run_place_gpu(const tess_run *r, tess_step *step, tess_gpu_placement *out)
{
    const tess_gpu_conf conf = tess_run_gpu(r);
    *out = (tess_gpu_placement){0};
    if (!conf.memory) return TESS_OK;
    const tess_status status = tess_step_place_gpu(step, &conf, out);
    return status == TESS_INVALID ? tess_run_too_little_gpu(r, out->needed) : status;
}
