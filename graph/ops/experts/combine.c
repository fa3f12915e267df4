/* combine: y (B,T,C), where each row is the weighted sum of its places in x (B,T*k,C). Its gradient goes to the
 * weights too, and through them to the router. */
#include "graph/ops/lowering.h"

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[0], *weights = n->in[1];
    if (!tess_is_routed(weights)) return tess_shape_error(n, "the weights must be those that tess_route returned");
    if (x->rank != 3 || x->dim[0] != weights->dim[0] || x->dim[1] != weights->dim[1] * weights->dim[2])
        return tess_shape_error(n, "x must be (B,T*chosen,C), and the weights those of its choices");
    tess_set_shape(n, 3, x->dim[0], weights->dim[1], x->dim[2]);
    return TESS_OK;
}

static tess_dispatch_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    return TESS_ARG(L, tess_dispatch_arg, .rows = tess_rows(L, n->out, i), .experts = tess_routed_experts(n->in[1]),
                    .chosen = tess_width(n->in[1]), .width = tess_width(n->out));
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    TESS_EMIT(L, &tess_combine_forward[tess_real(L)], arg(L, n, i), tess_in(L, n->in[0], i), tess_in(L, n->in[1], i),
              tess_aux_in(L, n->in[1]->producer, i), tess_out(L, n->out, i));
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_dispatch_arg *a = arg(L, n, i);
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc), dw = tess_grad_write(L, n->in[1], i, &a->acc_weights);
    TESS_EMIT(L, &tess_combine_backward[tess_real(L)], a, tess_grad_read(L, n->out, i), tess_in(L, n->in[0], i),
              tess_in(L, n->in[1], i), tess_aux_in(L, n->in[1]->producer, i), dx, dw);
}

const tess_op tess_op_combine = {
    .name = "combine",
    .takes = "x, weights",
    .reads = TESS_READS_IN0 | TESS_READS_IN1,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .by_places = true,
};

tess_tensor *tess_combine(tess_tensor *x, tess_tensor *weights)
{
    return tess_node_add(&tess_op_combine, (tess_tensor *[]){x, weights}, 2, NULL, 0);
}
