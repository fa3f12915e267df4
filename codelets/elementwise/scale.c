/* scale: x times a constant. Its gradient is the same of dy. */
#include "parts.h"

TESS_INLINE void scale(const tess_work *w, tess_dtype t)
{
    const tess_map_arg *a = w->arg;
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
    const float by = a->by;
#pragma omp simd
    for (int64_t i = 0; i < a->n; i++) tess_accumulate(y, i, t, a->acc, by * tess_load(x, i, t));
}

TESS_REAL_CUT(scale, tess_cut_elements)
