/* rmsnorm over rows of all widths. */
#include "tests/ops/norm.h"

OP_TASKS(rmsnorm)
{
    norm_tasks(tess_rmsnorm_forward, tess_add_rmsnorm_forward, tess_rmsnorm_backward, false, true);
}

OP_NET(rmsnorm)
{
    if (layer % 2) return tess_rmsnorm_shifted(x, OP_PARAM("g", 20, 1, TESS_NORMAL(0.3f)), 1, 1e-5f);
    return tess_rmsnorm(x, OP_PARAM("g", 20, 1, TESS_ONE), 1e-5f);
}
