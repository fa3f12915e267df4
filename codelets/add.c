/* add: sums of two tensors of one shape, and what gradients need of them. */
#include "vector_impl.h"

TESS_INLINE void add_forward(const tess_work *w, tess_dtype t)
{
    const tess_map_arg *arg = w->arg;
    const void *a = w->buf[0].ptr, *b = w->buf[1].ptr;
    void *y = w->buf[2].ptr;
#pragma omp simd
    for (int64_t i = 0; i < arg->n; i++) tess_store(y, i, t, tess_load(a, i, t) + tess_load(b, i, t));
}

TESS_INLINE void add_into(const tess_work *w, tess_dtype t)
{
    const tess_map_arg *arg = w->arg;
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
#pragma omp simd
    for (int64_t i = 0; i < arg->n; i++) tess_accumulate(y, i, t, arg->acc, tess_load(x, i, t));
}

TESS_INLINE void add_sum(const tess_work *w, tess_dtype t)
{
    const tess_map_arg *arg = w->arg;
    const float *x = w->buf[0].ptr;
    void *y = tess_at_mut(w->buf[1].ptr, arg->first, t);
#pragma omp simd
    for (int64_t i = 0; i < arg->n; i++) tess_accumulate(y, i, t, arg->acc, x[i]);
}

TESS_REAL(add_forward)
TESS_REAL(add_into)
TESS_REAL(add_sum)
