/* combine: what the experts made of a row, times its weights, added up in the order in which it chose. */
#include "codelets/experts/order_impl.h"
#include "codelets/shared/vector.h"

/* x (rows*chosen,width), weights (rows,chosen), order, y (rows,width) */
TESS_INLINE void combine_forward(const tess_work *w, tess_dtype t)
{
    const tess_dispatch_arg *a = w->arg;
    const void *x = w->buf[0].ptr, *weights = w->buf[1].ptr;
    const tess_order o = TESS_ORDER_OF(w, 2, a);
    for (int64_t r = 0; r < a->rows; r++) {
        const int32_t *place = o.place + r * a->chosen;
        for (int64_t i = 0; i < a->width; i += TESS_LANES) {
            float sum[TESS_LANES] = {0};
            const int64_t n = a->width - i < TESS_LANES ? a->width - i : TESS_LANES;
            for (int64_t s = 0; s < a->chosen && place[s] >= 0; s++) {
                const float by = tess_load(weights, r * a->chosen + s, t);
                for (int64_t l = 0; l < n; l++) sum[l] += by * tess_load(x, place[s] * a->width + i + l, t);
            }
            for (int64_t l = 0; l < n; l++) tess_store(w->buf[3].ptr, r * a->width + i + l, t, sum[l]);
        }
    }
}

/* dy (rows,width), x, weights, order, dx += (rows*chosen,width), dweights += (rows,chosen) */
TESS_INLINE void combine_backward(const tess_work *w, tess_dtype t)
{
    const tess_dispatch_arg *a = w->arg;
    const void *dy = w->buf[0].ptr, *x = w->buf[1].ptr, *weights = w->buf[2].ptr;
    const int64_t choices = a->rows * a->chosen;
    const tess_order o = tess_order_at(w->buf[3].ptr, a->experts, choices);
    void *dx = w->buf[4].ptr, *dweights = w->buf[5].ptr;
    const int64_t taken = o.offset[a->experts];
    for (int64_t i = 0; i < choices; i++) {
        const int64_t from = i / a->chosen * a->width, to = o.place[i] * a->width;
        const float by = tess_load(weights, i, t);
        float lane[TESS_LANES] = {0};
        if (to >= 0) {
            TESS_EACH(c, l, a->width, lane[l] += tess_load(dy, from + c, t) * tess_load(x, to + c, t));
#pragma omp simd
            for (int64_t c = 0; c < a->width; c++)
                tess_accumulate(dx, to + c, t, a->acc, by * tess_load(dy, from + c, t));
        }
        tess_accumulate(dweights, i, t, a->acc_weights, tess_sum16(lane));
    }
    if (!a->acc)
        memset(tess_at_mut(dx, taken * a->width, t), 0, (size_t)((choices - taken) * a->width) * tess_dtype_size(t));
}

TESS_REAL(combine_forward)
TESS_REAL(combine_backward)
