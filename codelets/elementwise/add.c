/* add: sums of two tensors of one shape, and what gradients need of them. */
#include "codelets/shared/parts.h"

TESS_MAP_TWO(add_forward, x, z, false, x + z)
TESS_MAP(add_into, x, a.acc, x)

TESS_INLINE void add_sum(const tess_work *w, tess_dtype t)
{
    const tess_map_arg *arg = w->arg;
    const float *x = w->buf[0].ptr;
    void *y = tess_at_mut(w->buf[1].ptr, arg->first, t);
#pragma omp simd
    for (int64_t i = 0; i < arg->n; i++) tess_accumulate(y, i, t, arg->acc, x[i]);
}

/* x is fp32, y begins at `first`. */
static inline int64_t cut_sum(const tess_work *w, int64_t k, tess_dtype t, tess_part_task *c)
{
    const tess_map_arg *a = w->arg;
    const int64_t first = k * TESS_PART_ELEMENTS;
    (void)t;
    if (c) {
        tess_part_task_begin(c, w);
        c->arg.map = *a;
        c->arg.map.n = a->n - first < TESS_PART_ELEMENTS ? a->n - first : TESS_PART_ELEMENTS;
        c->arg.map.first = a->first + first;
        tess_part_task_skip(c, 0, first, TESS_F32);
    }
    return tess_parts_of(a->n, TESS_PART_ELEMENTS);
}

TESS_REAL_CUT(add_sum, cut_sum)
