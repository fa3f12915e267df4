/* silu: x sigmoid(x), elementwise, or sigmoid(x). */
#include "graph/ops/lowering.h"

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_forward(L, n, i, tess_silu_forward, (tess_map_arg){.kind = *(const int *)n->attributes});
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_backward(L, n, i, tess_silu_backward, (tess_map_arg){.kind = *(const int *)n->attributes});
}

const tess_op tess_op_silu = {
    .name = "silu",
    .takes = "x",
    .reads = TESS_READS_IN0,
    .infer = tess_same_shape,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .by_rows = true,
};

tess_tensor *tess_silu(tess_tensor *x)
{
    return tess_node_add(&tess_op_silu, &x, 1, &(int){0}, sizeof(int));
}

tess_tensor *tess_sigmoid(tess_tensor *x)
{
    return tess_node_add(&tess_op_silu, &x, 1, &(int){1}, sizeof(int));
}
