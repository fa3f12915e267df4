/* tanh: cap tanh(x / cap), elementwise. */
#include "graph/ops/lowering.h"

static tess_status infer(tess_node *n)
{
    const float cap = *(const float *)n->attributes;
    if (!(cap > 0)) return tess_shape_error(n, "the cap is %g (expected above 0)", (double)cap);
    return tess_same_shape(n);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_forward(L, n, i, tess_tanh_forward, (tess_map_arg){.cap = *(const float *)n->attributes});
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_backward(L, n, i, tess_tanh_backward, (tess_map_arg){.cap = *(const float *)n->attributes});
}

const tess_op tess_op_tanh = {
    .name = "tanh",
    .takes = "x",
    .reads = TESS_READS_IN0,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .by_rows = true,
};

tess_tensor *tess_tanh(tess_tensor *x, float cap)
{
    return tess_node_add(&tess_op_tanh, &x, 1, &cap, sizeof cap);
}
