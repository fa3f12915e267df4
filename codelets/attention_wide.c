/* attention_wide: a unit of attention with vectors of 512 bits: fp32 and fp16 by fused multiplications, both as fp32,
 * bf16 on tiles, all block by block in the first caches.
 *
 * Blocks are transposed, a row a key, a column a query, forward and backward: what a softmax keeps of a query is then a
 * lane, and no vector is ever summed across. Forward:
 *
 *     S = K Q^T (keys, queries)     P = exp(S scale - m)     O^T += V^T P (dim, queries)
 *
 * P takes the place of S, of bf16 in units, two keys in each, as the product reads it. m follows the maximum late: only
 * once a logit is above it by RISE powers of 2, since a rise multiplies O; what is summed is the same but for
 * rounding. Backward:
 *
 *     S = K Q^T     dP = V dY^T     P = exp(S scale - lse)     dS = P (dP - delta)
 *     dV += P dY (keys, dim)        dK += dS Q (keys, dim)     dQ^T += K^T dS (dim, queries)
 *
 * where dS of bf16 is written twice at once, by rows and in units, and the scale is left to dq and dk. What is
 * transposed of k and v is so once a unit, of q and dy once a block.
 *
 * Each query has the range of keys that it sees; blocks that all its queries see whole are not masked, and of the
 * others only the columns are touched of which one sees anything. Rows, columns and keys are filled to even blocks that
 * no query sees. */
#include "attention_impl.h"

#if defined __x86_64__
#include "wide_impl.h"

/* Of a block; of bf16 backward makes P and dS strip by strip, whose fp32 is little. */
enum { FORWARD_QUERIES = 64, FORWARD_KEYS = 128, BACKWARD_QUERIES = 128, BACKWARD_KEYS = 128, STRIP_KEYS = 32 };
enum { MOST_QUERIES = 128 };
static const float RISE = 8;

static int64_t even(int64_t n)
{
    return round_up(n, WIDE_EVEN);
}

/* ---- what queries see -------------------------------------------------------------------------------------------- */

/* A block of queries, in groups of 32. */
typedef struct sight {
    int32_t first[MOST_QUERIES], end[MOST_QUERIES]; /* the keys that each sees; past the last query none */
    int32_t any_first[MOST_QUERIES / 32], any_end[MOST_QUERIES / 32]; /* those that any of a group sees */
    int32_t all_first[MOST_QUERIES / 32], all_end[MOST_QUERIES / 32]; /* those that all do */
    int groups;
    int64_t begin, finish; /* those that any query sees */
} sight;

static void look(sight *s, const place *b, const tess_attention_arg *a)
{
    const int64_t keys = keys_of(a);
    s->groups = (int)(even(b->nq) / 32);
    s->begin = keys, s->finish = 0;
    for (int g = 0; g < s->groups; g++) {
        int64_t any_first = keys, any_end = 0, all_first = 0, all_end = keys;
        for (int64_t i = g * 32; i < g * 32 + 32; i++) {
            range r = i < b->nq ? seen_by(b, a, b->q0 + i) : (range){0, 0};
            r.end = least(r.end, keys);
            if (r.end <= r.first) r = (range){0, 0};
            s->first[i] = (int32_t)r.first, s->end[i] = (int32_t)r.end;
            if (r.first > all_first) all_first = r.first;
            if (r.end < all_end) all_end = r.end;
            if (r.end == 0) continue;
            if (r.first < any_first) any_first = r.first;
            if (r.end > any_end) any_end = r.end;
        }
        s->any_first[g] = (int32_t)any_first, s->any_end[g] = (int32_t)any_end;
        s->all_first[g] = (int32_t)all_first, s->all_end[g] = (int32_t)all_end;
        if (any_first < s->begin) s->begin = any_first;
        if (any_end > s->finish) s->finish = any_end;
    }
}

/* A block of keys before those queries: columns [from, to) see some of it; `nk` keys, filled to even; whether some see
 * not all of those. */
typedef struct window {
    int64_t k0, nk, from, to;
    bool masked;
} window;
static window window_at(const sight *s, int64_t k0, int64_t most)
{
    window w = {.k0 = k0, .nk = even(least(most, s->finish - k0)), .from = s->groups, .masked = false};
    for (int g = 0; g < s->groups; g++) {
        if (s->any_first[g] >= k0 + w.nk || s->any_end[g] <= k0) continue;
        if (g < w.from) w.from = g;
        w.to = g + 1;
    }
    for (int64_t g = w.from; g < w.to; g++)
        if (s->all_first[g] > k0 || s->all_end[g] < k0 + w.nk) w.masked = true;
    w.from *= 32, w.to *= 32;
    return w;
}

/* keep (nk, each), of columns [from, to): what dropout leaves of each. */
TESS_WIDE static void draw(float *keep, const place *b, const window *w, int64_t each)
{
    for (int64_t j = 0; j < w->nk; j++) {
        const uint64_t at = b->first + (uint64_t)b->q0 * b->step + (uint64_t)(w->k0 + j);
        for (int64_t i = w->from; i < w->to; i++) keep[j * each + i] = kept(b, at + (uint64_t)i * b->step);
    }
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

enum { AHEAD = 12 }; /* rows that are asked for early: they lie far apart, which the CPU does not foresee */

/* to (even rows, even dim) = from, of rows `ld` apart, as fp32 or, of bf16, as it is; zeros beyond. */
TESS_WIDE static void gather_rows(void *to, const void *from, int64_t ld, int64_t rows, int64_t dim, bool half,
                                  tess_dtype t)
{
    const int64_t wide = even(dim);
    const size_t size = half ? 2 : 4;
    for (int64_t i = 0; i < rows; i++) {
        char *row = (char *)to + (size_t)(i * wide) * size;
        for (int64_t at = 0; i + AHEAD < rows && at < dim * (int64_t)tess_dtype_size(t); at += 64)
            __builtin_prefetch((const char *)tess_at(from, (i + AHEAD) * ld, t) + at);
        if (t == TESS_F16)
            tess_widen((float *)(void *)row, tess_at(from, i * ld, t), dim, TESS_F16);
        else
            memcpy(row, tess_at(from, i * ld, t), (size_t)dim * size);
        memset(row + (size_t)dim * size, 0, (size_t)(wide - dim) * size);
    }
    memset((char *)to + (size_t)(rows * wide) * size, 0, (size_t)((even(rows) - rows) * wide) * size);
}

/* Blocks of `each` keys of a (keys, dim) of bf16, transposed: (even dim, each), one behind the other. */
TESS_WIDE static void turn_blocks(void *to, const void *from, int64_t keys, int64_t dim, int64_t each)
{
    const int64_t wide = even(dim);
    mm_vector x[16];
    for (int64_t k0 = 0; k0 < keys; k0 += each) {
        uint32_t *block = (uint32_t *)to + k0 * wide / 2;
        for (int64_t u = 0; u * 2 < least(each, even(keys) - k0); u += 16)
            for (int64_t c = 0; c < wide; c += 16) {
                load_across(x, tess_at(from, k0 * wide, TESS_BF16), wide, u, c, even(keys) - k0, wide, TESS_BF16);
                transpose(x);
                store(block + c * (each / 2) + u, each / 2, x, 16);
            }
    }
}

/* to (dim in units, each) = rows of `from` (even rows, even dim), transposed. */
TESS_WIDE static void turn_rows(uint32_t *to, const void *from, int64_t rows, int64_t dim, int64_t each, tess_dtype t)
{
    const int64_t units = units_of(even(dim), t);
    mm_vector x[16];
    for (int64_t r = 0; r < rows; r += 16)
        for (int64_t u = 0; u < units; u += 16) {
            for (int i = 0; i < 16; i++) memcpy(&x[i], (const uint32_t *)from + (r + i) * units + u, sizeof x[i]);
            transpose(x);
            store(to + u * each + r, each, x, 16);
        }
}
/* to (rows in units, even dim) = rows of `from`, of bf16. */
TESS_WIDE static void pair_rows(uint32_t *to, const void *from, int64_t rows, int64_t dim)
{
    const int64_t wide = even(dim);
    mm_vector x[16];
    for (int64_t u = 0; u * 2 < rows; u += 16)
        for (int64_t c = 0; c < wide; c += 16) {
            load_across(x, from, wide, u, c, even(rows), wide, TESS_BF16);
            store(to + u * wide + c, wide, x, 16);
        }
}
/* to (queries, dim) = from (dim, each), both even. */
TESS_WIDE static void turn_back(float *to, const float *from, int64_t queries, int64_t dim, int64_t each)
{
    const int64_t wide = even(dim);
    mm_vector x[16];
    for (int64_t i = 0; i < queries; i += 16)
        for (int64_t c = 0; c < wide; c += 16) {
            for (int r = 0; r < 16; r++) memcpy(&x[r], from + (c + r) * each + i, sizeof x[r]);
            transpose(x);
            store((uint32_t *)to + i * wide + c, wide, x, 16);
        }
}

/* put_rows by its dtype. */
TESS_WIDE static void put(void *to, int64_t ld, const float *from, int64_t apart, float by, int64_t rows, int64_t dim,
                          bool acc, tess_dtype t)
{
    if (t == TESS_F32)
        put_rows(to, ld, from, apart, by, rows, dim, acc, TESS_F32);
    else if (t == TESS_BF16)
        put_rows(to, ld, from, apart, by, rows, dim, acc, TESS_BF16);
    else
        put_rows(to, ld, from, apart, by, rows, dim, acc, TESS_F16);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

enum { FQ = FORWARD_QUERIES, FK = FORWARD_KEYS };

typedef struct forward_room {
    void *k, *v; /* (keys, dim); of bf16 v in blocks, transposed */
    void *rows;  /* (FQ, dim): queries as they come, then O as it goes */
    uint32_t *q; /* (dim in units, FQ) */
    float *s;    /* (FK, FQ): S, then P */
    float *o;    /* (dim, FQ) */
    float m[FQ], l[FQ];
    float *keep; /* (FK, FQ), with dropout */
    float *bias, *slope;
} forward_room;

static void *take_floats(char **room, int64_t n)
{
    return take(room, (size_t)n * sizeof(float));
}

/* By fp32, which is the most. */
static size_t forward_take(forward_room *f, const tess_attention_arg *a, void *scratch)
{
    char *room = scratch;
    const int64_t keys = keys_of(a), dim = even(a->dim), all = round_up(keys, FK) * dim;
    f->k = take_floats(&room, all);
    f->v = take_floats(&room, all);
    f->rows = take_floats(&room, FQ * dim);
    f->q = take_floats(&room, FQ * dim);
    f->s = take_floats(&room, FK * FQ);
    f->o = take_floats(&room, FQ * dim);
    f->keep = a->dropout > 0 ? take_floats(&room, FK * FQ) : NULL;
    f->bias = a->buckets ? take_floats(&room, a->sequence + keys) : NULL;
    f->slope = bent(a) ? take_floats(&room, FQ) : NULL;
    return (size_t)(room - (char *)scratch);
}

/* 16 queries, from column c on: S to P; m, l and O follow. */
TESS_WIDE_INLINE void soften(forward_room *f, const sight *seen, const window *w, int64_t c, int64_t dim, float scale,
                             const bool masked, const bool drop, const bool half)
{
    const __m512 by = _mm512_set1_ps(scale), none = _mm512_set1_ps(-INFINITY);
    const __m512i first = _mm512_loadu_si512(seen->first + c), end = _mm512_loadu_si512(seen->end + c);
    float *s = f->s + c;
    __m512 most[4] = {none, none, none, none}, sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t j = 0; j < w->nk; j += 4)
        for (int i = 0; i < 4; i++) {
            const __m512i key = _mm512_set1_epi32((int)(w->k0 + j + i));
            const __mmask16 sees =
                masked ? _mm512_cmple_epi32_mask(first, key) & _mm512_cmpgt_epi32_mask(end, key) : (__mmask16)~0;
            const __m512 x = _mm512_loadu_ps(s + (j + i) * FQ);
            most[i] = masked ? _mm512_mask_max_ps(most[i], sees, most[i], x) : _mm512_max_ps(most[i], x);
        }
    const __m512 old = _mm512_loadu_ps(f->m + c);
    const __m512 top =
        _mm512_mul_ps(by, _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3])));
    __m512 m = old, l = _mm512_loadu_ps(f->l + c);
    const __mmask16 rises = _mm512_cmp_ps_mask(top, _mm512_add_ps(old, _mm512_set1_ps(RISE)), _CMP_GT_OQ);
    if (rises) {
        m = _mm512_mask_mov_ps(old, rises, top);
        /* Those that saw nothing so far have nothing that could shrink. */
        const __mmask16 had = _mm512_cmp_ps_mask(old, none, _CMP_GT_OQ);
        const __m512 shrink = _mm512_mask_mov_ps(_mm512_set1_ps(1), rises, wide_power_of_2(had, _mm512_sub_ps(old, m)));
        l = _mm512_mul_ps(l, shrink);
        _mm512_storeu_ps(f->m + c, m);
        for (int64_t i = 0; i < dim; i++)
            _mm512_storeu_ps(f->o + i * FQ + c, _mm512_mul_ps(_mm512_loadu_ps(f->o + i * FQ + c), shrink));
    }
    for (int64_t j = 0; j < w->nk; j += 2) {
        __m512 p[2];
        for (int i = 0; i < 2; i++) {
            const __m512i key = _mm512_set1_epi32((int)(w->k0 + j + i));
            const __mmask16 sees =
                masked ? _mm512_cmple_epi32_mask(first, key) & _mm512_cmpgt_epi32_mask(end, key) : (__mmask16)~0;
            p[i] = wide_power_of_2(sees, _mm512_fmsub_ps(_mm512_loadu_ps(s + (j + i) * FQ), by, m));
            sum[i] = _mm512_add_ps(sum[i], p[i]);
            if (drop) p[i] = _mm512_mul_ps(p[i], _mm512_loadu_ps(f->keep + (j + i) * FQ + c));
        }
        if (half)
            _mm512_storeu_si512(s + j / 2 * FQ, wide_units(wide_halves(p[0], p[1])));
        else
            for (int i = 0; i < 2; i++) _mm512_storeu_ps(s + (j + i) * FQ, p[i]);
    }
    _mm512_storeu_ps(f->l + c, _mm512_add_ps(l, _mm512_add_ps(sum[0], sum[1])));
}

/* One block of keys. */
TESS_WIDE_INLINE void forward_block(forward_room *f, const sight *seen, const window *w, const place *b,
                                    const tess_attention_arg *a, const bool half)
{
    const int64_t dim = even(a->dim), n = w->to - w->from, at = w->k0 * dim, c = w->from;
    if (half)
        wide_tiles(w->nk, n, dim, (const tess_bf16 *)f->k + at, dim, f->q + c, FQ, f->s + c, FQ, false);
    else
        wide_product(w->nk, n, dim, (const float *)f->k + at, dim, 1, (const float *)f->q + c, FQ, f->s + c, FQ, false);
    if (bent(a))
        for (int64_t j = 0; j < w->nk; j++) {
            const int64_t apart = b->q0 + c - (w->k0 + j) + keys_of(a) - 1;
            const int64_t known = least(n, a->sequence - b->q0 - c); /* queries past the end have no bias */
            if (w->k0 + j < keys_of(a))
                bend_back(a, f->bias ? f->bias + apart : NULL, f->s + j * FQ + c, f->slope, known);
        }
    if (b->drop) draw(f->keep, b, w, FQ);
    const float scale = bent(a) ? TESS_LOG2_E : a->scale * TESS_LOG2_E;
    for (int64_t i = c; i < w->to; i += WIDE) {
        if (b->drop)
            soften(f, seen, w, i, dim, scale, true, true, half);
        else if (w->masked)
            soften(f, seen, w, i, dim, scale, true, false, half);
        else
            soften(f, seen, w, i, dim, scale, false, false, half);
    }
    if (half)
        wide_tiles(dim, n, w->nk, (const tess_bf16 *)f->v + at, FK, (uint32_t *)f->s + c, FQ, f->o + c, FQ, true);
    else
        wide_product(dim, n, w->nk, (const float *)f->v + at, 1, dim, f->s + c, FQ, f->o + c, FQ, true);
}

/* y and lse of a block of queries; row is its first. */
TESS_WIDE_INLINE void forward_finish(forward_room *f, const place *b, const attention_task *task, int64_t row,
                                     int64_t head, tess_dtype t)
{
    const tess_attention_arg *a = task->a;
    const int64_t dim = even(a->dim), width = a->heads * a->dim;
    float one[FQ];
    for (int64_t i = 0; i < FQ; i++) one[i] = f->l[i] == 0 ? 0 : 1 / f->l[i];
    for (int64_t j = 0; j < dim; j++)
#pragma omp simd
        for (int64_t i = 0; i < FQ; i++) f->o[j * FQ + i] *= one[i];
    turn_back(f->rows, f->o, even(b->nq), a->dim, FQ);
    put(tess_at_mut(task->y, row * width + head * a->dim, t), width, f->rows, dim, 1, b->nq, a->dim, false, t);
    for (int64_t i = 0; i < b->nq; i++)
        task->lse[(row + i) * a->heads + head] = f->l[i] == 0 ? INFINITY : f->m[i] * TESS_LN_2 + logf(f->l[i]);
}

TESS_WIDE_INLINE void forward_unit(const attention_task *task, int64_t sequence, int64_t group, const bool half,
                                   tess_dtype t)
{
    const tess_attention_arg *a = task->a;
    const int64_t length = a->sequence, keys = keys_of(a), share = a->heads / a->groups, dim = even(a->dim);
    const tess_dtype in = half ? TESS_BF16 : TESS_F32;
    forward_room f;
    sight seen;
    forward_take(&f, a, task->scratch);
    gather_rows(half ? f.k : f.v, part_at(task->v, sequence * keys, group, t), task->v.ld, keys, a->dim, half, t);
    if (half) turn_blocks(f.v, f.k, keys, a->dim, FK);
    gather_rows(f.k, part_at(task->k, sequence * keys, group, t), task->k.ld, keys, a->dim, half, t);
    for (int64_t head = group * share; head < (group + 1) * share; head++) {
        place b = place_of(task, sequence, head);
        if (task->table) spread_bias(a, task->table, head, true, f.bias, t);
        for (b.q0 = 0; b.q0 < length; b.q0 += FQ) {
            const int64_t row = sequence * length + b.q0;
            b.nq = least(FQ, length - b.q0);
            look(&seen, &b, a);
            gather_rows(f.rows, part_at(task->q, row, head, t), task->q.ld, b.nq, a->dim, half, t);
            turn_rows(f.q, f.rows, even(b.nq), a->dim, FQ, in);
            memset(f.o, 0, (size_t)(dim * FQ) * sizeof *f.o);
            for (int i = 0; i < FQ; i++) f.m[i] = -INFINITY, f.l[i] = 0;
            for (int64_t k0 = seen.begin / FK * FK; k0 < seen.finish; k0 += FK) {
                const window w = window_at(&seen, k0, FK);
                if (w.from < w.to) forward_block(&f, &seen, &w, &b, a, half);
            }
            forward_finish(&f, &b, task, row, head, t);
        }
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

enum { BQ = BACKWARD_QUERIES, BK = BACKWARD_KEYS };

typedef struct backward_room {
    void *k, *v;                    /* (keys, dim) */
    void *turned;                   /* of bf16 k in blocks, transposed */
    float *dk, *dv;                 /* (keys, dim) */
    void *q_rows, *dy_rows;         /* (BQ, dim) */
    uint32_t *q, *dy;               /* (dim in units, BQ) */
    uint32_t *q_across, *dy_across; /* of bf16 (BQ in units, dim) */
    float *s, *dp;                  /* (BK, BQ), then P and dS; of bf16 a strip */
    tess_bf16 *p, *ds;              /* (BK, BQ) */
    uint32_t *ds_units;             /* (BK in units, BQ) */
    float *dq;                      /* (dim, BQ) */
    float lse[BQ], delta[BQ];       /* lse in powers of 2 */
    float *keep, *slope;            /* (BK, BQ); slope holds P (dP - delta) in the end */
    float *bias, *dbias;
} backward_room;

static size_t backward_take(backward_room *r, const tess_attention_arg *a, const bool half, void *scratch)
{
    char *room = scratch;
    const int64_t keys = keys_of(a), dim = even(a->dim), all = round_up(keys, BK) * dim, some = BQ * dim;
    const int64_t size = half ? 2 : 1; /* elements in a float */
    r->k = take_floats(&room, all / size);
    r->v = take_floats(&room, all / size);
    r->turned = half ? take_floats(&room, all / size) : NULL;
    r->dk = take_floats(&room, all);
    r->dv = take_floats(&room, all);
    r->q_rows = take_floats(&room, some);
    r->dy_rows = take_floats(&room, some);
    r->q = take_floats(&room, some / size);
    r->dy = take_floats(&room, some / size);
    r->q_across = half ? take_floats(&room, some / size) : NULL;
    r->dy_across = half ? take_floats(&room, some / size) : NULL;
    r->s = take_floats(&room, BQ * (half ? STRIP_KEYS : BK));
    r->dp = take_floats(&room, BQ * (half ? STRIP_KEYS : BK));
    r->p = half ? take_floats(&room, BQ * BK / 2) : NULL;
    r->ds = half ? take_floats(&room, BQ * BK / 2) : NULL;
    r->ds_units = half ? take_floats(&room, BQ * BK / 2) : NULL;
    r->dq = take_floats(&room, some);
    r->keep = a->dropout > 0 ? take_floats(&room, BQ * BK) : NULL;
    r->slope = bent(a) ? take_floats(&room, BQ * BK) : NULL;
    r->bias = a->buckets ? take_floats(&room, a->sequence + keys) : NULL;
    r->dbias = a->buckets ? take_floats(&room, a->sequence + keys) : NULL;
    return (size_t)(room - (char *)scratch);
}

/* A strip of keys, from row j0 of the block on: S and dP to P and dS. */
TESS_WIDE_INLINE void harden(const backward_room *r, const sight *seen, const window *w, int64_t j0, float scale,
                             const bool masked, const bool drop, const bool bends, const bool half)
{
    const __m512 by = _mm512_set1_ps(scale);
    for (int64_t c = w->from; c < w->to; c += WIDE) {
        const __m512i first = _mm512_loadu_si512(seen->first + c), end = _mm512_loadu_si512(seen->end + c);
        const __m512 lse = _mm512_loadu_ps(r->lse + c), delta = _mm512_loadu_ps(r->delta + c);
        for (int64_t j = 0; j < w->nk; j += 2) {
            __m512 p[2], ds[2];
            for (int i = 0; i < 2; i++) {
                const int64_t at = (j + i) * BQ + c;
                const __m512i key = _mm512_set1_epi32((int)(w->k0 + j + i));
                const __mmask16 sees =
                    masked ? _mm512_cmple_epi32_mask(first, key) & _mm512_cmpgt_epi32_mask(end, key) : (__mmask16)~0;
                __m512 dp = _mm512_loadu_ps(r->dp + at);
                p[i] = wide_power_of_2(sees, _mm512_fmsub_ps(_mm512_loadu_ps(r->s + at), by, lse));
                if (drop) dp = _mm512_mul_ps(dp, _mm512_loadu_ps(r->keep + at));
                ds[i] = _mm512_mul_ps(p[i], _mm512_sub_ps(dp, delta));
                if (drop) p[i] = _mm512_mul_ps(p[i], _mm512_loadu_ps(r->keep + at));
                if (bends) {
                    const __m512 slope = _mm512_loadu_ps(r->slope + at);
                    _mm512_storeu_ps(r->slope + at, ds[i]);
                    ds[i] = _mm512_mul_ps(ds[i], slope);
                }
            }
            if (half) {
                const __m512i both = wide_halves(p[0], p[1]), d_both = wide_halves(ds[0], ds[1]);
                tess_bf16 *to = r->p + (j0 + j) * BQ + c, *d_to = r->ds + (j0 + j) * BQ + c;
                _mm256_storeu_si256((__m256i *)to, _mm512_castsi512_si256(both));
                _mm256_storeu_si256((__m256i *)(to + BQ), _mm512_extracti64x4_epi64(both, 1));
                _mm256_storeu_si256((__m256i *)d_to, _mm512_castsi512_si256(d_both));
                _mm256_storeu_si256((__m256i *)(d_to + BQ), _mm512_extracti64x4_epi64(d_both, 1));
                _mm512_storeu_si512(r->ds_units + (j0 + j) / 2 * BQ + c, wide_units(d_both));
            } else {
                for (int i = 0; i < 2; i++) {
                    _mm512_storeu_ps(r->s + (j + i) * BQ + c, p[i]);
                    _mm512_storeu_ps(r->dp + (j + i) * BQ + c, ds[i]);
                }
            }
        }
    }
}

/* P and dS of a strip, which begins at row j0 of its block. */
TESS_WIDE_INLINE void backward_strip(const backward_room *r, const sight *seen, const window *w, int64_t j0,
                                     const place *b, const tess_attention_arg *a, const bool half)
{
    const int64_t dim = even(a->dim), n = w->to - w->from, at = w->k0 * dim, c = w->from, keys = keys_of(a);
    const int64_t known = least(n, a->sequence - b->q0 - c); /* queries past the end have no bias */
    if (half) {
        wide_tiles(w->nk, n, dim, (const tess_bf16 *)r->k + at, dim, r->q + c, BQ, r->s + c, BQ, false);
        wide_tiles(w->nk, n, dim, (const tess_bf16 *)r->v + at, dim, r->dy + c, BQ, r->dp + c, BQ, false);
    } else {
        wide_product(w->nk, n, dim, (const float *)r->k + at, dim, 1, (const float *)r->q + c, BQ, r->s + c, BQ, false);
        wide_product(w->nk, n, dim, (const float *)r->v + at, dim, 1, (const float *)r->dy + c, BQ, r->dp + c, BQ,
                     false);
    }
    if (b->drop) draw(r->keep, b, w, BQ);
    if (!bent(a)) {
        const float scale = a->scale * TESS_LOG2_E;
        if (b->drop)
            harden(r, seen, w, j0, scale, true, true, false, half);
        else if (w->masked)
            harden(r, seen, w, j0, scale, true, false, false, half);
        else
            harden(r, seen, w, j0, scale, false, false, false, half);
        return;
    }
    for (int64_t j = 0; j < w->nk; j++) {
        const int64_t apart = b->q0 + c - (w->k0 + j) + keys - 1, row = j * BQ + c;
        memset(r->slope + row, 0, (size_t)n * sizeof(float));
        if (w->k0 + j < keys) bend_back(a, a->buckets ? r->bias + apart : NULL, r->s + row, r->slope + row, known);
    }
    if (b->drop)
        harden(r, seen, w, j0, TESS_LOG2_E, true, true, true, half);
    else
        harden(r, seen, w, j0, TESS_LOG2_E, true, false, true, half);
    for (int64_t j = 0; r->dbias && j < least(w->nk, keys - w->k0); j++) {
        float *dbias = r->dbias + (b->q0 + c - (w->k0 + j) + keys - 1);
        const float *ds = r->slope + j * BQ + c;
#pragma omp simd
        for (int64_t i = 0; i < known; i++) dbias[i] += ds[i];
    }
}

/* One block of keys: what it adds to dq, dk and dv. */
TESS_WIDE_INLINE void backward_block(const backward_room *r, const sight *seen, const window *w, const place *b,
                                     const tess_attention_arg *a, const bool half)
{
    const int64_t dim = even(a->dim), n = w->to - w->from, at = w->k0 * dim, c = w->from;
    if (!half) {
        backward_strip(r, seen, w, 0, b, a, half);
        wide_product(w->nk, dim, n, r->s + c, BQ, 1, (const float *)r->dy_rows + c * dim, dim, r->dv + at, dim, true);
        wide_product(w->nk, dim, n, r->dp + c, BQ, 1, (const float *)r->q_rows + c * dim, dim, r->dk + at, dim, true);
        wide_product(dim, n, w->nk, (const float *)r->k + at, 1, dim, r->dp + c, BQ, r->dq + c, BQ, true);
        return;
    }
    for (int64_t j = 0; j < w->nk; j += STRIP_KEYS) {
        window strip = *w;
        strip.k0 += j, strip.nk = STRIP_KEYS;
        if (w->masked) {
            strip.masked = false;
            for (int64_t g = w->from / 32; g < w->to / 32; g++)
                if (seen->all_first[g] > strip.k0 || seen->all_end[g] < strip.k0 + STRIP_KEYS) strip.masked = true;
        }
        backward_strip(r, seen, &strip, j, b, a, half);
    }
    wide_tiles(w->nk, dim, n, r->p + c, BQ, r->dy_across + c / 2 * dim, dim, r->dv + at, dim, true);
    wide_tiles(w->nk, dim, n, r->ds + c, BQ, r->q_across + c / 2 * dim, dim, r->dk + at, dim, true);
    wide_tiles(dim, n, w->nk, (const tess_bf16 *)r->turned + at, BK, r->ds_units + c, BQ, r->dq + c, BQ, true);
}

/* sum (rows): of dy y, along dim. */
TESS_WIDE_INLINE void dots(float *sum, const void *dy, const void *y, int64_t ld, int64_t rows, int64_t dim,
                           const tess_dtype t)
{
    for (int64_t i = 0; i < rows; i++) {
        const void *dy_i = tess_at(dy, i * ld, t), *y_i = tess_at(y, i * ld, t);
        float lanes[TESS_LANES] = {0};
        TESS_EACH(j, lane, dim, { lanes[lane] += tess_load(dy_i, j, t) * tess_load(y_i, j, t); });
        sum[i] = tess_sum16(lanes);
    }
}

/* The operands of a block of queries, its lse and delta; row is its first. */
TESS_WIDE_INLINE void backward_prepare(backward_room *r, const place *b, const attention_task *task, int64_t row,
                                       int64_t head, const bool half, tess_dtype t)
{
    const tess_attention_arg *a = task->a;
    const tess_dtype in = half ? TESS_BF16 : TESS_F32;
    const int64_t width = a->heads * a->dim, at = row * width + head * a->dim, n = even(b->nq);
    const void *dy = tess_at(task->dy, at, t), *y = tess_at(task->y, at, t);
    gather_rows(r->q_rows, part_at(task->q, row, head, t), task->q.ld, b->nq, a->dim, half, t);
    gather_rows(r->dy_rows, dy, width, b->nq, a->dim, half, t);
    turn_rows(r->q, r->q_rows, n, a->dim, BQ, in);
    turn_rows(r->dy, r->dy_rows, n, a->dim, BQ, in);
    if (half) pair_rows(r->q_across, r->q_rows, n, a->dim);
    if (half) pair_rows(r->dy_across, r->dy_rows, n, a->dim);
    if (t == TESS_F32)
        dots(r->delta, dy, y, width, b->nq, a->dim, TESS_F32);
    else if (t == TESS_BF16)
        dots(r->delta, dy, y, width, b->nq, a->dim, TESS_BF16);
    else
        dots(r->delta, dy, y, width, b->nq, a->dim, TESS_F16);
    for (int64_t i = 0; i < b->nq; i++) r->lse[i] = task->lse[(row + i) * a->heads + head] * TESS_LOG2_E;
    for (int64_t i = b->nq; i < n; i++) r->delta[i] = r->lse[i] = 0;
    memset(r->dq, 0, (size_t)(even(a->dim) * BQ) * sizeof *r->dq);
}

TESS_WIDE_INLINE void backward_unit(const attention_task *task, int64_t sequence, int64_t group, const bool half,
                                    tess_dtype t)
{
    const tess_attention_arg *a = task->a;
    const int64_t length = a->sequence, keys = keys_of(a), share = a->heads / a->groups, dim = even(a->dim);
    const int64_t key_row = sequence * keys;
    const float scale = bent(a) ? 1 : a->scale; /* else the slopes have it */
    backward_room r;
    sight seen;
    backward_take(&r, a, half, task->scratch);
    gather_rows(r.k, part_at(task->k, key_row, group, t), task->k.ld, keys, a->dim, half, t);
    gather_rows(r.v, part_at(task->v, key_row, group, t), task->v.ld, keys, a->dim, half, t);
    if (half) turn_blocks(r.turned, r.k, keys, a->dim, BK);
    memset(r.dk, 0, (size_t)(even(keys) * dim) * sizeof *r.dk);
    memset(r.dv, 0, (size_t)(even(keys) * dim) * sizeof *r.dv);
    for (int64_t head = group * share; head < (group + 1) * share; head++) {
        place b = place_of(task, sequence, head);
        if (task->dbias) spread_bias(a, task->table, head, true, r.bias, t);
        if (task->dbias) memset(r.dbias, 0, (size_t)(length + keys) * sizeof(float));
        for (b.q0 = 0; b.q0 < length; b.q0 += BQ) {
            const int64_t row = sequence * length + b.q0;
            b.nq = least(BQ, length - b.q0);
            look(&seen, &b, a);
            backward_prepare(&r, &b, task, row, head, half, t);
            for (int64_t k0 = seen.begin / BK * BK; k0 < seen.finish; k0 += BK) {
                const window w = window_at(&seen, k0, BK);
                if (w.from < w.to) backward_block(&r, &seen, &w, &b, a, half);
            }
            turn_back(r.q_rows, r.dq, even(b.nq), a->dim, BQ);
            put(part_at(task->dq, row, head, t), task->dq.ld, r.q_rows, dim, scale, b.nq, a->dim, a->acc, t);
        }
        if (task->dbias) gather_bias(a, r.dbias, head, task->dbias);
    }
    put(part_at(task->dk, key_row, group, t), task->dk.ld, r.dk, dim, scale, keys, a->dim, a->acc, t);
    put(part_at(task->dv, key_row, group, t), task->dv.ld, r.dv, dim, 1, keys, a->dim, a->acc, t);
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

#define UNIT(pass, name, half)                                                                                         \
    TESS_WIDE static void pass##_##name(const attention_task *task, int64_t sequence, int64_t group, tess_dtype t)     \
    {                                                                                                                  \
        pass##_unit(task, sequence, group, half, t);                                                                   \
    }
UNIT(forward, floats, false)
UNIT(forward, halves, true)
UNIT(backward, floats, false)
UNIT(backward, halves, true)

void tess_attention_wide_forward(const attention_task *task, int64_t sequence, int64_t group, tess_dtype t)
{
    if (t != TESS_BF16) {
        forward_floats(task, sequence, group, t);
        return;
    }
    wide_tiles_begin();
    forward_halves(task, sequence, group, t);
    wide_tiles_end();
}
void tess_attention_wide_backward(const attention_task *task, int64_t sequence, int64_t group, tess_dtype t)
{
    if (t != TESS_BF16) {
        backward_floats(task, sequence, group, t);
        return;
    }
    wide_tiles_begin();
    backward_halves(task, sequence, group, t);
    wide_tiles_end();
}

/* m follows the largest products, which are the largest logits if the scale is positive. */
bool tess_attention_wide(const tess_attention_arg *a, tess_dtype t)
{
    return a->scale > 0 && tess_mm_wide(t);
}
size_t tess_attention_wide_scratch(const tess_attention_arg *a, tess_dtype t)
{
    forward_room f;
    backward_room r;
    const size_t forward = forward_take(&f, a, NULL), backward = backward_take(&r, a, t == TESS_BF16, NULL);
    return forward > backward ? forward : backward;
}

#else

bool tess_attention_wide(const tess_attention_arg *a, tess_dtype t)
{
    (void)a, (void)t;
    return false;
}
size_t tess_attention_wide_scratch(const tess_attention_arg *a, tess_dtype t)
{
    (void)a, (void)t;
    return 0;
}
void tess_attention_wide_forward(const attention_task *task, int64_t sequence, int64_t group, tess_dtype t)
{
    (void)task, (void)sequence, (void)group, (void)t;
}
void tess_attention_wide_backward(const attention_task *task, int64_t sequence, int64_t group, tess_dtype t)
{
    (void)task, (void)sequence, (void)group, (void)t;
}

#endif
