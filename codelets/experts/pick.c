/* pick: one row of each sequence, named by an index: what a classifier reads. */
#include "codelets/shared/vector.h"

TESS_INLINE void pick_forward(const tess_work *w, tess_dtype t)
{
    const tess_pick_arg *a = w->arg;
    const int32_t *index = w->buf[1].ptr;
    const size_t row = (size_t)a->width * tess_dtype_size(t);
    for (int64_t p = 0; p < a->rows / a->sequence; p++) {
        TESS_ASSERT(index[p] >= 0 && index[p] < a->sequence);
        memcpy(tess_at_mut(w->buf[2].ptr, p * a->width, t),
               tess_at(w->buf[0].ptr, (p * a->sequence + index[p]) * a->width, t), row);
    }
}

/* Of x only the rows picked move. */
static tess_cost pick_forward_cost(const void *arg, tess_dtype t)
{
    const tess_pick_arg *a = arg;
    return (tess_cost){.bytes = 2.0 * (double)(a->rows / a->sequence * a->width) * (double)tess_dtype_size(t)};
}

TESS_INLINE void pick_backward(const tess_work *w, tess_dtype t)
{
    const tess_pick_arg *a = w->arg;
    const int32_t *index = w->buf[1].ptr;
    if (!a->acc) memset(w->buf[2].ptr, 0, (size_t)(a->rows * a->width) * tess_dtype_size(t));
    for (int64_t p = 0; p < a->rows / a->sequence; p++) {
        TESS_ASSERT(index[p] >= 0 && index[p] < a->sequence);
        void *dx = tess_at_mut(w->buf[2].ptr, (p * a->sequence + index[p]) * a->width, t);
        const void *dy = tess_at(w->buf[0].ptr, p * a->width, t);
#pragma omp simd
        for (int64_t i = 0; i < a->width; i++) tess_accumulate(dx, i, t, a->acc, tess_load(dy, i, t));
    }
}

TESS_REAL_COST(pick_forward)
TESS_REAL(pick_backward)
