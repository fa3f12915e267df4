/* fill: first values of parameters, and the copies in 16 bits of those that have a master. */
#include "codelets/shared/vector.h"

TESS_INLINE void fill(const tess_work *w, tess_dtype t)
{
    const tess_count_arg *a = w->arg;
    void *x = tess_at_mut(w->buf[0].ptr, a->at, t);
    const float value = a->value;
#pragma omp simd
    for (int64_t i = 0; i < a->n; i++) tess_store(x, i, t, value);
}
TESS_REAL_EITHER(fill)

/* Initial values are no step: they take the last one, where no dropout is drawn. */
TESS_CLONES static void fill_normal(const tess_work *w)
{
    const tess_count_arg *a = w->arg;
    const float value = a->value;
    const int64_t width = a->width ? a->width : a->n;
    const tess_random_key key = tess_random_begin(w->env->seed, UINT64_MAX, a->op);
    for (int64_t row = 0; row * width < a->n; row++) {
        const uint64_t first = (uint64_t)(a->first + row * a->stride);
        float *x = (float *)w->buf[0].ptr + a->at + row * width;
        if (a->uniform) {
#pragma omp simd
            for (int64_t i = 0; i < width; i++) x[i] = value * tess_uniform_at(key, first + (uint64_t)i);
            continue;
        }
#pragma omp simd
        for (int64_t i = 0; i < width; i++) x[i] = value * tess_normal_at(key, first + (uint64_t)i);
    }
}
TESS_F32_CODELET(fill_normal, .either = true)

TESS_INLINE void all_round(const tess_work *w, tess_dtype t)
{
    const tess_count_arg *a = w->arg;
    tess_narrow(tess_at_mut(w->buf[1].ptr, a->at, t), w->buf[0].ptr, a->n, t);
}
TESS_BODY(all_round, bf16, TESS_BF16)
TESS_BODY(all_round, f16, TESS_F16)
tess_codelet tess_round[] = {TESS_CODELET(all_round, bf16, TESS_BF16, round, .either = true)
                                 TESS_CODELET(all_round, f16, TESS_F16, round, .either = true)};
