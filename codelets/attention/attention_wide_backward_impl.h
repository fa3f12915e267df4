/* attention_wide_backward: the gradients of a unit of attention; see attention_wide_forward_impl.h.
 *
 *     S = K Q^T     dP = V dY^T     P = exp(S scale - lse)     dS = P (dP - delta)
 *     dV += P dY (keys, dim)        dK += dS Q (keys, dim)     dQ^T += K^T dS (dim, queries)
 *
 * where dS of bf16 is written twice at once, by rows and in units, and the scale is left to dq and dk. What is
 * transposed of k and v is so once a unit, of q and dy once a block. */
#ifndef TESS_ATTENTION_WIDE_BACKWARD_IMPL_H
#define TESS_ATTENTION_WIDE_BACKWARD_IMPL_H
#include "codelets/attention/attention_wide_impl.h"

/* Queries and keys of a block; of bf16 P and dS are made strip by strip, whose fp32 is little. */
enum { BQ = 128, BK = 128, STRIP_KEYS = 32 };
_Static_assert(CUT % BQ == 0 && CUT % BK == 0, "a part begins with a block");

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

static size_t backward_take(backward_room *r, const tess_attention_arg *a, bool half, void *scratch)
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
WIDE_INLINE void harden(const backward_room *r, const sight *seen, const window *w, int64_t j0, float scale,
                        const bool masked, const bool drop, const bool bends, const int half)
{
    const wide by = wide_all(scale);
    for (int64_t c = w->from; c < w->to; c += WIDE) {
        const wide_int first = wide_load_int(seen->first + c), end = wide_load_int(seen->end + c);
        const wide lse = wide_load(r->lse + c), delta = wide_load(r->delta + c);
        for (int64_t j = 0; j < w->nk; j += 2) {
            wide p[2], ds[2];
            for (int i = 0; i < 2; i++) {
                const int64_t at = (j + i) * BQ + c;
                const wide_mask sees = masked ? wide_sees(first, end, (int32_t)(w->k0 + j + i)) : WIDE_EACH;
                wide dp = wide_load(r->dp + at);
                p[i] = wide_power_of_2(sees, wide_fms(wide_load(r->s + at), by, lse));
                if (drop) dp = dp * wide_load(r->keep + at);
                ds[i] = p[i] * (dp - delta);
                if (drop) p[i] = p[i] * wide_load(r->keep + at);
                if (bends) {
                    const wide slope = wide_load(r->slope + at);
                    wide_store(r->slope + at, ds[i]);
                    ds[i] = ds[i] * slope;
                }
            }
            if (half) {
                wide_store_halves(r->p + (j0 + j) * BQ + c, BQ, p[0], p[1]);
                wide_store_halves(r->ds + (j0 + j) * BQ + c, BQ, ds[0], ds[1]);
                wide_store_units((float *)r->ds_units + (j0 + j) / 2 * BQ + c, ds[0], ds[1]);
            } else {
                for (int i = 0; i < 2; i++) {
                    wide_store(r->s + (j + i) * BQ + c, p[i]);
                    wide_store(r->dp + (j + i) * BQ + c, ds[i]);
                }
            }
        }
    }
}

WIDE_PRODUCT(backward_scores, dim, 1, BQ, BQ, false) /* S = K Q^T, dP = V dY^T */
WIDE_PRODUCT(backward_keys, BQ, 1, dim, dim, true)   /* dV += P dY, dK += dS Q */
WIDE_PRODUCT(backward_queries, 1, dim, BQ, BQ, true) /* dQ^T += K^T dS */

/* P and dS of a strip, which begins at row j0 of its block. */
WIDE_INLINE void backward_strip(const backward_room *r, const sight *seen, const window *w, int64_t j0, const place *b,
                                const tess_attention_arg *a, const int half)
{
    const int64_t dim = even(a->dim), n = w->to - w->from, at = w->k0 * dim, c = w->from, keys = keys_of(a);
    const int64_t known = least(n, a->sequence - b->q0 - c); /* queries past the end have no bias */
    if (half) {
        wide_half_product(half == IN_PAIRS, w->nk, n, dim, (const tess_bf16 *)r->k + at, dim, r->q + c, BQ, r->s + c,
                          BQ, false);
        wide_half_product(half == IN_PAIRS, w->nk, n, dim, (const tess_bf16 *)r->v + at, dim, r->dy + c, BQ, r->dp + c,
                          BQ, false);
    } else {
        backward_scores(w->nk, n, dim, dim, (const float *)r->k + at, r->q + c, r->s + c);
        backward_scores(w->nk, n, dim, dim, (const float *)r->v + at, r->dy + c, r->dp + c);
    }
    if (b->drop) draw(r->keep, b, w, BQ, b->rule.scale);
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
WIDE_INLINE void backward_block(const backward_room *r, const sight *seen, const window *w, const place *b,
                                const tess_attention_arg *a, const int half)
{
    const int64_t dim = even(a->dim), n = w->to - w->from, at = w->k0 * dim, c = w->from;
    if (!half) {
        backward_strip(r, seen, w, 0, b, a, half);
        backward_keys(w->nk, dim, n, dim, r->s + c, (const float *)r->dy_rows + c * dim, r->dv + at);
        backward_keys(w->nk, dim, n, dim, r->dp + c, (const float *)r->q_rows + c * dim, r->dk + at);
        backward_queries(dim, n, w->nk, dim, (const float *)r->k + at, r->dp + c, r->dq + c);
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
    wide_half_product(half == IN_PAIRS, w->nk, dim, n, r->p + c, BQ, r->dy_across + c / 2 * dim, dim, r->dv + at, dim,
                      true);
    wide_half_product(half == IN_PAIRS, w->nk, dim, n, r->ds + c, BQ, r->q_across + c / 2 * dim, dim, r->dk + at, dim,
                      true);
    wide_half_product(half == IN_PAIRS, dim, n, w->nk, (const tess_bf16 *)r->turned + at, BK, r->ds_units + c, BQ,
                      r->dq + c, BQ, true);
}

/* sum (rows): of dy y, along dim. */
WIDE_INLINE void dots(float *sum, const void *dy, const void *y, int64_t ld, int64_t rows, int64_t dim,
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
WIDE_INLINE void backward_prepare(backward_room *r, const place *b, const attention_task *task, int64_t row,
                                  int64_t head, const int half, tess_dtype t)
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
    TESS_BY_DTYPE(t, dots, r->delta, dy, y, width, b->nq, a->dim);
    for (int64_t i = 0; i < b->nq; i++) r->lse[i] = task->lse[(row + i) * a->heads + head] * TESS_LOG2_E;
    for (int64_t i = b->nq; i < n; i++) r->delta[i] = r->lse[i] = 0;
    memset(r->dq, 0, (size_t)(even(a->dim) * BQ) * sizeof *r->dq);
}

WIDE_INLINE void backward_unit(const attention_task *task, int64_t sequence, int64_t group, const int half,
                               tess_dtype t)
{
    const tess_attention_arg *a = task->a;
    const int64_t length = a->sequence, keys = keys_of(a), share = a->heads / a->groups, dim = even(a->dim);
    const int64_t key_row = sequence * keys + task->first;
    const float scale = bent(a) ? 1 : a->scale; /* else the slopes have it */
    const tess_dtype to = gradients_as(a, t);
    backward_room r;
    sight seen;
    backward_take(&r, a, half, task->scratch);
    const int64_t mine = task->end - task->first, at = task->first * dim;
    const tess_dtype in = half ? TESS_BF16 : TESS_F32;
    void *k = tess_at_mut(r.k, at, in), *v = tess_at_mut(r.v, at, in);
    gather_rows(k, part_at(task->k, key_row, group, t), task->k.ld, mine, a->dim, half, t);
    gather_rows(v, part_at(task->v, key_row, group, t), task->v.ld, mine, a->dim, half, t);
    if (half) turn_blocks(tess_at_mut(r.turned, at, in), k, mine, a->dim, BK);
    memset(r.dk + at, 0, (size_t)(even(mine) * dim) * sizeof *r.dk);
    memset(r.dv + at, 0, (size_t)(even(mine) * dim) * sizeof *r.dv);
    for (int64_t head = group * share; head < (group + 1) * share; head++) {
        place b = place_of(task, sequence, head);
        if (task->dbias) spread_bias(a, task->table, head, r.bias, t);
        if (task->dbias) memset(r.dbias, 0, (size_t)(length + keys) * sizeof(float));
        for (b.q0 = 0; b.q0 < length; b.q0 += BQ) {
            const int64_t row = sequence * length + b.q0;
            b.nq = least(BQ, length - b.q0);
            float *sums = sums_at(task, head - group * share, b.q0);
            look(&seen, &b, a);
            if (unseen(task, seen.begin, seen.finish, sums, b.nq)) continue;
            backward_prepare(&r, &b, task, row, head, half, t);
            for (int64_t k0 = later(seen.begin / BK * BK, task->first); k0 < least(seen.finish, task->end); k0 += BK) {
                const window w = window_at(&seen, k0, BK);
                if (w.from < w.to) backward_block(&r, &seen, &w, &b, a, half);
            }
            turn_back(r.q_rows, r.dq, even(b.nq), a->dim, BQ);
            if (sums)
                put(sums, a->dim, r.q_rows, dim, scale, b.nq, a->dim, false, TESS_F32);
            else
                put(part_at(task->dq, row, head, to), task->dq.ld, r.q_rows, dim, scale, b.nq, a->dim, adds_to_dq(a),
                    to);
        }
        if (task->dbias) gather_bias(a, r.dbias, head, task->dbias);
    }
    put(part_at(task->dk, key_row, group, to), task->dk.ld, r.dk + at, dim, scale, mine, a->dim, a->acc, to);
    put(part_at(task->dv, key_row, group, to), task->dv.ld, r.dv + at, dim, 1, mine, a->dim, a->acc, to);
}

WIDE_BODY(backward)

ANY_CPU static size_t backward_scratch(const tess_attention_arg *a, bool half)
{
    backward_room r;
    return backward_take(&r, a, half, NULL);
}

#endif
