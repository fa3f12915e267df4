/* add: sums of two tensors of one shape, and what gradients need of them. */
#include "cuda.h"

template <tess_dtype T> struct add {
    const void *a, *b;
    void *y;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float x[K], z[K];
        load<T, K>(x, a, i);
        load<T, K>(z, b, i);
        for (int k = 0; k < K; k++) x[k] += z[k];
        store<T, K>(y, i, x);
    }
};
template <tess_dtype T> static void add_forward_body(const tess_work *w)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *x = w->buf[0].ptr, *z = w->buf[1].ptr;
    void *y = w->buf[2].ptr;
    map(w, add<T>{x, z, y}, a->n, aligned(x, z, y));
}

template <tess_dtype T> static void add_into_body(const tess_work *w)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
    map(w, into<T, T>{x, y, a->acc}, a->n, aligned(x, y));
}
template <tess_dtype T> static void add_sum_body(const tess_work *w)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *x = w->buf[0].ptr;
    void *y = (char *)w->buf[1].ptr + a->first * (int64_t)tess_dtype_size(T);
    map(w, into<TESS_F32, T>{x, y, a->acc}, a->n, aligned(x, y));
}

TESS_CUDA_REAL(add_forward)
TESS_CUDA_REAL(add_into)
TESS_CUDA_REAL(add_sum)
