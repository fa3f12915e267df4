/* scale: x times a constant. */
#include "tests/ops/ops.h"

OP_TASKS(scale)
{
    OP_EACH(t) OP_EACH_LENGTH(n) OP_EACH_ACC(acc)
    {
        const tess_map_arg a = {.n = n, .by = -0.37f, .acc = acc};
        const double *x = op_in("x", n, t, 2);
        double *y = op_out("y", n, t, acc);
        for (int64_t i = 0; i < n && op_expects; i++) y[i] += (double)a.by * x[i];
        op_run(&tess_scale[t], &a);
    }
}

OP_NET(scale)
{
    return tess_scaled(x, 1.5f);
}
