/* cross_entropy: the head and its loss for a piece of rows, over w's tiles, so that logits exist only a block at a
 * time.
 *
 * First pass, strip by strip of a tile's columns: a block of logits in f32, small enough to stay in cache, its largest
 * of each row m and the sum of exp(logit - m); with grad, exp(logit - m) goes to p in real. Then lse of each row is
 * known. Second pass, tile by tile: p becomes dlogits = exp(logit - lse) * loss_scale by one more factor a row and
 * strip, the target's entry is made anew in f32, where the difference to 1 would drown in rounding; and dx += p w. Each
 * logit is computed once and exponentiated once.
 */
#include "mm_impl.h"
#include "vector_impl.h"

enum { STRIP = 512, BLOCK_ROWS = 256 }; /* a block of logits */

/* What the scratch buffer holds. */
struct room {
    float *logits;       /* (BLOCK_ROWS, STRIP) */
    float *dx;           /* (rows, in) */
    float *top, *sum;    /* (strips, rows) each: m, and the sum of exp(logit - m) */
    float *target, *lse; /* (rows) each */
    int64_t strips;      /* of all tiles */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t padded(int64_t n)
{
    return (n + 15) / 16 * 16;
}
static int64_t strips_a_tile(const tess_cross_entropy_arg *a)
{
    return (a->tile_out + STRIP - 1) / STRIP;
}

size_t tess_cross_entropy_scratch(const tess_cross_entropy_arg *a, tess_dtype t)
{
    (void)t;
    const int64_t vectors = 2 * a->tiles * strips_a_tile(a) + 2;
    return (size_t)(BLOCK_ROWS * STRIP + padded(a->rows * a->in) + vectors * padded(a->rows)) * sizeof(float);
}

static struct room divide(const tess_cross_entropy_arg *a, float *scratch)
{
    struct room s = {.logits = scratch, .strips = a->tiles * strips_a_tile(a)};
    s.dx = s.logits + BLOCK_ROWS * STRIP;
    s.top = s.dx + padded(a->rows * a->in);
    s.sum = s.top + s.strips * padded(a->rows);
    s.target = s.sum + s.strips * padded(a->rows);
    s.lse = s.target + padded(a->rows);
    return s;
}

static int64_t tile_columns(const tess_cross_entropy_arg *a, int64_t j)
{
    return least(a->tile_out, a->vocab - j * a->tile_out);
}

TESS_INLINE float largest(const float *logits, int64_t n)
{
    float top[TESS_LANES];
    for (int l = 0; l < TESS_LANES; l++) top[l] = logits[0];
    TESS_EACH(i, l, n, top[l] = logits[i] > top[l] ? logits[i] : top[l]);
    return tess_max16(top);
}

/* One row of a block of logits (n) to exp(logit - top), which go to p too; returns their sum. Not a number when the
 * largest is not finite: a NaN may hide behind it. */
TESS_INLINE float exponentials(float *logits, int64_t n, float top, void *p, tess_dtype t)
{
    float sum[TESS_LANES] = {0};
#pragma omp simd
    for (int64_t i = 0; i < n; i++) logits[i] = tess_power_of_2((logits[i] - top) * TESS_LOG2_E);
    TESS_EACH(i, l, n, sum[l] += logits[i]);
    if (p) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) tess_store(p, i, t, logits[i]);
    }
    return fabsf(top) < INFINITY ? tess_sum16(sum) : NAN;
}

/* Logits of tile j, block by block. */
TESS_INLINE void first_pass(const tess_cross_entropy_arg *a, const struct room *s, int64_t j, const void *x,
                            const void *w, const float *bias, const int32_t *target, void *p, tess_dtype t)
{
    const int64_t columns = tile_columns(a, j), first = j * a->tile_out;
    for (int64_t c = 0; c < columns; c += STRIP)
        for (int64_t r0 = 0; r0 < a->rows; r0 += BLOCK_ROWS) {
            const int64_t rows = least(BLOCK_ROWS, a->rows - r0), n = least(STRIP, columns - c);
            const int64_t strip = (j * strips_a_tile(a) + c / STRIP) * a->rows;
            const tess_mm d = {.m = rows,
                               .n = n,
                               .k = a->in,
                               .lda = a->in,
                               .ldb = a->in,
                               .ldc = n,
                               .in = t,
                               .out = TESS_F32,
                               .tb = true,
                               .bias = bias ? bias + first + c : NULL};
            tess_mm_run(&d, tess_at(x, (a->row + r0) * a->in, t), tess_at(w, c * a->in, t), s->logits);
            for (int64_t r = r0; r < r0 + rows; r++) {
                float *logits = s->logits + (r - r0) * n;
                const int64_t hit = target[r] - first - c;
                if (hit >= 0 && hit < n) s->target[r] = logits[hit];
                const float top = largest(logits, n);
                s->top[strip + r] = top;
                s->sum[strip + r] = exponentials(logits, n, top, p ? tess_at_mut(p, r * columns + c, t) : NULL, t);
            }
        }
}

/* The last tile may have fewer strips than the others. */
static int64_t strips_used(const tess_cross_entropy_arg *a)
{
    return (a->tiles - 1) * strips_a_tile(a) + (tile_columns(a, a->tiles - 1) + STRIP - 1) / STRIP;
}

/* Each row's lse over all strips; the losses into loss. */
static void finish_rows(const tess_cross_entropy_arg *a, const struct room *s, const int32_t *target, double *loss)
{
    const int64_t strips = strips_used(a);
    loss[0] = loss[1] = 0;
    for (int64_t r = 0; r < a->rows; r++) {
        float top = s->top[r];
        for (int64_t i = 1; i < strips; i++)
            if (s->top[i * a->rows + r] > top) top = s->top[i * a->rows + r];
        double sum = 0;
        for (int64_t i = 0; i < strips; i++)
            sum += s->sum[i * a->rows + r] * exp((double)s->top[i * a->rows + r] - top);
        const double lse = top + log(sum);
        s->lse[r] = (float)lse;
        if (target[r] < 0) continue;
        loss[0] += lse - s->target[r];
        loss[1] += 1;
    }
}

/* p_j becomes dlogits, and db += its columns' sums. */
TESS_INLINE void second_pass(const tess_cross_entropy_arg *a, const struct room *s, int64_t j, const int32_t *target,
                             float scale, void *p, float *db, tess_dtype t)
{
    const int64_t columns = tile_columns(a, j), first = j * a->tile_out;
    for (int64_t r = 0; r < a->rows; r++) {
        void *row = tess_at_mut(p, r * columns, t);
        const float lse = s->lse[r], *top = s->top + j * strips_a_tile(a) * a->rows + r;
        for (int64_t c = 0; c < columns; c += STRIP, top += a->rows) {
            const int64_t end = least(c + STRIP, columns);
            const float factor = target[r] < 0 ? 0 : tess_expf(*top - lse) * scale;
#pragma omp simd
            for (int64_t i = c; i < end; i++) tess_store(row, i, t, tess_load(row, i, t) * factor);
        }
        if (target[r] >= first && target[r] < first + columns)
            tess_store(row, target[r] - first, t, (tess_expf(s->target[r] - lse) - 1) * scale);
        if (!db) continue;
#pragma omp simd
        for (int64_t i = 0; i < columns; i++)
            tess_accumulate(db, first + i, TESS_F32, a->acc_bias || r > 0, tess_load(row, i, t));
    }
}

/* x, target i32, loss, scratch, w_j..., [b], with grad: dx +=, p_j..., [db +=] */
TESS_INLINE void cross_entropy_piece(const tess_work *w, tess_dtype t)
{
    const tess_cross_entropy_arg *a = w->arg;
    const struct room s = divide(a, w->buf[3].ptr);
    const int32_t *target = (const int32_t *)w->buf[1].ptr + a->row;
    const tess_view *weight = w->buf + 4, *bias = weight + a->tiles, *grad = bias + a->bias, *p = grad + 1;
    for (int64_t j = 0; j < a->tiles; j++)
        first_pass(a, &s, j, w->buf[0].ptr, weight[j].ptr, a->bias ? bias->ptr : NULL, target,
                   a->grad ? p[j].ptr : NULL, t);
    finish_rows(a, &s, target, w->buf[2].ptr);
    if (!a->grad) return;
    for (int64_t j = 0; j < a->tiles; j++) {
        second_pass(a, &s, j, target, w->env->loss_scale, p[j].ptr, a->bias ? p[a->tiles].ptr : NULL, t);
        const tess_mm d = {.m = a->rows,
                           .n = a->in,
                           .k = tile_columns(a, j),
                           .lda = tile_columns(a, j),
                           .ldb = a->in,
                           .ldc = a->in,
                           .in = t,
                           .out = TESS_F32,
                           .acc = j > 0};
        tess_mm_run(&d, p[j].ptr, weight[j].ptr, s.dx);
    }
    void *dx = tess_at_mut(grad->ptr, a->row * a->in, t);
#pragma omp simd
    for (int64_t i = 0; i < a->rows * a->in; i++) tess_accumulate(dx, i, t, a->acc, s.dx[i]);
}
static tess_cost cross_entropy_piece_cost(const void *arg, tess_dtype t)
{
    const tess_cross_entropy_arg *a = arg;
    const double size = (double)tess_dtype_size(t), rows = (double)a->rows, in = (double)a->in,
                 vocab = (double)a->vocab;
    const double products = a->grad ? 2 : 1;
    return (tess_cost){.flops = products * 2 * rows * in * vocab,
                       .bytes = size * (products * vocab * in + (a->grad ? 4 : 0) * rows * vocab + 2 * rows * in)};
}
TESS_REAL_COST(cross_entropy_piece)
