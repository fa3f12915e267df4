/* expert_bias: all experts' rows in one tile, and those of some of them. */
#include "tests/ops/experts.h"

static void tasks(const struct experts *k, tess_expert_bias_arg a, tess_dtype t)
{
    const double *x = op_in("x", a.choices * a.width, t, 1), *bias = op_in("bias", a.some * a.width, t, 1);
    tess_order o = experts_put_order(k);
    double *y = op_out("y", a.choices * a.width, t, true);
    for (int64_t p = 0; p < a.choices; p++) {
        const int64_t e = p < o.offset[a.experts] ? o.expert[o.choice[p]] : -1;
        for (int64_t i = 0; i < a.width; i++) {
            double *to = &y[p * a.width + i];
            if (e < 0 && a.first == 0) *to = 0;
            if (e >= a.first && e < a.first + a.some) *to = x[p * a.width + i] + bias[(e - a.first) * a.width + i];
        }
    }
    op_run(&tess_expert_bias_forward[t], &a);

    const double *dy = op_in("dy", a.choices * a.width, t, 1);
    o = experts_put_order(k);
    double *dbias = op_out("dbias", a.some * a.width, TESS_F32, a.acc);
    for (int64_t p = 0; p < o.offset[a.experts]; p++) {
        const int64_t e = o.expert[o.choice[p]] - a.first;
        for (int64_t i = 0; i < a.width && e >= 0 && e < a.some; i++) dbias[e * a.width + i] += dy[p * a.width + i];
    }
    op_run(&tess_expert_bias_backward[t], &a);
}

OP_TASKS(expert_bias)
{
    if (op_speed) return;
    for (int k = 0; k < EXPERTS_KINDS; k++) OP_EACH(t) OP_EACH_ACC(acc)
        {
            const struct experts *e = &experts_kinds[k];
            const int64_t half = e->experts / 2;
            tess_expert_bias_arg a = {
                .some = e->experts, .experts = e->experts, .choices = e->rows * e->chosen, .width = 37, .acc = acc};
            tasks(e, a, t);
            if (half == 0) continue;
            a.first = half, a.some = e->experts - half, a.width = 300;
            tasks(e, a, t);
            a.first = 0, a.some = half;
            tasks(e, a, t);
        }
}

OP_NET(expert_bias)
{
    return experts_net(g, x, layer);
}
