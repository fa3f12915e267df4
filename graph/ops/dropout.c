/* dropout: each element is zeroed with probability p and else scaled by 1/(1-p). The mask is drawn again in the
 * backward pass, never stored. */
#include "graph/ops/lowering.h"

static tess_status infer(tess_node *n)
{
    const float p = *(const float *)n->attributes;
    if (!(p >= 0 && p <= 1)) return tess_shape_error(n, "the rate is %g (expected 0 to 1)", (double)p);
    return tess_same_shape(n);
}

static tess_dropout_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    return TESS_ARG(L, tess_dropout_arg, .rows = tess_rows(L, n->out, i), .width = tess_width(n->out),
                    .row0 = tess_first_row(L, n->out, i), .op = n->random, .p = *(const float *)n->attributes);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    TESS_EMIT(L, &tess_dropout_forward[tess_real(L)], arg(L, n, i), tess_in(L, n->in[0], i), tess_out(L, n->out, i));
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_dropout_arg *a = arg(L, n, i);
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_dropout_backward[tess_real(L)], a, tess_grad_read(L, n->out, i), dx);
}

const tess_op tess_op_dropout = {
    .name = "dropout",
    .takes = "x",
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .by_rows = true,
};

tess_tensor *tess_dropout(tess_tensor *x, float p)
{
    return p == 0 ? x : tess_node_add(&tess_op_dropout, &x, 1, &p, sizeof p);
}
