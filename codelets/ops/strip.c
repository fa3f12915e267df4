/* strip: runs of columns of one tensor go to, or are added to, columns of another. */
#include "codelets/shared/vector.h"

/* to (n) [+]= the sum of `rows` rows of from. */
TESS_INLINE void add_run(void *to, const void *from, int64_t n, int64_t rows, int64_t ld, bool acc, tess_dtype t)
{
    for (int64_t i = 0; i < n; i += TESS_LANES) {
        float sum[TESS_LANES];
        const int64_t lanes = n - i < TESS_LANES ? n - i : TESS_LANES;
        for (int64_t l = 0; l < lanes; l++) sum[l] = tess_load(from, i + l, t);
        for (int64_t r = 1; r < rows; r++)
            for (int64_t l = 0; l < lanes; l++) sum[l] += tess_load(from, r * ld + i + l, t);
        for (int64_t l = 0; l < lanes; l++) tess_accumulate(to, i + l, t, acc, sum[l]);
    }
}

/* from (rows / spread * sums, from_ld), to (rows, to_ld) */
TESS_INLINE void strip(const tess_work *w, tess_dtype t)
{
    const tess_strip_arg *a = w->arg;
    const int64_t sums = a->sums ? a->sums : 1, spread = a->spread ? a->spread : 1;
    if (a->clears) memset(w->buf[1].ptr, 0, (size_t)(a->rows * a->to_ld) * tess_dtype_size(t));
    for (int k = 0; k < a->runs; k++)
        for (int64_t r = 0; r < a->rows; r++) {
            const void *from = tess_at(w->buf[0].ptr, r / spread * sums * a->from_ld + a->run[k].from, t);
            void *to = tess_at_mut(w->buf[1].ptr, r * a->to_ld + a->run[k].to, t);
            if (a->acc || sums > 1)
                add_run(to, from, a->run[k].n, sums, a->from_ld, a->acc, t);
            else
                memcpy(to, from, (size_t)a->run[k].n * tess_dtype_size(t));
        }
}

static tess_cost strip_cost(const void *arg, tess_dtype t)
{
    const tess_strip_arg *a = arg;
    int64_t n = 0;
    for (int k = 0; k < a->runs; k++) n += a->run[k].n * (1 + (a->sums ? a->sums : 1) + a->acc);
    return (tess_cost){.bytes = (double)(a->rows * (n + a->clears * a->to_ld)) * (double)tess_dtype_size(t)};
}
TESS_REAL_COST(strip)
