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

/* The statistics of one tile: (strips, rows) of m and of the sum of exp(logit - m), then (rows, 1 or soft) of the
 * logits at the targets. */
struct stats {
    float *top, *sum, *target;
};
static stats stats_at(void *tile, int64_t rows, int64_t out)
{
    float *top = (float *)tile;
    return stats{top, top + strips_of(out) * rows, top + 2 * strips_of(out) * rows};
}

/* Soft targets: of each row of this piece `count` tokens, and then their shares' bits; NULL: there are none. */
struct softness {
    const int32_t *of = NULL;
    int64_t count = 0;
};
static softness soft_of(const tess_work *w, unsigned buffer)
{
    const tess_cross_entropy_arg *a = arg_of(w);
    softness s = {};
    if (a->soft) s.of = (const int32_t *)w->buf[buffer].ptr + (a->soft_row + a->row) * 2 * a->soft;
    s.count = a->soft;
    return s;
}
TESS_DEVICE float share_of(const softness &s, int64_t r, int64_t i)
{
    return ((const float *)s.of)[(2 * r + 1) * s.count + i];
}
static float heat_of(const tess_cross_entropy_arg *a)
{
    return a->heat > 0 ? a->heat : 1;
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
    float heat = 1;
    softness soft = {};
};
TESS_DEVICE float logit_of(const softening &s, float product, int64_t column)
{
    float v = product + (s.bias ? s.bias[column] : 0);
    if (s.cap > 0) v = s.cap * tanhf(v / s.cap);
    return s.heat == 1 ? v : v / s.heat;
}

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
        v[k] = i < n ? logit_of(s, from[i], c0 + i) : -INFINITY;
        top = fmaxf(top, v[k]);
        odd |= v[k] != v[k];
        if (i < n && i == hit && !s.soft.of) s.to.target[s.row + r] = v[k];
    }
    for (int64_t i = lane; i < s.soft.count; i += WARP) {
        const int64_t at = s.soft.of[(s.row + r) * 2 * s.soft.count + i] - s.first - c0;
        if (at >= 0 && at < n) s.to.target[(s.row + r) * s.soft.count + i] = logit_of(s, from[at], c0 + at);
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
    s.heat = heat_of(a), s.soft = soft_of(w, 5 + a->grad + a->bias);
    s.strips = strips_of(s.out), s.jobs = rows * s.strips;
    launch(w, soften_kernel<T>, blocks_of(s.jobs, THREADS / WARP), THREADS, 0, s);
}

/* x, target, w, stats, scratch[, p][, b][, soft]. The rows of a column's blocks come one after the other, while their
 * part of W is in the cache. */
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
 * the target, or the sum of share (logit - log share) of soft ones. */
struct running {
    double *top, *sum, *target;
};

TESS_KERNEL(THREADS)
merge_kernel(statistics s, running to, const int32_t *target, tess_cross_entropy_arg a, softness soft)
{
    const int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (r >= a.rows) return;
    double top = s.first ? to.top[r] : -INFINITY, sum = s.first ? to.sum[r] : 0;
    double softly = s.first && soft.of ? to.target[r] : 0;
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
        for (int64_t i = 0; i < soft.count && target[r] >= 0; i++) {
            const int64_t token = soft.of[2 * r * soft.count + i];
            const double share = share_of(soft, r, i);
            if (token < begin || token >= begin + columns || !(share > 0)) continue;
            softly += share * (sums[strips * a.rows + r * soft.count + i] - log(share));
        }
        if (!soft.of && target[r] >= begin && target[r] < begin + columns) to.target[r] = sums[strips * a.rows + r];
    }
    if (soft.of) to.target[r] = softly;
    to.top[r] = top;
    to.sum[r] = sum;
}

/* lse of each row, and the loss of all: one block, a tree. */
TESS_KERNEL(THREADS)
loss_kernel(running of, const int32_t *target, float *lse, double *loss, int64_t rows, int which, int losses, bool hits,
            float weight)
{
    TESS_SHARED(double, room, [3][THREADS]);
    const int t = (int)threadIdx.x;
    double sum = 0, count = 0, hit = 0;
    for (int64_t r = t; r < rows; r += THREADS) {
        const double all = of.top[r] + log(of.sum[r]);
        lse[r] = (float)all;
        if (target[r] < 0) continue;
        sum += weight * (all - of.target[r]);
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

/* target, lse, loss, stats...[, soft] */
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
        launch(w, merge_kernel, blocks_of(a->rows, THREADS), THREADS, 0, s, to, target, *a,
               soft_of(w, 3 + (unsigned)a->tiles));
    }
    if (a->sequence) {
        const int64_t sequences = (a->row + a->rows - 1) / a->sequence - a->row / a->sequence + 1;
        launch(w, score_kernel, sequences, THREADS, 0, to, target, (float *)w->buf[1].ptr + a->row,
               (float *)w->buf[2].ptr, *a);
        return;
    }
    launch(w, loss_kernel, 1, THREADS, 0, to, target, (float *)w->buf[1].ptr, (double *)w->buf[2].ptr, a->rows, a->loss,
           a->losses, a->hits, a->weight > 0 ? a->weight : 1.0f);
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
    float heat;
    softness soft;
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
                s.cap > 0 ? cap_slope(c + k == hit && !s.soft.of ? s.of.target[r] : top + logf(fmaxf(v[k], 1.2e-38f)),
                                      s.cap / s.heat)
                          : 1;
            v[k] *= factor * slope;
            if (c + k == hit && !s.soft.of) v[k] = (expf(s.of.target[r] - s.lse[r]) - 1) * loss_scale * slope;
        }
        store<T, K>(s.p, r * s.ld + c, v);
    }
    if (!s.soft.of || s.target[r] < 0) return; /* the whole warp */
    __syncwarp();
    for (int64_t i = threadIdx.x % WARP; i < s.soft.count; i += WARP) {
        const int64_t at = s.soft.of[2 * r * s.soft.count + i] - s.first;
        if (at < c0 || at >= end) continue;
        const float logit = s.of.target[r * s.soft.count + i];
        const float slope = s.cap > 0 ? cap_slope(logit, s.cap / s.heat) : 1;
        put_at<T>(s.p, r * s.ld + at, (expf(logit - s.lse[r]) - share_of(s.soft, r, i)) * loss_scale * slope);
    }
}

/* p, stats, lse, target[, w, dx][, dscores][, soft] */
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
                       w->env->loss_scale[a->loss] * (a->weight > 0 ? a->weight : 1) / heat_of(a),
                       a->cap,
                       a->sequence ? (const float *)w->buf[a->ends ? 4 : 6].ptr : NULL,
                       a->row,
                       a->sequence,
                       heat_of(a),
                       soft_of(w, 4 + 2 * !a->ends + (a->sequence > 0))};
    const bool wide = a->out % WIDE == 0 && s.ld % WIDE == 0 && aligned(p);
    launch(w, wide ? scale_kernel<T, WIDE> : scale_kernel<T, 1>, blocks_of(jobs, THREADS / WARP), THREADS, 0, s,
           strips);
    if (a->ends) return;
    tess_cuda_mm d = {a->rows, a->in, a->out, apart(a), a->in, a->in, T, TESS_F32};
    d.acc = a->acc;
    tess_cuda_mm_run(w, &d, p, w->buf[4].ptr, w->buf[5].ptr);
}
TESS_CUDA_REAL(cross_entropy_gradient)

/* ---- the likeliest ----------------------------------------------------------------------------------------------- */

struct likelihood {
    softening logits; /* of these rows and columns */
    float *to;        /* of the first of these rows */
    int64_t most, rows;
    bool fresh; /* nothing is known of the rows yet */
};

/* Puts a logit in its place among those of a row, behind its equals; the whole warp. */
TESS_DEVICE void insert(float *logit, int64_t most, float v, float column, int lane)
{
    float *const columns = logit + most;
    float before = 0;
    for (int64_t e = lane; e < most; e += WARP) before += logit[e] >= v;
    const int64_t at = (int64_t)warp_sum(before);
    for (int64_t last = most - 1; last > at; last -= WARP) {
        const int64_t e = last - lane;
        const float moved = e > at ? logit[e - 1] : 0, with = e > at ? columns[e - 1] : 0;
        __syncwarp();
        if (e > at) logit[e] = moved, columns[e] = with;
        __syncwarp();
    }
    if (lane == 0) logit[at] = v, columns[at] = column;
    __syncwarp();
}

/* A warp a row. */
TESS_KERNEL(THREADS) likeliest_kernel(likelihood a)
{
    const int64_t r = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (r >= a.rows) return; /* the whole warp */
    const int lane = (int)threadIdx.x % WARP;
    float *const row = a.to + r * (2 + 2 * a.most), *const logit = row + 2;
    const float *from = a.logits.logits + r * a.logits.ld;
    for (int64_t i = lane; i < 2 + 2 * a.most && a.fresh; i += WARP)
        row[i] = i == 1 ? 0 : i < 2 + a.most ? -INFINITY : -1;
    __syncwarp();
    float top = -INFINITY, sum = 0;
    bool odd = false;
    for (int64_t c = 0; c < a.logits.out; c += WARP) {
        const int64_t i = c + lane;
        float v = i < a.logits.out ? logit_of(a.logits, from[i], i) : -INFINITY;
        odd |= v != v;
        if (v > top) {
            sum = sum * expf(top - v) + 1;
            top = v;
        } else if (i < a.logits.out)
            sum += expf(v - top);
        for (float m = warp_max(v); m > logit[a.most - 1]; m = warp_max(v)) {
            const int first = -(int)warp_max(v == m ? -(float)lane : -(float)WARP);
            __syncwarp();
            insert(logit, a.most, m, (float)(a.logits.first + c + first), lane);
            if (lane == first) v = -INFINITY;
        }
    }
    const float most = fmaxf(warp_max(top), row[0]);
    sum = warp_sum(odd ? NAN : top > -INFINITY ? sum * expf(top - most) : 0);
    __syncwarp();
    if (lane > 0) return;
    row[1] = (row[1] > 0 ? row[1] * expf(row[0] - most) : 0) + sum;
    row[0] = most;
}

/* x, w, likeliest, scratch[, b] */
template <tess_dtype T> static void cross_entropy_likeliest_body(const tess_work *w)
{
    const tess_cross_entropy_arg *a = arg_of(w);
    const int64_t size = (int64_t)tess_dtype_size(T), left = a->vocab - a->first, all = a->out < left ? a->out : left;
    const char *x = (const char *)w->buf[0].ptr, *weight = (const char *)w->buf[1].ptr;
    const int64_t ld = blocks_of(all < COLUMNS ? all : COLUMNS, ALIGN) * ALIGN;
    const int64_t most = (int64_t)(LOGITS / sizeof(float)) / (ld > 0 ? ld : 1) / 128 * 128;
    float *logits = (float *)room_of(w, LOGITS);
    for (int64_t c = 0; logits && c < all; c += COLUMNS)
        for (int64_t r = 0; r < a->rows; r += most) {
            likelihood l = {};
            softening &s = l.logits;
            l.rows = a->rows - r < most ? a->rows - r : most, l.most = a->soft, l.fresh = !a->first && !c;
            l.to = (float *)w->buf[2].ptr + r * (2 + 2 * a->soft);
            s.logits = logits, s.out = all - c < COLUMNS ? all - c : COLUMNS, s.ld = ld, s.first = a->first + c;
            s.cap = a->cap;
            if (a->bias) s.bias = (const float *)w->buf[4].ptr + c;
            tess_cuda_mm d = {l.rows, s.out, a->in, a->in, a->in, ld, T, TESS_F32};
            d.tb = true;
            tess_cuda_mm_run(w, &d, x + r * a->in * size, weight + c * a->in * size, logits);
            launch(w, likeliest_kernel, blocks_of(l.rows, THREADS / WARP), THREADS, 0, l);
        }
}
TESS_CUDA_REAL(cross_entropy_likeliest)
