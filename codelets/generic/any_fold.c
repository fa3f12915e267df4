/* any_fold: sums of what a program of scalar functions makes, which is stored nowhere. Sums have one order, which the
 * shape says: over dense elements 16 lanes, else row by row onto a strip of results.
 *
 * Norms, biases and losses are maps with repeated operands, so their gradients and means are sums of maps. Each was a
 * tile of terms, written and read again; here the map ends in the sum. A bias and a group norm take three maps and two
 * sums forward in place of five maps and two sums. */
#include "codelets/generic/map_impl.h"

enum { PART = 32 << 10, STRIP = TESS_MAP_BLOCK, NARROW = 64 };

typedef struct task {
    const tess_any_fold_arg *a;
    map_operands o;
    void *out[TESS_FOLD_SUMS];
    int64_t kept, over, each; /* results; elements of one; results of a part */
} task;

static task task_of(const tess_any_fold_arg *a)
{
    const tess_any_map_arg *m = &a->map;
    const int first = a->last ? m->rank - a->kept : 0, others = a->last ? 0 : a->kept;
    task t = {
        .a = a, .kept = walk_size(m->dim + first, a->kept), .over = walk_size(m->dim + others, m->rank - a->kept)};
    t.each = t.over < PART ? PART / t.over : 1;
    if (a->last && t.each < NARROW) t.each = NARROW; /* of a row less would be no whole line of a cache */
    return t;
}

TESS_CLONES static void add_lanes(float lane[TESS_LANES], const float *x, int64_t n)
{
    TESS_EACH(i, l, n, lane[l] += x[i]);
}
TESS_CLONES static void add_row(float *to, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] += x[i];
}

static void put(const task *t, int j, int64_t k, const float *sum, int64_t n)
{
    const struct tess_fold_sum *to = &t->a->sum[j];
    tess_walk_store(t->out[j], k, 1, sum, n, to->acc, to->t);
}

/* Blocks go over the elements of several results where these are few. */
static void sum_dense(const task *t, int64_t k, int64_t end)
{
    const tess_any_fold_arg *a = t->a;
    const tess_any_map_arg *m = &a->map;
    map_block room[TESS_MAP_REGISTERS];
    float lane[TESS_FOLD_SUMS][TESS_LANES] = {0};
    walk at = walk_begin(m->dim, m->rank, k * t->over);
    for (int64_t first = k * t->over, left = t->over; first < end * t->over;) {
        const int64_t n = least(TESS_MAP_BLOCK, end * t->over - first);
        tess_map_block(&t->o, &at, first, n, room);
        for (int64_t i = 0, run; i < n; i += run) {
            run = least(left, n - i);
            for (int j = 0; j < TESS_FOLD_SUMS && j < a->sums; j++)
                add_lanes(lane[j], room[a->sum[j].at].real + i, run);
            if (left -= run) continue;
            for (int j = 0; j < a->sums; j++) put(t, j, k, (const float[]){tess_sum16(lane[j])}, 1);
            memset(lane, 0, sizeof lane);
            left = t->over;
            k++;
        }
        walk_over(&at, n);
        first += n;
    }
}

static void sum_rows(const task *t, int64_t k, int64_t n)
{
    const tess_any_fold_arg *a = t->a;
    const tess_any_map_arg *m = &a->map;
    const int over = m->rank - a->kept;
    map_block room[TESS_MAP_REGISTERS];
    float sum[TESS_FOLD_SUMS][STRIP] = {0};
    walk at = walk_begin(m->dim, m->rank, k), row = walk_begin(m->dim, over, 0);
    for (int64_t r = 0; r < t->over; r++) {
        memcpy(at.at, row.at, (size_t)over * sizeof *at.at);
        tess_map_block(&t->o, &at, r * t->kept + k, n, room);
        for (int j = 0; j < a->sums; j++) add_row(sum[j], room[a->sum[j].at].real, n);
        walk_on(&row, 1);
    }
    for (int j = 0; j < a->sums; j++) put(t, j, k, sum[j], n);
}

static void part(void *of, int64_t p)
{
    const task *t = of;
    const int64_t first = p * t->each, end = least(t->kept, first + t->each);
    if (!t->a->last) sum_dense(t, first, end);
    for (int64_t k = first; k < end && t->a->last; k += STRIP) sum_rows(t, k, least(STRIP, end - k));
}

static int64_t any_fold_parts(const tess_codelet *cl, const void *arg)
{
    const task t = task_of(arg);
    (void)cl;
    return (t.kept + t.each - 1) / t.each;
}

static void any_fold(const tess_work *w)
{
    task t = task_of(w->arg);
    t.o = tess_map_operands(&t.a->map, w);
    for (int j = 0; j < t.a->sums; j++) t.out[j] = w->buf[(int)w->nbuf - t.a->sums + j].ptr;
    tess_parts_run(any_fold_parts(NULL, w->arg), part, &t);
}
TESS_F32_CODELET(any_fold, .parts = any_fold_parts)
