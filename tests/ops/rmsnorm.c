/* rmsnorm over rows of all widths. */
#include "ops/norm.h"

OP_TASKS(rmsnorm)
{
    norm_tasks(tess_rmsnorm_forward, tess_rmsnorm_backward, false);
}

OP_NET(rmsnorm)
{
    return tess_rmsnorm(x, OP_PARAM("g", 20, 1, TESS_ONE), 1e-5f);
}
