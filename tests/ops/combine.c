/* combine: the weighted sums of rows' places, and the gradients of both. */
#include "tests/ops/experts.h"

static void tasks(const struct experts *k, int64_t width, tess_dtype t)
{
    const int64_t choices = k->rows * k->chosen;
    tess_dispatch_arg a = {.rows = k->rows, .experts = k->experts, .chosen = k->chosen, .width = width};
    double *x = op_in("x", choices * width, t, 1), *w = op_in("weights", choices, t, 1);
    tess_order o = experts_put_order(k);
    double *y = op_out("y", k->rows * width, t, false);
    for (int64_t i = 0; i < choices; i++)
        for (int64_t c = 0; c < width && o.place[i] >= 0; c++)
            y[i / k->chosen * width + c] += w[i] * x[o.place[i] * width + c];
    op_run(&tess_combine_forward[t], &a);
    OP_EACH_ACC(acc)
    {
        a.acc = acc, a.acc_weights = !acc;
        double *dy = op_in("dy", k->rows * width, t, 1);
        x = op_in("x", choices * width, t, 1), w = op_in("weights", choices, t, 1);
        o = experts_put_order(k);
        double *dx = op_out("dx", choices * width, t, acc), *dw = op_out("dweights", choices, t, !acc);
        for (int64_t i = 0; i < choices; i++)
            for (int64_t c = 0; c < width && o.place[i] >= 0; c++) {
                dx[o.place[i] * width + c] += w[i] * dy[i / k->chosen * width + c];
                dw[i] += dy[i / k->chosen * width + c] * x[o.place[i] * width + c];
            }
        op_run(&tess_combine_backward[t], &a);
    }
}

OP_TASKS(combine)
{
    OP_EACH(t) for (int k = 0; k < EXPERTS_KINDS; k++)
    {
        tasks(&experts_kinds[k], 5, t);
        tasks(&experts_kinds[k], 48, t);
    }
}

/* Of a softmax over more than are chosen. */
OP_NET(combine)
{
    tess_tensor *logits = tess_linear(x, OP_PARAM("router", 5, 20, TESS_NORMAL(0.7f)), NULL);
    tess_tensor *weights = tess_route(logits, 2, false, NULL);
    return tess_combine(tess_dispatch(x, weights), weights);
}
