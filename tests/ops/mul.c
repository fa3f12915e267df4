/* mul: products of two tensors. */
#include "tests/ops/ops.h"

OP_TASKS(mul)
{
    OP_EACH(t) OP_EACH_LENGTH(n) OP_EACH_ACC(acc)
    {
        const tess_map_arg a = {.n = n, .acc = acc};
        double *x = op_in("a", n, t, 1), *z = op_in("b", n, t, 1), *y = op_out("y", n, t, false);
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * z[i];
        op_run(&tess_mul_forward[t], &a);
        double *dy = op_in("dy", n, t, 1);
        z = op_in("b", n, t, 1);
        double *da = op_out("da", n, t, acc);
        for (int64_t i = 0; i < n; i++) da[i] += dy[i] * z[i];
        op_run(&tess_mul_backward[t], &a);
    }
}

OP_NET(mul)
{
    return tess_mul(x, tess_linear(x, OP_PARAM("w", 20, 20, TESS_NORMAL(0.3f)), NULL));
}
