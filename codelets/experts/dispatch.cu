/* dispatch: a block a place copies its row; back, a block a row sums its places in the order in which it chose. */
#include "codelets/experts/order_impl.h"
#include "codelets/shared/kernels.h"

constexpr int THREADS = 256;

template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
dispatch_kernel(const void *x, tess_order o, void *y, int64_t chosen, int64_t experts, int64_t width)
{
    const int64_t p = blockIdx.x;
    const bool taken = p < o.offset[experts];
    const int64_t from = taken ? o.choice[p] / chosen * width : 0;
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        float v[K] = {};
        if (taken) load<T, K>(v, x, from + i);
        store<T, K>(y, p * width + i, v);
    }
}
template <tess_dtype T> static void dispatch_forward_body(const tess_work *w)
{
    const tess_dispatch_arg *a = arg_of(w);
    const void *x = w->buf[0].ptr;
    void *y = w->buf[2].ptr;
    const bool wide = a->width % WIDE == 0 && aligned(x, y);
    launch(w, wide ? dispatch_kernel<T, WIDE> : dispatch_kernel<T, 1>, a->rows * a->chosen, THREADS, 0, x,
           TESS_ORDER_OF(w, 1, a), y, a->chosen, a->experts, a->width);
}

template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
dispatch_backward_kernel(const void *dy, tess_order o, void *dx, int64_t chosen, int64_t width, bool acc)
{
    const int64_t r = blockIdx.x;
    const int32_t *place = o.place + r * chosen;
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        float sum[K] = {}, v[K];
        for (int64_t s = 0; s < chosen && place[s] >= 0; s++) {
            load<T, K>(v, dy, place[s] * width + i);
            for (int k = 0; k < K; k++) sum[k] += v[k];
        }
        accumulate<T, K>(dx, r * width + i, acc, sum);
    }
}
template <tess_dtype T> static void dispatch_backward_body(const tess_work *w)
{
    const tess_dispatch_arg *a = arg_of(w);
    const void *dy = w->buf[0].ptr;
    void *dx = w->buf[2].ptr;
    const bool wide = a->width % WIDE == 0 && aligned(dy, dx);
    launch(w, wide ? dispatch_backward_kernel<T, WIDE> : dispatch_backward_kernel<T, 1>, a->rows, THREADS, 0, dy,
           TESS_ORDER_OF(w, 1, a), dx, a->chosen, a->width, a->acc);
}

template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
dispatch_share_kernel(void *x, tess_order o, void *y, tess_share_arg a)
{
    const int64_t p = blockIdx.x, first = o.offset[a.first], n = o.offset[a.end] - first;
    const int64_t behind = a.back ? o.offset[a.experts] + p - n : p, all = a.back ? a.choices : a.room;
    const int64_t at = p < n ? first + p : behind;
    for (int64_t i = threadIdx.x * K; i < a.width; i += THREADS * K) {
        float v[K] = {};
        if (p < n) load<T, K>(v, a.back ? y : x, (a.back ? p : at) * a.width + i);
        if (p < n || behind < all) store<T, K>(a.back ? x : y, (p < n && !a.back ? p : at) * a.width + i, v);
    }
}
template <tess_dtype T> static void dispatch_share_body(const tess_work *w)
{
    const tess_share_arg *a = arg_of(w);
    void *x = w->buf[0].ptr, *y = w->buf[2].ptr;
    const bool wide = a->width % WIDE == 0 && aligned(x, y);
    launch(w, wide ? dispatch_share_kernel<T, WIDE> : dispatch_share_kernel<T, 1>, a->back ? a->choices : a->room,
           THREADS, 0, x, tess_order_at(w->buf[1].ptr, a->experts, a->choices), y, *a);
}

TESS_CUDA_REAL(dispatch_forward)
TESS_CUDA_REAL(dispatch_share)
TESS_CUDA_REAL(dispatch_backward)
