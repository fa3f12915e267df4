/* expert_bias: to each place the vector of its expert is added; a task has the vectors of some of the experts. */
#include "codelets/experts/order_impl.h"
#include "codelets/shared/vector.h"

/* x (choices,width), bias (some,width), order, y (choices,width): the places of these experts, and with the first
 * expert those that no row has. */
TESS_INLINE void expert_bias_forward(const tess_work *w, tess_dtype t)
{
    const tess_expert_bias_arg *a = w->arg;
    const tess_order o = tess_order_at(w->buf[2].ptr, a->experts, a->choices);
    for (int64_t e = a->first; e < a->first + a->some; e++)
        for (int64_t p = o.offset[e]; p < o.offset[e + 1]; p++) {
            const void *x = tess_at(w->buf[0].ptr, p * a->width, t);
            const void *bias = tess_at(w->buf[1].ptr, (e - a->first) * a->width, t);
            void *y = tess_at_mut(w->buf[3].ptr, p * a->width, t);
#pragma omp simd
            for (int64_t i = 0; i < a->width; i++) tess_store(y, i, t, tess_load(x, i, t) + tess_load(bias, i, t));
        }
    const int64_t taken = o.offset[a->experts];
    if (a->first == 0)
        memset(tess_at_mut(w->buf[3].ptr, taken * a->width, t), 0,
               (size_t)((a->choices - taken) * a->width) * tess_dtype_size(t));
}

/* dy (choices,width), order, dbias f32 (some,width) += */
TESS_INLINE void expert_bias_backward(const tess_work *w, tess_dtype t)
{
    const tess_expert_bias_arg *a = w->arg;
    const tess_order o = tess_order_at(w->buf[1].ptr, a->experts, a->choices);
    if (!a->acc) memset(w->buf[2].ptr, 0, (size_t)(a->some * a->width) * sizeof(float));
    for (int64_t e = a->first; e < a->first + a->some; e++)
        for (int64_t p = o.offset[e]; p < o.offset[e + 1]; p++) {
            const void *dy = tess_at(w->buf[0].ptr, p * a->width, t);
            float *d = (float *)w->buf[2].ptr + (e - a->first) * a->width;
#pragma omp simd
            for (int64_t i = 0; i < a->width; i++) d[i] += tess_load(dy, i, t);
        }
}

TESS_REAL(expert_bias_forward)
TESS_REAL(expert_bias_backward)
