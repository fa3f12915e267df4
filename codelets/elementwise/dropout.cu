/* dropout: the mask of dropout.c, bit for bit. */
#include "codelets/shared/kernels.h"

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
    const tess_dropout_arg *a = arg_of(w);
    const void *x = buffer(w, 0);
    void *y = buffer(w, 1);
    const int64_t n = a->rows * a->width;
    TESS_ASSERT(n <= UINT32_MAX);
    if (!w->env->train || a->p <= 0) {
        map_into<T, T>(w, x, y, n, acc);
        return;
    }
    const tess_random_key key = tess_random_begin(w->env->seed, (uint64_t)w->env->step, a->op);
    const drop<T> d = {x, y, (uint64_t)(a->row0 * a->width), key, tess_dropout_begin(a->p), acc};
    map(w, d, n, aligned(x, y));
}

TESS_CUDA_REAL_OF(dropout_forward, drop_body<T>(w, false))
TESS_CUDA_REAL_OF(dropout_backward, drop_body<T>(w, ((const tess_dropout_arg *)w->arg)->acc))
