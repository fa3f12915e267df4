/* tree: sums over micro-batches and ranks, and copies. */
#include "tests/ops/ops.h"

/* Leaves of neighbouring buffers and of one, more than a launch brings along, and a sum over one of them. */
static void tree_sum_tasks(void)
{
    enum { MANY = 300 };
    tess_tree_part part[MANY];
    OP_EACH_LENGTH(n) for (unsigned parts = 1; parts <= MANY; parts = parts < 7 ? parts + 1 : parts + 98)
    {
        tess_tree_arg a = {.n = n, .out = 3, .parts = parts, .part = part};
        op_any("out", n + 3, TESS_F32, true);
        op_drawn("a", 2 * n, TESS_F32, 1), op_drawn("b", n, parts % 3 ? TESS_F32 : TESS_BF16, 1e-3);
        op_drawn("c", n + 1, TESS_F32, 1e3);
        for (unsigned p = 0; p < parts; p++)
            part[p] = (tess_tree_part){p % 4, p % 5 == 4 ? 1 : 0,
                                       p % 4 == 0   ? 3
                                       : p % 4 == 1 ? n
                                                    : p % 4 == 3,
                                       parts % 3 == 0 && p % 4 == 2 ? TESS_BF16 : TESS_F32};
        op_run(&tess_tree_sum[TESS_F32], &a);
    }
    for (int64_t n = TESS_QUANTIZED_BLOCK; n < 5000; n *= 3) { /* in codes, and in 16 bits */
        const int64_t all = 2 * n + TESS_QUANTIZED_BLOCK;
        const tess_tree_part few[] = {
            {1, 0, n, TESS_INT8}, {2, 0, 0, TESS_INT8}, {3, 1, 5, TESS_F16}, {4, 0, 0, TESS_F32}};
        op_any("out", n, TESS_F32, false);
        op_matrix("a", all, TESS_F32, TESS_INT8, 1), op_matrix("b", n, TESS_F32, TESS_INT8, 1e-3);
        op_drawn("c", n + 5, TESS_F16, 1), op_drawn("d", n, TESS_F32, 1e3);
        op_run(&tess_tree_sum[TESS_F32], &(tess_tree_arg){.n = n, .parts = 4, .part = few});
    }
}

/* Ranks first, in between and last, on a run of elements that begins anywhere. */
static void span_sum_tasks(void)
{
    static const double size[] = {1, 1e-3, 1e3, 1};
    OP_EACH(t) OP_EACH_LENGTH(n) for (unsigned kind = 0; kind < 12; kind++)
    {
        const unsigned ranks = 2 + kind % 4;
        tess_span_arg a = {.n = n, .first = 3, .mine = kind % ranks, .ranks = ranks};
        op_any("x", n + 5, t, true);
        for (unsigned r = 1; r < ranks; r++) op_drawn("part", n, t, size[r - 1]);
        op_run(&tess_span_sum[t], &a);
    }
}

static void copy_tasks(void)
{
    tess_copy_arg a = {.from = 5, .to = 12, .bytes = 30};
    op_drawn("x", 10, TESS_F32, 1), op_any("y", 12, TESS_F32, true);
    op_run(&tess_copy[TESS_F32], &a);
}

OP_TASKS(tree)
{
    if (op_speed) return;
    tree_sum_tasks();
    span_sum_tasks();
    copy_tasks();
}
