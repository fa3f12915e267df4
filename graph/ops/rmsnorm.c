/* rmsnorm: y = x / sqrt(mean(x^2) + eps) * (gain + shift) over the last axis of x (B,T,C), gain (C), or over each run
 * of D of it, as a head is, gain (D). */
#include "graph/ops/lowering.h"
#include <math.h>

struct attributes {
    float eps, shift;
};

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[0];
    if (x->rank != 3) return tess_shape_error(n, "x must be (B,T,C)");
    const float eps = *(const float *)n->attributes;
    if (!(eps >= 0) || isinf(eps)) return tess_shape_error(n, "eps is %g, expected a number from 0", (double)eps);
    const int64_t run = n->in[1]->dim[0];
    if (!tess_is_param(n->in[1], run, 1) || x->dim[2] % run)
        return tess_shape_error(n, "gain must be (C), or (D) with C a multiple of D");
    if (n->in[1]->cut->tiles > 1)
        return tess_shape_error(n, "gain is cut, but must be whole (raise tile_elements, and share it with no linear)");
    tess_set_shape(n, 3, x->dim[0], x->dim[1], x->dim[2]);
    return TESS_OK;
}

static tess_norm_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *at = n->attributes;
    const int64_t run = n->in[1]->dim[0], runs = tess_width(n->out) / run;
    return TESS_ARG(L, tess_norm_arg, .rows = tess_rows(L, n->out, i) * runs, .width = run, .eps = at->eps,
                    .shift = at->shift);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_norm_arg *a = arg(L, n, i);
    tess_use x = tess_in(L, n->in[0], i), y = tess_out(L, n->out, i);
    tess_use stats = tess_aux_out(L, n, i, (size_t)a->rows * sizeof(float));
    TESS_EMIT(L, &tess_rmsnorm_forward[tess_real(L)], a, x, tess_weight(L, n->in[1], 0), y, stats);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_norm_arg *a = arg(L, n, i);
    tess_use dgain = tess_param_grad(L, n->in[1], 0, &a->acc_param), dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_rmsnorm_backward[tess_real(L)], a, tess_grad_read(L, n->out, i), tess_in(L, n->in[0], i),
              tess_weight(L, n->in[1], 0), tess_aux_in(L, n, i), dx, dgain);
}

/* add_forward a, b -> x and the norm of x: one task, x is kept */
static const tess_fusion fusions[] = {{tess_add_forward, tess_rmsnorm_forward, tess_add_rmsnorm_forward, .kept = true},
                                      {0}};

const tess_op tess_op_rmsnorm = {
    .name = "rmsnorm",
    .takes = "x, gain",
    .reads = TESS_READS_IN0 | TESS_READS_AUX,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .fusions = fusions,
    .by_rows = true,
};

tess_tensor *tess_rmsnorm(tess_tensor *x, tess_tensor *gain, float eps)
{
    return tess_rmsnorm_shifted(x, gain, 0, eps);
}

tess_tensor *tess_rmsnorm_shifted(tess_tensor *x, tess_tensor *gain, float shift, float eps)
{
    return tess_node_add(&tess_op_rmsnorm, (tess_tensor *[]){x, gain}, 2, &(struct attributes){eps, shift},
                         sizeof(struct attributes));
}
