/* norm: the CPU bodies of layernorm and rmsnorm, which are one but for the mean and the bias: y = (x - mean) / std *
 * gain
 * + bias, or, not centred, y = x / rms * gain, where the gain is what is stored and a shift. NORM(op, centred) makes an
 * op's codelets. */
#ifndef TESS_NORM_IMPL_H
#define TESS_NORM_IMPL_H
#include "codelets/shared/parts.h"

/* What a row's statistics are: mean and 1/std, or 1/rms. */
typedef struct row_stats {
    float mean, rstd;
} row_stats;
TESS_INLINE row_stats stats_of(const float *stats, int64_t r, const bool centred)
{
    return centred ? (row_stats){stats[2 * r], stats[2 * r + 1]} : (row_stats){0, stats[r]};
}
/* An element as the gain finds it, and the gain. */
TESS_INLINE float normed(const void *x, int64_t i, row_stats s, const bool centred, tess_dtype t)
{
    return (centred ? tess_load(x, i, t) - s.mean : tess_load(x, i, t)) * s.rstd;
}
TESS_INLINE float gain_at(const float *gain, int64_t i, float shift, const bool centred)
{
    return centred ? gain[i] : gain[i] + shift;
}

/* x, or with `adds` x, z and x + z, which is written first and then normalised; after that gain[, bias], y, stats. */
TESS_INLINE void norm_forward(const tess_work *w, const bool centred, const bool adds, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    const tess_view *b = w->buf + (adds ? 2 : 0);
    const float *gain = b[1].ptr, *bias = centred ? b[2].ptr : NULL, shift = a->shift;
    float *stats = b[centred ? 4 : 3].ptr;
    const int64_t n = a->width;
    for (int64_t r = 0; r < a->rows; r++) {
        const void *x = tess_at(b[0].ptr, r * n, t), *of = tess_at(w->buf[0].ptr, r * n, t);
        void *y = tess_at_mut(b[centred ? 3 : 2].ptr, r * n, t);
        if (adds) {
            const void *z = tess_at(w->buf[1].ptr, r * n, t);
            void *both = tess_at_mut(b[0].ptr, r * n, t);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) tess_store(both, i, t, tess_load(of, i, t) + tess_load(z, i, t));
        }
        float sum[TESS_LANES] = {0}, square[TESS_LANES] = {0};
        row_stats s = {0};
        if (centred) {
            TESS_EACH(i, l, n, sum[l] += tess_load(x, i, t));
            s.mean = tess_sum16(sum) / (float)n;
        }
        TESS_EACH(i, l, n, const float d = centred ? tess_load(x, i, t) - s.mean : tess_load(x, i, t);
                  square[l] += d * d);
        s.rstd = 1 / sqrtf(tess_sum16(square) / (float)n + a->eps);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float v = normed(x, i, s, centred, t) * gain_at(gain, i, shift, centred);
            tess_store(y, i, t, centred ? v + bias[i] : v);
        }
        if (centred) stats[2 * r] = s.mean;
        stats[centred ? 2 * r + 1 : r] = s.rstd;
    }
}
/* A part is some rows: x, ..., y and its statistics. */
static inline int64_t cut_rows(const tess_work *w, int64_t k, tess_dtype t, const bool centred, const bool adds,
                               tess_part_task *c)
{
    const tess_norm_arg *a = w->arg;
    const int64_t rows = tess_part_rows(a->width), first = k * rows;
    const unsigned gain = adds ? 3 : 1, y = gain + (centred ? 2 : 1);
    if (c) {
        tess_part_task_begin(c, w);
        c->arg.norm = *a;
        c->arg.norm.rows = least(a->rows - first, rows);
        for (unsigned i = 0; i < gain; i++) tess_part_task_skip(c, i, first * a->width, t);
        tess_part_task_skip(c, y, first * a->width, t);
        tess_part_task_skip(c, y + 1, centred ? 2 * first : first, TESS_F32);
    }
    return tess_parts_of(a->rows, rows);
}

/* With h = (x - mean) / std and g = dy gain: dx = (g - mean(g) - h mean(g h)) / std, of the rows [first, end). */
TESS_INLINE void backward_rows(const tess_work *w, int64_t first, int64_t end, const bool centred, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    const float *gain = w->buf[2].ptr, shift = a->shift;
    const int64_t n = a->width;
    const bool acc = a->acc;
    for (int64_t r = first; r < end; r++) {
        const void *dy = tess_at(w->buf[0].ptr, r * n, t), *x = tess_at(w->buf[1].ptr, r * n, t);
        void *dx = tess_at_mut(w->buf[4].ptr, r * n, t);
        const row_stats s = stats_of(w->buf[3].ptr, r, centred);
        float sum[TESS_LANES] = {0}, dot[TESS_LANES] = {0};
        TESS_EACH(i, l, n, const float g = tess_load(dy, i, t) * gain_at(gain, i, shift, centred);
                  if (centred) sum[l] += g; dot[l] += g * normed(x, i, s, centred, t));
        const float mean_g = centred ? tess_sum16(sum) / (float)n : 0, mean_gh = tess_sum16(dot) / (float)n;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float h = normed(x, i, s, centred, t), g = tess_load(dy, i, t) * gain_at(gain, i, shift, centred);
            tess_accumulate(dx, i, t, acc, ((centred ? g - mean_g : g) - h * mean_gh) * s.rstd);
        }
    }
}

/* dgain = sum of dy h and dbias = sum of dy over the rows, in their order, of the columns [first, first + n). */
TESS_INLINE void backward_columns(const tess_work *w, int64_t first, int64_t n, const bool centred, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    float *dgain = (float *)w->buf[5].ptr + first, *dbias = centred ? (float *)w->buf[6].ptr + first : NULL;
    if (!a->acc_param) memset(dgain, 0, (size_t)n * sizeof *dgain);
    if (!a->acc_param && centred) memset(dbias, 0, (size_t)n * sizeof *dbias);
    for (int64_t r = 0; r < a->rows; r++) {
        const void *dy = tess_at(w->buf[0].ptr, r * a->width + first, t);
        const void *x = tess_at(w->buf[1].ptr, r * a->width + first, t);
        const row_stats s = stats_of(w->buf[3].ptr, r, centred);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float d = tess_load(dy, i, t);
            dgain[i] += d * normed(x, i, s, centred, t);
            if (centred) dbias[i] += d;
        }
    }
}

/* Backward parts are some rows of dx, then some columns of the gradients of gain and bias, whose sums are over all
 * rows.
 */
enum { NORM_COLUMNS = 128 };
TESS_INLINE void backward_part(const tess_work *w, int64_t k, const bool centred, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    const int64_t rows = tess_part_rows(a->width), blocks = tess_parts_of(a->rows, rows);
    if (k < blocks)
        backward_rows(w, k * rows, least((k + 1) * rows, a->rows), centred, t);
    else
        backward_columns(w, (k - blocks) * NORM_COLUMNS, least(NORM_COLUMNS, a->width - (k - blocks) * NORM_COLUMNS),
                         centred, t);
}
static int64_t backward_parts(const tess_norm_arg *a)
{
    return tess_parts_of(a->rows, tess_part_rows(a->width)) + tess_parts_of(a->width, NORM_COLUMNS);
}

#define NORM(op, centred)                                                                                              \
    NORM_FORWARD(op##_forward, centred, false)                                                                         \
    NORM_FORWARD(add_##op##_forward, centred, true)                                                                    \
    TESS_EACH_REAL(NORM_BACKWARD, op##_backward, centred)                                                              \
    static int64_t op##_backward_parts(const tess_codelet *cl, const void *arg)                                        \
    {                                                                                                                  \
        (void)cl;                                                                                                      \
        return backward_parts(arg);                                                                                    \
    }                                                                                                                  \
    TESS_CODELETS(op##_backward, op##_backward, .parts = op##_backward_parts)
#define NORM_FORWARD(op, centred, adds)                                                                                \
    TESS_INLINE void op(const tess_work *w, tess_dtype t)                                                              \
    {                                                                                                                  \
        norm_forward(w, centred, adds, t);                                                                             \
    }                                                                                                                  \
    static inline int64_t op##_cut(const tess_work *w, int64_t k, tess_dtype t, tess_part_task *c)                     \
    {                                                                                                                  \
        return cut_rows(w, k, t, centred, adds, c);                                                                    \
    }                                                                                                                  \
    TESS_REAL_CUT(op, op##_cut)
#define NORM_BACKWARD(op, name, t, centred)                                                                            \
    TESS_CUDA_DECLARE(op##_##name)                                                                                     \
    TESS_CLONES static void op##_part_##name(void *of, int64_t k)                                                      \
    {                                                                                                                  \
        backward_part(of, k, centred, t);                                                                              \
    }                                                                                                                  \
    static void op##_##name(const tess_work *w)                                                                        \
    {                                                                                                                  \
        tess_parts_run(backward_parts(w->arg), op##_part_##name, (void *)w);                                           \
    }

#endif
