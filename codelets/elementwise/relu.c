/* relu: max(x, 0). */
#include "parts.h"

TESS_INLINE void relu_forward(const tess_work *w, tess_dtype t)
{
    const tess_map_arg *a = w->arg;
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
#pragma omp simd
    for (int64_t i = 0; i < a->n; i++) {
        const float v = tess_load(x, i, t);
        tess_store(y, i, t, v < 0 ? 0 : v); /* a NaN stays */
    }
}

TESS_INLINE void relu_backward(const tess_work *w, tess_dtype t)
{
    const tess_map_arg *a = w->arg;
    const void *dy = w->buf[0].ptr, *x = w->buf[1].ptr;
    void *dx = w->buf[2].ptr;
#pragma omp simd
    for (int64_t i = 0; i < a->n; i++) {
        const float v = tess_load(x, i, t), d = tess_load(dy, i, t);
        tess_accumulate(dx, i, t, a->acc, v <= 0 ? 0 : v == v ? d : v);
    }
}

TESS_REAL_CUT(relu_forward, tess_cut_elements)
TESS_REAL_CUT(relu_backward, tess_cut_elements)
