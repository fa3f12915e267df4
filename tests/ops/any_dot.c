/* any_dot: products over batches of matrices, and of what has its dimensions in any order. */
#include "tests/ops/formula.h"

enum { BATCH, ROWS, COLUMNS, INNER, KINDS };

/* The kinds and the places of an operand's dimensions as they lie, the densest last: "b0r0i0". */
static void lay(const tess_any_dot_arg *a, const char *order, int64_t by[KINDS][TESS_RANK_MOST], int64_t *size)
{
    *size = 1;
    for (int k = (int)strlen(order) / 2 - 1; k >= 0; k--) {
        const int kind = (int)(strchr("brci", order[2 * k]) - "brci"), d = order[2 * k + 1] - '0';
        by[kind][d] = *size;
        *size *= a->dim[kind][d];
    }
}

/* The index of each kind's dimensions, counted up; returns the place in an operand. */
static int64_t place(const tess_any_dot_arg *a, const int64_t by[KINDS][TESS_RANK_MOST], const int64_t at[KINDS])
{
    int64_t sum = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        int64_t i = at[kind];
        for (int d = a->rank[kind] - 1; d >= 0; i /= a->dim[kind][d--]) sum += i % a->dim[kind][d] * by[kind][d];
    }
    return sum;
}

static void dot(tess_any_dot_arg a, const char *x, const char *y, const char *z, tess_dtype t, tess_dtype to, bool acc)
{
    int64_t size[3], all[KINDS], at[KINDS];
    lay(&a, x, a.a, &size[0]);
    lay(&a, y, a.b, &size[1]);
    lay(&a, z, a.c, &size[2]);
    a.to = to, a.acc = acc;
    a.at[0] = 8, a.at[1] = 3;
    for (int kind = 0; kind < KINDS; kind++) all[kind] = any_size(a.rank[kind], a.dim[kind]);
    const double *xs = op_in("a", size[0] + 8, t, 1), *ys = op_in("b", size[1] + 3, t, 1);
    double *zs = op_out("c", size[2], to, acc);
    for (at[BATCH] = 0; at[BATCH] < all[BATCH] && op_expects; at[BATCH]++)
        for (at[ROWS] = 0; at[ROWS] < all[ROWS]; at[ROWS]++)
            for (at[COLUMNS] = 0; at[COLUMNS] < all[COLUMNS]; at[COLUMNS]++)
                for (at[INNER] = 0; at[INNER] < all[INNER]; at[INNER]++)
                    zs[place(&a, a.c, at)] += xs[8 + place(&a, a.a, at)] * ys[3 + place(&a, a.b, at)];
    if (tess_any_dot_scratch(&a, t)) op_scratch((int64_t)tess_any_dot_scratch(&a, t));
    op_run(&tess_any_dot[t], &a);
}

OP_TASKS(any_dot)
{
    const tess_any_dot_arg simple = {.rank = {1, 1, 1, 1}, .dim = {{3}, {10}, {7}, {33}}},
                           more = {.rank = {2, 2, 1, 2}, .dim = {{2, 3}, {4, 3}, {9}, {5, 6}}},
                           line = {.rank = {0, 0, 1, 1}, .dim = {[COLUMNS] = {21}, [INNER] = {40}}},
                           all = {.rank = {0, 0, 0, 2}, .dim = {[INNER] = {7, 40}}};
    if (op_speed) return;
    OP_EACH(t) OP_EACH_ACC(acc)
    {
        dot(simple, "b0r0i0", "b0i0c0", "b0r0c0", t, t, acc);
        dot(simple, "b0i0r0", "b0c0i0", "b0c0r0", t, TESS_F32, acc);
        dot(simple, "r0b0i0", "i0c0b0", "c0r0b0", t, t, acc);
        dot(more, "b0b1r0r1i0i1", "b0b1i0i1c0", "b0b1r0r1c0", t, t, acc);
        dot(more, "b1r0b0r1i0i1", "b0c0b1i1i0", "r1b0c0b1r0", t, TESS_F32, acc);
        dot(more, "b0b1r0r1i0i1", "b1b0i0i1c0", "b0b1r0r1c0", t, t, acc);
        op_room = 2 << 10; /* less than a batch is, and less than all are */
        dot(more, "b1r0b0r1i0i1", "b0c0b1i1i0", "r1b0c0b1r0", t, t, acc);
        op_room = 4 << 10;
        dot(more, "b0b1r0i0r1i1", "b0b1i0i1c0", "b0b1r0r1c0", t, t, acc);
        dot(line, "i0", "c0i0", "c0", t, t, acc);
        dot(line, "i0", "i0c0", "c0", t, TESS_F32, acc);
        dot(all, "i0i1", "i1i0", "", t, TESS_F32, acc);
    }
}
