/* A linear and a gelu as one task; what is expected in double is in codelets/test_linear.c. */
#include "ops/ops.h"

/* Widths that the library's epilogues take, and others. */
static void linear_gelu_tasks(void)
{
    static const int64_t shape[][3] = {{37, 20, 67}, {64, 48, 128}, {130, 33, 8}, {3, 8, 5}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
        OP_EACH(t) for (int kind = 0; kind < 2; kind++) for (int bias = 0; bias < 2; bias++)
        {
            const int64_t rows = shape[k][0], n = shape[k][1], m = shape[k][2];
            tess_linear_gelu_arg a = {{.rows = rows, .in = n, .out = m, .ld = m, .bias = bias},
                                      {.n = rows * m, .kind = kind}};
            op_drawn("x", rows * n, t, 1), op_drawn("w", m * n, t, 0.3), op_any("pre", rows * m, t, false);
            op_any("y", rows * m, t, false);
            if (bias) op_drawn("b", m, TESS_F32, 1);
            op_run(&tess_linear_gelu_forward[t], &a);
            a.gelu.n = rows * n;
            op_drawn("dy", rows * m, t, 1), op_drawn("w", m * n, t, 1), op_drawn("pre", rows * n, t, 2);
            op_any("dpre", rows * n, t, false);
            op_run(&tess_gelu_linear_backward[t], &a);
        }
}

OP_TASKS(linear_gelu)
{
    if (op_speed) return; /* bench_mm and gpu/bench_gpu.c measure it */
    linear_gelu_tasks();
}
