/* layernorm: y = (x - mean) / sqrt(var + eps) * gain + bias over the last axis of x (B,T,C), gain and bias (C). */
#include "graph/ops/lowering.h"
#include <math.h>

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[0];
    if (x->rank != 3) return tess_shape_error(n, "x must be (B,T,C)");
    const float eps = *(const float *)n->attributes;
    if (!(eps >= 0) || isinf(eps)) return tess_shape_error(n, "eps is %g, expected a number from 0", (double)eps);
    if (!tess_is_param(n->in[1], x->dim[2], 1) || !tess_is_param(n->in[2], x->dim[2], 1))
        return tess_shape_error(n, "gain and bias must be (C)");
    if (n->in[1]->cut->tiles > 1 || n->in[2]->cut->tiles > 1)
        return tess_shape_error(n, "gain and bias are cut, but must be whole (raise tile_elements, and share neither "
                                   "with a linear)");
    tess_set_shape(n, 3, x->dim[0], x->dim[1], x->dim[2]);
    return TESS_OK;
}

static tess_norm_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    return TESS_ARG(L, tess_norm_arg, .rows = tess_rows(L, n->out, i), .width = tess_width(n->out),
                    .eps = *(const float *)n->attributes);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_norm_arg *a = arg(L, n, i);
    tess_use x = tess_in(L, n->in[0], i), y = tess_out(L, n->out, i);
    tess_use stats = tess_aux_out(L, n, i, (size_t)a->rows * 2 * sizeof(float));
    TESS_EMIT(L, &tess_layernorm_forward[tess_real(L)], a, x, tess_weight(L, n->in[1], 0), tess_weight(L, n->in[2], 0),
              y, stats);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_norm_arg *a = arg(L, n, i);
    tess_use param[2]; /* the gradients of gain and bias */
    bool acc[2];
    for (int k = 0; k < 2; k++) param[k] = tess_param_grad(L, n->in[1 + k], 0, &acc[k]);
    a->acc_param = acc[0] || acc[1];
    for (int k = 0; k < 2; k++)
        if (a->acc_param && !acc[k]) tess_grad_zero(L, TESS_F32, a->width, &param[k]);
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_layernorm_backward[tess_real(L)], a, tess_grad_read(L, n->out, i), tess_in(L, n->in[0], i),
              tess_weight(L, n->in[1], 0), tess_aux_in(L, n, i), dx, param[0], param[1]);
}

/* add_forward a, b -> x and the norm of x: one task, x is kept */
static const tess_fusion fusions[] = {
    {tess_add_forward, tess_layernorm_forward, tess_add_layernorm_forward, .kept = true}, {0}};

const tess_op tess_op_layernorm = {
    .name = "layernorm",
    .takes = "x, gain, bias",
    .reads = TESS_READS_IN0 | TESS_READS_AUX,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .fusions = fusions,
    .by_rows = true,
};

tess_tensor *tess_layernorm(tess_tensor *x, tess_tensor *gain, tess_tensor *bias, float eps)
{
    return tess_node_add(&tess_op_layernorm, (tess_tensor *[]){x, gain, bias}, 3, &eps, sizeof eps);
}
