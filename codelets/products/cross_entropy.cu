/* cross_entropy: logits block by block, in f32, of as many rows and columns as w->room holds; what they leave behind is
 * laid out as in cross_entropy.c. */
#include "codelets/shared/kernels.h"

constexpr int STRIP = 512, THREADS = 256;
constexpr size_t LOGITS = 32 << 20; /* bytes of a block of them: it stays in the device's cache */
/* Columns of a block, of whole strips, so that it has 512 rows or more: with all columns of a large vocabulary it would
 * have 128, and each of its products would read all of W for them. */
constexpr int64_t COLUMNS = 16384;
static_assert(COLUMNS % STRIP == 0, "a strip is one block's");
constexpr int64_t ALIGN = 64; /* elements that the distance of rows is a multiple of: no fast kernel takes odd ones */

static int64_t apart(const tess_cross_entropy_arg *a)
{
    return a->ld ? a->ld : a->out;
}
static int64_t strips_of(int64_t out)
{
    return blocks_of(out, STRIP);
}

/* The statistics of one tile: (strips, rows) of m and of the sum of exp(logit - m), then (rows) of the logits at the
 * targets. */
struct stats {
    float *top, *sum, *target;
};
static stats stats_at(void *tile, int64_t rows, int64_t out)
{
    float *top = (float *)tile;
    return stats{top, top + strips_of(out) * rows, top + 2 * strips_of(out) * rows};
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

struct softening {
    const float *logits = NULL; /* (rows here, out), ld apart */
    const float *bias = NULL;   /* or NULL */
    const int32_t *target = NULL;
    stats to = {};
    void *p = NULL; /* or NULL; of these rows */
    int64_t row = 0, rows = 0, out = 0, first = 0, ld = 0, p_ld = 0;
    int64_t strips = 0, jobs = 0; /* rows here x strips */
    float cap = 0;                /* 0: none */
};

/* A warp a strip of a row: 16 logits a lane, read once. */
template <tess_dtype T> TESS_KERNEL(THREADS) soften_kernel(softening s)
{
    constexpr int EACH = STRIP / WARP;
    const int64_t job = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (job >= s.jobs) return; /* the whole warp */
    const int lane = (int)threadIdx.x % WARP;
    const int64_t r = job / s.strips, strip = job % s.strips;
    const int64_t c0 = strip * STRIP, n = s.out - c0 < STRIP ? s.out - c0 : STRIP;
    const float *from = s.logits + r * s.ld + c0;
    const int64_t hit = s.target[s.row + r] - s.first - c0;
    float v[EACH], top = -INFINITY, sum = 0;
    bool odd = false; /* something that is not a number: a maximum would pass over it */
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int64_t i = lane + k * WARP;
        v[k] = i < n ? from[i] + (s.bias ? s.bias[c0 + i] : 0) : -INFINITY;
        if (s.cap > 0 && i < n) v[k] = s.cap * tanhf(v[k] / s.cap);
        top = fmaxf(top, v[k]);
        odd |= v[k] != v[k];
        if (i < n && i == hit) s.to.target[s.row + r] = v[k];
    }
    top = warp_max(top);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int64_t i = lane + k * WARP;
        v[k] = i < n ? tess_power_of_2((v[k] - top) * TESS_LOG2_E) : 0;
        sum += v[k];
        if (s.p && i < n) put_at<T>(s.p, r * s.p_ld + c0 + i, v[k]);
    }
    sum = warp_sum(odd ? NAN : sum);
    if (lane > 0) return;
    s.to.top[strip * s.rows + s.row + r] = top;
    s.to.sum[strip * s.rows + s.row + r] = fabsf(top) < INFINITY ? sum : NAN;
}

/* Softens the logits of these columns, which are at `logits`, of all rows from s.row on. */
template <tess_dtype T> static void soften(const tess_work *w, softening s, int64_t column, int64_t rows)
{
    const tess_cross_entropy_arg *a = arg_of(w);
    const int64_t strip = column / STRIP * a->rows;
    s.target = (const int32_t *)w->buf[1].ptr + a->row;
    s.to = stats_at(buffer(w, 3), a->rows, a->out);
    s.to.top += strip, s.to.sum += strip;
    if (a->bias) s.bias = (const float *)buffer(w, 5 + a->grad) + column;
    if (a->grad) s.p = (char *)w->buf[5].ptr + (s.row * apart(a) + column) * (int64_t)tess_dtype_size(T);
    s.rows = a->rows, s.first = a->first + column, s.p_ld = apart(a), s.cap = a->cap;
    s.strips = strips_of(s.out), s.jobs = rows * s.strips;
    launch(w, soften_kernel<T>, blocks_of(s.jobs, THREADS / WARP), THREADS, 0, s);
}

/* x, target, w, stats, scratch[, p][, b]. The rows of a column's blocks come one after the other, while their part of W
 * is in the cache. */
template <tess_dtype T> static void cross_entropy_logits_body(const tess_work *w)
{
    const tess_cross_entropy_arg *a = arg_of(w);
    const int64_t size = (int64_t)tess_dtype_size(T), out = a->out < COLUMNS ? a->out : COLUMNS;
    const char *x = (const char *)w->buf[0].ptr + a->row * a->in * size, *weight = (const char *)w->buf[2].ptr;
    const int64_t ld = blocks_of(out, ALIGN) * ALIGN, most = (int64_t)(LOGITS / sizeof(float)) / ld / 128 * 128;
    float *logits = (float *)room_of(w, LOGITS);
    for (int64_t c = 0; logits && c < a->out; c += COLUMNS)
        for (int64_t r = 0; r < a->rows; r += most) {
            softening s = {};
            const int64_t rows = a->rows - r < most ? a->rows - r : most;
            s.logits = logits, s.row = r, s.out = a->out - c < COLUMNS ? a->out - c : COLUMNS, s.ld = ld;
            tess_cuda_mm d = {rows, s.out, a->in, a->in, a->in, ld, T, TESS_F32};
            d.tb = true;
            tess_cuda_mm_run(w, &d, x + r * a->in * size, weight + c * a->in * size, logits);
            soften<T>(w, s, c, rows);
        }
}
TESS_CUDA_REAL(cross_entropy_logits)

/* ---- rows -------------------------------------------------------------------------------------------------------- */

constexpr int TILES = 256; /* at a time */
struct statistics {
    const float *tile[TILES];
    int tiles;
    int64_t first; /* of them */
};

/* Running over groups of tiles: of each row the largest logit, the sum of exponentials relative to it, and the logit at
 * the target. */
struct running {
    double *top, *sum, *target;
};

TESS_KERNEL(THREADS)
merge_kernel(statistics s, running to, const int32_t *target, tess_cross_entropy_arg a)
{
    const int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (r >= a.rows) return;
    double top = s.first ? to.top[r] : -INFINITY, sum = s.first ? to.sum[r] : 0;
    for (int j = 0; j < s.tiles; j++) {
        const int64_t begin = (s.first + j) * a.tile_out, left = a.vocab - begin;
        const int64_t columns = left < a.tile_out ? left : a.tile_out, strips = (columns + STRIP - 1) / STRIP;
        const float *tops = s.tile[j], *sums = tops + strips * a.rows;
        for (int64_t i = 0; i < strips; i++) {
            const double m = tops[i * a.rows + r], all = sums[i * a.rows + r];
            if (m > top) {
                sum = sum * exp(top - m) + all;
                top = m;
            } else
                sum += all * exp(m - top);
        }
        if (target[r] >= begin && target[r] < begin + columns) to.target[r] = sums[strips * a.rows + r];
    }
    to.top[r] = top;
    to.sum[r] = sum;
}

/* lse of each row, and the loss of all: one block, a tree. */
TESS_KERNEL(THREADS)
loss_kernel(running of, const int32_t *target, float *lse, double *loss, int64_t rows, int which, int losses, bool hits)
{
    TESS_SHARED(double, room, [3][THREADS]);
    const int t = (int)threadIdx.x;
    double sum = 0, count = 0, hit = 0;
    for (int64_t r = t; r < rows; r += THREADS) {
        const double all = of.top[r] + log(of.sum[r]);
        lse[r] = (float)all;
        if (target[r] < 0) continue;
        sum += all - of.target[r];
        count += 1;
        hit += of.target[r] >= of.top[r];
    }
    room[0][t] = sum;
    room[1][t] = count;
    room[2][t] = hit;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t >= half) continue;
        room[0][t] += room[0][t + half];
        room[1][t] += room[1][t + half];
        room[2][t] += room[2][t + half];
    }
    if (t > 0) return;
    for (int k = 0; k < 2 * losses; k++) loss[k] = k / 2 == which ? room[k % 2][0] : 0;
    for (int k = 0; hits && k < 2 * losses; k++) loss[2 * losses + k] = k / 2 == which ? room[k % 2 ? 1 : 2][0] : 0;
}

/* The same where scores of sequences are wanted: a block a sequence of these rows, which adds to its score. */
TESS_KERNEL(THREADS)
score_kernel(running of, const int32_t *target, float *lse, float *scores, tess_cross_entropy_arg a)
{
    TESS_SHARED(double, room, [2][THREADS]);
    const int t = (int)threadIdx.x;
    const int64_t s = a.row / a.sequence + blockIdx.x, from = s * a.sequence - a.row;
    const int64_t end = from + a.sequence < a.rows ? from + a.sequence : a.rows;
    double sum = 0, count = 0;
    for (int64_t r = (from > 0 ? from : 0) + t; r < end; r += THREADS) {
        const double all = of.top[r] + log(of.sum[r]);
        lse[r] = (float)all;
        if (target[r] < 0) continue;
        sum += of.target[r] - all;
        count += 1;
    }
    room[0][t] = sum;
    room[1][t] = count;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t >= half) continue;
        room[0][t] += room[0][t + half];
        room[1][t] += room[1][t + half];
    }
    if (t > 0) return;
    for (int k = 0; k < 2; k++) scores[2 * s + k] = (from >= 0 ? 0 : scores[2 * s + k]) + (float)room[k][0];
}

/* target, lse, loss, stats... */
template <tess_dtype T> static void cross_entropy_rows_body(const tess_work *w)
{
    const tess_cross_entropy_arg *a = arg_of(w);
    const int32_t *target = (const int32_t *)w->buf[0].ptr + a->row;
    double *room = (double *)room_of(w, (size_t)(3 * a->rows) * sizeof(double));
    if (!room) return;
    const running to = {room, room + a->rows, room + 2 * a->rows};
    for (int64_t first = 0; first < a->tiles; first += TILES) {
        statistics s = {};
        s.first = first;
        for (; s.tiles < TILES && first + s.tiles < a->tiles; s.tiles++)
            s.tile[s.tiles] = (const float *)w->buf[3 + first + s.tiles].ptr;
        launch(w, merge_kernel, blocks_of(a->rows, THREADS), THREADS, 0, s, to, target, *a);
    }
    if (a->sequence) {
        const int64_t sequences = (a->row + a->rows - 1) / a->sequence - a->row / a->sequence + 1;
        launch(w, score_kernel, sequences, THREADS, 0, to, target, (float *)w->buf[1].ptr + a->row,
               (float *)w->buf[2].ptr, *a);
        return;
    }
    launch(w, loss_kernel, 1, THREADS, 0, to, target, (float *)w->buf[1].ptr, (double *)w->buf[2].ptr, a->rows, a->loss,
           a->losses, a->hits);
}
TESS_CUDA_BODY(cross_entropy_rows, cross_entropy_rows_f32, TESS_F32)

/* ---- gradient ---------------------------------------------------------------------------------------------------- */

struct scaling {
    stats of;
    const float *lse;
    const int32_t *target;
    void *p;
    int64_t rows, out, first, ld;
    float loss_scale, cap;
    const float *scores; /* NULL, or the gradient of the scores, which scales rows instead */
    int64_t row, sequence;
};

/* How a logit that was capped moves with what it was before. */
TESS_DEVICE float cap_slope(float capped, float cap)
{
    const float part = capped / cap;
    return 1 - part * part;
}

/* p becomes dlogits; a warp a strip of a row. */
template <tess_dtype T, int K> TESS_KERNEL(THREADS) scale_kernel(scaling s, int64_t strips)
{
    const int64_t job = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    const int64_t r = job / strips, strip = job % strips, c0 = strip * STRIP;
    if (r >= s.rows) return;
    const int64_t end = c0 + STRIP < s.out ? c0 + STRIP : s.out, hit = s.target[r] < 0 ? -1 : s.target[r] - s.first;
    const float top = s.of.top[strip * s.rows + r];
    const float loss_scale = s.scores ? -s.scores[(s.row + r) / s.sequence * 2] : s.loss_scale;
    const float factor = s.target[r] < 0 ? 0 : expf(top - s.lse[r]) * loss_scale;
    for (int64_t c = c0 + threadIdx.x % WARP * K; c < end; c += WARP * K) {
        float v[K];
        load<T, K>(v, s.p, r * s.ld + c);
#pragma unroll
        for (int k = 0; k < K; k++) {
            const float slope =
                s.cap > 0 ? cap_slope(c + k == hit ? s.of.target[r] : top + logf(fmaxf(v[k], 1.2e-38f)), s.cap) : 1;
            v[k] *= factor * slope;
            if (c + k == hit) v[k] = (expf(s.of.target[r] - s.lse[r]) - 1) * loss_scale * slope;
        }
        store<T, K>(s.p, r * s.ld + c, v);
    }
}

/* p, stats, lse, target[, w, dx][, dscores] */
template <tess_dtype T> static void cross_entropy_gradient_body(const tess_work *w)
{
    const tess_cross_entropy_arg *a = arg_of(w);
    void *p = w->buf[0].ptr;
    const int64_t strips = strips_of(a->out), jobs = a->rows * strips;
    const int32_t *target = (const int32_t *)w->buf[3].ptr + a->row;
    const scaling s = {stats_at(buffer(w, 1), a->rows, a->out),
                       (const float *)w->buf[2].ptr + (a->sequence ? a->row : 0),
                       target,
                       p,
                       a->rows,
                       a->out,
                       a->first,
                       apart(a),
                       w->env->loss_scale[a->loss],
                       a->cap,
                       a->sequence ? (const float *)w->buf[a->ends ? 4 : 6].ptr : NULL,
                       a->row,
                       a->sequence};
    const bool wide = a->out % WIDE == 0 && s.ld % WIDE == 0 && aligned(p);
    launch(w, wide ? scale_kernel<T, WIDE> : scale_kernel<T, 1>, blocks_of(jobs, THREADS / WARP), THREADS, 0, s,
           strips);
    if (a->ends) return;
    tess_cuda_mm d = {a->rows, a->in, a->out, apart(a), a->in, a->in, T, TESS_F32};
    d.acc = a->acc;
    tess_cuda_mm_run(w, &d, p, w->buf[4].ptr, w->buf[5].ptr);
}
TESS_CUDA_REAL(cross_entropy_gradient)
