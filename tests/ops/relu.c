/* relu: max(x, 0). */
#include "tests/ops/ops.h"

static double relu(double x)
{
    return x > 0 ? x : x == x ? 0 : x;
}

OP_TASKS(relu)
{
    op_map(tess_relu_forward, tess_relu_backward, 0, relu);
}

OP_NET(relu)
{
    return tess_relu(tess_add(x, tess_tanh(x, 1)));
}
