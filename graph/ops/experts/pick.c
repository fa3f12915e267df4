/* pick: of each sequence of x (B,T,C) the row that index (B,1) names: y (B,1,C). */
#include "graph/ops/lowering.h"

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[0], *index = n->in[1];
    if (x->rank != 3 || index->kind != TESS_KIND_INPUT || index->dim[1] != 1)
        return tess_shape_error(n, "x must be (B,T,C) and the index an input (B,1)");
    tess_limit_ids(n->in[1], 0, x->dim[1] - 1, "the sequence that it picks from");
    tess_set_shape(n, 3, x->dim[0], 1, x->dim[2]);
    return TESS_OK;
}

static tess_pick_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    return TESS_ARG(L, tess_pick_arg, .rows = tess_rows(L, n->in[0], i), .width = tess_width(n->in[0]),
                    .sequence = n->in[0]->dim[1]);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    TESS_EMIT(L, &tess_pick_forward[tess_real(L)], arg(L, n, i), tess_in(L, n->in[0], i), tess_in(L, n->in[1], i),
              tess_out(L, n->out, i));
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_pick_arg *a = arg(L, n, i);
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_pick_backward[tess_real(L)], a, tess_grad_read(L, n->out, i), tess_in(L, n->in[1], i), dx);
}

const tess_op tess_op_pick = {
    .name = "pick",
    .takes = "x, index",
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .by_rows = true,
};

tess_tensor *tess_pick(tess_tensor *x, tess_tensor *index)
{
    return tess_node_add(&tess_op_pick, (tess_tensor *[]){x, index}, 2, NULL, 0);
}
