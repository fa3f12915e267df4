#include "ops/ops.h"
OP_TASKS(join)
{
}
OP_NET(join)
{
    return x;
}
