/* adagrad: its update. */
#include "tests/ops/update.h"

OP_TASKS(adagrad)
{
    static const tess_optimizer of[] = {{.type = TESS_OPTIMIZER_ADAGRAD, .eps = 1e-10},
                                        {.type = TESS_OPTIMIZER_ADAGRAD, .eps = 1e-8, .lr_decay = 0.1}};
    update_each(of, op_speed ? 1 : 2);
}
