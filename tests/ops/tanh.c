/* tanh: cap tanh(x / cap), of numbers on both sides of the cap, far beyond it, near 0 and of one that is none. */
#include "tests/ops/ops.h"

static void tanh_tasks(tess_dtype t, int64_t n, double cap, double size, bool acc)
{
    const tess_map_arg a = {.n = n, .cap = (float)cap, .acc = acc};
    double *x = op_in("x", n, t, size), *y = op_out("y", n, t, false);
    for (int64_t i = 0; i < n && op_expects; i++) y[i] = cap * tanh(x[i] / cap);
    op_run(&tess_tanh_forward[t], &a);
    double *dy = op_in("dy", n, t, 1);
    x = op_in("x", n, t, size);
    double *dx = op_out("dx", n, t, acc);
    for (int64_t i = 0; i < n && op_expects; i++) dx[i] += dy[i] * (1 - tanh(x[i] / cap) * tanh(x[i] / cap));
    op_run(&tess_tanh_backward[t], &a);
}

OP_TASKS(tanh)
{
    static const double cap[] = {1, 30}, size[] = {1e-3, 1, 30};
    OP_EACH(t) OP_EACH_LENGTH(n) OP_EACH_ACC(acc) tanh_tasks(t, n, 1 + 29 * (n % 2), 3, acc);
    OP_EACH(t) for (int k = 0; k < 6 && !op_speed; k++) tanh_tasks(t, 50, cap[k % 2], size[k / 2], false);
    OP_EACH(t) for (int k = 0; k < 2 && !op_speed; k++)
    {
        double x[] = {-1e30, -1e4, -100, 100, 1e4, 1e30}, dy[] = {1, 1, 1, 1, 1, 1}, none[] = {NAN};
        if (k) op_given("dy", 6, t, dy);
        op_given("x", 6, t, x);
        double *y = op_out(k ? "dx" : "y", 6, t, false);
        for (int i = 0; i < 6; i++) y[i] = k ? 0 : i < 3 ? -2 : 2;
        op_run(&(k ? tess_tanh_backward : tess_tanh_forward)[t], &(tess_map_arg){.n = 6, .cap = 2});
        if (k) op_given("dy", 1, t, dy);
        op_given("x", 1, t, none);
        *op_out(k ? "dx" : "y", 1, t, false) = NAN;
        op_run(&(k ? tess_tanh_backward : tess_tanh_forward)[t], &(tess_map_arg){.n = 1, .cap = 2});
    }
}

OP_NET(tanh)
{
    return tess_tanh(x, layer % 2 ? 1 : 1.5f);
}
