/* relu: max(x, 0), elementwise. */
#include "ops_impl.h"

static tess_status infer(tess_node *n)
{
    return tess_same_shape(n);
}

static tess_map_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    return TESS_ARG(L, tess_map_arg, .n = tess_rows(L, n->out, i) * tess_width(n->out));
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    TESS_EMIT(L, &tess_relu_forward[tess_real(L)], arg(L, n, i), tess_in(L, n->in[0], i), tess_out(L, n->out, i));
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_arg *a = arg(L, n, i);
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_relu_backward[tess_real(L)], a, tess_grad_read(L, n->out, i), tess_in(L, n->in[0], i), dx);
}

const tess_op tess_op_relu = {
    .name = "relu",
    .takes = "x",
    .reads = TESS_READS_IN0,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
};

tess_tensor *tess_relu(tess_tensor *x)
{
    return tess_node_add(&tess_op_relu, &x, 1, NULL, 0);
}
