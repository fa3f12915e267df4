/* half: strips; both halves of heads, one of which has a factor. */
#include "tests/ops/ops.h"

OP_TASKS(half) {}

OP_NET(half)
{
    tess_tensor *second = tess_scaled(tess_half(x, 5, true), -1.5f);
    tess_tensor *y = tess_mul(tess_half(x, 5, false), layer % 2 ? second : tess_add(second, tess_half(x, 5, true)));
    return tess_linear(y, OP_PARAM("half.up", 20, 10, TESS_NORMAL(0.4f)), NULL);
}
