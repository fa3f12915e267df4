/* cross_entropy: the tasks of cross_entropy.c, with statistics laid out as there. But p has the logits themselves,
 * rounded as the library rounds them: they are written once, read for the statistics, and become dlogits in place. What
 * is asked for the loss alone is made block by block, in as many rows and columns as w->room holds. Where a tile of w
 * is all of it, statistics and dlogits are one kernel. */
#include "codelets/shared/kernels.h"

constexpr int STRIP = 512, THREADS = 256, CHAINS = 32;
constexpr int ROW_THREADS = 512;    /* of a row: all that are under way, two a multiprocessor, stay in the cache */
constexpr size_t LOGITS = 30 << 20; /* bytes of a block of them: it stays in the device's cache */
/* Columns of a block, of whole strips, so that it has some hundred rows: with all columns of a large vocabulary each of
 * its products would read all of W for a few. */
constexpr int64_t COLUMNS = 16384;
constexpr size_t BIAS = 64 << 10; /* of the room, before the block: where mm.cu has a bias */
static_assert(COLUMNS % STRIP == 0, "a strip is one block's");
constexpr int64_t ALIGN = 64; /* elements that the distance of rows is a multiple of: no fast kernel takes odd ones */

static int64_t apart(const tess_cross_entropy_arg *a)
{
    return a->ld ? a->ld : a->out;
}
TESS_BOTH int64_t strips_of(int64_t out)
{
    return (out + STRIP - 1) / STRIP;
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
    const void *logits = NULL; /* (rows here, out), ld apart */
    const int32_t *target = NULL;
    stats to = {};
    int64_t row = 0, rows = 0, out = 0, first = 0, ld = 0;
    int64_t strips = 0, jobs = 0; /* rows here x strips */
    float cap = 0;                /* 0: none */
    float heat = 1;
    softness soft = {};
};
TESS_DEVICE float logit_of(float product, float cap, float heat)
{
    const float v = cap > 0 ? cap * tanhf(product / cap) : product;
    return heat == 1 ? v : v / heat;
}

/* K of n elements of a strip from i on; what is behind the last one is 0. */
template <tess_dtype T, int K> TESS_DEVICE void load_of(float v[K], const void *strip, int i, int n)
{
    if (i + K <= n) {
        load<T, K>(v, strip, i);
        return;
    }
    for (int k = 0; k < K; k++) v[k] = i + k < n ? value_at<T>(strip, i + k) : 0;
}

/* By a warp, which reads the strip once. */
template <tess_dtype T, int K> TESS_DEVICE void soften_strip(const softening &s, int64_t r, int64_t strip)
{
    constexpr int EACH = STRIP / WARP / K;
    const int lane = (int)threadIdx.x % WARP;
    const int64_t c0 = strip * STRIP;
    const int n = (int)(s.out - c0 < STRIP ? s.out - c0 : STRIP);
    const void *from = at(s.logits, r * s.ld + c0, T);
    const int64_t hit = s.target[s.row + r] - s.first - c0;
    float v[EACH][K], top = -INFINITY, sum = 0;
    bool odd = false; /* something that is not a number: a maximum would pass over it */
#pragma unroll
    for (int e = 0; e < EACH; e++) load_of<T, K>(v[e], from, (e * WARP + lane) * K, n);
#pragma unroll
    for (int e = 0; e < EACH; e++)
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int i = (e * WARP + lane) * K + k;
            float &x = v[e][k];
            x = i < n ? logit_of(x, s.cap, s.heat) : -INFINITY;
            top = fmaxf(top, x);
            odd |= x != x;
            if (i < n && i == hit && !s.soft.of) s.to.target[s.row + r] = x;
        }
    for (int64_t i = lane; i < s.soft.count; i += WARP) {
        const int64_t at = s.soft.of[(s.row + r) * 2 * s.soft.count + i] - s.first - c0;
        if (at >= 0 && at < n)
            s.to.target[(s.row + r) * s.soft.count + i] = logit_of(value_at<T>(from, at), s.cap, s.heat);
    }
    top = warp_max(top);
#pragma unroll
    for (int e = 0; e < EACH; e++)
#pragma unroll
        for (int k = 0; k < K; k++)
            sum += (e * WARP + lane) * K + k < n ? tess_power_of_2((v[e][k] - top) * TESS_LOG2_E) : 0;
    sum = warp_sum(odd ? NAN : sum);
    if (lane > 0) return;
    s.to.top[strip * s.rows + s.row + r] = top;
    s.to.sum[strip * s.rows + s.row + r] = fabsf(top) < INFINITY ? sum : NAN;
}
template <tess_dtype T, int K> TESS_KERNEL(THREADS) soften_kernel(softening s)
{
    const int64_t job = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (job < s.jobs) soften_strip<T, K>(s, job / s.strips, job % s.strips);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

constexpr int TILES = 256; /* at a time */
struct statistics {
    const float *tile[TILES];
    int tiles;
    int64_t first; /* of them */
};

/* Columns of the tile that begins there. */
TESS_DEVICE int64_t columns_of(const tess_cross_entropy_arg &a, int64_t begin)
{
    return a.vocab - begin < a.tile_out ? a.vocab - begin : a.tile_out;
}

/* Running over groups of tiles: of each row the largest logit, the sum of exponentials relative to it, in the end the
 * log of all exponentials in its place, and the logit at the target, or the sum of share (logit - log share) of soft
 * ones. */
struct running {
    double *top, *sum, *target;
};

/* Adds a sum of exponentials that are relative to m. */
TESS_DEVICE void merge(double *top, double *sum, double m, double all)
{
    if (m > *top) {
        *sum = *sum * exp(*top - m) + all;
        *top = m;
    } else
        *sum += all * exp(m - *top);
}

/* What one of the chains that a row's strips are added up in has of a tile, whose statistics of this row begin there:
 * the largest logit, and the sum of exponentials relative to the largest of all chains. */
TESS_DEVICE float chain_top(const float *of, int64_t strips, int64_t rows, int chain)
{
    float top = -INFINITY;
    for (int64_t i = chain; i < strips; i += CHAINS) top = fmaxf(top, of[i * rows]);
    return top;
}
TESS_DEVICE double chain_sum(const float *of, int64_t strips, int64_t rows, int chain, double top)
{
    double sum = 0;
    for (int64_t i = chain; i < strips; i += CHAINS)
        sum = fma((double)of[(strips + i) * rows], exp((double)of[i * rows] - top), sum);
    return sum;
}

/* A warp's lanes have a row each, and the warps of a block a chain each; in the end a warp adds up one row's. */
TESS_KERNEL(CHAINS *WARP)
merge_kernel(statistics s, running to, const int32_t *target, tess_cross_entropy_arg a, softness soft)
{
    TESS_SHARED(float, tops, [CHAINS][WARP]);
    TESS_SHARED(double, sums, [CHAINS][WARP + 1]);
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t r = (int64_t)blockIdx.x * WARP + lane;
    const int tiles = r < a.rows ? s.tiles : 0;
    double softly = s.first && soft.of && tiles ? to.target[r] : 0, sum = 0;
    float top = -INFINITY;
    for (int j = 0; j < tiles; j++) {
        const int64_t begin = (s.first + j) * a.tile_out, columns = columns_of(a, begin), strips = strips_of(columns);
        const float *logit = s.tile[j] + 2 * strips * a.rows;
        top = fmaxf(top, chain_top(s.tile[j] + r, strips, a.rows, warp));
        for (int64_t i = 0; i < soft.count && warp == 0 && target[r] >= 0; i++) {
            const int64_t token = soft.of[2 * r * soft.count + i];
            const double share = share_of(soft, r, i);
            if (token < begin || token >= begin + columns || !(share > 0)) continue;
            softly += share * (logit[r * soft.count + i] - log(share));
        }
        if (!soft.of && warp == 0 && target[r] >= begin && target[r] < begin + columns) to.target[r] = logit[r];
    }
    if (soft.of && warp == 0 && tiles) to.target[r] = softly;
    tops[warp][lane] = top;
    __syncthreads();
    for (int k = 0; k < CHAINS; k++) top = fmaxf(top, tops[k][lane]);
    for (int j = 0; j < tiles; j++)
        sum += chain_sum(s.tile[j] + r, strips_of(columns_of(a, (s.first + j) * a.tile_out)), a.rows, warp, top);
    sums[warp][lane] = sum;
    __syncthreads();
    sum = warp_sum(sums[lane][warp]);
    if (lane != warp || !tiles) return;
    double most = s.first ? to.top[r] : -INFINITY, all = s.first ? to.sum[r] : 0;
    merge(&most, &all, top, sum);
    to.top[r] = most;
    to.sum[r] = s.first + s.tiles < a.tiles ? all : most + log(all);
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
        const double all = of.sum[r];
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
        const double all = of.sum[r];
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
        launch(w, merge_kernel, blocks_of(a->rows, WARP), CHAINS * WARP, 0, s, to, target, *a,
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

/* The logits in p become dlogits, by a warp. */
template <tess_dtype T, int K> TESS_DEVICE void scale_strip(const scaling &s, int64_t r, int64_t strip, float lse)
{
    const int64_t c0 = strip * STRIP;
    const int n = (int)(s.out - c0 < STRIP ? s.out - c0 : STRIP), lane = (int)threadIdx.x % WARP;
    const bool counts = s.target[r] >= 0;
    const int64_t hit = s.soft.of ? -1 : s.target[r] - s.first - c0;
    const float loss_scale = s.scores ? -s.scores[(s.row + r) / s.sequence * 2] : s.loss_scale;
    void *p = at(s.p, r * s.ld + c0, T);
#pragma unroll 2
    for (int i = lane * K; i < n; i += WARP * K) {
        float v[K];
        load_of<T, K>(v, p, i, n);
#pragma unroll
        for (int k = 0; k < K; k++) {
            const float logit = logit_of(v[k], s.cap, s.heat);
            const float slope = s.cap > 0 ? cap_slope(logit, s.cap / s.heat) : 1;
            const float share = tess_power_of_2((logit - lse) * TESS_LOG2_E) - (i + k == hit ? 1.0f : 0.0f);
            v[k] = counts ? share * loss_scale * slope : 0;
        }
        if (i + K <= n)
            store<T, K>(p, i, v);
        else
            for (int k = 0; i + k < n; k++) put_at<T>(p, i + k, v[k]);
    }
    if (!s.soft.of || !counts) return; /* the whole warp */
    __syncwarp();
    for (int64_t i = lane; i < s.soft.count; i += WARP) {
        const int64_t at = s.soft.of[2 * r * s.soft.count + i] - s.first - c0;
        if (at < 0 || at >= n) continue;
        const float logit = s.of.target[r * s.soft.count + i];
        const float slope = s.cap > 0 ? cap_slope(logit, s.cap / s.heat) : 1;
        put_at<T>(p, at, (expf(logit - lse) - share_of(s.soft, r, i)) * loss_scale * slope);
    }
}

template <tess_dtype T, int K> TESS_KERNEL(THREADS) scale_kernel(scaling s)
{
    const int64_t job = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, strips = strips_of(s.out);
    if (job < s.rows * strips) scale_strip<T, K>(s, job / strips, job % strips, s.lse[job / strips]);
}

/* A block a row, whose logits become dlogits while the device's cache has them. */
template <tess_dtype T> TESS_KERNEL_AT(ROW_THREADS, 2) row_kernel(softening s, scaling to)
{
    TESS_SHARED(float, lse, [1]);
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t r = blockIdx.x;
    for (int64_t i = warp; i < s.strips; i += ROW_THREADS / WARP) soften_strip<T, WIDE>(s, r, i);
    __syncthreads();
    if (warp == 0) {
        const double top = warp_max(chain_top(s.to.top + r, s.strips, s.rows, lane));
        const double sum = warp_sum(chain_sum(s.to.top + r, s.strips, s.rows, lane, top));
        if (lane == 0) lse[0] = (float)(top + log(sum));
    }
    __syncthreads();
    for (int64_t i = warp; i < s.strips; i += ROW_THREADS / WARP) scale_strip<T, WIDE>(to, r, i, lse[0]);
}

/* Of a loss. */
static scaling scaling_of(const tess_work *w, void *p, const void *stats, const void *target, unsigned more)
{
    const tess_cross_entropy_arg *a = arg_of(w);
    scaling s = {};
    s.of = stats_at((void *)stats, a->rows, a->out), s.target = (const int32_t *)target + a->row, s.p = p;
    s.rows = a->rows, s.out = a->out, s.first = a->first, s.ld = apart(a), s.row = a->row, s.cap = a->cap;
    s.loss_scale = w->env->loss_scale[a->loss] * (a->weight > 0 ? a->weight : 1) / heat_of(a);
    s.heat = heat_of(a), s.soft = soft_of(w, more);
    return s;
}
/* Whether logits leave dlogits. */
static bool at_once(const tess_cross_entropy_arg *a)
{
    return a->whole && apart(a) % WIDE == 0;
}

/* p, stats, lse, target[, w, dx][, dscores][, soft] */
template <tess_dtype T> static void cross_entropy_gradient_body(const tess_work *w)
{
    const tess_cross_entropy_arg *a = arg_of(w);
    void *p = w->buf[0].ptr;
    scaling s = scaling_of(w, p, w->buf[1].ptr, w->buf[3].ptr, 4 + 2 * !a->ends + (a->sequence > 0));
    s.lse = (const float *)w->buf[2].ptr + (a->sequence ? a->row : 0);
    s.sequence = a->sequence;
    if (a->sequence) s.scores = (const float *)w->buf[a->ends ? 4 : 6].ptr;
    const bool wide = s.ld % WIDE == 0 && aligned(p);
    if (!at_once(a))
        launch(w, wide ? scale_kernel<T, WIDE> : scale_kernel<T, 1>,
               blocks_of(a->rows * strips_of(a->out), THREADS / WARP), THREADS, 0, s);
    if (a->ends) return;
    tess_cuda_mm d = {a->rows, a->in, a->out, apart(a), a->in, a->in, T, TESS_F32};
    d.acc = a->acc;
    tess_cuda_mm_run(w, &d, p, w->buf[4].ptr, w->buf[5].ptr);
}
TESS_CUDA_REAL(cross_entropy_gradient)

/* ---- what begins it ---------------------------------------------------------------------------------------------- */

/* The statistics of these columns' logits, of all rows from s.row on; dlogits, where they come at once. */
template <tess_dtype T> static void soften(const tess_work *w, softening s, int64_t column, int64_t rows)
{
    const tess_cross_entropy_arg *a = arg_of(w);
    const int64_t strip = column / STRIP * a->rows;
    const bool wide = s.ld % WIDE == 0 && aligned(s.logits);
    const unsigned more = 5 + a->grad + a->bias;
    s.target = (const int32_t *)w->buf[1].ptr + a->row;
    s.to = stats_at(buffer(w, 3), a->rows, a->out);
    s.to.top += strip, s.to.sum += strip;
    s.rows = a->rows, s.first = a->first + column, s.cap = a->cap;
    s.heat = heat_of(a), s.soft = soft_of(w, more);
    s.strips = strips_of(s.out), s.jobs = rows * s.strips;
    if (at_once(a))
        launch(w, row_kernel<T>, rows, ROW_THREADS, 0, s,
               scaling_of(w, w->buf[5].ptr, w->buf[3].ptr, w->buf[1].ptr, more));
    else
        launch(w, wide ? soften_kernel<T, WIDE> : soften_kernel<T, 1>, blocks_of(s.jobs, THREADS / WARP), THREADS, 0,
               s);
}

/* x, target, w, stats, scratch[, p][, b][, soft]. Where p keeps them, all logits are one product; else the rows of a
 * column's blocks come one after the other, while their part of W is in the cache. */
template <tess_dtype T> static void cross_entropy_logits_body(const tess_work *w)
{
    const tess_cross_entropy_arg *a = arg_of(w);
    const int64_t columns = a->grad || a->out < COLUMNS ? a->out : COLUMNS;
    const int64_t ld = a->grad ? apart(a) : blocks_of(columns, ALIGN) * ALIGN;
    const int64_t most = a->grad ? a->rows : (int64_t)(LOGITS / tess_dtype_size(T)) / ld / 128 * 128;
    const float *bias = a->bias ? (const float *)w->buf[5 + a->grad].ptr : NULL;
    char *room = (char *)room_of(w, BIAS + (a->grad ? 0 : LOGITS));
    for (int64_t c = 0; room && c < a->out; c += columns)
        for (int64_t r = 0; r < a->rows; r += most) {
            softening s = {};
            const int64_t rows = a->rows - r < most ? a->rows - r : most;
            void *to = a->grad ? w->buf[5].ptr : room + BIAS;
            s.logits = to, s.row = r, s.out = a->out - c < columns ? a->out - c : columns, s.ld = ld;
            tess_cuda_mm d = {rows, s.out, a->in, a->in, a->in, ld, T, T};
            d.tb = true, d.bias = bias ? bias + c : NULL;
            tess_cuda_mm_run(w, &d, at(w->buf[0].ptr, (a->row + r) * a->in, T), at(w->buf[2].ptr, c * a->in, T), to);
            soften<T>(w, s, c, rows);
        }
}
TESS_CUDA_REAL(cross_entropy_logits)

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
    const float *from = (const float *)a.logits.logits + r * a.logits.ld;
    for (int64_t i = lane; i < 2 + 2 * a.most && a.fresh; i += WARP)
        row[i] = i == 1 ? 0 : i < 2 + a.most ? -INFINITY : -1;
    __syncwarp();
    float top = -INFINITY, sum = 0;
    bool odd = false;
    for (int64_t c = 0; c < a.logits.out; c += WARP) {
        const int64_t i = c + lane;
        float v = i < a.logits.out ? logit_of(from[i], a.logits.cap, 1) : -INFINITY;
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
            tess_cuda_mm d = {l.rows, s.out, a->in, a->in, a->in, ld, T, TESS_F32};
            d.tb = true, d.bias = a->bias ? (const float *)w->buf[4].ptr + c : NULL;
            tess_cuda_mm_run(w, &d, x + r * a->in * size, weight + c * a->in * size, logits);
            launch(w, likeliest_kernel, blocks_of(l.rows, THREADS / WARP), THREADS, 0, l);
        }
}
TESS_CUDA_REAL(cross_entropy_likeliest)
