/* sinks: a block a row; back, a block a head, which goes over all rows. */
#include "codelets/shared/kernels.h"

constexpr int THREADS = 256;

template <tess_dtype T> TESS_KERNEL(THREADS) forward_kernel(tess_sinks_arg a, const float *sinks, void *y, float *lse)
{
    const int64_t row = (int64_t)blockIdx.x * a.heads;
    for (int64_t i = threadIdx.x; i < a.heads * a.dim; i += THREADS) {
        const int64_t at = row * a.dim + i, head = i / a.dim;
        put_at<T>(y, at, value_at<T>(y, at) / (1 + expf(sinks[a.head0 + head] - lse[row + head])));
    }
    __syncthreads();
    for (int64_t head = threadIdx.x; head < a.heads; head += THREADS) {
        const float s = sinks[a.head0 + head], l = lse[row + head];
        lse[row + head] = fmaxf(l, s) + log1pf(expf(-fabsf(l - s)));
    }
}

template <tess_dtype T>
TESS_KERNEL(THREADS)
backward_kernel(tess_sinks_arg a, const void *dy, const void *y, const float *lse, const float *sinks, float *dsinks)
{
    TESS_SHARED(float, room, [THREADS / WARP]);
    const int64_t h = blockIdx.x, head = h - a.head0;
    const bool here = head >= 0 && head < a.heads;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < a.rows * a.dim && here; i += THREADS) {
        const int64_t row = i / a.dim * a.heads + head, at = row * a.dim + i % a.dim;
        sum -= expf(sinks[h] - lse[row]) * value_at<T>(dy, at) * value_at<T>(y, at);
    }
    sum = block_sum<THREADS>(sum, room);
    if (threadIdx.x == 0) dsinks[h] = (a.acc ? dsinks[h] : 0) + sum;
}

template <tess_dtype T> static void sinks_forward_body(const tess_work *w)
{
    const tess_sinks_arg *a = arg_of(w);
    launch(w, forward_kernel<T>, a->rows, THREADS, 0, *a, buffer(w, 0), w->buf[1].ptr, buffer(w, 2));
}
template <tess_dtype T> static void sinks_backward_body(const tess_work *w)
{
    const tess_sinks_arg *a = arg_of(w);
    launch(w, backward_kernel<T>, a->all, THREADS, 0, *a, buffer(w, 0), buffer(w, 1), buffer(w, 2), buffer(w, 3),
           buffer(w, 4));
}
TESS_CUDA_REAL(sinks_forward)
TESS_CUDA_REAL(sinks_backward)
