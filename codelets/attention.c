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
 * Causal blocks end at the last query's key. With dropout, p is replaced by 0 or p/(1-dropout) in the products, by
 * random bits of the place ((sequence of the batch * heads + head) * T + query) * T + key.
 */
#include "mm_impl.h"
#include "vector_impl.h"

enum { QUERIES = 128, KEYS = 512 }; /* of a block; KEYS is a multiple, so that a block's first key is seen by all */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
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
    char *k, *v; /* blocks of KEYS keys as right operands of S and O, `block` bytes apart */
    size_t block;
    float *s;     /* (QUERIES, KEYS) */
    void *p;      /* the same, real; of fp32 S itself */
    float *o;     /* (QUERIES, dim) */
    float *m, *l; /* (QUERIES) */
} forward_room;

static size_t forward_take(forward_room *f, const tess_attention_arg *a, tess_dtype t, void *scratch)
{
    char *room = scratch;
    const size_t blocks = (size_t)((a->sequence + KEYS - 1) / KEYS), size = tess_dtype_size(t);
    const size_t k = packed_bytes(KEYS, a->dim, t), v = packed_bytes(a->dim, KEYS, t);
    f->block = k > v ? k : v;
    f->k = take(&room, blocks * f->block);
    f->v = take(&room, blocks * f->block);
    f->s = take(&room, QUERIES * KEYS * sizeof(float));
    f->p = t == TESS_F32 ? f->s : take(&room, QUERIES * KEYS * size);
    f->o = take(&room, QUERIES * (size_t)a->dim * sizeof(float));
    f->m = take(&room, QUERIES * sizeof(float));
    f->l = take(&room, QUERIES * sizeof(float));
    return (size_t)(room - (char *)scratch);
}

typedef struct backward_room {
    void *k, *v;                         /* (T, dim), dense */
    float *dk, *dv;                      /* the same, sums */
    void *q, *dy, *q_across, *dy_across; /* a block of queries as right operand, transposed and as it is */
    float *s, *dp;                       /* (KEYS, QUERIES) */
    void *p, *ds;                        /* the same, real */
    float *dq;                           /* (QUERIES, dim) */
    float *lse, *delta;                  /* (QUERIES); lse in powers of 2 */
} backward_room;

static size_t backward_take(backward_room *b, const tess_attention_arg *a, tess_dtype t, void *scratch)
{
    char *room = scratch;
    const size_t all = (size_t)(a->sequence * a->dim), size = tess_dtype_size(t);
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
    return (size_t)(room - (char *)scratch);
}

size_t tess_attention_scratch(const tess_attention_arg *a, tess_dtype t)
{
    forward_room f;
    backward_room b;
    const size_t forward = forward_take(&f, a, t, NULL), backward = backward_take(&b, a, t, NULL);
    const size_t most = forward > backward ? forward : backward;
    const size_t delta = (size_t)(a->rows * a->heads) * sizeof(float); /* of all rows at once, on a GPU */
    return most > delta ? most : delta;
}

/* One of q, k, v or a gradient of theirs. */
typedef struct part {
    void *ptr;
    int64_t ld;
} part;
/* From buffer `i` on: one that holds all three, or three. */
TESS_INLINE void find_parts(part p[3], const tess_work *w, unsigned i, const tess_attention_arg *a, tess_dtype t)
{
    const int64_t wide = a->heads * a->dim, narrow = a->groups * a->dim, all = wide + 2 * narrow;
    for (int j = 0; j < 3; j++)
        p[j] = a->packed ? (part){tess_at_mut(w->buf[i].ptr, j ? wide + (j - 1) * narrow : 0, t), all}
                         : (part){w->buf[i + (unsigned)j].ptr, j ? narrow : wide};
}
TESS_INLINE void *part_at(part p, int64_t row, int64_t head, const tess_attention_arg *a, tess_dtype t)
{
    return tess_at_mut(p.ptr, row * p.ld + head * a->dim, t);
}

/* What a block's elements need to know of its place. */
typedef struct place {
    int64_t q0, nq, k0, nk; /* queries [q0, q0+nq), keys [k0, k0+nk) */
    bool drop;
    tess_random_key random;
    tess_dropout_rule rule;
    uint64_t first; /* place of the head's query 0, key 0 */
    uint64_t step;  /* from query to query: T */
} place;

TESS_INLINE place place_of(const tess_work *w, const tess_attention_arg *a, int64_t sequence, int64_t head)
{
    const uint64_t length = (uint64_t)a->sequence;
    place p = {.drop = a->dropout > 0 && w->env->train, .step = length};
    if (p.drop) {
        p.random = tess_random_begin(w->env->seed, (uint64_t)w->env->step, a->op);
        p.rule = tess_dropout_begin(a->dropout);
    }
    const int64_t heads = a->all_heads ? a->all_heads : a->heads;
    p.first = ((uint64_t)(a->row0 / a->sequence + sequence) * (uint64_t)heads + (uint64_t)(a->head0 + head)) * length *
              length;
    return p;
}
TESS_INLINE float kept(const place *p, uint64_t at)
{
    return tess_random_at(p->random, at) >= p->rule.below ? p->rule.scale : 0;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Block of S to block of P; m, l and O follow. m is kept in powers of 2. */
TESS_INLINE void soften(const forward_room *f, const place *b, const tess_attention_arg *a, const bool drop,
                        tess_dtype t)
{
    const float scale = a->scale * TESS_LOG2_E;
    for (int64_t i = 0; i < b->nq; i++) {
        float *s = f->s + i * b->nk;
        void *p = tess_at_mut(f->p, i * b->nk, t);
        const int64_t seen = a->causal ? least(b->nk, b->q0 + i + 1 - b->k0) : b->nk;
        const int64_t n = least((seen + TESS_LANES - 1) / TESS_LANES * TESS_LANES, b->nk); /* no odd end */
        for (int64_t j = seen; j < n; j++) s[j] = -INFINITY;
        const float old = f->m[i];
        float most[TESS_LANES], sum[TESS_LANES] = {0};
        for (int j = 0; j < TESS_LANES; j++) most[j] = old;
        TESS_EACH(j, lane, n, { most[lane] = s[j] * scale > most[lane] ? s[j] * scale : most[lane]; });
        const float m = tess_max16(most);
#pragma omp simd
        for (int64_t j = 0; j < n; j++) s[j] = tess_power_of_2(s[j] * scale - m);
        for (int64_t j = seen; j < n; j++) s[j] = 0;
        TESS_EACH(j, lane, n, { sum[lane] += s[j]; });
        if (drop) {
            const uint64_t at = b->first + (uint64_t)(b->q0 + i) * b->step + (uint64_t)b->k0;
#pragma omp simd
            for (int64_t j = 0; j < n; j++) s[j] *= kept(b, at + (uint64_t)j);
        }
        if (t == TESS_BF16) tess_narrow(p, s, n);
        memset(tess_at_mut(p, n, t), 0, (size_t)(b->nk - n) * tess_dtype_size(t));
        const float shrink = tess_power_of_2(old - m);
        f->m[i] = m;
        f->l[i] = b->k0 ? f->l[i] * shrink + tess_sum16(sum) : tess_sum16(sum);
        if (b->k0 == 0 || shrink == 1) continue;
        float *o = f->o + i * a->dim;
#pragma omp simd
        for (int64_t j = 0; j < a->dim; j++) o[j] *= shrink;
    }
}

/* Queries [b->q0, b->q0 + b->nq) of one head. */
TESS_INLINE void forward_block(const forward_room *f, place *b, const tess_attention_arg *a, const void *q,
                               int64_t ld_q, const part *v, const void *v_head, tess_dtype t)
{
    const int64_t end = a->causal ? b->q0 + b->nq : a->sequence;
    for (int64_t i = 0; i < b->nq; i++) f->m[i] = -INFINITY;
    for (b->k0 = 0; b->k0 < end; b->k0 += KEYS) {
        const int64_t whole = least(KEYS, a->sequence - b->k0);
        const size_t at = (size_t)(b->k0 / KEYS) * f->block;
        b->nk = least(KEYS, end - b->k0);
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
            soften(f, b, a, true, t);
        else
            soften(f, b, a, false, t);
        tess_mm o = {.m = b->nq,
                     .n = a->dim,
                     .k = b->nk,
                     .lda = b->nk,
                     .ldb = a->dim,
                     .ldc = a->dim,
                     .in = t,
                     .out = TESS_F32,
                     .acc = b->k0 > 0,
                     .packed = true};
        if (b->nk == whole) {
            tess_mm_run(&o, f->p, f->v + at, f->o);
        } else { /* packed, all keys of a block are summed over */
            o.packed = false, o.ldb = v->ld;
            tess_mm_run(&o, f->p, tess_at(v_head, b->k0 * v->ld, t), f->o);
        }
    }
}

/* packed: qkv, y, lse, scratch.  else: q, k, v, y, lse, scratch */
TESS_INLINE void attention_forward(const tess_work *w, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    const tess_view *rest = w->buf + (a->packed ? 1 : 3);
    part p[3];
    find_parts(p, w, 0, a, t);
    void *y = rest[0].ptr;
    float *lse = rest[1].ptr;
    forward_room f;
    TESS_ASSERT(forward_take(&f, a, t, rest[2].ptr) <= rest[2].bytes);
    const int64_t length = a->sequence, share = a->heads / a->groups, width = a->heads * a->dim;

    for (int64_t g = 0; g < a->rows / length * a->groups; g++) {
        const int64_t row = g / a->groups * length, group = g % a->groups;
        const void *k = part_at(p[1], row, group, a, t), *v = part_at(p[2], row, group, a, t);
        for (int64_t k0 = 0; k0 < length; k0 += KEYS) {
            const int64_t n = least(KEYS, length - k0);
            const size_t at = (size_t)(k0 / KEYS) * f.block;
            tess_mm_pack(&(tess_mm){.n = n, .k = a->dim, .ldb = p[1].ld, .tb = true, .in = t},
                         tess_at(k, k0 * p[1].ld, t), f.k + at);
            tess_mm_pack(&(tess_mm){.n = a->dim, .k = n, .ldb = p[2].ld, .in = t}, tess_at(v, k0 * p[2].ld, t),
                         f.v + at);
        }
        for (int64_t head = group * share; head < (group + 1) * share; head++) {
            place b = place_of(w, a, g / a->groups, head);
            for (b.q0 = 0; b.q0 < length; b.q0 += QUERIES) {
                b.nq = least(QUERIES, length - b.q0);
                forward_block(&f, &b, a, part_at(p[0], row + b.q0, head, a, t), p[0].ld, &p[2], v, t);
                for (int64_t i = 0; i < b.nq; i++) {
                    const int64_t r = row + b.q0 + i;
                    const float one = 1 / f.l[i], *o = f.o + i * a->dim;
                    void *to = tess_at_mut(y, r * width + head * a->dim, t);
#pragma omp simd
                    for (int64_t j = 0; j < a->dim; j++) tess_store(to, j, t, o[j] * one);
                    lse[r * a->heads + head] = f.m[i] * TESS_LN_2 + logf(f.l[i]);
                }
            }
        }
    }
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

/* dq of one block of queries of one head, and what it adds to dk and dv. */
TESS_INLINE void backward_block(const backward_room *r, place *b, const tess_attention_arg *a, tess_dtype t)
{
    const int64_t end = a->causal ? b->q0 + b->nq : a->sequence, dim = a->dim;
    for (b->k0 = 0; b->k0 < end; b->k0 += KEYS) {
        b->nk = least(KEYS, end - b->k0);
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
        if (b->drop)
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
                               .acc = b->k0 > 0},
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

/* packed: dy, qkv, y, lse, dqkv +=, scratch.  else: dy, q, k, v, y, lse, dq +=, dk +=, dv +=, scratch */
TESS_INLINE void attention_backward(const tess_work *w, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    const unsigned three = a->packed ? 1 : 3;
    part p[3], dp[3];
    find_parts(p, w, 1, a, t);
    find_parts(dp, w, 3 + three, a, t);
    const void *dy = w->buf[0].ptr, *y = w->buf[1 + three].ptr;
    const float *lse = w->buf[2 + three].ptr;
    const tess_view scratch = w->buf[3 + 2 * three];
    backward_room r;
    TESS_ASSERT(backward_take(&r, a, t, scratch.ptr) <= scratch.bytes);
    const int64_t length = a->sequence, share = a->heads / a->groups, width = a->heads * a->dim, dim = a->dim;
    const size_t row_bytes = (size_t)dim * tess_dtype_size(t), sum_bytes = (size_t)(length * dim) * sizeof(float);

    for (int64_t g = 0; g < a->rows / length * a->groups; g++) {
        const int64_t row = g / a->groups * length, group = g % a->groups;
        for (int64_t i = 0; i < length; i++) {
            memcpy(tess_at_mut(r.k, i * dim, t), part_at(p[1], row + i, group, a, t), row_bytes);
            memcpy(tess_at_mut(r.v, i * dim, t), part_at(p[2], row + i, group, a, t), row_bytes);
        }
        memset(r.dk, 0, sum_bytes);
        memset(r.dv, 0, sum_bytes);
        for (int64_t head = group * share; head < (group + 1) * share; head++) {
            place b = place_of(w, a, g / a->groups, head);
            for (b.q0 = 0; b.q0 < length; b.q0 += QUERIES) {
                b.nq = least(QUERIES, length - b.q0);
                const int64_t at = (row + b.q0) * width + head * dim;
                backward_prepare(&r, &b, a, part_at(p[0], row + b.q0, head, a, t), p[0].ld, tess_at(dy, at, t),
                                 tess_at(y, at, t), lse + (row + b.q0) * a->heads + head, t);
                backward_block(&r, &b, a, t);
                put_rows(part_at(dp[0], row + b.q0, head, a, t), dp[0].ld, r.dq, b.nq, dim, a->acc, t);
            }
        }
        put_rows(part_at(dp[1], row, group, a, t), dp[1].ld, r.dk, length, dim, a->acc, t);
        put_rows(part_at(dp[2], row, group, a, t), dp[2].ld, r.dv, length, dim, a->acc, t);
    }
}

/* ---- cost -------------------------------------------------------------------------------------------------------- */

/* `products` of (queries x keys x dim), over the pairs that see each other; `passes` over q, k, v and y. */
static tess_cost attention_cost(const tess_attention_arg *a, tess_dtype t, double products, double passes)
{
    const double seen = a->causal ? (double)(a->sequence + 1) / 2 : (double)a->sequence, rows = (double)a->rows;
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
