/* silu: x sigmoid(x). */
#include "parts.h"

static const float over_ln2 = 1.44269504f;

TESS_INLINE float value(float x)
{
    float unused;
    return x * tess_sigmoidf(-over_ln2 * x, &unused);
}

TESS_INLINE float slope_of(float x)
{
    float slope, y = tess_sigmoidf(-over_ln2 * x, &slope);
    return y + x * slope;
}

TESS_INLINE void silu_forward(const tess_work *w, tess_dtype t)
{
    const tess_map_arg *a = w->arg;
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
#pragma omp simd
    for (int64_t i = 0; i < a->n; i++) tess_store(y, i, t, value(tess_load(x, i, t)));
}

TESS_INLINE void silu_backward(const tess_work *w, tess_dtype t)
{
    const tess_map_arg *a = w->arg;
    const void *dy = w->buf[0].ptr, *x = w->buf[1].ptr;
    void *dx = w->buf[2].ptr;
#pragma omp simd
    for (int64_t i = 0; i < a->n; i++)
        tess_accumulate(dx, i, t, a->acc, tess_load(dy, i, t) * slope_of(tess_load(x, i, t)));
}

TESS_REAL_CUT(silu_forward, tess_cut_elements)
TESS_REAL_CUT(silu_backward, tess_cut_elements)
