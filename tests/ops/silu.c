/* silu: x sigmoid(x). */
#include "tests/ops/ops.h"

static double silu(double x)
{
    return x / (1 + exp(-x));
}

OP_TASKS(silu)
{
    op_map(tess_silu_forward, tess_silu_backward, 0, silu);
}

OP_NET(silu)
{
    return tess_silu(x);
}
