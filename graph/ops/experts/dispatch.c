/* dispatch: the rows of x (B,T,C), each once for each expert that it chose, sorted by expert: (B,T*k,C). A tile of it
 * has the choices of the rows in x's tile. */
#include "graph/ops/lowering.h"

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[0], *weights = n->in[1];
    if (!tess_is_routed(weights)) return tess_shape_error(n, "the weights must be those that tess_route returned");
    if (x->rank != 3 || x->dim[0] != weights->dim[0] || x->dim[1] != weights->dim[1])
        return tess_shape_error(n, "x must be (B,T,C), and the weights of its rows");
    tess_set_shape(n, 3, x->dim[0], x->dim[1] * weights->dim[2], x->dim[2]);
    return TESS_OK;
}

static tess_dispatch_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    return TESS_ARG(L, tess_dispatch_arg, .rows = tess_rows(L, n->in[0], i), .experts = tess_routed_experts(n->in[1]),
                    .chosen = tess_width(n->in[1]), .width = tess_width(n->in[0]));
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    TESS_EMIT(L, &tess_dispatch_forward[tess_real(L)], arg(L, n, i), tess_in(L, n->in[0], i),
              tess_aux_in(L, n->in[1]->producer, i), tess_out(L, n->out, i));
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_dispatch_arg *a = arg(L, n, i);
    if (!tess_wants_gradient(L, n->in[0])) return;
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_dispatch_backward[tess_real(L)], a, tess_grad_read(L, n->out, i),
              tess_aux_in(L, n->in[1]->producer, i), dx);
}

const tess_op tess_op_dispatch = {
    .name = "dispatch",
    .takes = "x, weights",
    .reads = TESS_READS_IN1,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .by_places = true,
};

tess_tensor *tess_dispatch(tess_tensor *x, tess_tensor *weights)
{
    return tess_node_add(&tess_op_dispatch, (tess_tensor *[]){x, weights}, 2, NULL, 0);
}
