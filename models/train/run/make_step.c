/* The step as the configuration asks for it, and its plan for a GPU, before RAM and disk come into it. */
#include "codelets/codelets.h"
#include "models/train/run/run.h"

enum { MiB = 1 << 20 };

tess_status tess_run_step(const tess_run *r, bool train, tess_step **step)
{
    const tess_step_conf conf = train ? r->conf : (tess_step_conf){.micro = r->evaluated};
    return tess_run_at_key(tess_step_new(train || !r->net.measured ? r->net.output : r->net.measured, &conf, step));
}

tess_status tess_run_too_little_gpu(const tess_run *r, uint64_t needed)
{
    const uint64_t need = tess_gpu_cap(needed), most = tess_gpu_tiles(0);
    if (needed > most) /* no cap would do */
        return tess_error(TESS_INVALID, "GPU",
                          "%s of its memory is free, a run gets %s, and any step of this run needs %s (%s)",
                          tess_human_bytes((double)tess_share_read()->gpu_bytes),
                          most > 1 ? tess_human_bytes((double)tess_gpu_cap(most)) : "too little for any task",
                          tess_human_bytes((double)need),
                          tess_gpu_limit() ? "raise STARPU_LIMIT_CUDA_MEM"
                                           : "end other programs on it, or lower train_micro_batch_size_per_gpu");
    return tess_error(TESS_INVALID, "memory.gpu",
                      "%s, which is too little for any step of this run (memory.gpu=%lluMiB would do)",
                      tess_human_bytes((double)tess_gpu_bytes(r->caps.gpu)), (unsigned long long)(need / MiB + 1));
}

tess_status tess_run_place_gpu(const tess_run *r, tess_step *step, tess_gpu_placement *out)
{
    const tess_gpu_conf conf = tess_run_gpu(r);
    *out = (tess_gpu_placement){0};
    if (!conf.memory) return TESS_OK;
    const tess_status status = tess_step_place_gpu(step, &conf, out);
    return status == TESS_INVALID ? tess_run_too_little_gpu(r, out->needed) : status;
}
