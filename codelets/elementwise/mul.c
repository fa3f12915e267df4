/* mul: products of two tensors of one shape, element by element. */
#include "parts.h"

TESS_INLINE void mul_forward(const tess_work *w, tess_dtype t)
{
    const tess_map_arg *arg = w->arg;
    const void *a = w->buf[0].ptr, *b = w->buf[1].ptr;
    void *y = w->buf[2].ptr;
#pragma omp simd
    for (int64_t i = 0; i < arg->n; i++) tess_store(y, i, t, tess_load(a, i, t) * tess_load(b, i, t));
}

TESS_INLINE void mul_backward(const tess_work *w, tess_dtype t)
{
    const tess_map_arg *arg = w->arg;
    const void *dy = w->buf[0].ptr, *b = w->buf[1].ptr;
    void *da = w->buf[2].ptr;
#pragma omp simd
    for (int64_t i = 0; i < arg->n; i++) tess_accumulate(da, i, t, arg->acc, tess_load(dy, i, t) * tess_load(b, i, t));
}

TESS_REAL_CUT(mul_forward, tess_cut_elements)
TESS_REAL_CUT(mul_backward, tess_cut_elements)
