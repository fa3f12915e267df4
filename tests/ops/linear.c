/* linear: tiles of a layer, with and without a bias; what is expected in double is in codelets/test_linear.c. */
#include "ops/ops.h"

static void linear_tasks(void)
{
    static const int64_t shape[][3] = {{37, 20, 67}, {64, 48, 128}, {130, 33, 5}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
        OP_EACH(t) OP_EACH_ACC(acc) for (int tiled = 0; tiled < 2; tiled++)
        {
            const int64_t rows = shape[k][0], n = shape[k][1], m = shape[k][2], ld = tiled ? m + 24 : m;
            tess_linear_arg a = {.rows = rows,
                                 .in = n,
                                 .out = m,
                                 .ld = ld,
                                 .col = tiled ? 16 : 0,
                                 .bias = !tiled || acc,
                                 .acc = acc,
                                 .acc_bias = tiled,
                                 .sum = tiled && acc};
            op_drawn("x", rows * n, t, 1), op_drawn("w", m * n, t, 1), op_any("y", rows * ld, t, true);
            if (a.bias) op_drawn("b", m, TESS_F32, 1);
            op_run(&tess_linear_forward[t], &a);
            op_drawn("dy", rows * ld, t, 1), op_drawn("w", m * n, t, 1),
                op_any("dx", rows * n, a.sum ? TESS_F32 : t, acc);
            op_run(&tess_linear_backward_input[t], &a);
            a.row = tiled ? 3 : 0;
            op_drawn("dy", rows * ld, t, 1), op_drawn("x", (rows + 3) * n, t, 1), op_any("dw", m * n, TESS_F32, acc);
            if (a.bias) op_any("db", m, TESS_F32, a.acc_bias);
            op_run(&tess_linear_backward_weight[t], &a);
            double sums[130] = {0}, *dy = op_in("dy", rows * ld, t, 1), *db = op_out("db", m, TESS_F32, a.acc_bias);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t j = 0; j < m; j++) sums[j] += dy[r * ld + a.col + j];
            for (int64_t j = 0; j < m; j++) db[j] += sums[j];
            op_run(&tess_linear_backward_bias[t], &a);
        }
}

/* Few rows, of odd lengths, into columns of a wider y. */
static void few_tasks(void)
{
    static const int64_t shape[][3] = {{1, 33, 9}, {3, 64, 70}, {7, 31, 5}, {8, 100, 67}, {16, 40, 130}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) OP_EACH(t) for (int bias = 0; bias < 2; bias++)
        {
            const int64_t rows = shape[k][0], n = shape[k][1], m = shape[k][2], ld = m + 6;
            const tess_linear_arg a = {.rows = rows, .in = n, .out = m, .ld = ld, .col = 4, .bias = bias, .few = true};
            const double *x = op_in("x", rows * n, t, 1), *w = op_in("w", m * n, t, 1);
            double *y = op_out("y", rows * ld, t, true), *b = bias ? op_in("b", m, TESS_F32, 1) : NULL;
            for (int64_t i = 0; i < rows * m; i++) {
                double sum = b ? b[i % m] : 0;
                for (int64_t j = 0; j < n; j++) sum += x[i / m * n + j] * w[i % m * n + j];
                y[i / m * ld + a.col + i % m] = sum;
            }
            op_run(&tess_linear_forward[t], &a);
        }
}

/* More rows than a GPU's block sums of a column. */
static void many_rows(void)
{
    OP_EACH(t) OP_EACH_ACC(acc)
    {
        enum { ROWS = 1100, OUT = 24 };
        const tess_linear_arg a = {.rows = ROWS, .in = 8, .out = OUT, .ld = OUT + acc, .bias = true, .acc_bias = acc};
        double sums[OUT] = {0}, *dy = op_in("dy", ROWS * a.ld, t, 1), *db = op_out("db", OUT, TESS_F32, acc);
        for (int64_t i = 0; i < ROWS * OUT; i++) sums[i % OUT] += dy[i / OUT * a.ld + i % OUT];
        for (int64_t j = 0; j < OUT; j++) db[j] += sums[j];
        op_run(&tess_linear_backward_bias[t], &a);
    }
}

OP_TASKS(linear)
{
    if (op_speed) return; /* bench_mm and gpu/bench_gpu.c measure it */
    linear_tasks();
    few_tasks();
    const uint64_t dice = op_dice; /* others draw what they drew */
    many_rows();
    op_dice = dice;
}

OP_NET(linear)
{
    return tess_linear(x, OP_PARAM("w", 20, 20, TESS_NORMAL(0.3f)), OP_PARAM("b", 20, 1, TESS_NORMAL(0.1f)));
}
