/* add: sums of two tensors, and the sums that gradients are made of. */
#include "tests/ops/ops.h"

/* A sum in fp32 goes to y from element `first` on, rounded once; what is around it stays. */
static void sum(tess_dtype t, int64_t n, int64_t first, bool acc)
{
    const tess_map_arg a = {.n = n, .first = first, .acc = acc};
    double *x = op_in("x", n, TESS_F32, 1), *y = op_out("y", n + 20, t, true);
    for (int64_t i = 0; i < n; i++) {
        const float want = acc ? (float)y[first + i] + (float)x[i] : (float)x[i];
        y[first + i] = t == TESS_BF16  ? tess_from_bf16(tess_to_bf16(want))
                       : t == TESS_F16 ? tess_from_f16(tess_to_f16(want))
                                       : want;
    }
    op_run(&tess_add_sum[t], &a);
}

OP_TASKS(add)
{
    OP_EACH(t) OP_EACH_LENGTH(n) OP_EACH_ACC(acc)
    {
        const tess_map_arg a = {.n = n, .acc = acc};
        double *x = op_in("a", n, t, 1), *z = op_in("b", n, t, 1), *y = op_out("y", n, t, false);
        for (int64_t i = 0; i < n; i++) y[i] = x[i] + z[i];
        op_run(&tess_add_forward[t], &a);
        x = op_in("x", n, t, 1), y = op_out("y", n, t, acc);
        for (int64_t i = 0; i < n; i++) y[i] += x[i];
        op_run(&tess_add_into[t], &a);
        for (int64_t first = 0; first < 14 && !op_speed; first += 5) sum(t, n, first, acc);
    }
}

OP_NET(add)
{
    tess_tensor *y = tess_linear(x, OP_PARAM("w", 20, 20, TESS_NORMAL(0.3f)), NULL);
    return tess_add(tess_add(x, y), y);
}
