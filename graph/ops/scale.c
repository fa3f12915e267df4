/* scale: x times a constant, elementwise. */
#include "graph/ops/lowering.h"

static tess_map_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    return tess_map_of(L, n, i, (tess_map_arg){.by = *(const float *)n->attributes});
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    TESS_EMIT(L, &tess_scale[tess_real(L)], arg(L, n, i), tess_in(L, n->in[0], i), tess_out(L, n->out, i));
}

/* x itself is not read. */
static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_arg *a = arg(L, n, i);
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_scale[tess_real(L)], a, tess_grad_read(L, n->out, i), dx);
}

const tess_op tess_op_scale = {
    .name = "scale",
    .takes = "x",
    .infer = tess_same_shape,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .by_rows = true,
};

tess_tensor *tess_scaled(tess_tensor *x, float by)
{
    return tess_node_add(&tess_op_scale, &x, 1, &by, sizeof by);
}
