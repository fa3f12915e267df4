/* mul: products of two tensors of one shape, element by element. */
#include "cuda.h"

/* y += a b */
template <tess_dtype T> struct product {
    const void *a, *b;
    void *y;
    bool acc;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float x[K], z[K];
        load<T, K>(x, a, i);
        load<T, K>(z, b, i);
        for (int k = 0; k < K; k++) x[k] *= z[k];
        accumulate<T, K>(y, i, acc, x);
    }
};
template <tess_dtype T> static void multiply(const tess_work *w, bool acc)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *x = w->buf[0].ptr, *z = w->buf[1].ptr;
    void *y = w->buf[2].ptr;
    map(w, product<T>{x, z, y, acc}, a->n, aligned(x, z, y));
}
template <tess_dtype T> static void mul_forward_body(const tess_work *w)
{
    multiply<T>(w, false);
}
template <tess_dtype T> static void mul_backward_body(const tess_work *w)
{
    multiply<T>(w, ((const tess_map_arg *)w->arg)->acc);
}

TESS_CUDA_REAL(mul_forward)
TESS_CUDA_REAL(mul_backward)
