/* rescale: y = (z - bias) * m / length + bias, column by column, and the lengths: of the rows of w + by b a. */
#include "codelets/shared/parts.h"

/* ---- lengths ---- */

enum { LENGTH_ROWS = 16, LENGTH_COLUMNS = 256 };

/* What the rows [first, end) have. */
TESS_INLINE void lengths_of(const tess_work *w, int64_t first, int64_t end, tess_dtype t)
{
    const tess_rescale_arg *a = w->arg;
    const void *matrix = w->buf[0].ptr, *right = w->buf[1].ptr, *left = w->buf[2].ptr;
    float *length = w->buf[3].ptr;
    for (int64_t j = first; j < end; j++) {
        float square[TESS_LANES] = {0};
        for (int64_t c = 0; c < a->in; c += LENGTH_COLUMNS) {
            const int64_t n = least(LENGTH_COLUMNS, a->in - c);
            float row[LENGTH_COLUMNS] = {0};
            for (int64_t k = 0; k < a->r; k++) {
                const float b = tess_load(left, (a->col + j) * a->r + k, t);
                const void *of = tess_at(right, k * a->in + c, t);
#pragma omp simd
                for (int64_t i = 0; i < n; i++) row[i] += b * tess_load(of, i, t);
            }
            const void *base = tess_at(matrix, j * a->in + c, t);
            TESS_EACH(i, l, n, const float v = tess_load(base, i, t) + a->by * row[i]; square[l] += v * v);
        }
        length[j] = sqrtf(tess_sum16(square));
    }
}
TESS_INLINE void lengths_part(void *of, int64_t k, tess_dtype t)
{
    const tess_work *w = of;
    const tess_rescale_arg *a = w->arg;
    lengths_of(w, k * LENGTH_ROWS, least((k + 1) * LENGTH_ROWS, a->out), t);
}
TESS_PART_BODIES(lengths_part)
static int64_t rescale_lengths_parts(const tess_codelet *cl, const void *arg)
{
    (void)cl;
    return tess_parts_of(((const tess_rescale_arg *)arg)->out, LENGTH_ROWS);
}
static tess_cost rescale_lengths_cost(const void *arg, tess_dtype t)
{
    const tess_rescale_arg *a = arg;
    const double size = (double)tess_dtype_size(t), in = (double)a->in, out = (double)a->out, r = (double)a->r;
    return (tess_cost){.flops = 2 * out * in * r, .bytes = size * (out * in + r * (in + out)) + 4 * out};
}
TESS_INLINE void rescale_lengths(const tess_work *w, tess_dtype t)
{
    tess_parts_run(rescale_lengths_parts(NULL, w->arg), TESS_PART_BODY(lengths_part, t), (void *)w);
}
TESS_PART_COST(rescale_lengths)

/* ---- forward ---- */

TESS_INLINE float factor(const float *m, const float *length, int64_t c)
{
    return m[c] / length[c];
}

TESS_INLINE void forward_part(void *of, int64_t k, tess_dtype t)
{
    const tess_work *w = of;
    const tess_rescale_arg *a = w->arg;
    const int64_t rows = tess_part_rows(a->out);
    const float *m = w->buf[1].ptr, *length = w->buf[2].ptr, *bias = a->bias ? w->buf[4].ptr : NULL;
    for (int64_t r = k * rows; r < least((k + 1) * rows, a->rows); r++) {
        const void *z = tess_at(w->buf[0].ptr, r * a->ld + a->col, t);
        void *y = tess_at_mut(w->buf[3].ptr, r * a->ld + a->col, t);
#pragma omp simd
        for (int64_t c = 0; c < a->out; c++) {
            const float shift = bias ? bias[c] : 0;
            tess_store(y, c, t, (tess_load(z, c, t) - shift) * factor(m, length, c) + shift);
        }
    }
}
TESS_PART_BODIES(forward_part)
static int64_t rescale_forward_parts(const tess_codelet *cl, const void *arg)
{
    const tess_rescale_arg *a = arg;
    (void)cl;
    return tess_parts_of(a->rows, tess_part_rows(a->out));
}
static tess_cost rescale_forward_cost(const void *arg, tess_dtype t)
{
    const tess_rescale_arg *a = arg;
    return (tess_cost){.bytes = (double)(2 * a->rows * a->out) * (double)tess_dtype_size(t)};
}
TESS_INLINE void rescale_forward(const tess_work *w, tess_dtype t)
{
    tess_parts_run(rescale_forward_parts(NULL, w->arg), TESS_PART_BODY(forward_part, t), (void *)w);
}
TESS_PART_COST(rescale_forward)

/* ---- backward ---- */

enum { BACKWARD_COLUMNS = 128 };

/* dz = dy m / length, and dm = sum of dy (z - bias) / length over the rows, in their order: a part is some columns. */
TESS_INLINE void backward_part(void *of, int64_t k, tess_dtype t)
{
    const tess_work *w = of;
    const tess_rescale_arg *a = w->arg;
    const int64_t first = k * BACKWARD_COLUMNS, n = least(BACKWARD_COLUMNS, a->out - first);
    const float *m = (const float *)w->buf[2].ptr + first, *length = (const float *)w->buf[3].ptr + first;
    const float *bias = a->bias ? (const float *)w->buf[6].ptr + first : NULL;
    float *dm = (float *)w->buf[5].ptr + first, sum[BACKWARD_COLUMNS] = {0};
    for (int64_t r = 0; r < a->rows; r++) {
        const int64_t at = r * a->ld + a->col + first;
        const void *dy = tess_at(w->buf[0].ptr, at, t), *z = tess_at(w->buf[1].ptr, at, t);
        void *dz = tess_at_mut(w->buf[4].ptr, at, t);
#pragma omp simd
        for (int64_t c = 0; c < n; c++) {
            const float d = tess_load(dy, c, t), shift = bias ? bias[c] : 0;
            sum[c] += d * (tess_load(z, c, t) - shift);
            tess_accumulate(dz, c, t, a->acc, d * factor(m, length, c));
        }
    }
    for (int64_t c = 0; c < n; c++) dm[c] = (a->acc_m ? dm[c] : 0) + sum[c] / length[c];
}
TESS_PART_BODIES(backward_part)
static int64_t rescale_backward_parts(const tess_codelet *cl, const void *arg)
{
    (void)cl;
    return tess_parts_of(((const tess_rescale_arg *)arg)->out, BACKWARD_COLUMNS);
}
static tess_cost rescale_backward_cost(const void *arg, tess_dtype t)
{
    const tess_rescale_arg *a = arg;
    return (tess_cost){.bytes = (double)((a->acc ? 4 : 3) * a->rows * a->out) * (double)tess_dtype_size(t)};
}
TESS_INLINE void rescale_backward(const tess_work *w, tess_dtype t)
{
    tess_parts_run(rescale_backward_parts(NULL, w->arg), TESS_PART_BODY(backward_part, t), (void *)w);
}
TESS_PART_COST(rescale_backward)
