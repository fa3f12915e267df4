/* attention_general: a unit of attention by products of mm.h, on any CPU. A part of attention.c.
 *
 * Backward the blocks are transposed, a row a key, since then all products but one take them as they lie, and lse and
 * delta are vectors along a row. Where queries see ranges blocks have fewer keys, so that they fit those. */
#ifndef TESS_ATTENTION_GENERAL_IMPL_H
#define TESS_ATTENTION_GENERAL_IMPL_H
#include "attention_impl.h"

/* Of a block. KEYS is a multiple of QUERIES, so that a causal block's first key is seen by all its queries. */
enum { QUERIES = 128, KEYS = 512, RANGED_KEYS = 128 };
_Static_assert(CUT % QUERIES == 0 && CUT % RANGED_KEYS == 0, "a part begins with a block");

static int64_t block_of(const tess_attention_arg *a)
{
    return ranged(a) ? RANGED_KEYS : KEYS;
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
        tess_mm s = {.m = b->nq, .n = b->nk, .k = a->dim, .lda = ld_q, .ldb = whole, .ldc = b->nk};
        s.in = t, s.out = TESS_F32, s.packed = true;
        tess_mm_run(&s, q, f->k + at, f->s);
        if (b->drop)
            soften(f, b, a, true, first, t);
        else
            soften(f, b, a, false, first, t);
        tess_mm o = {.m = b->nq, .n = a->dim, .k = b->nk, .lda = b->nk, .ldb = a->dim, .ldc = a->dim};
        o.in = t, o.out = TESS_F32, o.acc = !first, o.packed = true;
        if (b->nk == whole) {
            tess_mm_run(&o, f->p, f->v + at, f->o);
        } else { /* packed, all keys of a block are summed over */
            o.packed = false, o.ldb = v->ld;
            tess_mm_run(&o, f->p, tess_at(v_head, b->k0 * v->ld, t), f->o);
        }
    }
}

/* One group of heads of one sequence. */
TESS_INLINE void general_forward(const attention_task *task, int64_t sequence, int64_t group, tess_dtype t)
{
    const tess_attention_arg *a = task->a;
    forward_room f;
    forward_take(&f, a, t, task->scratch);
    const int64_t share = a->heads / a->groups, width = a->heads * a->dim;
    const int64_t keys = keys_of(a), each = block_of(a), row = sequence * a->sequence;
    const void *k = part_at(task->k, sequence * keys, group, t), *v = part_at(task->v, sequence * keys, group, t);
    for (int64_t k0 = 0; k0 < (a->causal ? least(keys, task->end) : keys); k0 += each) {
        const int64_t n = least(each, keys - k0);
        const size_t at = (size_t)(k0 / each) * f.block;
        tess_mm_pack(&(tess_mm){.n = n, .k = a->dim, .ldb = task->k.ld, .tb = true, .in = t},
                     tess_at(k, k0 * task->k.ld, t), f.k + at);
        tess_mm_pack(&(tess_mm){.n = a->dim, .k = n, .ldb = task->v.ld, .in = t}, tess_at(v, k0 * task->v.ld, t),
                     f.v + at);
    }
    for (int64_t head = group * share; head < (group + 1) * share; head++) {
        place b = place_of(task, sequence, head);
        if (task->table) spread_bias(a, task->table, head, false, f.bias, t);
        for (b.q0 = task->first; b.q0 < task->end; b.q0 += QUERIES) {
            b.nq = least(QUERIES, task->end - b.q0);
            forward_block(&f, &b, a, part_at(task->q, row + b.q0, head, t), task->q.ld, &task->v, v, t);
            for (int64_t i = 0; i < b.nq; i++) {
                const int64_t r = row + b.q0 + i;
                const bool sees = f.l[i] > 0;
                const float one = sees ? 1 / f.l[i] : 0, *o = f.o + i * a->dim;
                void *to = tess_at_mut(task->y, r * width + head * a->dim, t);
#pragma omp simd
                for (int64_t j = 0; j < a->dim; j++) tess_store(to, j, t, o[j] * one);
                task->lse[r * a->heads + head] = sees ? f.m[i] * TESS_LN_2 + logf(f.l[i]) : INFINITY;
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
        bend_back(a, a->buckets ? r->bias + apart : NULL, s, r->slope, b->nq);
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

/* What these keys add to dq of one block of queries of one head, and what it adds to dk and dv. */
TESS_INLINE void backward_block(const backward_room *r, place *b, const tess_attention_arg *a, range seen, tess_dtype t)
{
    const int64_t dim = a->dim, each = block_of(a);
    if (seen.end <= seen.first) memset(r->dq, 0, (size_t)(b->nq * dim) * sizeof *r->dq);
    for (b->k0 = seen.first; b->k0 < seen.end; b->k0 += each) {
        b->nk = least(each, seen.end - b->k0);
        const void *k = tess_at(r->k, b->k0 * dim, t), *v = tess_at(r->v, b->k0 * dim, t);
        tess_mm along = {.m = b->nk, .n = b->nq, .k = dim, .lda = dim, .ldb = b->nq, .ldc = b->nq};
        along.in = t, along.out = TESS_F32, along.packed = true;
        tess_mm_run(&along, k, r->q, r->s);
        tess_mm_run(&along, v, r->dy, r->dp);
        if (ranged(a) || bent(a))
            harden_ranges(r, b, a, t);
        else if (b->drop)
            harden(r, b, a, true, t);
        else
            harden(r, b, a, false, t);
        tess_mm across = {.m = b->nk, .n = dim, .k = b->nq, .lda = b->nq, .ldb = dim, .ldc = dim};
        across.in = t, across.out = TESS_F32, across.acc = across.packed = true;
        tess_mm_run(&across, r->p, r->dy_across, r->dv + b->k0 * dim);
        tess_mm_run(&across, r->ds, r->q_across, r->dk + b->k0 * dim);
        tess_mm turned = {.m = b->nq, .n = dim, .k = b->nk, .lda = b->nq, .ldb = dim, .ldc = dim};
        turned.in = t, turned.out = TESS_F32, turned.ta = true, turned.acc = b->k0 > seen.first;
        tess_mm_run(&turned, r->ds, k, r->dq);
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

/* One group of heads of one sequence. */
TESS_INLINE void general_backward(const attention_task *task, int64_t sequence, int64_t group, tess_dtype t)
{
    const tess_attention_arg *a = task->a;
    backward_room r;
    backward_take(&r, a, t, task->scratch);
    const int64_t length = a->sequence, share = a->heads / a->groups, width = a->heads * a->dim, dim = a->dim;
    const int64_t keys = keys_of(a), row = sequence * length, key_row = sequence * keys + task->first;
    const int64_t mine = task->end - task->first, first = task->first * dim;
    const size_t row_bytes = (size_t)dim * tess_dtype_size(t), sum_bytes = (size_t)(mine * dim) * sizeof(float);
    for (int64_t i = 0; i < mine; i++) {
        memcpy(tess_at_mut(r.k, first + i * dim, t), part_at(task->k, key_row + i, group, t), row_bytes);
        memcpy(tess_at_mut(r.v, first + i * dim, t), part_at(task->v, key_row + i, group, t), row_bytes);
    }
    memset(r.dk + first, 0, sum_bytes);
    memset(r.dv + first, 0, sum_bytes);
    for (int64_t head = group * share; head < (group + 1) * share; head++) {
        place b = place_of(task, sequence, head);
        if (task->dbias) spread_bias(a, task->table, head, true, r.bias, t);
        if (task->dbias) memset(r.dbias, 0, (size_t)(length + keys) * sizeof(float));
        for (b.q0 = 0; b.q0 < length; b.q0 += QUERIES) {
            b.nq = least(QUERIES, length - b.q0);
            const int64_t at = (row + b.q0) * width + head * dim;
            float *sums = sums_at(task, head - group * share, b.q0);
            range seen = seen_by_block(&b, a);
            if (unseen(task, seen.first, seen.end, sums, b.nq)) continue;
            seen = (range){later(seen.first, task->first), least(seen.end, task->end)};
            backward_prepare(&r, &b, a, part_at(task->q, row + b.q0, head, t), task->q.ld, tess_at(task->dy, at, t),
                             tess_at(task->y, at, t), task->lse + (row + b.q0) * a->heads + head, t);
            backward_block(&r, &b, a, seen, t);
            if (sums)
                memcpy(sums, r.dq, (size_t)(b.nq * dim) * sizeof *sums);
            else
                put_rows(part_at(task->dq, row + b.q0, head, t), task->dq.ld, r.dq, dim, 1, b.nq, dim, a->acc, t);
        }
        if (task->dbias) gather_bias(a, r.dbias, head, task->dbias);
    }
    put_rows(part_at(task->dk, key_row, group, t), task->dk.ld, r.dk + first, dim, 1, mine, dim, a->acc, t);
    put_rows(part_at(task->dv, key_row, group, t), task->dv.ld, r.dv + first, dim, 1, mine, dim, a->acc, t);
}

#endif
