/* adamw: AdamW's update, and Adam's. */
#include "tests/ops/update.h"

OP_TASKS(adamw)
{
    static const tess_optimizer of[] = {{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
                                        {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .l2 = true}};
    update_each(of, op_speed ? 1 : 2);
}
