/* swiglu: row after row, with the C library's exp. */
#include "tests/ops/ops.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

OP_TASKS(swiglu)
{
    OP_EACH(t) OP_EACH_ACC(acc)
    {
        const tess_swiglu_arg a = {.rows = op_speed ? 1024 : 1021, .width = op_speed ? 2048 : 83, .acc = acc};
        const int64_t n = a.rows * a.width;
        double *x = op_in("x", 2 * n, t, 1), *y = op_out("y", n, t, false);
        for (int64_t k = 0; k < n; k++) {
            const double *row = x + k / a.width * 2 * a.width + k % a.width;
            y[k] = row[0] * sigmoid(row[0]) * row[a.width];
        }
        op_run(&tess_swiglu_forward[t], &a);
        const double *dy = op_in("dy", n, t, 1);
        x = op_in("x", 2 * n, t, 1);
        double *dx = op_out("dx", 2 * n, t, acc);
        for (int64_t k = 0; k < n; k++) {
            const int64_t at = k / a.width * 2 * a.width + k % a.width;
            const double s = sigmoid(x[at]);
            dx[at] += dy[k] * x[at + a.width] * (s + x[at] * s * (1 - s));
            dx[at + a.width] += dy[k] * x[at] * s;
        }
        op_run(&tess_swiglu_backward[t], &a);
    }
}

OP_NET(swiglu)
{
    return tess_swiglu(tess_linear(x, OP_PARAM("w", 40, 20, TESS_NORMAL(0.3f)), NULL));
}
