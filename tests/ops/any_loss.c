/* any_loss: the sum and the count of a loss and of numbers beside it. */
#include "tests/ops/formula.h"

OP_TASKS(any_loss)
{
    if (op_speed) return;
    const float scale = op_env.loss_scale[0];
    op_env.loss_scale[0] = 128;
    for (int64_t numbers = 0; numbers < 4; numbers += 3)
        for (int gradient = 0; gradient < 2; gradient++) {
            op_in("x", 1, TESS_F32, 1);
            if (numbers) op_in("beside", numbers, TESS_F32, 1);
            op_any("out", 2 + 2 * numbers, OP_DOUBLE, false);
            if (gradient) op_any("dx", 1, TESS_F32, false);
            op_run(tess_any_loss, &(tess_any_loss_arg){numbers, gradient});
        }
    op_env.loss_scale[0] = scale;
}
