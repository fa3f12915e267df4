/* any_conv: convolutions and both gradients of all kinds, in as much room as there is and in little. What they make is
 * compared with sums in codelets/test_conv.c. */
#include "tests/ops/convolutions.h"
#include "tests/ops/formula.h"

enum { X, W, Y, TENSORS };

static void convolve(const conv_problem *p, int written, tess_dtype t, bool acc, size_t room)
{
    tess_any_conv_arg a = conv_arg(p);
    const int64_t size[] = {a.samples * a.groups * a.inputs * any_size(TESS_CONV_SPACE, a.in),
                            a.groups * a.outputs * a.inputs * any_size(TESS_CONV_SPACE, a.window),
                            a.samples * a.groups * a.outputs * any_size(TESS_CONV_SPACE, a.out)};
    tess_codelet *const cl[] = {tess_any_conv_input, tess_any_conv_weight, tess_any_conv};
    a.to = written == Y ? t : TESS_F32, a.acc = acc;
    for (int k = 0; k < TENSORS; k++)
        if (k == written)
            op_any("made", size[k], a.to, acc);
        else
            op_in("read", size[k], t, 1);
    const size_t scratch = tess_any_conv_scratch(&a, written, t);
    if (scratch) op_scratch((int64_t)scratch);
    op_room = room;
    op_run(&cl[written][t], &a);
}

OP_TASKS(any_conv)
{
    static const size_t rooms[] = {0, 90 << 10, 34 << 10};
    if (op_speed) return;
    for (int k = 0; k < CONV_PROBLEMS; k++) OP_EACH(t)
    for (int written = 0; written < TENSORS; written++)
        convolve(&conv_problems[k], written, t, (k + written + (int)t) % 2, rooms[(k + written) % 3]);
}
