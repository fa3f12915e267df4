/* dispatch: each row is copied to the places of its choices; its gradient is the sum of theirs, in the order in which
 * it chose. */
#include "codelets/experts/order_impl.h"
#include "codelets/shared/vector.h"

/* x (rows,width), order, y (rows*chosen,width) */
TESS_INLINE void dispatch_forward(const tess_work *w, tess_dtype t)
{
    const tess_dispatch_arg *a = w->arg;
    const int64_t choices = a->rows * a->chosen;
    const tess_order o = tess_order_at(w->buf[1].ptr, a->experts, choices);
    const int64_t taken = o.offset[a->experts];
    const size_t row = (size_t)a->width * tess_dtype_size(t);
    for (int64_t p = 0; p < taken; p++)
        memcpy(tess_at_mut(w->buf[2].ptr, p * a->width, t),
               tess_at(w->buf[0].ptr, o.choice[p] / a->chosen * a->width, t), row);
    memset(tess_at_mut(w->buf[2].ptr, taken * a->width, t), 0, (size_t)(choices - taken) * row);
}

/* dy (rows*chosen,width), order, dx += (rows,width) */
TESS_INLINE void dispatch_backward(const tess_work *w, tess_dtype t)
{
    const tess_dispatch_arg *a = w->arg;
    const void *dy = w->buf[0].ptr;
    const tess_order o = TESS_ORDER_OF(w, 1, a);
    void *dx = w->buf[2].ptr;
    for (int64_t r = 0; r < a->rows; r++) {
        const int32_t *place = o.place + r * a->chosen;
        for (int64_t i = 0; i < a->width; i += TESS_LANES) {
            float sum[TESS_LANES] = {0};
            const int64_t n = a->width - i < TESS_LANES ? a->width - i : TESS_LANES;
            for (int64_t s = 0; s < a->chosen && place[s] >= 0; s++)
                for (int64_t l = 0; l < n; l++) sum[l] += tess_load(dy, place[s] * a->width + i + l, t);
            for (int64_t l = 0; l < n; l++) tess_accumulate(dx, r * a->width + i + l, t, a->acc, sum[l]);
        }
    }
}

/* x (choices,width), order, y (room,width) */
TESS_INLINE void dispatch_share(const tess_work *w, tess_dtype t)
{
    const tess_share_arg *a = w->arg;
    const tess_order o = tess_order_at(w->buf[1].ptr, a->experts, a->choices);
    const int64_t first = o.offset[a->first], n = o.offset[a->end] - first, taken = o.offset[a->experts];
    const size_t row = (size_t)a->width * tess_dtype_size(t);
    void *part = tess_at_mut(w->buf[0].ptr, first * a->width, t), *y = w->buf[2].ptr;
    const int64_t behind = a->back ? taken : n, all = a->back ? a->choices : a->room;
    memcpy(a->back ? part : y, a->back ? y : part, (size_t)n * row);
    memset(tess_at_mut(a->back ? w->buf[0].ptr : y, behind * a->width, t), 0, (size_t)(all - behind) * row);
}

TESS_REAL(dispatch_forward)
TESS_REAL(dispatch_share)
TESS_REAL(dispatch_backward)
