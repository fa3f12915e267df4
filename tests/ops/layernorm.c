/* layernorm over rows of all widths. */
#include "tests/ops/norm.h"

OP_TASKS(layernorm)
{
    norm_tasks(tess_layernorm_forward, tess_add_layernorm_forward, tess_layernorm_backward, true, false);
}

OP_NET(layernorm)
{
    return tess_layernorm(x, OP_PARAM("g", 20, 1, TESS_ONE), OP_PARAM("b", 20, 1, TESS_NORMAL(0.1f)), 1e-5f);
}
