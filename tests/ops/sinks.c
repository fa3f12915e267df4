/* sinks: of some heads among all, and of a query that saw no key. */
#include "tests/ops/ops.h"

/* lse as attention leaves it: of one row of each head infinity, where y is 0. */
static float *put_lse(const tess_sinks_arg *a, bool changes, double **want)
{
    const int64_t n = a->rows * a->heads;
    float *lse = changes ? NULL : op_raw("lse", n, TESS_F32);
    if (changes) {
        *want = op_out("lse", n, TESS_F32, true);
        lse = op_buffer[op_buffers - 1].data;
    }
    for (int64_t i = 0; i < n; i++) {
        if (i / a->heads == 3) lse[i] = INFINITY;
        if (i / a->heads != 3 && !changes) lse[i] = (float)(2 * op_roll());
        if (changes) (*want)[i] = (double)lse[i];
    }
    return lse;
}

static void tasks(tess_sinks_arg a, tess_dtype t)
{
    const int64_t n = a.rows * a.heads * a.dim;
    double *lse;
    const double *sinks = op_in("sinks", a.all, TESS_F32, 2);
    double *y = op_out("y", n, t, true);
    put_lse(&a, true, &lse);
    for (int64_t i = 0; i < a.rows * a.heads; i++) {
        const double s = sinks[a.head0 + i % a.heads];
        for (int64_t d = 0; d < a.dim; d++) y[i * a.dim + d] /= 1 + exp(s - lse[i]);
        if (!isinf(lse[i])) lse[i] = log(exp(lse[i]) + exp(s));
    }
    op_run(&tess_sinks_forward[t], &a);

    const double *dy = op_in("dy", n, t, 1), *made = op_in("y", n, t, 1);
    const float *from = put_lse(&a, false, NULL);
    sinks = op_in("sinks", a.all, TESS_F32, 2);
    double *dsinks = op_out("dsinks", a.all, TESS_F32, a.acc);
    for (int64_t i = 0; i < a.rows * a.heads; i++) {
        const int64_t head = a.head0 + i % a.heads;
        dsinks[head] -= exp(sinks[head] - (double)from[i]) * op_dot(dy + i * a.dim, 1, made + i * a.dim, 1, a.dim);
    }
    op_run(&tess_sinks_backward[t], &a);
}

OP_TASKS(sinks)
{
    OP_EACH(t) OP_EACH_ACC(acc)
    {
        if (op_speed) {
            tasks((tess_sinks_arg){.rows = 1024, .heads = 64, .dim = 64, .all = 64, .acc = acc}, t);
            continue;
        }
        tasks((tess_sinks_arg){.rows = 7, .heads = 3, .dim = 5, .all = 3, .acc = acc}, t);
        tasks((tess_sinks_arg){.rows = 300, .heads = 4, .dim = 64, .head0 = 2, .all = 9, .acc = acc}, t);
    }
}

/* Attention's networks have them. */
OP_NET(sinks)
{
    return x;
}
