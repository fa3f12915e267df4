/* any_loss: by one thread; on the CPU, a step's end would wait for it. */
#include "codelets/generic.h"
#include "codelets/shared/kernels.h"

TESS_KERNEL(WARP)
any_loss_kernel(const float *x, const float *beside, double *sum, float *dx, int64_t numbers, float scale)
{
    if (threadIdx.x > 0) return;
    for (int64_t k = 0; k <= numbers; k++) {
        sum[2 * k] = (double)(k ? beside[k - 1] : x[0]);
        sum[2 * k + 1] = 1;
    }
    if (dx) *dx = scale;
}
template <tess_dtype T> static void any_loss_body(const tess_work *w)
{
    const tess_any_loss_arg *a = arg_of(w);
    const int out = a->numbers > 0 ? 2 : 1;
    launch(w, any_loss_kernel, 1, WARP, 0, buffer(w, 0), buffer(w, a->numbers > 0 ? 1 : 0), buffer(w, out),
           a->gradient ? (float *)w->buf[out + 1].ptr : NULL, a->numbers, a->gradient ? w->env->loss_scale[0] : 0);
}
TESS_CUDA_BODY(any_loss, any_loss_f32, TESS_F32)
