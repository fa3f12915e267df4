/* relu: max(x, 0), elementwise. */
#include "graph/ops/lowering.h"

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_forward(L, n, i, tess_relu_forward, (tess_map_arg){0});
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_backward(L, n, i, tess_relu_backward, (tess_map_arg){0});
}

const tess_op tess_op_relu = {
    .name = "relu",
    .takes = "x",
    .reads = TESS_READS_IN0,
    .infer = tess_same_shape,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .by_rows = true,
};

tess_tensor *tess_relu(tess_tensor *x)
{
    return tess_node_add(&tess_op_relu, &x, 1, NULL, 0);
}
