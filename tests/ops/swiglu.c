/* swiglu: row after row, with the C library's exp. */
#include "tests/ops/ops.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Of pairs whose gates, and what goes through them, are held within a limit. */
static void clamped(tess_dtype t, bool acc)
{
    const tess_swiglu_arg a = {
        .rows = op_speed ? 1024 : 1021, .width = op_speed ? 2048 : 83, .sharp = 1.702f, .limit = 1.25f, .acc = acc};
    const int64_t n = a.rows * a.width;
    const double limit = (double)a.limit, sharp = (double)a.sharp;
    double *x = op_in("x", 2 * n, t, 2), *y = op_out("y", n, t, false);
    for (int64_t k = 0; k < n; k++) {
        const double gate = fmin(x[2 * k], limit), up = fmax(fmin(x[2 * k + 1], limit), -limit);
        y[k] = gate * sigmoid(sharp * gate) * (up + 1);
    }
    op_run(&tess_swiglu_forward[t], &a);
    const double *dy = op_in("dy", n, t, 1);
    x = op_in("x", 2 * n, t, 2);
    double *dx = op_out("dx", 2 * n, t, acc);
    for (int64_t k = 0; k < n; k++) {
        const double gate = fmin(x[2 * k], limit), up = fmax(fmin(x[2 * k + 1], limit), -limit);
        const double s = sigmoid(sharp * gate);
        if (x[2 * k] <= limit) dx[2 * k] += dy[k] * (up + 1) * (s + sharp * gate * s * (1 - s));
        if (fabs(x[2 * k + 1]) <= limit) dx[2 * k + 1] += dy[k] * gate * s;
    }
    op_run(&tess_swiglu_backward[t], &a);
}

OP_TASKS(swiglu)
{
    OP_EACH(t) OP_EACH_ACC(acc) clamped(t, acc);
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
    if (layer % 2)
        return tess_swiglu_clamped(tess_linear(x, OP_PARAM("w", 40, 20, TESS_NORMAL(0.3f)), NULL), 1.702f, 2);
    return tess_swiglu(tess_linear(x, OP_PARAM("w", 40, 20, TESS_NORMAL(0.3f)), NULL));
}
