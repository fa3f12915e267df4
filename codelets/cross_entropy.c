/* cross_entropy: the head and its loss for a piece of rows, over w's tiles, so that logits exist only a block at a
 * time.
 *
 * First pass, tile by tile: a block of logits in f32, its largest of each row m and the sum of exp(logit - m); with
 * grad, exp(logit - m) goes to p in real. Then lse of each row is known. Second pass, tile by tile: p becomes
 * dlogits = exp(logit - lse) * loss_scale by one more factor a row, the target's entry is made anew in f32, where the
 * difference to 1 would drown in rounding; and dx += p w. Each logit is computed once and exponentiated once.
 */
#include "mm_impl.h"
#include "vector_impl.h"

enum { BLOCK_BYTES = 8 << 20, BLOCK_ROWS = 256 };

/* What the scratch buffer holds. */
struct room {
    float *logits;       /* (block, tile_out) */
    float *dx;           /* (rows, in) */
    float *top, *sum;    /* (tiles, rows) each: m, and the sum of exp(logit - m) */
    float *target, *lse; /* (rows) each */
    int64_t block;
};

static int64_t padded(int64_t n)
{
    return (n + 15) / 16 * 16;
}

static int64_t block_rows(const tess_cross_entropy_arg *a)
{
    int64_t fit = BLOCK_BYTES / 4 / a->tile_out / 16 * 16;
    fit = fit < 16 ? 16 : fit > BLOCK_ROWS ? BLOCK_ROWS : fit;
    return a->rows < fit ? a->rows : fit;
}

size_t tess_cross_entropy_scratch(const tess_cross_entropy_arg *a, tess_dtype t)
{
    (void)t;
    int64_t floats =
        padded(block_rows(a) * a->tile_out) + padded(a->rows * a->in) + (2 * a->tiles + 2) * padded(a->rows);
    return (size_t)floats * sizeof(float);
}

static struct room divide(const tess_cross_entropy_arg *a, float *scratch)
{
    struct room s = {.logits = scratch, .block = block_rows(a)};
    s.dx = s.logits + padded(s.block * a->tile_out);
    s.top = s.dx + padded(a->rows * a->in);
    s.sum = s.top + a->tiles * padded(a->rows);
    s.target = s.sum + a->tiles * padded(a->rows);
    s.lse = s.target + padded(a->rows);
    return s;
}

static int64_t tile_columns(const tess_cross_entropy_arg *a, int64_t j)
{
    int64_t left = a->vocab - j * a->tile_out;
    return left < a->tile_out ? left : a->tile_out;
}

/* One row of logits (n): its largest, and the sum of exp(logit - largest), which with p go there too. */
TESS_INLINE float exponentials(const float *logits, int64_t n, float top, void *p, tess_dtype t)
{
    float sum[TESS_LANES] = {0};
    if (p)
        TESS_EACH(i, l, n, const float e = tess_expf(logits[i] - top); sum[l] += e; tess_store(p, i, t, e));
    else
        TESS_EACH(i, l, n, sum[l] += tess_expf(logits[i] - top));
    return tess_sum16(sum);
}

TESS_INLINE float largest(const float *logits, int64_t n)
{
    float top[TESS_LANES];
    for (int l = 0; l < TESS_LANES; l++) top[l] = logits[0];
    TESS_EACH(i, l, n, top[l] = logits[i] > top[l] ? logits[i] : top[l]);
    return tess_max16(top);
}

/* Logits of tile j, block by block. A largest logit that is not finite would hide a NaN, so it counts as 0 then: the
 * sum is NaN or infinite, and so is the loss. */
TESS_INLINE void first_pass(const tess_cross_entropy_arg *a, const struct room *s, int64_t j, const void *x,
                            const void *w, const float *bias, const int32_t *target, void *p, tess_dtype t)
{
    const int64_t n = tile_columns(a, j), first = j * a->tile_out;
    for (int64_t r0 = 0; r0 < a->rows; r0 += s->block) {
        const int64_t rows = a->rows - r0 < s->block ? a->rows - r0 : s->block;
        const tess_mm d = {.m = rows,
                           .n = n,
                           .k = a->in,
                           .lda = a->in,
                           .ldb = a->in,
                           .ldc = n,
                           .in = t,
                           .out = TESS_F32,
                           .tb = true,
                           .bias = bias ? bias + first : NULL};
        tess_mm_run(&d, tess_at(x, (a->row + r0) * a->in, t), w, s->logits);
        for (int64_t r = r0; r < r0 + rows; r++) {
            const float *logits = s->logits + (r - r0) * n;
            float top = largest(logits, n);
            if (!(fabsf(top) < INFINITY)) top = 0;
            s->top[j * a->rows + r] = top;
            s->sum[j * a->rows + r] = exponentials(logits, n, top, p ? tess_at_mut(p, r * n, t) : NULL, t);
            if (target[r] >= first && target[r] < first + n) s->target[r] = logits[target[r] - first];
        }
    }
}

/* Each row's lse over all tiles; the losses into loss. */
static void finish_rows(const tess_cross_entropy_arg *a, const struct room *s, const int32_t *target, double *loss)
{
    loss[0] = loss[1] = 0;
    for (int64_t r = 0; r < a->rows; r++) {
        float top = s->top[r];
        for (int64_t j = 1; j < a->tiles; j++)
            if (s->top[j * a->rows + r] > top) top = s->top[j * a->rows + r];
        double sum = 0;
        for (int64_t j = 0; j < a->tiles; j++)
            sum += s->sum[j * a->rows + r] * exp((double)s->top[j * a->rows + r] - top);
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
    const int64_t n = tile_columns(a, j), first = j * a->tile_out;
    for (int64_t r = 0; r < a->rows; r++) {
        void *row = tess_at_mut(p, r * n, t);
        const float lse = s->lse[r];
        const float factor = target[r] < 0 ? 0 : tess_expf(s->top[j * a->rows + r] - lse) * scale;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) tess_store(row, i, t, tess_load(row, i, t) * factor);
        if (target[r] >= first && target[r] < first + n)
            tess_store(row, target[r] - first, t, (tess_expf(s->target[r] - lse) - 1) * scale);
        if (!db) continue;
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
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
