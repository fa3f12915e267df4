/* expert_linear: the places of one expert, of one that nobody chose, and those that no row has. */
#include "tests/ops/experts.h"

/* What a task makes of element (p, c), for places p of the expert. */
static void tasks(const struct experts *k, tess_expert_arg a, tess_dtype t)
{
    const tess_linear_arg *l = &a.linear;
    const int64_t in = l->in, out = l->out, ld = l->ld, col = l->col, choices = a.choices;
    double *x = op_in("x", choices * in, t, 1), *w = op_in("w", out * in, t, 1);
    tess_order o = experts_put_order(k);
    const int64_t base = o.offset[a.first], first = o.offset[a.expert] - base, end = o.offset[a.expert + 1] - base,
                  taken = o.offset[a.end] - base;
    double *y = op_out("y", choices * ld, t, true);
    for (int64_t p = 0; p < choices; p++)
        for (int64_t c = 0; c < out; c++) {
            double *to = &y[p * ld + col + c];
            if ((p >= first && p < end) || (a.rest && p >= taken)) *to = 0;
            for (int64_t i = 0; i < in && p >= first && p < end; i++) *to += x[p * in + i] * w[c * in + i];
        }
    op_scratch((int64_t)tess_expert_scratch(in, out));
    op_run(&tess_expert_linear_forward[t], &a);

    const tess_dtype sums = l->sum ? TESS_F32 : t;
    double *dy = op_in("dy", choices * ld, t, 1);
    w = op_in("w", out * in, t, 1);
    o = experts_put_order(k);
    const int64_t base1 = o.offset[a.first], first1 = o.offset[a.expert] - base1, end1 = o.offset[a.expert + 1] - base1,
                  taken1 = o.offset[a.end] - base1;
    double *dx = op_out("dx", choices * in, sums, true);
    for (int64_t p = 0; p < choices; p++)
        for (int64_t i = 0; i < in; i++) {
            double *to = &dx[p * in + i];
            if (!l->acc && ((p >= first1 && p < end1) || (a.rest && p >= taken1))) *to = 0;
            for (int64_t c = 0; c < out && p >= first1 && p < end1; c++) *to += dy[p * ld + col + c] * w[c * in + i];
        }
    op_scratch((int64_t)tess_expert_scratch(in, out));
    op_run(&tess_expert_linear_backward_input[t], &a);

    dy = op_in("dy", choices * ld, t, 1), x = op_in("x", choices * in, t, 1);
    o = experts_put_order(k);
    double *dw = op_out("dw", out * in, TESS_F32, l->acc);
    for (int64_t p = o.offset[a.expert] - o.offset[a.first]; p < o.offset[a.expert + 1] - o.offset[a.first]; p++)
        for (int64_t c = 0; c < out; c++)
            for (int64_t i = 0; i < in; i++) dw[c * in + i] += dy[p * ld + col + c] * x[p * in + i];
    op_run(&tess_expert_linear_backward_weight[t], &a);
}

OP_TASKS(expert_linear)
{
    static const int64_t shape[][2] = {{20, 37}, {64, 128}, {66, 5}};
    if (op_speed) return; /* bench_mm measures products */
    for (int k = 0; k < EXPERTS_KINDS; k++)
        for (size_t s = 0; s < sizeof shape / sizeof *shape; s++) OP_EACH(t) for (int how = 0; how < 4; how++)
            {
                const struct experts *e = &experts_kinds[k];
                const bool tiled = how % 2;
                const int64_t expert = how % e->experts; /* in places of all, or of an owner's alone */
                tasks(e,
                      (tess_expert_arg){.expert = expert,
                                        .first = how > 1 ? expert : 0,
                                        .end = how > 1 ? expert + 1 : e->experts,
                                        .choices = e->rows * e->chosen,
                                        .rest = how % 3 == 0,
                                        .linear = {.in = shape[s][0],
                                                   .out = shape[s][1],
                                                   .ld = tiled ? shape[s][1] + 24 : shape[s][1],
                                                   .col = tiled ? 16 : 0,
                                                   .acc = how / 2,
                                                   .sum = how == 3}},
                      t);
            }
}

OP_NET(expert_linear)
{
    return experts_net(g, x, layer);
}
