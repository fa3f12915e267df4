/* attention_wide_forward: a unit of attention with vectors of WIDE fp32, by fused multiplications; bf16 on tiles where
 * the CPU has them, else as fp32, as fp16 is. All goes block by block in the first caches. A part of attention_512.c,
 * attention_256.c and attention_128.c.
 *
 * Blocks are transposed, a row a key, a column a query, forward and backward: what a softmax keeps of a query is then a
 * lane, and no vector is ever summed across.
 *
 *     S = K Q^T (keys, queries)     P = exp(S scale - m)     O^T += V^T P (dim, queries)
 *
 * P takes the place of S, of bf16 in units, two keys in each, as the product reads it. m follows the maximum late: only
 * once a logit is above it by RISE powers of 2, since a rise multiplies O; what is summed is the same but for rounding.
 *
 * Each query has the range of keys that it sees. Of a block, only the columns from the first to the last group of
 * queries that sees some of its keys are touched; where all these groups see all of its keys, it is not masked. Rows,
 * columns and keys are filled up to even blocks; no query sees a key beyond the last. */
#ifndef TESS_ATTENTION_WIDE_FORWARD_IMPL_H
#define TESS_ATTENTION_WIDE_FORWARD_IMPL_H
#include "codelets/attention/attention_wide_impl.h"

enum { FQ = 64, FK = 128 }; /* queries and keys of a block */
_Static_assert(CUT % FQ == 0 && (int)FQ == (int)CARRIED, "a part begins with a block");
static const float RISE = 8;

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

/* WIDE queries, from column c on: S to P; m, l and O follow. */
WIDE_INLINE void soften(forward_room *f, const sight *seen, const window *w, int64_t c, int64_t dim, float scale,
                        const bool masked, const bool drop, const int half)
{
    const wide by = wide_all(scale), none = wide_all(-INFINITY);
    const wide_int first = wide_load_int(seen->first + c), end = wide_load_int(seen->end + c);
    float *s = f->s + c;
    wide most[4] = {none, none, none, none}, sum[2] = {{0}, {0}};
    for (int64_t j = 0; j < w->nk; j += 4)
        for (int i = 0; i < 4; i++) {
            const wide_mask sees = masked ? wide_sees(first, end, (int32_t)(w->k0 + j + i)) : WIDE_EACH;
            const wide x = wide_load(s + (j + i) * FQ);
            most[i] = masked ? wide_max_where(sees, most[i], x) : wide_max(most[i], x);
        }
    const wide old = wide_load(f->m + c);
    const wide top = by * wide_max(wide_max(most[0], most[1]), wide_max(most[2], most[3]));
    wide m = old, l = wide_load(f->l + c);
    const wide_mask rises = wide_above(top, old + wide_all(RISE));
    if (wide_any(rises)) {
        m = wide_pick(rises, top, old);
        /* Those that saw nothing so far have nothing that could shrink. */
        const wide_mask had = wide_above(old, none);
        const wide shrink = wide_pick(rises, wide_power_of_2(had, old - m), wide_all(1));
        l = l * shrink;
        wide_store(f->m + c, m);
        for (int64_t i = 0; i < dim; i++) wide_store(f->o + i * FQ + c, wide_load(f->o + i * FQ + c) * shrink);
    }
    for (int64_t j = 0; j < w->nk; j += 2) {
        wide p[2];
        for (int i = 0; i < 2; i++) {
            const wide_mask sees = masked ? wide_sees(first, end, (int32_t)(w->k0 + j + i)) : WIDE_EACH;
            p[i] = wide_power_of_2(sees, wide_fms(wide_load(s + (j + i) * FQ), by, m));
            sum[i] = sum[i] + p[i];
            if (drop) p[i] = p[i] * wide_load(f->keep + (j + i) * FQ + c);
        }
        if (half)
            wide_store_units(s + j / 2 * FQ, p[0], p[1]);
        else
            for (int i = 0; i < 2; i++) wide_store(s + (j + i) * FQ, p[i]);
    }
    wide_store(f->l + c, l + (sum[0] + sum[1]));
}

WIDE_PRODUCT(forward_scores, dim, 1, FQ, FQ, false) /* S = K Q^T */
WIDE_PRODUCT(forward_sums, 1, dim, FQ, FQ, true)    /* O^T += V^T P */

/* One block of keys. */
WIDE_INLINE void forward_block(forward_room *f, const sight *seen, const window *w, const place *b,
                               const tess_attention_arg *a, const int half)
{
    const int64_t dim = even(a->dim), n = w->to - w->from, at = w->k0 * dim, c = w->from;
    if (half)
        wide_half_product(half == IN_PAIRS, w->nk, n, dim, (const tess_bf16 *)f->k + at, dim, f->q + c, FQ, f->s + c,
                          FQ, false);
    else
        forward_scores(w->nk, n, dim, dim, (const float *)f->k + at, f->q + c, f->s + c);
    if (bent(a))
        for (int64_t j = 0; j < w->nk; j++) {
            const int64_t apart = b->q0 + c - (w->k0 + j) + keys_of(a) - 1;
            const int64_t known = least(n, a->sequence - b->q0 - c); /* queries past the end have no bias */
            if (w->k0 + j < keys_of(a))
                bend_back(a, f->bias ? f->bias + apart : NULL, f->s + j * FQ + c, f->slope, known);
        }
    if (b->drop) draw(f->keep, b, w, FQ, 1);
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
        wide_half_product(half == IN_PAIRS, dim, n, w->nk, (const tess_bf16 *)f->v + at, FK, (uint32_t *)f->s + c, FQ,
                          f->o + c, FQ, true);
    else
        forward_sums(dim, n, w->nk, dim, (const float *)f->v + at, f->s + c, f->o + c);
}

/* y and lse of a block of queries; row is its first. */
WIDE_INLINE void forward_finish(forward_room *f, const place *b, const attention_task *task, int64_t row, int64_t head,
                                tess_dtype t)
{
    const tess_attention_arg *a = task->a;
    const int64_t dim = even(a->dim), width = a->heads * a->dim;
    float one[FQ];
    const float all = b->drop ? b->rule.scale : 1;
    for (int64_t i = 0; i < FQ; i++) one[i] = f->l[i] == 0 ? 0 : all / f->l[i];
    for (int64_t j = 0; j < dim; j++)
#pragma omp simd
        for (int64_t i = 0; i < FQ; i++) f->o[j * FQ + i] *= one[i];
    turn_back(f->rows, f->o, even(b->nq), a->dim, FQ);
    put(tess_at_mut(task->y, row * width + head * a->dim, t), width, f->rows, dim, 1, b->nq, a->dim, false, t);
    for (int64_t i = 0; i < b->nq; i++)
        task->lse[(row + i) * a->heads + head] = f->l[i] == 0 ? INFINITY : f->m[i] * TESS_LN_2 + logf(f->l[i]);
}

/* What the tasks before found of a block of queries, or nothing; and what this one leaves. */
static void forward_begin(forward_room *f, const attention_task *task, const place *b, int64_t head)
{
    const size_t o = (size_t)(even(task->a->dim) * FQ);
    if (task->carry && !task->a->begins) {
        const float *from = carry_at(task, head, b->q0);
        memcpy(f->o, from, o * sizeof *f->o);
        memcpy(f->m, from + o, sizeof f->m);
        memcpy(f->l, from + o + FQ, sizeof f->l);
        return;
    }
    memset(f->o, 0, o * sizeof *f->o);
    for (int i = 0; i < FQ; i++) f->m[i] = -INFINITY, f->l[i] = 0;
}
static void forward_leave(const forward_room *f, const attention_task *task, const place *b, int64_t head)
{
    const size_t o = (size_t)(even(task->a->dim) * FQ);
    float *to = carry_at(task, head, b->q0);
    memcpy(to, f->o, o * sizeof *f->o);
    memcpy(to + o, f->m, sizeof f->m);
    memcpy(to + o + FQ, f->l, sizeof f->l);
}

WIDE_INLINE void forward_unit(const attention_task *task, int64_t sequence, int64_t group, const int half, tess_dtype t)
{
    const tess_attention_arg *a = task->a;
    const int64_t length = a->sequence, keys = keys_of(a), share = a->heads / a->groups;
    const tess_dtype in = half ? TESS_BF16 : TESS_F32;
    forward_room f;
    sight seen;
    forward_take(&f, a, task->scratch);
    const int64_t seen_keys = a->causal ? least(keys, task->end + a->query0 - a->key0) : keys;
    gather_rows(half ? f.k : f.v, part_at(task->v, sequence * keys, group, t), task->v.ld, seen_keys, a->dim, half, t);
    if (half) turn_blocks(f.v, f.k, seen_keys, a->dim, FK);
    gather_rows(f.k, part_at(task->k, sequence * keys, group, t), task->k.ld, seen_keys, a->dim, half, t);
    for (int64_t head = group * share; head < (group + 1) * share; head++) {
        place b = place_of(task, sequence, head);
        if (task->table) spread_bias(a, task->table, head, f.bias, t);
        for (b.q0 = task->first; b.q0 < task->end; b.q0 += FQ) {
            const int64_t row = sequence * length + b.q0;
            b.nq = least(FQ, task->end - b.q0);
            look(&seen, &b, a);
            gather_rows(f.rows, part_at(task->q, row, head, t), task->q.ld, b.nq, a->dim, half, t);
            turn_rows(f.q, f.rows, even(b.nq), a->dim, FQ, in);
            forward_begin(&f, task, &b, head);
            for (int64_t k0 = seen.begin / FK * FK; k0 < seen.finish; k0 += FK) {
                const window w = window_at(&seen, k0, FK);
                if (w.from < w.to) forward_block(&f, &seen, &w, &b, a, half);
            }
            if (a->whole && !a->ends)
                forward_leave(&f, task, &b, head);
            else
                forward_finish(&f, &b, task, row, head, t);
        }
    }
}

WIDE_BODY(forward)

ANY_CPU static size_t forward_scratch(const tess_attention_arg *a)
{
    forward_room f;
    return forward_take(&f, a, NULL);
}

#endif
