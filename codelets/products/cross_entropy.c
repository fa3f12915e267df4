/* cross_entropy: the head and its loss for a piece of rows, one tile of w at a time, so that logits exist only a block
 * at a time.
 *
 * logits, strip by strip of a tile's columns: a block of logits in f32, small enough to stay in cache, its largest of
 * each row m and the sum of exp(logit - m); with grad, exp(logit - m) goes to p in real. rows: the lse of each row,
 * over all tiles. gradient: p becomes dlogits = exp(logit - lse) * loss_scale by one more factor a row and strip, the
 * target's entry comes from its logit again, in f32, since the difference to 1 would drown in p's rounding; and dx +=
 * p w. Each logit is computed once and exponentiated once.
 *
 * Where logits are capped, all of this is of the capped ones, which p remembers: logit = m + log p. The slope of the
 * cap is then one more factor of dlogits.
 */
#include "codelets/products/mm.h"
#include "codelets/shared/parts.h"

enum { STRIP = 512, BLOCK_ROWS = 256 }; /* a block of logits */

/* The statistics of one tile. */
struct stats {
    float *top, *sum; /* (strips, rows) each: m, and the sum of exp(logit - m) */
    float *target;    /* (rows, 1 or soft): the logits there, in the tile that has them */
};

static int64_t apart(const tess_cross_entropy_arg *a)
{
    return a->ld ? a->ld : a->out;
}
static int64_t strips_of(int64_t out)
{
    return tess_parts_of(out, STRIP);
}

size_t tess_cross_entropy_scratch(void)
{
    return BLOCK_ROWS * STRIP * sizeof(float);
}
size_t tess_cross_entropy_stats(int64_t rows, int64_t out)
{
    return (size_t)((2 * strips_of(out) + 1) * rows) * sizeof(float);
}

static float heat_of(const tess_cross_entropy_arg *a)
{
    return a->heat > 0 ? a->heat : 1;
}
static float weight_of(const tess_cross_entropy_arg *a)
{
    return a->weight > 0 ? a->weight : 1;
}

/* The soft targets of a row of this piece; their shares lie behind them. */
static const int32_t *soft_of(const tess_work *w, unsigned buffer, int64_t r)
{
    const tess_cross_entropy_arg *a = w->arg;
    return (const int32_t *)w->buf[buffer].ptr + (a->soft_row + a->row + r) * 2 * a->soft;
}
static float share_of(const int32_t *soft, int64_t i, int64_t of)
{
    float share;
    memcpy(&share, &soft[of + i], sizeof share);
    return share;
}

static struct stats stats_at(void *tile, int64_t rows, int64_t out)
{
    struct stats s = {.top = tile};
    s.sum = s.top + strips_of(out) * rows;
    s.target = s.sum + strips_of(out) * rows;
    return s;
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

TESS_INLINE void cap_logits(float *logits, int64_t n, float cap)
{
    const float part = 1 / cap;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) logits[i] = cap * tess_tanhf(logits[i] * part);
}

TESS_INLINE void cool_logits(float *logits, int64_t n, float heat)
{
    const float part = 1 / heat;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) logits[i] *= part;
}

/* Of rows [*first, *end) leaves out those at both ends that draw no loss, by blocks. */
static void trim_untargeted(const int32_t *target, int64_t *first, int64_t *end)
{
    const int64_t begin = *first, last = *end;
    int64_t top = begin, bottom = last;
    while (top < last && target[top] < 0) top++;
    while (bottom > top && target[bottom - 1] < 0) bottom--;
    *first = top < last ? begin + (top - begin) / TESS_IDLE_ROWS * TESS_IDLE_ROWS : last;
    *end = top < last ? least(last, begin + tess_parts_of(bottom - begin, TESS_IDLE_ROWS) * TESS_IDLE_ROWS) : last;
}

/* Sets the statistics and p of a row whose logits are not needed. */
TESS_INLINE void skip_row(const struct stats *s, int64_t strip, int64_t n, void *p, tess_dtype t)
{
    s->top[strip] = 0;
    s->sum[strip] = 1;
    if (p) memset(p, 0, (size_t)n * tess_dtype_size(t));
}

/* Block k of logits: some rows of a strip. */
TESS_INLINE void logits_part(const tess_work *w, int64_t k, tess_dtype t)
{
    const tess_cross_entropy_arg *a = w->arg;
    const struct stats s = stats_at(w->buf[3].ptr, a->rows, a->out);
    const int32_t *target = (const int32_t *)w->buf[1].ptr + a->row;
    float *block = tess_part_room(w->buf[4].ptr, tess_cross_entropy_scratch());
    void *p = a->grad ? w->buf[5].ptr : NULL;
    const float *bias = a->bias ? w->buf[5 + a->grad].ptr : NULL;
    const int64_t blocks = tess_parts_of(a->rows, BLOCK_ROWS);
    const int64_t c = k / blocks * STRIP, r0 = k % blocks * BLOCK_ROWS;
    const int64_t rows = least(BLOCK_ROWS, a->rows - r0), n = least(STRIP, a->out - c);
    int64_t first = r0, end = r0 + rows;
    trim_untargeted(target, &first, &end);
    for (int64_t r = r0; r < r0 + rows; r++)
        if (r < first || r >= end)
            skip_row(&s, c / STRIP * a->rows + r, n, p ? tess_at_mut(p, r * apart(a) + c, t) : NULL, t);
    if (first == end) return;
    tess_mm d = {.m = end - first, .n = n, .k = a->in, .lda = a->in, .ldb = a->in, .ldc = n};
    d.in = t, d.out = TESS_F32, d.tb = d.part = true, d.bias = bias ? bias + c : NULL;
    tess_mm_run(&d, tess_at(w->buf[0].ptr, (a->row + first) * a->in, t), tess_at(w->buf[2].ptr, c * a->in, t), block);
    for (int64_t r = first; r < end; r++) {
        float *logits = block + (r - first) * n;
        const int64_t hit = target[r] - a->first - c, strip = c / STRIP * a->rows + r;
        if (a->cap > 0) cap_logits(logits, n, a->cap);
        if (a->heat > 0) cool_logits(logits, n, a->heat);
        const int32_t *soft = a->soft ? soft_of(w, 5 + a->grad + a->bias, r) : NULL;
        for (int64_t i = 0; i < a->soft; i++) {
            const int64_t at = soft[i] - a->first - c;
            if (at >= 0 && at < n) s.target[r * a->soft + i] = logits[at];
        }
        if (!soft && hit >= 0 && hit < n) s.target[r] = logits[hit];
        s.top[strip] = largest(logits, n);
        s.sum[strip] = exponentials(logits, n, s.top[strip], p ? tess_at_mut(p, r * apart(a) + c, t) : NULL, t);
    }
}
TESS_PART_BODIES(logits_part)

/* x, target, w, stats, scratch[, p][, b][, soft] */
static int64_t cross_entropy_logits_parts(const tess_codelet *cl, const void *arg)
{
    const tess_cross_entropy_arg *a = arg;
    (void)cl;
    return strips_of(a->out) * tess_parts_of(a->rows, BLOCK_ROWS);
}
TESS_INLINE void cross_entropy_logits(const tess_work *w, tess_dtype t)
{
    tess_parts_run(cross_entropy_logits_parts(NULL, w->arg), TESS_PART_BODY(logits_part, t), (void *)w);
}
static tess_cost cross_entropy_logits_cost(const void *arg, tess_dtype t)
{
    const tess_cross_entropy_arg *a = arg;
    const double size = (double)tess_dtype_size(t), rows = (double)a->rows, in = (double)a->in, out = (double)a->out;
    const double bytes = size * (rows * in + out * in + (a->grad ? rows * out : 0));
    return (tess_cost){.flops = 2 * rows * in * out, .rows = rows, .bytes = bytes};
}
TESS_PART_COST(cross_entropy_logits)

static int64_t columns_of(const tess_cross_entropy_arg *a, int64_t tile)
{
    return least(a->tile_out, a->vocab - tile * a->tile_out);
}

/* The logs of some rows' sums. */
enum { SOME_ROWS = 32, MOST_ROWS = 2048 }; /* of a part; whose logs are held at a time */
struct row_logs {
    const tess_work *w;
    int64_t first, end;
    double all[MOST_ROWS];
    float top[MOST_ROWS]; /* the largest logit */
};
static void rows_part(void *of, int64_t k)
{
    struct row_logs *l = of;
    const tess_work *w = l->w;
    const tess_cross_entropy_arg *a = w->arg;
    const int64_t first = l->first + k * SOME_ROWS;
    for (int64_t r = first; r < least(first + SOME_ROWS, l->end); r++) {
        float top = -INFINITY;
        double sum = 0;
        for (int64_t j = 0; j < a->tiles; j++) {
            const struct stats s = stats_at(w->buf[3 + j].ptr, a->rows, columns_of(a, j));
            for (int64_t i = 0; i < strips_of(columns_of(a, j)); i++)
                if (!(s.top[i * a->rows + r] <= top)) top = s.top[i * a->rows + r];
        }
        for (int64_t j = 0; j < a->tiles; j++) {
            const struct stats s = stats_at(w->buf[3 + j].ptr, a->rows, columns_of(a, j));
            for (int64_t i = 0; i < strips_of(columns_of(a, j)); i++)
                sum += s.sum[i * a->rows + r] * exp((double)s.top[i * a->rows + r] - top);
        }
        l->all[r - l->first] = top + log(sum);
        l->top[r - l->first] = top;
    }
}

/* The same where scores of sequences are wanted. */
static void score_rows(const tess_work *w)
{
    const tess_cross_entropy_arg *a = w->arg;
    const int32_t *target = w->buf[0].ptr;
    float *lse = w->buf[1].ptr, *scores = w->buf[2].ptr;
    struct row_logs l = {.w = w};
    if (!a->row) memset(scores, 0, w->buf[2].bytes);
    for (; l.first < a->rows; l.first = l.end) {
        const int64_t at = a->row + l.first, s = at / a->sequence; /* rows of one sequence at a time */
        double sum = 0;
        l.end = least(least(l.first + MOST_ROWS, (s + 1) * a->sequence - a->row), a->rows);
        tess_parts_run(tess_parts_of(l.end - l.first, SOME_ROWS), rows_part, &l);
        for (int64_t r = l.first; r < l.end; r++) {
            const int32_t hit = target[a->row + r];
            const double all = l.all[r - l.first];
            lse[a->row + r] = (float)all;
            if (hit < 0) continue;
            TESS_ASSERT(hit < a->vocab);
            const int64_t j = hit / a->tile_out;
            sum += stats_at(w->buf[3 + j].ptr, a->rows, columns_of(a, j)).target[r] - all;
            scores[2 * s + 1] += 1;
        }
        scores[2 * s] += (float)sum;
    }
}

/* What lse is compared with: the sum of share (logit - log share), which is the logit of the one target there is. */
static double soft_logit(const tess_work *w, int64_t r)
{
    const tess_cross_entropy_arg *a = w->arg;
    const int32_t *soft = soft_of(w, 3 + (unsigned)a->tiles, r);
    double sum = 0;
    for (int64_t i = 0; i < a->soft; i++) {
        const double share = (double)share_of(soft, i, a->soft);
        TESS_ASSERT(soft[i] >= 0 && soft[i] < a->vocab);
        const int64_t j = soft[i] / a->tile_out;
        const float *logit = stats_at(w->buf[3 + j].ptr, a->rows, columns_of(a, j)).target + r * a->soft;
        if (share > 0) sum += share * ((double)logit[i] - log(share));
    }
    return sum;
}

/* target, lse, loss, stats...[, soft]; the loss adds up row by row, whoever found the logs. */
static void cross_entropy_rows(const tess_work *w)
{
    if (((const tess_cross_entropy_arg *)w->arg)->sequence) return score_rows(w);
    const tess_cross_entropy_arg *a = w->arg;
    const int32_t *target = (const int32_t *)w->buf[0].ptr + a->row;
    float *lse = w->buf[1].ptr;
    double *loss = w->buf[2].ptr;
    struct row_logs l = {.w = w};
    for (int k = 0; k < 2 * a->losses * (1 + a->hits); k++) loss[k] = 0;
    double *hit = loss + 2 * (a->losses + a->loss);
    loss += 2 * a->loss;
    for (; l.first < a->rows; l.first = l.end) {
        l.end = least(l.first + MOST_ROWS, a->rows);
        tess_parts_run(tess_parts_of(l.end - l.first, SOME_ROWS), rows_part, &l);
        for (int64_t r = l.first; r < l.end; r++) {
            const double all = l.all[r - l.first];
            lse[r] = (float)all;
            if (target[r] < 0) continue;
            TESS_ASSERT(target[r] < a->vocab); /* checked where the data was read */
            const int64_t j = target[r] / a->tile_out;
            const double logit =
                a->soft ? soft_logit(w, r) : (double)stats_at(w->buf[3 + j].ptr, a->rows, columns_of(a, j)).target[r];
            loss[0] += (double)weight_of(a) * (all - logit);
            loss[1] += 1;
            if (a->hits) hit[0] += logit >= (double)l.top[r - l.first], hit[1] += 1;
        }
    }
}
static int64_t cross_entropy_rows_parts(const tess_codelet *cl, const void *arg)
{
    (void)cl;
    return tess_parts_of(least(MOST_ROWS, ((const tess_cross_entropy_arg *)arg)->rows), SOME_ROWS);
}
TESS_F32_CODELET(cross_entropy_rows, .parts = cross_entropy_rows_parts)

/* How a logit that was capped moves with what it was before: by its square, 1 - tanh^2. */
TESS_INLINE float slope_of(float capped, float part)
{
    return 1 - (capped * part) * (capped * part);
}

/* Of a strip of dlogits, where p = exp(logit - top) says what the logits are. */
TESS_INLINE void scale_capped(const tess_cross_entropy_arg *a, void *row, int64_t c, int64_t end, float top,
                              float factor, tess_dtype t)
{
    const float part = heat_of(a) / a->cap;
#pragma omp simd
    for (int64_t i = c; i < end; i++) {
        const float p = tess_load(row, i, t);
        tess_store(row, i, t, p * factor * slope_of(top + tess_logf(p), part));
    }
}

/* Some rows of p become dlogits. */
TESS_INLINE void scale_part(const tess_work *w, int64_t k, tess_dtype t)
{
    const tess_cross_entropy_arg *a = w->arg;
    const struct stats at = stats_at(w->buf[1].ptr, a->rows, a->out), *s = &at;
    const float *lse = (const float *)w->buf[2].ptr + (a->sequence ? a->row : 0);
    const float *scale = a->sequence ? w->buf[a->ends ? 4 : 6].ptr : NULL;
    const int32_t *target = (const int32_t *)w->buf[3].ptr + a->row;
    for (int64_t r = k * SOME_ROWS; r < least((k + 1) * SOME_ROWS, a->rows); r++) {
        void *row = tess_at_mut(w->buf[0].ptr, r * apart(a), t);
        const float loss_scale = scale ? -scale[(a->row + r) / a->sequence * 2] /* of a loss, not a score */
                                       : w->env->loss_scale[a->loss] * weight_of(a) / heat_of(a);
        if (target[r] < 0) memset(row, 0, (size_t)a->out * tess_dtype_size(t));
        for (int64_t c = 0; c < a->out && target[r] >= 0; c += STRIP) {
            const int64_t end = least(c + STRIP, a->out);
            const float factor = tess_expf(s->top[c / STRIP * a->rows + r] - lse[r]) * loss_scale;
            if (a->cap > 0) {
                scale_capped(a, row, c, end, s->top[c / STRIP * a->rows + r], factor, t);
                continue;
            }
#pragma omp simd
            for (int64_t i = c; i < end; i++) tess_store(row, i, t, tess_load(row, i, t) * factor);
        }
        const int32_t *soft =
            a->soft ? soft_of(w, 4 + 2 * !a->ends + (a->sequence > 0), r) : &target[r]; /* one, whose share is 1 */
        const int64_t targets = a->soft ? a->soft : 1;
        for (int64_t i = 0; i < targets && target[r] >= 0; i++) {
            const int64_t hit = soft[i] - a->first;
            if (hit < 0 || hit >= a->out) continue;
            const float logit = s->target[r * targets + i], share = a->soft ? share_of(soft, i, targets) : 1;
            const float slope = a->cap > 0 ? slope_of(logit, heat_of(a) / a->cap) : 1;
            tess_store(row, hit, t, (tess_expf(logit - lse[r]) - share) * loss_scale * slope);
        }
    }
}
TESS_PART_BODIES(scale_part)

TESS_INLINE tess_mm gradient_mm(const tess_cross_entropy_arg *a, tess_dtype t)
{
    tess_mm d = {.m = a->rows, .n = a->in, .k = a->out, .lda = apart(a), .ldb = a->in, .ldc = a->in};
    d.in = t, d.out = TESS_F32, d.acc = a->acc;
    return d;
}
static int64_t cross_entropy_gradient_parts(const tess_codelet *cl, const void *arg)
{
    const tess_cross_entropy_arg *a = arg;
    return a->ends ? tess_parts_of(a->rows, SOME_ROWS) : tess_mm_parts(gradient_mm(a, cl->dtype));
}

/* p, stats, lse, target[, w, dx][, dscores][, soft] */
TESS_INLINE void cross_entropy_gradient(const tess_work *w, tess_dtype t)
{
    const tess_cross_entropy_arg *a = w->arg;
    tess_parts_run(tess_parts_of(a->rows, SOME_ROWS), TESS_PART_BODY(scale_part, t), (void *)w);
    if (a->ends) return;
    tess_mm d = gradient_mm(a, t);
    tess_idle idle;
    d.idle = tess_idle_find(w, a->row, a->rows, &idle);
    tess_mm_run(&d, w->buf[0].ptr, w->buf[4].ptr, w->buf[5].ptr);
}
static tess_cost cross_entropy_gradient_cost(const void *arg, tess_dtype t)
{
    const tess_cross_entropy_arg *a = arg;
    const double size = (double)tess_dtype_size(t), rows = (double)a->rows, in = (double)a->in, out = (double)a->out;
    if (a->ends) return (tess_cost){.bytes = size * 2 * rows * out};
    const double bytes = size * (2 * rows * out + out * in) + 4 * (a->acc ? 2 : 1) * rows * in;
    return (tess_cost){.flops = 2 * rows * in * out, .rows = rows, .bytes = bytes};
}
TESS_PART_COST(cross_entropy_gradient)

/* ---- the likeliest ---- */

/* Adds n logits of columns from `first` on to what is known of a row. */
static void add_likeliest(float *row, int64_t most, const float *logits, int64_t n, int64_t first)
{
    float *const logit = row + 2, *const column = logit + most;
    const float top = fmaxf(row[0], largest(logits, n));
    double sum = row[1] > 0 ? (double)row[1] * exp((double)row[0] - (double)top) : 0;
    for (int64_t i = 0; i < n; i++) {
        sum += exp((double)logits[i] - (double)top);
        if (!(logits[i] > logit[most - 1])) continue;
        int64_t at = most - 1;
        for (; at > 0 && logits[i] > logit[at - 1]; at--) logit[at] = logit[at - 1], column[at] = column[at - 1];
        logit[at] = logits[i], column[at] = (float)(first + i);
    }
    row[0] = top, row[1] = (float)sum;
}

/* Some rows, strip by strip. */
TESS_INLINE void likeliest_part(const tess_work *w, int64_t k, tess_dtype t)
{
    const tess_cross_entropy_arg *a = w->arg;
    const int64_t r0 = k * BLOCK_ROWS, rows = least(BLOCK_ROWS, a->rows - r0), wide = 2 + 2 * a->soft;
    float *block = tess_part_room(w->buf[3].ptr, tess_cross_entropy_scratch()),
          *to = (float *)w->buf[2].ptr + r0 * wide;
    const float *bias = a->bias ? w->buf[4].ptr : NULL;
    for (int64_t i = 0; i < rows * wide && !a->first; i++)
        to[i] = i % wide == 1 ? 0 : i % wide < 2 + a->soft ? -INFINITY : -1;
    for (int64_t c = 0; c < least(a->out, a->vocab - a->first); c += STRIP) {
        const int64_t n = least(least(STRIP, a->out - c), a->vocab - a->first - c);
        tess_mm d = {.m = rows, .n = n, .k = a->in, .lda = a->in, .ldb = a->in, .ldc = n};
        d.in = t, d.out = TESS_F32, d.tb = d.part = true, d.bias = bias ? bias + c : NULL;
        tess_mm_run(&d, tess_at(w->buf[0].ptr, r0 * a->in, t), tess_at(w->buf[1].ptr, c * a->in, t), block);
        for (int64_t r = 0; r < rows; r++) {
            if (a->cap > 0) cap_logits(block + r * n, n, a->cap);
            add_likeliest(to + r * wide, a->soft, block + r * n, n, a->first + c);
        }
    }
}
TESS_PART_BODIES(likeliest_part)

static int64_t cross_entropy_likeliest_parts(const tess_codelet *cl, const void *arg)
{
    (void)cl;
    return tess_parts_of(((const tess_cross_entropy_arg *)arg)->rows, BLOCK_ROWS);
}
TESS_INLINE void cross_entropy_likeliest(const tess_work *w, tess_dtype t)
{
    tess_parts_run(cross_entropy_likeliest_parts(NULL, w->arg), TESS_PART_BODY(likeliest_part, t), (void *)w);
}
static tess_cost cross_entropy_likeliest_cost(const void *arg, tess_dtype t)
{
    return cross_entropy_logits_cost(arg, t);
}
TESS_PART_COST(cross_entropy_likeliest)
