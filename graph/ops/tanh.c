/* tanh: cap tanh(x / cap), elementwise. */
#include "ops_impl.h"

static tess_status infer(tess_node *n)
{
    const float cap = *(const float *)n->attributes;
    if (!(cap > 0)) return tess_shape_error(n, "the cap is %g (expected above 0)", (double)cap);
    return tess_same_shape(n);
}

static tess_map_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    return TESS_ARG(L, tess_map_arg, .n = tess_rows(L, n->out, i) * tess_width(n->out),
                    .cap = *(const float *)n->attributes);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    TESS_EMIT(L, &tess_tanh_forward[tess_real(L)], arg(L, n, i), tess_in(L, n->in[0], i), tess_out(L, n->out, i));
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_arg *a = arg(L, n, i);
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_tanh_backward[tess_real(L)], a, tess_grad_read(L, n->out, i), tess_in(L, n->in[0], i), dx);
}

const tess_op tess_op_tanh = {
    .name = "tanh",
    .takes = "x",
    .reads = TESS_READS_IN0,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
};

tess_tensor *tess_tanh(tess_tensor *x, float cap)
{
    return tess_node_add(&tess_op_tanh, &x, 1, &cap, sizeof cap);
}
