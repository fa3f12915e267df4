/* attention: softmax(q k^T scale) v without a T x T matrix, sequence by sequence and head by head.
 *
 * Forward, a block of queries passes over blocks of keys. For each, S = q k^T in fp32; every query keeps the maximum m
 * of its logits so far, the sum l of exp(s - m) and O = P v with P = exp(s - m) in real; where a block raises m, what l
 * and O hold shrinks by exp(m - m'). At the end y = O / l, and lse = m + log l is all that the backward pass needs:
 *
 *     p = exp(s scale - lse)     dv = p^T dy     dp = dy v^T     delta = sum(dy y)     ds = p (dp - delta) scale
 *     dq = ds k                  dk = ds^T q
 *
 * There the blocks are transposed, a row a key, since then all products but one take them as they lie, and lse and
 * delta are vectors along a row. dk and dv gather in fp32 over the queries and over the heads that share them, in that
 * order.
 *
 * A query sees the keys of a range, which ends at its own where it is causal, begins a window before that, and lies
 * within its document; what of a block of queries no one sees is not touched, so a window costs what it is wide and
 * padding nothing. There blocks have fewer keys, so that they fit such ranges. A query that sees no key has y = 0.
 *
 * Before the softmax a logit may be bent: cap tanh(s scale / cap), or s scale + bias(key - query), where the bias of a
 * head is a bucket of a table. Both live in natural units, after which only log2(e) is left of the scale.
 *
 * With dropout, p is replaced by 0 or p/(1-dropout) in the products, by random bits of the place ((sequence of the
 * batch * heads + head) * queries + query) * keys + key.
 */
#include "mm_impl.h"
#include "parts_impl.h"

/* Of a block. KEYS is a multiple of QUERIES, so that a causal block's first key is seen by all its queries. */
enum { QUERIES = 128, KEYS = 512, RANGED_KEYS = 128 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Keys have a length of their own where they come from another sequence. */
static int64_t keys_of(const tess_attention_arg *a)
{
    return a->keys ? a->keys : a->sequence;
}
/* Queries see ranges other than from the first key on. */
static bool ranged(const tess_attention_arg *a)
{
    return a->window || a->bounded;
}
static bool bent(const tess_attention_arg *a)
{
    return a->cap > 0 || a->buckets;
}
static int64_t block_of(const tess_attention_arg *a)
{
    return ranged(a) ? RANGED_KEYS : KEYS;
}

/* ---- where things lie -------------------------------------------------------------------------------------------- */

/* Scratch is handed out piece by piece; from NULL this only counts. */
static void *take(char **room, size_t bytes)
{
    void *p = *room;
    *room = (char *)((uintptr_t)*room + (bytes + 63) / 64 * 64);
    return p;
}
static size_t packed_bytes(int64_t n, int64_t k, tess_dtype t)
{
    return tess_mm_packed_bytes(&(tess_mm){.n = n, .k = k, .in = t});
}

typedef struct forward_room {
    char *k, *v; /* blocks of keys as right operands of S and O, `block` bytes apart */
    size_t block;
    float *bias;  /* (queries + keys), of key - query + queries - 1 */
    float *s;     /* (QUERIES, KEYS) */
    void *p;      /* the same, real; of fp32 S itself */
    float *o;     /* (QUERIES, dim) */
    float *m, *l; /* (QUERIES) */
} forward_room;

static size_t forward_take(forward_room *f, const tess_attention_arg *a, tess_dtype t, void *scratch)
{
    char *room = scratch;
    const int64_t keys = keys_of(a), each = block_of(a);
    const size_t blocks = (size_t)((keys + each - 1) / each), size = tess_dtype_size(t);
    const size_t k = packed_bytes(each, a->dim, t), v = packed_bytes(a->dim, each, t);
    f->block = k > v ? k : v;
    f->k = take(&room, blocks * f->block);
    f->v = take(&room, blocks * f->block);
    f->s = take(&room, QUERIES * KEYS * sizeof(float));
    f->p = t == TESS_F32 ? f->s : take(&room, QUERIES * KEYS * size);
    f->o = take(&room, QUERIES * (size_t)a->dim * sizeof(float));
    f->m = take(&room, QUERIES * sizeof(float));
    f->l = take(&room, QUERIES * sizeof(float));
    f->bias = a->buckets ? take(&room, (size_t)(a->sequence + keys) * sizeof(float)) : NULL;
    return (size_t)(room - (char *)scratch);
}

typedef struct backward_room {
    void *k, *v;                         /* (keys, dim), dense */
    float *dk, *dv;                      /* the same, sums */
    void *q, *dy, *q_across, *dy_across; /* a block of queries as right operand, transposed and as it is */
    float *s, *dp;                       /* (KEYS, QUERIES) */
    void *p, *ds;                        /* the same, real */
    float *dq;                           /* (QUERIES, dim) */
    float *lse, *delta;                  /* (QUERIES); lse in powers of 2 */
    float *slope;                        /* (QUERIES): of what bends the logits */
    int32_t *first, *end;                /* (QUERIES): the keys that each sees */
    float *bias, *dbias;                 /* (queries + keys), of query - key + keys - 1 */
} backward_room;

static size_t backward_take(backward_room *b, const tess_attention_arg *a, tess_dtype t, void *scratch)
{
    char *room = scratch;
    const int64_t keys = keys_of(a);
    const size_t all = (size_t)(keys * a->dim), size = tess_dtype_size(t);
    const size_t along = packed_bytes(QUERIES, a->dim, t), across = packed_bytes(a->dim, QUERIES, t);
    b->k = take(&room, all * size);
    b->v = take(&room, all * size);
    b->dk = take(&room, all * sizeof(float));
    b->dv = take(&room, all * sizeof(float));
    b->q = take(&room, along);
    b->dy = take(&room, along);
    b->q_across = take(&room, across);
    b->dy_across = take(&room, across);
    b->s = take(&room, KEYS * QUERIES * sizeof(float));
    b->dp = take(&room, KEYS * QUERIES * sizeof(float));
    b->p = take(&room, KEYS * QUERIES * size);
    b->ds = take(&room, KEYS * QUERIES * size);
    b->dq = take(&room, QUERIES * (size_t)a->dim * sizeof(float));
    b->lse = take(&room, QUERIES * sizeof(float));
    b->delta = take(&room, QUERIES * sizeof(float));
    b->slope = take(&room, QUERIES * sizeof(float));
    b->first = take(&room, QUERIES * sizeof(int32_t));
    b->end = take(&room, QUERIES * sizeof(int32_t));
    b->bias = a->buckets ? take(&room, (size_t)(a->sequence + keys) * sizeof(float)) : NULL;
    b->dbias = a->buckets ? take(&room, (size_t)(a->sequence + keys) * sizeof(float)) : NULL;
    return (size_t)(room - (char *)scratch);
}

size_t tess_attention_scratch(const tess_attention_arg *a, tess_dtype t)
{
    forward_room f;
    backward_room b;
    const size_t forward = forward_take(&f, a, t, NULL), backward = backward_take(&b, a, t, NULL);
    const size_t most = forward > backward ? forward : backward;
    /* On a GPU delta of all rows at once, a bias by distance and its gradient. */
    const int64_t distances = a->buckets ? a->heads * (a->sequence + keys_of(a)) : 0;
    const size_t gpu = (size_t)(a->rows * a->heads + 2 * distances) * sizeof(float);
    return most > gpu ? most : gpu;
}

/* One of q, k, v or a gradient of theirs. */
typedef struct part {
    void *ptr;
    int64_t ld, apart; /* from row to row, from head to head */
} part;
/* From buffer `i` on: one that holds all three, or three. */
TESS_INLINE void find_parts(part p[3], const tess_work *w, unsigned i, const tess_attention_arg *a, tess_dtype t)
{
    const int64_t wide = a->heads * a->dim, narrow = a->groups * a->dim, all = wide + 2 * narrow;
    for (int j = 0; j < 3; j++) {
        const int64_t column = a->by_head ? j * a->dim : j ? wide + (j - 1) * narrow : 0;
        p[j] = a->packed ? (part){tess_at_mut(w->buf[i].ptr, column, t), all, a->by_head ? 3 * a->dim : a->dim}
                         : (part){w->buf[i + (unsigned)j].ptr, j ? narrow : wide, a->dim};
    }
}
TESS_INLINE void *part_at(part p, int64_t row, int64_t head, tess_dtype t)
{
    return tess_at_mut(p.ptr, row * p.ld + head * p.apart, t);
}

/* What a block's elements need to know of its place. */
typedef struct place {
    int64_t q0, nq, k0, nk; /* queries [q0, q0+nq), keys [k0, k0+nk) */
    bool drop;
    tess_random_key random;
    tess_dropout_rule rule;
    uint64_t first;        /* place of the head's query 0, key 0 */
    uint64_t step;         /* from query to query: as many as there are keys */
    const int32_t *bounds; /* of the sequence: first keys, then ends; NULL: none */
} place;

TESS_INLINE place place_of(const tess_work *w, const tess_attention_arg *a, int64_t sequence, int64_t head)
{
    const uint64_t length = (uint64_t)a->sequence, keys = (uint64_t)keys_of(a);
    place p = {.drop = a->dropout > 0 && w->env->train, .step = keys};
    if (p.drop) {
        p.random = tess_random_begin(w->env->seed, (uint64_t)w->env->step, a->op);
        p.rule = tess_dropout_begin(a->dropout);
    }
    const int64_t heads = a->all_heads ? a->all_heads : a->heads;
    p.first =
        ((uint64_t)(a->row0 / a->sequence + sequence) * (uint64_t)heads + (uint64_t)(a->head0 + head)) * length * keys;
    return p;
}
TESS_INLINE float kept(const place *p, uint64_t at)
{
    return tess_random_at(p->random, at) >= p->rule.below ? p->rule.scale : 0;
}

/* Keys [first, end). */
typedef struct range {
    int64_t first, end;
} range;

/* Those that query q of the sequence sees; end is first where it sees none. */
TESS_INLINE range seen_by(const place *b, const tess_attention_arg *a, int64_t q)
{
    range r = {0, a->causal ? q + 1 : keys_of(a)};
    if (b->bounds) {
        const int64_t first = b->bounds[q], end = b->bounds[a->sequence + q];
        r.first = first > 0 ? first : 0;
        r.end = least(r.end, end);
    }
    if (a->window && q + 1 - a->window > r.first) r.first = q + 1 - a->window;
    if (r.end < r.first) r.end = r.first;
    return r;
}

/* Those that any query of the block sees, widened to whole blocks of keys where there are ranges. */
TESS_INLINE range seen_by_block(const place *b, const tess_attention_arg *a)
{
    const int64_t keys = keys_of(a);
    if (!ranged(a)) return (range){0, a->causal ? b->q0 + b->nq : keys};
    range all = {keys, 0};
    for (int64_t i = 0; i < b->nq; i++) {
        const range r = seen_by(b, a, b->q0 + i);
        if (r.first == r.end) continue;
        if (r.first < all.first) all.first = r.first;
        if (r.end > all.end) all.end = r.end;
    }
    if (all.end == 0) return (range){0, 0};
    all.first = all.first / RANGED_KEYS * RANGED_KEYS;
    all.end = least((all.end + RANGED_KEYS - 1) / RANGED_KEYS * RANGED_KEYS, keys);
    return all;
}

/* The bucket of a distance key - query: exact up to half of them, then by its logarithm up to `reach`, all beyond in
 * the last; where both sides are seen, half of the buckets are for keys behind the query. */
int64_t tess_attention_bucket(const tess_attention_arg *a, int64_t distance)
{
    int64_t buckets = a->buckets, base = 0;
    if (!a->causal) {
        buckets /= 2;
        if (distance > 0) base = buckets;
        distance = distance < 0 ? -distance : distance;
    } else {
        distance = distance < 0 ? -distance : 0;
    }
    const int64_t exact = buckets / 2;
    if (distance < exact) return base + distance;
    const float part = logf((float)distance / (float)exact) / (float)log((double)a->reach / (double)exact);
    return base + least(exact + (int64_t)(part * (float)(buckets - exact)), buckets - 1);
}

/* bias (queries + keys): those of one head by distance, from the table (buckets, heads). With `turned` along queries,
 * else along keys. */
static void spread_bias(const tess_attention_arg *a, const void *table, int64_t head, bool turned, float *bias,
                        tess_dtype t)
{
    const int64_t queries = a->sequence, keys = keys_of(a), n = queries + keys - 1;
    for (int64_t i = 0; i < n; i++)
        bias[turned ? n - 1 - i : i] =
            tess_load(table, tess_attention_bucket(a, i - (queries - 1)) * a->heads + head, t);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* A row of logits of query q, bent. */
TESS_INLINE void bend(const forward_room *f, const place *b, const tess_attention_arg *a, int64_t q, float *s,
                      int64_t n)
{
    const float scale = a->scale, cap = a->cap;
    if (cap > 0) {
        const float part = scale / cap;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) s[j] = cap * tess_tanhf(s[j] * part);
    } else {
        const float *bias = f->bias + (b->k0 - q + a->sequence - 1);
#pragma omp simd
        for (int64_t j = 0; j < n; j++) s[j] = s[j] * scale + bias[j];
    }
}

/* Block of S to block of P; m, l and O follow. m is kept in powers of 2. `first`: no block came before. */
TESS_INLINE void soften(const forward_room *f, const place *b, const tess_attention_arg *a, const bool drop,
                        const bool first, tess_dtype t)
{
    const float scale = bent(a) ? TESS_LOG2_E : a->scale * TESS_LOG2_E;
    for (int64_t i = 0; i < b->nq; i++) {
        float *s = f->s + i * b->nk;
        void *p = tess_at_mut(f->p, i * b->nk, t);
        int64_t from = 0, seen = a->causal ? least(b->nk, b->q0 + i + 1 - b->k0) : b->nk;
        if (ranged(a)) {
            const range r = seen_by(b, a, b->q0 + i);
            from = r.first > b->k0 ? r.first - b->k0 : 0;
            seen = least(b->nk, r.end - b->k0);
            if (seen <= from) { /* nothing of this block */
                memset(p, 0, (size_t)b->nk * tess_dtype_size(t));
                continue;
            }
        }
        const int64_t n = least((seen + TESS_LANES - 1) / TESS_LANES * TESS_LANES, b->nk); /* no odd end */
        if (bent(a)) bend(f, b, a, b->q0 + i, s, n);
        for (int64_t j = 0; j < from; j++) s[j] = -INFINITY;
        for (int64_t j = seen; j < n; j++) s[j] = -INFINITY;
        const float old = f->m[i];
        float most[TESS_LANES], sum[TESS_LANES] = {0};
        for (int j = 0; j < TESS_LANES; j++) most[j] = old;
        TESS_EACH(j, lane, n, { most[lane] = s[j] * scale > most[lane] ? s[j] * scale : most[lane]; });
        const float m = tess_max16(most);
#pragma omp simd
        for (int64_t j = 0; j < n; j++) s[j] = tess_power_of_2(s[j] * scale - m);
        for (int64_t j = 0; j < from; j++) s[j] = 0;
        for (int64_t j = seen; j < n; j++) s[j] = 0;
        TESS_EACH(j, lane, n, { sum[lane] += s[j]; });
        if (drop) {
            const uint64_t at = b->first + (uint64_t)(b->q0 + i) * b->step + (uint64_t)b->k0;
#pragma omp simd
            for (int64_t j = 0; j < n; j++) s[j] *= kept(b, at + (uint64_t)j);
        }
        if (tess_is_half(t)) tess_narrow(p, s, n, t);
        memset(tess_at_mut(p, n, t), 0, (size_t)(b->nk - n) * tess_dtype_size(t));
        const float shrink = tess_power_of_2(old - m);
        f->m[i] = m;
        f->l[i] = f->l[i] > 0 ? f->l[i] * shrink + tess_sum16(sum) : tess_sum16(sum);
        if (first || shrink == 1) continue;
        float *o = f->o + i * a->dim;
#pragma omp simd
        for (int64_t j = 0; j < a->dim; j++) o[j] *= shrink;
    }
}

/* Queries [b->q0, b->q0 + b->nq) of one head. */
TESS_INLINE void forward_block(const forward_room *f, place *b, const tess_attention_arg *a, const void *q,
                               int64_t ld_q, const part *v, const void *v_head, tess_dtype t)
{
    const int64_t each = block_of(a), keys = keys_of(a);
    const range seen = seen_by_block(b, a);
    for (int64_t i = 0; i < b->nq; i++) f->m[i] = -INFINITY, f->l[i] = 0;
    if (seen.end == 0) memset(f->o, 0, (size_t)(b->nq * a->dim) * sizeof *f->o);
    for (b->k0 = seen.first; b->k0 < seen.end; b->k0 += each) {
        const int64_t whole = least(each, keys - b->k0);
        const size_t at = (size_t)(b->k0 / each) * f->block;
        const bool first = b->k0 == seen.first;
        b->nk = least(each, seen.end - b->k0);
        tess_mm_run(&(tess_mm){.m = b->nq,
                               .n = b->nk,
                               .k = a->dim,
                               .lda = ld_q,
                               .ldb = whole,
                               .ldc = b->nk,
                               .in = t,
                               .out = TESS_F32,
                               .packed = true},
                    q, f->k + at, f->s);
        if (b->drop)
            soften(f, b, a, true, first, t);
        else
            soften(f, b, a, false, first, t);
        tess_mm o = {.m = b->nq,
                     .n = a->dim,
                     .k = b->nk,
                     .lda = b->nk,
                     .ldb = a->dim,
                     .ldc = a->dim,
                     .in = t,
                     .out = TESS_F32,
                     .acc = !first,
                     .packed = true};
        if (b->nk == whole) {
            tess_mm_run(&o, f->p, f->v + at, f->o);
        } else { /* packed, all keys of a block are summed over */
            o.packed = false, o.ldb = v->ld;
            tess_mm_run(&o, f->p, tess_at(v_head, b->k0 * v->ld, t), f->o);
        }
    }
}

/* The heads of a sequence that share keys. */
TESS_INLINE void forward_part(const tess_work *w, int64_t g, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    const tess_view *rest = w->buf + (a->packed ? 1 : 3);
    part p[3];
    find_parts(p, w, 0, a, t);
    const int32_t *bounds = a->bounded ? rest++->ptr : NULL;
    const void *table = a->buckets ? rest++->ptr : NULL;
    void *y = rest[0].ptr;
    float *lse = rest[1].ptr;
    forward_room f;
    TESS_ASSERT(forward_take(&f, a, t, tess_part_room(rest[2].ptr, rest[2].bytes)) <= rest[2].bytes);
    const int64_t length = a->sequence, share = a->heads / a->groups, width = a->heads * a->dim;
    const int64_t keys = keys_of(a), each = block_of(a);

    {
        const int64_t sequence = g / a->groups, row = sequence * length, group = g % a->groups;
        const void *k = part_at(p[1], sequence * keys, group, t), *v = part_at(p[2], sequence * keys, group, t);
        for (int64_t k0 = 0; k0 < keys; k0 += each) {
            const int64_t n = least(each, keys - k0);
            const size_t at = (size_t)(k0 / each) * f.block;
            tess_mm_pack(&(tess_mm){.n = n, .k = a->dim, .ldb = p[1].ld, .tb = true, .in = t},
                         tess_at(k, k0 * p[1].ld, t), f.k + at);
            tess_mm_pack(&(tess_mm){.n = a->dim, .k = n, .ldb = p[2].ld, .in = t}, tess_at(v, k0 * p[2].ld, t),
                         f.v + at);
        }
        for (int64_t head = group * share; head < (group + 1) * share; head++) {
            place b = place_of(w, a, sequence, head);
            if (bounds) b.bounds = bounds + 2 * row;
            if (table) spread_bias(a, table, head, false, f.bias, t);
            for (b.q0 = 0; b.q0 < length; b.q0 += QUERIES) {
                b.nq = least(QUERIES, length - b.q0);
                forward_block(&f, &b, a, part_at(p[0], row + b.q0, head, t), p[0].ld, &p[2], v, t);
                for (int64_t i = 0; i < b.nq; i++) {
                    const int64_t r = row + b.q0 + i;
                    const bool sees = f.l[i] > 0;
                    const float one = sees ? 1 / f.l[i] : 0, *o = f.o + i * a->dim;
                    void *to = tess_at_mut(y, r * width + head * a->dim, t);
#pragma omp simd
                    for (int64_t j = 0; j < a->dim; j++) tess_store(to, j, t, o[j] * one);
                    lse[r * a->heads + head] = sees ? f.m[i] * TESS_LN_2 + logf(f.l[i]) : INFINITY;
                }
            }
        }
    }
}
TESS_PART_BODIES(forward_part)

/* q, k, v or qkv[, bounds][, bias], y, lse, scratch */
TESS_INLINE void attention_forward(const tess_work *w, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    tess_parts_run(a->rows / a->sequence * a->groups, TESS_PART_BODY(forward_part, t), (void *)w);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* S and dP to P and dS, all (keys, queries). */
TESS_INLINE void harden(const backward_room *r, const place *b, const tess_attention_arg *a, const bool drop,
                        tess_dtype t)
{
    const float scale = a->scale;
    const float *lse = r->lse, *delta = r->delta;
    for (int64_t j = 0; j < b->nk; j++) {
        const float *s = r->s + j * b->nq, *dp = r->dp + j * b->nq;
        void *p = tess_at_mut(r->p, j * b->nq, t), *ds = tess_at_mut(r->ds, j * b->nq, t);
        const int64_t key = b->k0 + j, blind = a->causal && key > b->q0 ? key - b->q0 : 0;
        const uint64_t at = b->first + (uint64_t)b->q0 * b->step + (uint64_t)key;
#pragma omp simd
        for (int64_t i = blind / TESS_LANES * TESS_LANES; i < b->nq; i++) {
            float e = tess_power_of_2(s[i] * (scale * TESS_LOG2_E) - lse[i]);
            float keep = drop ? kept(b, at + (uint64_t)i * b->step) : 1;
            tess_store(p, i, t, e * keep);
            tess_store(ds, i, t, e * (dp[i] * keep - delta[i]) * scale);
        }
        memset(p, 0, (size_t)blind * tess_dtype_size(t));
        memset(ds, 0, (size_t)blind * tess_dtype_size(t));
    }
}

/* A row of S, of one key, bent as it was; r->slope is what comes of it times the scale. */
TESS_INLINE void bend_back(const backward_room *r, const tess_attention_arg *a, const float *bias, float *s, int64_t n)
{
    const float scale = a->scale, cap = a->cap;
    float *slope = r->slope;
    if (cap > 0) {
        const float part = scale / cap;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float c = tess_tanhf(s[i] * part);
            s[i] = c * cap;
            slope[i] = (1 - c * c) * scale;
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            s[i] = a->buckets ? s[i] * scale + bias[i] : s[i] * scale;
            slope[i] = scale;
        }
    }
}

/* The same as harden, for ranges and bent logits: row by row in passes. */
TESS_INLINE void harden_ranges(const backward_room *r, const place *b, const tess_attention_arg *a, tess_dtype t)
{
    const float *lse = r->lse, *delta = r->delta, *slope = r->slope;
    const int32_t *first = r->first, *end = r->end;
    for (int64_t j = 0; j < b->nk; j++) {
        float *s = r->s + j * b->nq, *dp = r->dp + j * b->nq;
        void *p = tess_at_mut(r->p, j * b->nq, t), *ds = tess_at_mut(r->ds, j * b->nq, t);
        const int64_t key = b->k0 + j, apart = b->q0 - key + keys_of(a) - 1;
        const uint64_t at = b->first + (uint64_t)b->q0 * b->step + (uint64_t)key;
        const int32_t key_32 = (int32_t)key;
        bend_back(r, a, a->buckets ? r->bias + apart : NULL, s, b->nq);
#pragma omp simd
        for (int64_t i = 0; i < b->nq; i++) {
            const float e = tess_power_of_2(s[i] * TESS_LOG2_E - lse[i]);
            s[i] = key_32 >= first[i] && key_32 < end[i] ? e : 0;
        }
        if (b->drop)
#pragma omp simd
            for (int64_t i = 0; i < b->nq; i++) {
                const float keep = kept(b, at + (uint64_t)i * b->step);
                dp[i] *= keep;
                tess_store(p, i, t, s[i] * keep);
            }
        else
#pragma omp simd
            for (int64_t i = 0; i < b->nq; i++) tess_store(p, i, t, s[i]);
#pragma omp simd
        for (int64_t i = 0; i < b->nq; i++) {
            s[i] *= dp[i] - delta[i];
            tess_store(ds, i, t, s[i] * slope[i]);
        }
        if (!a->buckets) continue;
        float *dbias = r->dbias + apart;
#pragma omp simd
        for (int64_t i = 0; i < b->nq; i++) dbias[i] += s[i];
    }
}

/* dq of one block of queries of one head, and what it adds to dk and dv. */
TESS_INLINE void backward_block(const backward_room *r, place *b, const tess_attention_arg *a, tess_dtype t)
{
    const int64_t dim = a->dim, each = block_of(a);
    const range seen = seen_by_block(b, a);
    if (seen.end == 0) memset(r->dq, 0, (size_t)(b->nq * dim) * sizeof *r->dq);
    for (b->k0 = seen.first; b->k0 < seen.end; b->k0 += each) {
        b->nk = least(each, seen.end - b->k0);
        const void *k = tess_at(r->k, b->k0 * dim, t), *v = tess_at(r->v, b->k0 * dim, t);
        const tess_mm along = {.m = b->nk,
                               .n = b->nq,
                               .k = dim,
                               .lda = dim,
                               .ldb = b->nq,
                               .ldc = b->nq,
                               .in = t,
                               .out = TESS_F32,
                               .packed = true};
        tess_mm_run(&along, k, r->q, r->s);
        tess_mm_run(&along, v, r->dy, r->dp);
        if (ranged(a) || bent(a))
            harden_ranges(r, b, a, t);
        else if (b->drop)
            harden(r, b, a, true, t);
        else
            harden(r, b, a, false, t);
        const tess_mm across = {.m = b->nk,
                                .n = dim,
                                .k = b->nq,
                                .lda = b->nq,
                                .ldb = dim,
                                .ldc = dim,
                                .in = t,
                                .out = TESS_F32,
                                .acc = true,
                                .packed = true};
        tess_mm_run(&across, r->p, r->dy_across, r->dv + b->k0 * dim);
        tess_mm_run(&across, r->ds, r->q_across, r->dk + b->k0 * dim);
        tess_mm_run(&(tess_mm){.m = b->nq,
                               .n = dim,
                               .k = b->nk,
                               .lda = b->nq,
                               .ldb = dim,
                               .ldc = dim,
                               .in = t,
                               .out = TESS_F32,
                               .ta = true,
                               .acc = b->k0 > seen.first},
                    r->ds, k, r->dq);
    }
}

/* The block's queries and dy as operands, its lse and delta. Rows of y and dy begin at the head's columns. */
TESS_INLINE void backward_prepare(const backward_room *r, const place *b, const tess_attention_arg *a, const void *q,
                                  int64_t ld_q, const void *dy, const void *y, const float *lse, tess_dtype t)
{
    const int64_t width = a->heads * a->dim;
    tess_mm d = {.n = b->nq, .k = a->dim, .ldb = ld_q, .tb = true, .in = t};
    tess_mm_pack(&d, q, r->q);
    d.ldb = width;
    tess_mm_pack(&d, dy, r->dy);
    d = (tess_mm){.n = a->dim, .k = b->nq, .ldb = ld_q, .in = t};
    tess_mm_pack(&d, q, r->q_across);
    d.ldb = width;
    tess_mm_pack(&d, dy, r->dy_across);
    for (int64_t i = 0; i < b->nq; i++) {
        const void *dy_i = tess_at(dy, i * width, t), *y_i = tess_at(y, i * width, t);
        float sum[TESS_LANES] = {0};
        TESS_EACH(j, lane, a->dim, { sum[lane] += tess_load(dy_i, j, t) * tess_load(y_i, j, t); });
        r->delta[i] = tess_sum16(sum);
        r->lse[i] = lse[i * a->heads] * TESS_LOG2_E;
        const range seen = seen_by(b, a, b->q0 + i);
        r->first[i] = (int32_t)seen.first, r->end[i] = (int32_t)seen.end;
    }
}

/* dbias (buckets, heads) += what the distances of one head gathered. */
static void gather_bias(const tess_attention_arg *a, const float *by_distance, int64_t head, float *dbias)
{
    const int64_t queries = a->sequence, keys = keys_of(a), n = queries + keys - 1;
    for (int64_t i = 0; i < n;) { /* a run of distances that share a bucket */
        const int64_t bucket = tess_attention_bucket(a, keys - 1 - i);
        double sum = 0;
        for (; i < n && tess_attention_bucket(a, keys - 1 - i) == bucket; i++) sum += (double)by_distance[i];
        dbias[bucket * a->heads + head] += (float)sum;
    }
}

/* to (rows, dim) of rows `ld` long [+]= from, dense. */
TESS_INLINE void put_rows(void *to, int64_t ld, const float *from, int64_t rows, int64_t dim, bool acc, tess_dtype t)
{
    for (int64_t i = 0; i < rows; i++) {
        void *row = tess_at_mut(to, i * ld, t);
#pragma omp simd
        for (int64_t j = 0; j < dim; j++) tess_accumulate(row, j, t, acc, from[i * dim + j]);
    }
}

/* The same of the backward pass; of a bias, whose gradient adds up over sequences, of all of them. */
TESS_INLINE void backward_part(const tess_work *w, int64_t first, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    const unsigned three = a->packed ? 1 : 3, more = (a->bounded ? 1 : 0) + (a->buckets ? 1 : 0);
    part p[3], dp[3];
    find_parts(p, w, 1, a, t);
    find_parts(dp, w, 3 + three + more, a, t);
    const int32_t *bounds = a->bounded ? w->buf[1 + three].ptr : NULL;
    const void *table = a->buckets ? w->buf[three + more].ptr : NULL;
    const void *dy = w->buf[0].ptr, *y = w->buf[1 + three + more].ptr;
    const float *lse = w->buf[2 + three + more].ptr;
    const tess_view *rest = w->buf + 3 + 2 * three + more;
    float *dbias = a->buckets ? rest++->ptr : NULL;
    backward_room r;
    TESS_ASSERT(backward_take(&r, a, t, tess_part_room(rest->ptr, rest->bytes)) <= rest->bytes);
    const int64_t length = a->sequence, share = a->heads / a->groups, width = a->heads * a->dim, dim = a->dim;
    const int64_t keys = keys_of(a);
    const size_t row_bytes = (size_t)dim * tess_dtype_size(t), sum_bytes = (size_t)(keys * dim) * sizeof(float);
    const size_t bias_bytes = (size_t)(length + keys) * sizeof(float);

    for (int64_t g = first; g < (dbias ? a->rows / length * a->groups : first + 1); g += a->groups) {
        const int64_t sequence = g / a->groups, row = sequence * length, group = g % a->groups;
        const int64_t key_row = sequence * keys;
        for (int64_t i = 0; i < keys; i++) {
            memcpy(tess_at_mut(r.k, i * dim, t), part_at(p[1], key_row + i, group, t), row_bytes);
            memcpy(tess_at_mut(r.v, i * dim, t), part_at(p[2], key_row + i, group, t), row_bytes);
        }
        memset(r.dk, 0, sum_bytes);
        memset(r.dv, 0, sum_bytes);
        for (int64_t head = group * share; head < (group + 1) * share; head++) {
            place b = place_of(w, a, sequence, head);
            if (bounds) b.bounds = bounds + 2 * row;
            if (dbias) spread_bias(a, table, head, true, r.bias, t);
            if (dbias) memset(r.dbias, 0, bias_bytes);
            for (b.q0 = 0; b.q0 < length; b.q0 += QUERIES) {
                b.nq = least(QUERIES, length - b.q0);
                const int64_t at = (row + b.q0) * width + head * dim;
                backward_prepare(&r, &b, a, part_at(p[0], row + b.q0, head, t), p[0].ld, tess_at(dy, at, t),
                                 tess_at(y, at, t), lse + (row + b.q0) * a->heads + head, t);
                backward_block(&r, &b, a, t);
                put_rows(part_at(dp[0], row + b.q0, head, t), dp[0].ld, r.dq, b.nq, dim, a->acc, t);
            }
            if (dbias) gather_bias(a, r.dbias, head, dbias);
        }
        put_rows(part_at(dp[1], key_row, group, t), dp[1].ld, r.dk, keys, dim, a->acc, t);
        put_rows(part_at(dp[2], key_row, group, t), dp[2].ld, r.dv, keys, dim, a->acc, t);
    }
}
TESS_PART_BODIES(backward_part)

/* dy, q, k, v or qkv[, bounds][, bias], y, lse, dq +=, dk +=, dv += or dqkv +=[, dbias +=], scratch */
TESS_INLINE void attention_backward(const tess_work *w, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    if (a->buckets && !a->acc_bias) {
        const tess_view *dbias = &w->buf[w->nbuf - 2];
        memset(dbias->ptr, 0, (size_t)(a->buckets * a->heads) * sizeof(float));
    }
    tess_parts_run(a->groups * (a->buckets ? 1 : a->rows / a->sequence), TESS_PART_BODY(backward_part, t), (void *)w);
}

/* ---- cost -------------------------------------------------------------------------------------------------------- */

/* `products` of (queries x keys x dim), over the pairs that see each other; `passes` over q, k, v and y. */
static tess_cost attention_cost(const tess_attention_arg *a, tess_dtype t, double products, double passes)
{
    const double length = (double)a->sequence, window = (double)a->window, rows = (double)a->rows;
    double seen = a->causal ? (length + 1) / 2 : (double)keys_of(a);
    if (a->window && a->window < a->sequence) seen = window * (length - (window - 1) / 2) / length;
    return (tess_cost){
        .flops = 2 * products * rows * seen * (double)(a->heads * a->dim),
        .bytes = rows * (passes * (double)(tess_dtype_size(t) * (size_t)(2 * (a->heads + a->groups) * a->dim)) +
                         4 * (double)a->heads),
    };
}
static tess_cost attention_forward_cost(const void *arg, tess_dtype t)
{
    return attention_cost(arg, t, 2, 1);
}
static tess_cost attention_backward_cost(const void *arg, tess_dtype t)
{
    return attention_cost(arg, t, 5, ((const tess_attention_arg *)arg)->acc ? 3 : 2);
}

TESS_REAL_COST(attention_forward)
TESS_REAL_COST(attention_backward)
