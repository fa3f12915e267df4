/* gelu, by tanh and by erf. */
#include "tests/ops/ops.h"

static double by_tanh(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double by_erf(double x)
{
    return x / 2 * (1 + erf(x / sqrt(2)));
}

OP_TASKS(gelu)
{
    op_map(tess_gelu_forward, tess_gelu_backward, TESS_GELU_TANH, by_tanh);
    op_map(tess_gelu_forward, tess_gelu_backward, TESS_GELU_ERF, by_erf);
}

OP_NET(gelu)
{
    return tess_gelu(x, layer % 2 ? TESS_GELU_ERF : TESS_GELU_TANH);
}
