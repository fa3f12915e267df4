/* strip: runs of columns of one tensor go to, or are added to, columns of another. */
#include "codelets/shared/vector.h"

TESS_INLINE void add_run(void *to, const void *from, int64_t n, tess_dtype t)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) tess_store(to, i, t, tess_load(to, i, t) + tess_load(from, i, t));
}

/* from (rows, from_ld), to (rows, to_ld) */
TESS_INLINE void strip(const tess_work *w, tess_dtype t)
{
    const tess_strip_arg *a = w->arg;
    for (int k = 0; k < a->runs; k++)
        for (int64_t r = 0; r < a->rows; r++) {
            const void *from = tess_at(w->buf[0].ptr, r * a->from_ld + a->run[k].from, t);
            void *to = tess_at_mut(w->buf[1].ptr, r * a->to_ld + a->run[k].to, t);
            if (a->acc)
                add_run(to, from, a->run[k].n, t);
            else
                memcpy(to, from, (size_t)a->run[k].n * tess_dtype_size(t));
        }
}

static tess_cost strip_cost(const void *arg, tess_dtype t)
{
    const tess_strip_arg *a = arg;
    int64_t n = 0;
    for (int k = 0; k < a->runs; k++) n += a->run[k].n;
    return (tess_cost){.bytes = (double)(a->rows * n) * (double)tess_dtype_size(t) * (a->acc ? 3 : 2)};
}
TESS_REAL_COST(strip)
