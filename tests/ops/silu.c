/* silu: x sigmoid(x). */
#include "tests/ops/ops.h"

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Its slope far from 0 is no difference that double has. */
static void sigmoid_tasks(void)
{
    OP_EACH(t) OP_EACH_LENGTH(n) OP_EACH_ACC(acc)
    {
        const tess_map_arg a = {.n = n, .kind = 1, .acc = acc};
        double *x = op_in("x", n, t, 9), *y = op_out("y", n, t, false);
        for (int64_t i = 0; i < n; i++) y[i] = sigmoid(x[i]);
        op_run(&tess_silu_forward[t], &a);
        const double *dy = op_in("dy", n, t, 1);
        x = op_in("x", n, t, 9);
        double *dx = op_out("dx", n, t, acc);
        for (int64_t i = 0; i < n; i++) dx[i] += dy[i] * sigmoid(x[i]) * sigmoid(-x[i]);
        op_run(&tess_silu_backward[t], &a);
    }
    double x[] = {-1e4, 1e4, NAN};
    OP_EACH(t)
    {
        op_given("x", 2, t, x);
        op_out("y", 2, t, false)[1] = 1;
        op_run(&tess_silu_forward[t], &(tess_map_arg){.n = 2, .kind = 1});
        op_given("x", 1, t, x + 2);
        *op_out("y of a NaN", 1, t, false) = NAN;
        op_run(&tess_silu_forward[t], &(tess_map_arg){.n = 1, .kind = 1});
    }
}

OP_TASKS(silu)
{
    sigmoid_tasks();
    op_map(tess_silu_forward, tess_silu_backward, 0, silu);
}

OP_NET(silu)
{
    return layer % 2 ? tess_sigmoid(x) : tess_silu(x);
}
