/* any_reduce: out (kept) [+]= the reduction of x over its other dimensions. Sums have one order, which the shape says:
 * where x is dense along its last reduced dimension 16 lanes over it and the others, else row by row onto a strip of
 * results. */
#include "codelets/generic/join.h"
#include "codelets/generic/walk.h"

enum { STRIP = 256, NARROW = 64 };

typedef struct task {
    const tess_any_reduce_arg *a;
    const void *x;
    void *out;
    int64_t kept, reduced, each; /* elements; of a part */
} task;

/* A sum of what is dense, in lanes. */
TESS_CLONES static void sum_run(float lane[TESS_LANES], const float *x, int64_t n)
{
    TESS_EACH(i, l, n, lane[l] += x[i]);
}

static void sum_dense(const task *t, int64_t k)
{
    const tess_any_reduce_arg *a = t->a;
    const int over = a->rank - a->kept;
    const walk at = walk_begin(a->dim, a->kept, k);
    const int64_t from = a->in.at + walk_at(&at, a->in.by), n = a->dim[a->rank - 1];
    float lane[TESS_LANES] = {0}, room[STRIP];
    walk w = walk_begin(a->dim + a->kept, over, 0);
    for (int64_t done = 0; done < t->reduced; done += n) {
        const int64_t begin = from + walk_at(&w, a->in.by + a->kept);
        if (a->in.t == TESS_F32)
            sum_run(lane, (const float *)t->x + begin, n);
        else
            for (int64_t i = 0; i < n; i += STRIP) {
                tess_walk_load(room, t->x, begin + i, 1, least(STRIP, n - i), a->in.t);
                sum_run(lane, room, least(STRIP, n - i));
            }
        walk_on(&w, n);
    }
    const float sum = tess_sum16(lane);
    tess_walk_store(t->out, k, 1, &sum, 1, a->acc, a->to);
}

/* A row of a strip: dst = dst and x, by strides. */
TESS_INLINE void join_row(const tess_any_reduce_arg *a, tess_reduction fn, void *dst, const void *x, int64_t by,
                          int64_t n, bool first)
{
    float *real = dst;
    int32_t *whole = dst;
    const float *xr = x;
    const int32_t *xw = x;
    if (first)
        for (int64_t i = 0; i < n; i++) whole[i] = xw[i * by];
    else if (a->element != TESS_REAL)
        for (int64_t i = 0; i < n; i++) whole[i] = tess_join_whole(fn, whole[i], xw[i * by]);
    else if (by == 1) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) real[i] = tess_join_real(fn, real[i], xr[i]);
    } else
        for (int64_t i = 0; i < n; i++) real[i] = tess_join_real(fn, real[i], xr[i * by]);
}
TESS_CLONES static void sum_row(const tess_any_reduce_arg *a, void *dst, const void *x, int64_t by, int64_t n,
                                bool first)
{
    join_row(a, TESS_REDUCE_SUM, dst, x, by, n, first);
}
TESS_CLONES static void max_row(const tess_any_reduce_arg *a, void *dst, const void *x, int64_t by, int64_t n,
                                bool first)
{
    join_row(a, TESS_REDUCE_MAX, dst, x, by, n, first);
}
static void any_row(const tess_any_reduce_arg *a, void *dst, const void *x, int64_t by, int64_t n, bool first)
{
    if (a->fn == TESS_REDUCE_SUM)
        sum_row(a, dst, x, by, n, first);
    else if (a->fn == TESS_REDUCE_MAX)
        max_row(a, dst, x, by, n, first);
    else
        join_row(a, a->fn, dst, x, by, n, first);
}

/* n results of a run along the last kept dimension, from result k on. */
static void join_strip(const task *t, const walk *at, int64_t k, int64_t n)
{
    const tess_any_reduce_arg *a = t->a;
    const int64_t by = a->kept ? a->in.by[a->kept - 1] : 0, from = a->in.at + walk_at(at, a->in.by);
    int32_t strip[STRIP], room[STRIP];
    walk w = walk_begin(a->dim + a->kept, a->rank - a->kept, 0);
    for (int64_t r = 0; r < t->reduced; r++) {
        const int64_t at = from + walk_at(&w, a->in.by + a->kept);
        if (a->in.t == TESS_F32)
            any_row(a, strip, (const int32_t *)t->x + at, by, n, r == 0);
        else {
            tess_walk_load((float *)room, t->x, at, by, n, a->in.t);
            any_row(a, strip, room, 1, n, r == 0);
        }
        walk_on(&w, 1);
    }
    if (a->to == TESS_F32) {
        any_row(a, (int32_t *)t->out + k, strip, 1, n, !a->acc);
        return;
    }
    if (a->acc) {
        tess_walk_load((float *)room, t->out, k, 1, n, a->to);
        any_row(a, strip, room, 1, n, false);
    }
    tess_walk_store(t->out, k, 1, (float *)strip, n, false, a->to);
}

/* Of equals, and of what is no number, the first. */
static void find(const task *t, int64_t k)
{
    const tess_any_reduce_arg *a = t->a;
    const walk at = walk_begin(a->dim, a->kept, k);
    const int64_t by = a->in.by[a->kept], from = a->in.at + walk_at(&at, a->in.by), n = a->dim[a->kept];
    const int32_t *whole = (const int32_t *)t->x + from;
    const int sign = a->fn == TESS_REDUCE_ARGMAX ? 1 : -1;
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        if (a->element == TESS_REAL) {
            float x, y;
            tess_walk_load(&x, t->x, from + i * by, 1, 1, a->in.t);
            tess_walk_load(&y, t->x, from + best * by, 1, 1, a->in.t);
            if (y == y && (x != x || (sign > 0 ? x > y : x < y))) best = i;
        } else if (sign > 0 ? whole[i * by] > whole[best * by] : whole[i * by] < whole[best * by])
            best = i;
    }
    ((int32_t *)t->out)[k] = (int32_t)best;
}

static bool is_dense_sum(const tess_any_reduce_arg *a)
{
    return a->fn == TESS_REDUCE_SUM && a->element == TESS_REAL && a->rank > a->kept && a->in.by[a->rank - 1] == 1 &&
           a->dim[a->rank - 1] >= TESS_LANES;
}

static void part(void *of, int64_t p)
{
    const task *t = of;
    const tess_any_reduce_arg *a = t->a;
    const int64_t first = p * t->each, end = least(t->kept, first + t->each);
    if (a->fn >= TESS_REDUCE_ARGMAX || is_dense_sum(a)) {
        for (int64_t k = first; k < end; k++) (is_dense_sum(a) ? sum_dense : find)(t, k);
        return;
    }
    walk at = walk_begin(a->dim, a->kept, first);
    for (int64_t k = first; k < end;) {
        const int64_t n = least(walk_run(&at, end - k), STRIP);
        join_strip(t, &at, k, n);
        walk_on(&at, n);
        k += n;
    }
}

static task task_of(const tess_any_reduce_arg *a)
{
    task t = {.a = a, .kept = walk_size(a->dim, a->kept), .reduced = walk_size(a->dim + a->kept, a->rank - a->kept)};
    t.each = t.reduced < (32 << 10) ? (32 << 10) / t.reduced : 1;
    if (a->fn < TESS_REDUCE_ARGMAX && !is_dense_sum(a) && t.each < NARROW) t.each = NARROW; /* a line of a cache */
    return t;
}

static int64_t any_reduce_parts(const tess_codelet *cl, const void *arg)
{
    const task t = task_of(arg);
    (void)cl;
    return (t.kept + t.each - 1) / t.each;
}

static void any_reduce(const tess_work *w)
{
    task t = task_of(w->arg);
    t.x = w->buf[0].ptr;
    t.out = w->buf[1].ptr;
    tess_parts_run(any_reduce_parts(NULL, w->arg), part, &t);
}
TESS_F32_CODELET(any_reduce, .parts = any_reduce_parts)
