/* silu: x sigmoid(x). */
#include "cuda_impl.h"

template <tess_dtype T> struct silu {
    const void *x;
    void *y;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K];
        load<T, K>(v, x, i);
        for (int k = 0; k < K; k++) v[k] = __fdividef(v[k], 1 + __expf(-v[k]));
        store<T, K>(y, i, v);
    }
};
template <tess_dtype T> static void silu_forward_body(const tess_work *w)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
    map(w, silu<T>{x, y}, a->n, aligned(x, y));
}

template <tess_dtype T> struct silu_slope {
    const void *dy, *x;
    void *dx;
    bool acc;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K], d[K];
        load<T, K>(v, x, i);
        load<T, K>(d, dy, i);
        for (int k = 0; k < K; k++) {
            const float e = __expf(-fabsf(v[k])), large = __fdividef(1, 1 + e); /* sigmoid(|x|) */
            const float y = v[k] < 0 ? e * large : large;
            d[k] *= y + v[k] * (e * large * large);
        }
        accumulate<T, K>(dx, i, acc, d);
    }
};
template <tess_dtype T> static void silu_backward_body(const tess_work *w)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *dy = w->buf[0].ptr, *x = w->buf[1].ptr;
    void *dx = w->buf[2].ptr;
    map(w, silu_slope<T>{dy, x, dx, a->acc}, a->n, aligned(dy, x, dx));
}

TESS_CUDA_REAL(silu_forward)
TESS_CUDA_REAL(silu_backward)
