/* dispatch: rows to the places of their choices, and their gradient back. */
#include "tests/ops/experts.h"

static void tasks(const struct experts *k, int64_t width, tess_dtype t)
{
    const int64_t choices = k->rows * k->chosen;
    tess_dispatch_arg a = {.rows = k->rows, .experts = k->experts, .chosen = k->chosen, .width = width};
    double *x = op_in("x", k->rows * width, t, 1);
    tess_order o = experts_put_order(k);
    double *y = op_out("y", choices * width, t, false);
    for (int64_t i = 0; i < choices; i++)
        for (int64_t c = 0; c < width && o.place[i] >= 0; c++) y[o.place[i] * width + c] = x[i / k->chosen * width + c];
    op_run(&tess_dispatch_forward[t], &a);
    for (int back = 0; back < 2; back++) { /* of the latter half of the experts, to a tile of theirs and back, where
                                              those of the others stay */
        const int64_t first = k->experts / 2;
        const tess_share_arg s = {.first = first,
                                  .end = k->experts,
                                  .experts = k->experts,
                                  .choices = choices,
                                  .room = choices,
                                  .width = width,
                                  .back = back};
        double *all = back ? op_out("all", choices * width, t, true) : op_in("all", choices * width, t, 1);
        o = experts_put_order(k);
        double *part = back ? op_in("part", choices * width, t, 1) : op_out("part", choices * width, t, false);
        const int64_t base = o.offset[first], n = o.offset[k->experts] - base;
        for (int64_t i = 0; i < n * width; i++)
            *(back ? &all[base * width + i] : &part[i]) = (back ? part : all + base * width)[i];
        for (int64_t i = o.offset[k->experts] * width; i < choices * width && back; i++) all[i] = 0;
        op_run(&tess_dispatch_share[t], &s);
    }
    OP_EACH_ACC(acc)
    {
        a.acc = acc;
        double *dy = op_in("dy", choices * width, t, 1);
        o = experts_put_order(k);
        double *dx = op_out("dx", k->rows * width, t, acc);
        for (int64_t i = 0; i < choices; i++)
            for (int64_t c = 0; c < width && o.place[i] >= 0; c++)
                dx[i / k->chosen * width + c] += dy[o.place[i] * width + c];
        op_run(&tess_dispatch_backward[t], &a);
    }
}

OP_TASKS(dispatch)
{
    OP_EACH(t) for (int k = 0; k < EXPERTS_KINDS; k++)
    {
        tasks(&experts_kinds[k], 5, t);
        tasks(&experts_kinds[k], 48, t);
    }
}

/* All experts of each row, which do nothing. */
OP_NET(dispatch)
{
    tess_tensor *logits = tess_linear(x, OP_PARAM("router", 3, 20, TESS_NORMAL(0.7f)), NULL);
    tess_tensor *weights = tess_route(logits, 3, true, NULL);
    return tess_combine(tess_dispatch(x, weights), weights);
}
