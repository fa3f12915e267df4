/* expert_bias: y (B,T*k,C), where each place is x's and the row of bias (experts,C) that is its expert's. */
#include "graph/ops/lowering.h"

enum { X, WEIGHTS, BIAS };

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[X], *weights = n->in[WEIGHTS];
    if (!tess_is_routed(weights)) return tess_shape_error(n, "the weights must be those that tess_route returned");
    if (x->rank != 3 || x->dim[1] != weights->dim[1] * weights->dim[2] ||
        !tess_is_param(n->in[BIAS], tess_routed_experts(weights), x->dim[2]))
        return tess_shape_error(n, "x must be (B,T*chosen,C) and the bias (experts,C)");
    tess_set_shape(n, 3, x->dim[0], x->dim[1], x->dim[2]);
    return TESS_OK;
}

static tess_expert_bias_arg *arg(tess_lower *L, const tess_node *n, int i, int64_t j)
{
    const tess_tensor *bias = n->in[BIAS];
    const int64_t rows = bias->cut->tile_rows, left = bias->dim[0] - j * rows;
    return TESS_ARG(L, tess_expert_bias_arg, .first = j * rows, .some = left < rows ? left : rows,
                    .experts = bias->dim[0], .choices = tess_rows(L, n->out, i), .width = tess_width(n->out));
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    const tess_use x = tess_in(L, n->in[X], i), order = tess_aux_in(L, n->in[WEIGHTS]->producer, i);
    tess_use y = tess_out(L, n->out, i);
    for (int64_t j = 0; j < n->in[BIAS]->cut->tiles; j++) {
        TESS_EMIT(L, &tess_expert_bias_forward[tess_real(L)], arg(L, n, i, j), x, tess_weight(L, n->in[BIAS], j), order,
                  y);
        y.mode = TESS_RW;
    }
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    const tess_use dy = tess_grad_read(L, n->out, i), order = tess_aux_in(L, n->in[WEIGHTS]->producer, i);
    for (int64_t j = 0; tess_wants_gradient(L, n->in[BIAS]) && j < n->in[BIAS]->cut->tiles; j++) {
        tess_expert_bias_arg *a = arg(L, n, i, j);
        const tess_use d = tess_param_grad(L, n->in[BIAS], j, &a->acc);
        TESS_EMIT(L, &tess_expert_bias_backward[tess_real(L)], a, dy, order, d);
    }
    if (tess_wants_gradient(L, n->in[X])) tess_grad_pass(L, n->out, n->in[X], i);
}

const tess_op tess_op_expert_bias = {
    .name = "expert_bias",
    .takes = "x, weights, bias",
    .reads = TESS_READS_IN1,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .by_places = true,
};

tess_tensor *tess_expert_bias(tess_tensor *x, tess_tensor *weights, tess_tensor *bias)
{
    return tess_node_add(&tess_op_expert_bias, (tess_tensor *[]){x, weights, bias}, 3, NULL, 0);
}
