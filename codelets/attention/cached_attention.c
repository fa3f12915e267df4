/* cached_attention: attention of some rows over keys and values that earlier steps left in tiles of a cache.
 *
 * Keys lie across, (dim, block), so that the logits of a query with a block's keys are sums of rows; values lie along,
 * (block, dim), so that what a query takes of them is one, too. For few queries both are plain loops, and each query's
 * result has the same bits whatever other rows there are; for many they are products of matrices.
 *
 * A task passes over its tiles as attention.c does over blocks of keys: of each query the largest logit m so far (in
 * powers of 2), the sum l of 2^(s - m) and O = P v. What a task leaves behind goes on with the next tiles, so a layer's
 * cache may be larger than the memory at hand. The heads that share a group's keys are queries of the same block. */
#include "codelets/attention/heads_impl.h"
#include "codelets/products/mm.h"
#include "codelets/shared/vector.h"

enum {
    FEW = 16,   /* queries of a group, up to which they are loops */
    STRIP = 64, /* elements that are summed at a time */
};

/* Queries that meet the same keys: those of all heads of a group. */
static int64_t queries_of(const tess_cached_arg *a)
{
    return a->queries * (a->heads / a->groups);
}

/* ---- where things lie -------------------------------------------------------------------------------------------- */

typedef struct room {
    void *q;         /* (queries, dim): fp32 if they are few, else real */
    float *s;        /* (queries, block) */
    void *p;         /* the same, real; of fp32 S itself */
    float *state;    /* of one group, where the task has no tile for it */
    int32_t *bucket; /* of each distance */
} room;

static size_t take_room(room *r, const tess_cached_arg *a, tess_dtype t, void *scratch)
{
    char *at = scratch;
    const size_t m = (size_t)queries_of(a), block = (size_t)a->block;
    r->q = take(&at, m * (size_t)a->dim * sizeof(float));
    r->s = take(&at, m * block * sizeof(float));
    r->p = t == TESS_F32 ? r->s : take(&at, m * block * sizeof(tess_bf16));
    r->state = take(&at, m * (size_t)(a->dim + 2) * sizeof(float));
    r->bucket = a->buckets ? take(&at, (size_t)(a->tiles * a->block + a->queries) * sizeof(int32_t)) : NULL;
    return (size_t)(at - (char *)scratch);
}

size_t tess_cached_scratch(const tess_cached_arg *a, tess_dtype t)
{
    room r;
    return take_room(&r, a, t, NULL);
}

size_t tess_cached_state(const tess_cached_arg *a)
{
    return (size_t)(a->sequences * a->some * queries_of(a) * (a->dim + 2)) * sizeof(float);
}

/* Row r's part (0: q, 1: k, 2: v) of a head, in a packed buffer or in one of its own. */
TESS_INLINE const void *part_at(const tess_cached_arg *a, const void *x, int part, int64_t r, int64_t head,
                                tess_dtype t)
{
    const tess_heads h = tess_heads_of(a->heads, a->groups, a->dim, a->packed, a->by_head, part);
    return tess_at(x, h.column + r * h.ld + head * h.apart, t);
}

/* ---- appending --------------------------------------------------------------------------------------------------- */

/* k, v or qkv[, bounds], keys, values */
TESS_INLINE void cache_append(const tess_work *w, tess_dtype t)
{
    const tess_cached_arg *a = w->arg;
    const tess_view *rest = w->buf + (a->packed ? 1 : 2);
    const void *k = w->buf[0].ptr, *v = a->packed ? k : w->buf[1].ptr;
    const int32_t *bounds = a->own ? rest++->ptr : NULL;
    for (int64_t r = 0; r < a->sequences * a->queries; r++) {
        const int64_t s = r / a->queries, i = r % a->queries;
        const int32_t *sees = bounds ? bounds + 2 * s * a->queries + i : NULL;
        const int64_t place = (sees ? sees[a->queries] - 1 : i) - a->first;
        if (place < 0 || place >= a->block || (sees && sees[0] >= sees[a->queries])) continue;
        for (int64_t g = 0; g < a->groups; g++) {
            const int64_t head = (s * a->groups + g) * a->dim * a->block;
            const void *from = part_at(a, k, 1, r, g, t);
            for (int64_t d = 0; d < a->dim; d++)
                if (tess_is_half(t))
                    ((uint16_t *)rest[0].ptr)[head + d * a->block + place] = ((const uint16_t *)from)[d];
                else
                    ((float *)rest[0].ptr)[head + d * a->block + place] = ((const float *)from)[d];
            memcpy(tess_at_mut(rest[1].ptr, head + place * a->dim, t), part_at(a, v, 2, r, g, t),
                   (size_t)a->dim * tess_dtype_size(t));
        }
    }
}
static tess_cost cache_append_cost(const void *arg, tess_dtype t)
{
    const tess_cached_arg *a = arg;
    return (tess_cost){.bytes =
                           4.0 * (double)(a->sequences * a->queries * a->groups * a->dim) * (double)tess_dtype_size(t)};
}
TESS_REAL_COST(cache_append)

/* ---- attending --------------------------------------------------------------------------------------------------- */

/* Keys [first, end) of a tile. */
typedef struct range {
    int64_t first, end;
} range;

/* What is the same for all queries of a group and a tile. */
typedef struct meeting {
    const tess_cached_arg *a;
    const room *r;
    const int32_t *first, *end; /* of each query of the sequence */
    int64_t group, place;       /* the tile begins there */
    const void *bias;           /* (buckets, heads); NULL: none */
    float *m, *l, *o;
} meeting;

TESS_INLINE range seen_by(const meeting *b, int64_t i)
{
    const tess_cached_arg *a = b->a;
    int64_t first = b->first[i], end = b->end[i];
    if (a->window && end - a->window > first) first = end - a->window;
    first -= b->place, end -= b->place;
    range r = {first > 0 ? first : 0, least(end, a->block)};
    return r.end > r.first ? r : (range){0, 0};
}

/* sum (n) += by times a row; most have STRIP. */
TESS_INLINE void add_strip(float *sum, float by, const void *row, int64_t n, tess_dtype t)
{
    if (n == STRIP) {
#pragma omp simd
        for (int64_t j = 0; j < STRIP; j++) sum[j] += by * tess_load(row, j, t);
    } else {
        for (int64_t j = 0; j < n; j++) sum[j] += by * tess_load(row, j, t);
    }
}

/* s (block) of a few queries: sums of the rows of keys (dim, block). */
TESS_INLINE void few_logits(const meeting *b, const void *keys, int64_t queries, range all, tess_dtype t)
{
    const int64_t dim = b->a->dim, block = b->a->block;
    for (int64_t p = all.first / TESS_LANES * TESS_LANES; p < all.end; p += STRIP) {
        const int64_t n = least(STRIP, block - p);
        for (int64_t m = 0; m < queries; m++) {
            const float *q = (const float *)b->r->q + m * dim;
            float sum[STRIP] = {0};
            for (int64_t d = 0; d < dim; d++) add_strip(sum, q[d], tess_at(keys, d * block + p, t), n, t);
            memcpy(b->r->s + m * block + p, sum, (size_t)n * sizeof(float));
        }
    }
}

/* O of a few queries += P (block) values (block, dim). */
TESS_INLINE void few_values(const meeting *b, const void *values, int64_t queries, range all, tess_dtype t)
{
    const int64_t dim = b->a->dim, block = b->a->block;
    for (int64_t d = 0; d < dim; d += STRIP) {
        const int64_t n = least(STRIP, dim - d);
        for (int64_t m = 0; m < queries; m++) {
            const float *p = b->r->s + m * block;
            float *o = b->o + m * dim + d, sum[STRIP];
            memcpy(sum, o, (size_t)n * sizeof(float));
            for (int64_t k = all.first; k < all.end; k++) add_strip(sum, p[k], tess_at(values, k * dim + d, t), n, t);
            memcpy(o, sum, (size_t)n * sizeof(float));
        }
    }
}

/* Logits of query i of a head, bent: capped, or with the bias of their distances. */
TESS_INLINE void bend(const meeting *b, int64_t head, int64_t i, float *s, range seen, tess_dtype t)
{
    const tess_cached_arg *a = b->a;
    const float scale = a->scale, cap = a->cap;
    if (cap > 0) {
        const float part = scale / cap;
#pragma omp simd
        for (int64_t k = seen.first; k < seen.end; k++) s[k] = cap * tess_tanhf(s[k] * part);
        return;
    }
    const int32_t *bucket = b->r->bucket + (b->place - a->first) + a->queries - 1 - i;
    for (int64_t k = seen.first; k < seen.end; k++)
        s[k] = s[k] * scale + tess_load(b->bias, bucket[k] * a->heads + head, t);
}

/* S of a tile to P, fp32 of few queries, else real; m, l and O follow. */
TESS_INLINE void soften(const meeting *b, int64_t queries, bool few, range all, tess_dtype t)
{
    const tess_cached_arg *a = b->a;
    const bool bent = a->cap > 0 || b->bias;
    const float scale = bent ? TESS_LOG2_E : a->scale * TESS_LOG2_E;
    const int64_t block = a->block, share = a->heads / a->groups;
    for (int64_t row = 0; row < queries; row++) {
        const int64_t i = row % a->queries;
        const range seen = seen_by(b, i);
        float *s = b->r->s + row * block;
        if (seen.end > seen.first) {
            if (bent) bend(b, b->group * share + row / a->queries, i, s, seen, t);
            const float *from = s + seen.first, old = b->m[row];
            const int64_t n = seen.end - seen.first;
            float most[TESS_LANES], sum[TESS_LANES] = {0};
            for (int j = 0; j < TESS_LANES; j++) most[j] = old;
            TESS_EACH(j, lane, n, { most[lane] = from[j] * scale > most[lane] ? from[j] * scale : most[lane]; });
            const float m = tess_max16(most), shrink = tess_power_of_2(old - m);
            float *to = s + seen.first;
#pragma omp simd
            for (int64_t j = 0; j < n; j++) to[j] = tess_power_of_2(to[j] * scale - m);
            TESS_EACH(j, lane, n, { sum[lane] += to[j]; });
            b->l[row] = b->l[row] > 0 ? b->l[row] * shrink + tess_sum16(sum) : tess_sum16(sum);
            b->m[row] = m;
            float *o = b->o + row * a->dim;
#pragma omp simd
            for (int64_t j = 0; j < a->dim; j++) o[j] *= shrink;
        }
        if (few) {
            for (int64_t k = all.first; k < seen.first; k++) s[k] = 0;
            for (int64_t k = seen.end > all.first ? seen.end : all.first; k < all.end; k++) s[k] = 0;
            continue;
        }
        for (int64_t k = 0; k < seen.first; k++) s[k] = 0;
        for (int64_t k = seen.end; k < block; k++) s[k] = 0;
        if (tess_is_half(t)) tess_narrow(tess_at_mut(b->r->p, row * block, t), s, block, t);
    }
}

/* The queries of one group meet one tile. */
TESS_INLINE void meet(const meeting *b, const void *keys, const void *values, tess_dtype t)
{
    const tess_cached_arg *a = b->a;
    const int64_t queries = queries_of(a), dim = a->dim, block = a->block;
    range all = {block, 0};
    for (int64_t i = 0; i < a->queries; i++) {
        const range r = seen_by(b, i);
        if (r.first == r.end) continue;
        all.first = least(all.first, r.first);
        if (r.end > all.end) all.end = r.end;
    }
    if (all.end == 0) return;
    if (queries <= FEW) {
        few_logits(b, keys, queries, all, t);
        soften(b, queries, true, all, t);
        few_values(b, values, queries, all, t);
        return;
    }
    const tess_mm s = {
        .m = queries, .n = block, .k = dim, .lda = dim, .ldb = block, .ldc = block, .in = t, .out = TESS_F32};
    tess_mm_run(&s, b->r->q, keys, b->r->s);
    soften(b, queries, false, all, t);
    tess_mm o = {.m = queries, .n = dim, .k = block, .lda = block, .ldb = dim, .ldc = dim};
    o.in = t, o.out = TESS_F32, o.acc = true;
    tess_mm_run(&o, b->r->p, values, b->o);
}

/* The queries of a group side by side: those of its first head, then of its second. */
TESS_INLINE void gather(const tess_cached_arg *a, const void *x, int64_t sequence, int64_t group, void *q, tess_dtype t)
{
    const int64_t share = a->heads / a->groups, dim = a->dim;
    const bool few = queries_of(a) <= FEW;
    for (int64_t row = 0; row < queries_of(a); row++) {
        const int64_t head = group * share + row / a->queries, i = row % a->queries;
        const void *from = part_at(a, x, 0, sequence * a->queries + i, head, t);
        if (!few)
            memcpy(tess_at_mut(q, row * dim, t), from, (size_t)dim * tess_dtype_size(t));
        else
            for (int64_t d = 0; d < dim; d++) ((float *)q)[row * dim + d] = tess_load(from, d, t);
    }
}

/* Nothing was seen yet but a sink, whose value is 0. */
TESS_INLINE void begin(const meeting *b, const float *sinks)
{
    const tess_cached_arg *a = b->a;
    const int64_t queries = queries_of(a), share = a->heads / a->groups;
    for (int64_t row = 0; row < queries; row++) {
        b->m[row] = sinks ? sinks[b->group * share + row / a->queries] * TESS_LOG2_E : -INFINITY;
        b->l[row] = sinks ? 1 : 0;
    }
    memset(b->o, 0, (size_t)(queries * a->dim) * sizeof *b->o);
}

/* y = O / l; a query that saw nothing has 0. */
TESS_INLINE void end(const meeting *b, int64_t sequence, void *y, tess_dtype t)
{
    const tess_cached_arg *a = b->a;
    const int64_t share = a->heads / a->groups, width = a->some * share * a->dim;
    for (int64_t row = 0; row < queries_of(a); row++) {
        const int64_t head = (b->group - a->group0) * share + row / a->queries, i = row % a->queries;
        const float one = b->l[row] > 0 ? 1 / b->l[row] : 0, *o = b->o + row * a->dim;
        void *to = tess_at_mut(y, (sequence * a->queries + i) * width + head * a->dim, t);
#pragma omp simd
        for (int64_t j = 0; j < a->dim; j++) tess_store(to, j, t, o[j] * one);
    }
}

/* q or qkv, bounds[, bias][, sinks], keys..., values...[, state][, y], scratch */
TESS_INLINE void cached_attention(const tess_work *w, tess_dtype t)
{
    const tess_cached_arg *a = w->arg;
    const int64_t queries = queries_of(a);
    const tess_view *rest = w->buf + 1;
    const int32_t *bounds = rest++->ptr;
    const void *bias = a->buckets ? rest++->ptr : NULL;
    const float *sinks = a->sinks ? rest++->ptr : NULL;
    const tess_view *keys = rest, *values = keys + a->tiles;
    rest = values + a->tiles;
    float *state = a->begins && a->ends ? NULL : rest++->ptr;
    void *y = a->ends ? rest++->ptr : NULL;
    room r;
    TESS_ASSERT(take_room(&r, a, t, rest->ptr) <= rest->bytes);
    for (int64_t sequence = 0; sequence < a->sequences; sequence++) {
        const int32_t *first = bounds + 2 * sequence * a->queries, *ends = first + a->queries;
        for (int64_t i = 0; bias && i < a->tiles * a->block + a->queries - 1; i++) { /* queries follow each other */
            const tess_attention_arg by = {.buckets = a->buckets, .reach = a->reach, .causal = a->causal};
            r.bucket[i] = (int32_t)tess_attention_bucket(&by, a->first + i - (a->queries - 1) - (ends[0] - 1));
        }
        for (int64_t g = 0; g < a->some; g++) {
            float *mine = state ? state + (sequence * a->some + g) * queries * (a->dim + 2) : r.state;
            meeting b = {.a = a, .r = &r, .first = first, .end = ends, .group = a->group0 + g, .bias = bias};
            b.m = mine, b.l = mine + queries, b.o = mine + 2 * queries;
            if (a->begins) begin(&b, sinks);
            gather(a, w->buf[0].ptr, sequence, b.group, r.q, t);
            const int64_t at = (sequence * a->groups + b.group) * a->dim * a->block;
            for (int64_t k = 0; k < a->tiles; k++) {
                b.place = a->first + k * a->block;
                meet(&b, tess_at(keys[k].ptr, at, t), tess_at(values[k].ptr, at, t), t);
            }
            if (a->ends) end(&b, sequence, y, t);
        }
    }
}
static tess_cost cached_attention_cost(const void *arg, tess_dtype t)
{
    const tess_cached_arg *a = arg;
    const double keys = (double)(a->tiles * a->block), head = (double)(a->some * a->dim * a->sequences);
    return (tess_cost){.flops = 4 * keys * head * (double)queries_of(a),
                       .bytes = 2 * keys * head * (double)tess_dtype_size(t)};
}
TESS_REAL_COST(cached_attention)
