/* dropout: the mask is a matter of place, so it is drawn here as it is there. */
#include "tests/ops/ops.h"

static void apply(const tess_dropout_arg *a, const double *x, double *y)
{
    for (int64_t i = 0; i < a->rows * a->width; i++) {
        const uint64_t place = (uint64_t)(a->row0 * a->width + i);
        const uint32_t r = tess_random(op_env.seed, (uint64_t)op_env.step, a->op, place);
        const bool keeps = r >= (double)a->p * 4294967296.0;
        y[i] += !op_env.train ? x[i] : keeps && a->p < 1 ? x[i] / (1 - (double)a->p) : 0;
    }
}

OP_TASKS(dropout)
{
    static const float rate[] = {0.3f, 0.3f, 0, 1}; /* of the first, what an evaluation keeps */
    for (int kind = op_speed; kind < (op_speed ? 2 : 4); kind++) OP_EACH(t) OP_EACH_ACC(acc)
        {
            tess_dropout_arg a = {
                .rows = 1021, .width = 83, .row0 = (int64_t)1 << 40, .op = 5, .p = rate[kind], .acc = acc};
            if (op_speed) a = (tess_dropout_arg){.rows = 1024, .width = 768, .op = 5, .p = 0.1f, .acc = true};
            const int64_t n = a.rows * a.width;
            op_env.train = kind > 0;
            double *x = op_in("x", n, t, 1);
            apply(&a, x, op_out("y", n, t, false));
            op_run(&tess_dropout_forward[t], &a);
            x = op_in("dy", n, t, 1);
            apply(&a, x, op_out("dx", n, t, acc));
            op_run(&tess_dropout_backward[t], &a);
        }
    op_env.train = true;
}

OP_NET(dropout)
{
    return tess_dropout(x, 0.2f);
}
