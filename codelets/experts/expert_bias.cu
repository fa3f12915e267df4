/* expert_bias: a block a place; back, a block for some columns of an expert. */
#include "codelets/experts/order_impl.h"
#include "codelets/shared/kernels.h"

constexpr int THREADS = 256;

template <tess_dtype T>
TESS_KERNEL(THREADS)
forward_kernel(tess_expert_bias_arg a, const void *x, const void *bias, tess_order o, void *y)
{
    const int64_t p = blockIdx.x, e = p < o.offset[a.experts] ? o.expert[o.choice[p]] - a.first : -1;
    const bool clears = p >= o.offset[a.experts] && a.first == 0;
    if (!clears && (e < 0 || e >= a.some)) return;
    for (int64_t i = threadIdx.x; i < a.width; i += THREADS)
        put_at<T>(y, p * a.width + i,
                  clears ? 0 : value_at<T>(x, p * a.width + i) + value_at<T>(bias, e * a.width + i));
}

template <tess_dtype T>
TESS_KERNEL(THREADS)
backward_kernel(tess_expert_bias_arg a, const void *dy, tess_order o, float *dbias)
{
    const int64_t across = (a.width + THREADS - 1) / THREADS, e = blockIdx.x / across;
    const int64_t i = blockIdx.x % across * THREADS + threadIdx.x;
    float sum = 0;
    if (i >= a.width) return;
    for (int64_t p = o.offset[a.first + e]; p < o.offset[a.first + e + 1]; p++) sum += value_at<T>(dy, p * a.width + i);
    dbias[e * a.width + i] = (a.acc ? dbias[e * a.width + i] : 0) + sum;
}

template <tess_dtype T> static void expert_bias_forward_body(const tess_work *w)
{
    const tess_expert_bias_arg *a = arg_of(w);
    launch(w, forward_kernel<T>, a->choices, THREADS, 0, *a, buffer(w, 0), buffer(w, 1),
           tess_order_at(w->buf[2].ptr, a->experts, a->choices), w->buf[3].ptr);
}
template <tess_dtype T> static void expert_bias_backward_body(const tess_work *w)
{
    const tess_expert_bias_arg *a = arg_of(w);
    launch(w, backward_kernel<T>, a->some * blocks_of(a->width, THREADS), THREADS, 0, *a, buffer(w, 0),
           tess_order_at(w->buf[1].ptr, a->experts, a->choices), buffer(w, 2));
}
TESS_CUDA_REAL(expert_bias_forward)
TESS_CUDA_REAL(expert_bias_backward)
