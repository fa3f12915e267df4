/* sgd: without momentum, with it, and with all there is of it. */
#include "tests/ops/update.h"

OP_TASKS(sgd)
{
    static const tess_optimizer of[] = {{.type = TESS_OPTIMIZER_SGD},
                                        {.type = TESS_OPTIMIZER_SGD, .momentum = 0.9, .dampening = 0.25},
                                        {.type = TESS_OPTIMIZER_SGD, .momentum = 0.9, .nesterov = true}};
    update_each(of, op_speed ? 2 : 3);
}
