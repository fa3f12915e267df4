/* dropout: keeps an element with probability 1 - p, scaled by 1/(1 - p). The mask is a function of the seed, the step,
 * the op and the element's place in the global batch, so that it is the same in the backward pass, with any tiling and
 * on any device. Outside of training it is a copy. */
#include "codelets/shared/parts.h"

TESS_INLINE void drop(const tess_work *w, tess_dtype t, bool acc)
{
    const tess_dropout_arg *a = w->arg;
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
    const int64_t n = a->rows * a->width;
    TESS_ASSERT(n <= UINT32_MAX);
    if (!w->env->train || a->p <= 0) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) tess_accumulate(y, i, t, acc, tess_load(x, i, t));
        return;
    }
    const tess_dropout_rule rule = tess_dropout_begin(a->p);
    const tess_random_key key = tess_random_begin(w->env->seed, (uint64_t)w->env->step, a->op);
    const uint64_t place = (uint64_t)(a->row0 * a->width);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float kept = tess_load(x, i, t) * rule.scale;
        kept = tess_random_after(key, place, (uint32_t)i) >= rule.below ? kept : 0.0f;
        tess_accumulate(y, i, t, acc, kept);
    }
}

TESS_INLINE void dropout_forward(const tess_work *w, tess_dtype t)
{
    drop(w, t, false);
}
TESS_INLINE void dropout_backward(const tess_work *w, tess_dtype t)
{
    drop(w, t, ((const tess_dropout_arg *)w->arg)->acc);
}

static inline int64_t cut(const tess_work *w, int64_t k, tess_dtype t, tess_part_task *c)
{
    const tess_dropout_arg *a = w->arg;
    const int64_t rows = tess_part_rows(a->width), first = k * rows;
    if (c) {
        tess_part_task_begin(c, w);
        c->arg.dropout = *a;
        c->arg.dropout.rows = a->rows - first < rows ? a->rows - first : rows;
        c->arg.dropout.row0 = a->row0 + first;
        for (unsigned i = 0; i < 2; i++) tess_part_task_skip(c, i, first * a->width, t);
    }
    return tess_parts_of(a->rows, rows);
}

TESS_REAL_CUT(dropout_forward, cut)
TESS_REAL_CUT(dropout_backward, cut)

uint32_t tess_random(uint64_t seed, uint64_t step, uint32_t op, uint64_t place)
{
    return tess_random_at(tess_random_begin(seed, step, op), place);
}
