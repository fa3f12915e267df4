/* tanh: cap tanh(x / cap). */
#include "cuda.h"

template <tess_dtype T> struct capped {
    const void *x;
    void *y;
    float cap;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K];
        load<T, K>(v, x, i);
        for (int k = 0; k < K; k++) v[k] = cap * tanhf(v[k] / cap);
        store<T, K>(y, i, v);
    }
};
template <tess_dtype T> struct capped_slope {
    const void *dy, *x;
    void *dx;
    float cap;
    bool acc;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K], d[K];
        load<T, K>(v, x, i);
        load<T, K>(d, dy, i);
        for (int k = 0; k < K; k++) {
            const float z = v[k] / cap, e = exp2f(fmaxf(fabsf(z) * (-2 * 1.44269504f), -125)); /* as the CPU's */
            d[k] *= z == z ? 4 * e / ((1 + e) * (1 + e)) : z;
        }
        accumulate<T, K>(dx, i, acc, d);
    }
};

template <tess_dtype T> static void tanh_forward_body(const tess_work *w)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
    map(w, capped<T>{x, y, a->cap}, a->n, aligned(x, y));
}
template <tess_dtype T> static void tanh_backward_body(const tess_work *w)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *dy = w->buf[0].ptr, *x = w->buf[1].ptr;
    void *dx = w->buf[2].ptr;
    map(w, capped_slope<T>{dy, x, dx, a->cap, a->acc}, a->n, aligned(dy, x, dx));
}

TESS_CUDA_REAL(tanh_forward)
TESS_CUDA_REAL(tanh_backward)
