/* join: stripes of columns, which tasks made side by side, become one tensor. */
#include "codelets/shared/vector.h"

/* y (rows, width), stripes (rows, stripe)... */
TESS_INLINE void join(const tess_work *w, tess_dtype t)
{
    const tess_join_arg *a = w->arg;
    for (unsigned i = 1; i < w->nbuf; i++) {
        const int64_t first = (int64_t)(i - 1) * a->stripe, left = a->width - first;
        const int64_t n = left < a->stripe ? left : a->stripe;
        for (int64_t r = 0; r < a->rows; r++)
            memcpy(tess_at_mut(w->buf[0].ptr, r * a->width + first, t), tess_at(w->buf[i].ptr, r * n, t),
                   (size_t)n * tess_dtype_size(t));
    }
}
TESS_REAL(join)
