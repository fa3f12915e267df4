/* lion: its update. */
#include "tests/ops/update.h"

OP_TASKS(lion)
{
    static const tess_optimizer of[] = {{.type = TESS_OPTIMIZER_LION, .beta1 = 0.9, .beta2 = 0.99}};
    update_each(of, 1);
}
