/* combine: a block a row sums its places by their weights; back, a block a choice. */
#include "codelets/experts/order_impl.h"
#include "codelets/shared/kernels.h"

constexpr int THREADS = 256;

template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
combine_kernel(const void *x, const void *weights, tess_order o, void *y, int64_t chosen, int64_t width)
{
    const int64_t r = blockIdx.x;
    const int32_t *place = o.place + r * chosen;
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        float sum[K] = {}, v[K];
        for (int64_t s = 0; s < chosen && place[s] >= 0; s++) {
            const float by = value_at<T>(weights, r * chosen + s);
            load<T, K>(v, x, place[s] * width + i);
            for (int k = 0; k < K; k++) sum[k] += by * v[k];
        }
        store<T, K>(y, r * width + i, sum);
    }
}
template <tess_dtype T> static void combine_forward_body(const tess_work *w)
{
    const tess_dispatch_arg *a = arg_of(w);
    const void *x = w->buf[0].ptr, *weights = w->buf[1].ptr;
    void *y = w->buf[3].ptr;
    const bool wide = a->width % WIDE == 0 && aligned(x, y);
    launch(w, wide ? combine_kernel<T, WIDE> : combine_kernel<T, 1>, a->rows, THREADS, 0, x, weights,
           TESS_ORDER_OF(w, 2, a), y, a->chosen, a->width);
}

/* Of choice i the gradients of its place and of its weight; of place i zeros, where no row has it. */
template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
combine_backward_kernel(const void *dy, const void *x, const void *weights, tess_order o, void *dx, void *dweights,
                        tess_dispatch_arg a)
{
    TESS_SHARED(float, room, [THREADS / WARP]);
    const int64_t c = blockIdx.x, from = c / a.chosen * a.width, place = o.place[c], to = place * a.width;
    const float by = value_at<T>(weights, c);
    float dot = 0;
    for (int64_t i = threadIdx.x * K; i < a.width; i += THREADS * K) {
        float d[K], v[K], zero[K] = {};
        if (c >= o.offset[a.experts] && !a.acc) store<T, K>(dx, c * a.width + i, zero);
        if (place < 0) continue;
        load<T, K>(d, dy, from + i);
        load<T, K>(v, x, to + i);
        for (int k = 0; k < K; k++) {
            dot += d[k] * v[k];
            d[k] *= by;
        }
        accumulate<T, K>(dx, to + i, a.acc, d);
    }
    dot = block_sum<THREADS>(dot, room);
    if (threadIdx.x == 0) add_at<T>(dweights, c, a.acc_weights, dot);
}
template <tess_dtype T> static void combine_backward_body(const tess_work *w)
{
    const tess_dispatch_arg *a = arg_of(w);
    const void *dy = w->buf[0].ptr, *x = w->buf[1].ptr, *weights = w->buf[2].ptr;
    void *dx = w->buf[4].ptr;
    const bool wide = a->width % WIDE == 0 && aligned(dy, x, dx);
    launch(w, wide ? combine_backward_kernel<T, WIDE> : combine_backward_kernel<T, 1>, a->rows * a->chosen, THREADS, 0,
           dy, x, weights, TESS_ORDER_OF(w, 3, a), dx, w->buf[5].ptr, *a);
}

TESS_CUDA_REAL(combine_forward)
TESS_CUDA_REAL(combine_backward)
