/* dropout: the mask of dropout.c, bit for bit. */
#include "cuda.h"

template <tess_dtype T> struct drop {
    const void *x;
    void *y;
    uint64_t place;
    tess_random_key key;
    tess_dropout_rule rule;
    bool acc;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K];
        load<T, K>(v, x, i);
        for (int k = 0; k < K; k++)
            v[k] = tess_random_after(key, place, (uint32_t)(i + k)) >= rule.below ? v[k] * rule.scale : 0;
        accumulate<T, K>(y, i, acc, v);
    }
};

template <tess_dtype T> static void drop_body(const tess_work *w, bool acc)
{
    const tess_dropout_arg *a = (const tess_dropout_arg *)w->arg;
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
    const int64_t n = a->rows * a->width;
    TESS_ASSERT(n <= UINT32_MAX);
    if (!w->env->train || a->p <= 0) {
        map(w, into<T, T>{x, y, acc}, n, aligned(x, y));
        return;
    }
    drop<T> d = {};
    d.x = x;
    d.y = y;
    d.place = (uint64_t)(a->row0 * a->width);
    d.key = tess_random_begin(w->env->seed, (uint64_t)w->env->step, a->op);
    d.rule = tess_dropout_begin(a->p);
    d.acc = acc;
    map(w, d, n, aligned(x, y));
}
template <tess_dtype T> static void dropout_forward_body(const tess_work *w)
{
    drop_body<T>(w, false);
}
template <tess_dtype T> static void dropout_backward_body(const tess_work *w)
{
    drop_body<T>(w, ((const tess_dropout_arg *)w->arg)->acc);
}

TESS_CUDA_REAL(dropout_forward)
TESS_CUDA_REAL(dropout_backward)
