/* gelu: the formulas of gelu.c, with the device's own exponential: on a GPU the CPU's polynomials would take longer
 * than the memory. */
#include "cuda_impl.h"

/* x sigmoid(u), u = 2 sqrt(2/pi) (x + 0.044715 x^3), and its slope. */
struct by_tanh {
    static TESS_DEVICE float value(float x)
    {
        const float u = x * (1.59576912f + 0.0713548163f * (x * x));
        return __fdividef(x, 1 + __expf(-u));
    }
    static TESS_DEVICE float slope(float x)
    {
        const float square = x * x, u = x * (1.59576912f + 0.0713548163f * square);
        const float e = __expf(-fabsf(u)), small = __fdividef(1, 1 + e); /* sigmoid(|u|) */
        const float y = u < 0 ? e * small : small;
        return y + x * (e * small * small * (1.59576912f + 3 * 0.0713548163f * square));
    }
};

/* x times the normal distribution function, and its slope. */
struct by_erf {
    static TESS_DEVICE float value(float x) { return x * normcdff(x); }
    static TESS_DEVICE float slope(float x) { return normcdff(x) + x * (0.398942280f * __expf(-0.5f * x * x)); }
};

template <tess_dtype T, class KIND> struct apply {
    const void *x;
    void *y;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K];
        load<T, K>(v, x, i);
        for (int k = 0; k < K; k++) v[k] = KIND::value(v[k]);
        store<T, K>(y, i, v);
    }
};
template <tess_dtype T, class KIND> struct chain {
    const void *dy, *x;
    void *dx;
    bool acc;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K], d[K];
        load<T, K>(v, x, i);
        load<T, K>(d, dy, i);
        for (int k = 0; k < K; k++) d[k] *= KIND::slope(v[k]);
        accumulate<T, K>(dx, i, acc, d);
    }
};

template <tess_dtype T> static void gelu_forward_body(const tess_work *w)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
    if (a->kind == TESS_GELU_TANH)
        map(w, apply<T, by_tanh>{x, y}, a->n, aligned(x, y));
    else
        map(w, apply<T, by_erf>{x, y}, a->n, aligned(x, y));
}

template <tess_dtype T> static void gelu_backward_body(const tess_work *w)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *dy = w->buf[0].ptr, *x = w->buf[1].ptr;
    void *dx = w->buf[2].ptr;
    if (a->kind == TESS_GELU_TANH)
        map(w, chain<T, by_tanh>{dy, x, dx, a->acc}, a->n, aligned(dy, x, dx));
    else
        map(w, chain<T, by_erf>{dy, x, dx, a->acc}, a->n, aligned(dy, x, dx));
}

TESS_CUDA_REAL(gelu_forward)
TESS_CUDA_REAL(gelu_backward)
