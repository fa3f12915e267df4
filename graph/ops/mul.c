/* mul: y = a b, elementwise. */
#include "graph/ops/lowering.h"

static tess_map_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    return TESS_ARG(L, tess_map_arg, .n = tess_rows(L, n->out, i) * tess_width(n->out));
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    TESS_EMIT(L, &tess_mul_forward[tess_real(L)], arg(L, n, i), tess_in(L, n->in[0], i), tess_in(L, n->in[1], i),
              tess_out(L, n->out, i));
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    for (int k = 0; k < 2; k++) {
        if (!tess_wants_gradient(L, n->in[k])) continue;
        tess_map_arg *a = arg(L, n, i);
        tess_use dx = tess_grad_write(L, n->in[k], i, &a->acc);
        TESS_EMIT(L, &tess_mul_backward[tess_real(L)], a, tess_grad_read(L, n->out, i), tess_in(L, n->in[1 - k], i),
                  dx);
    }
}

const tess_op tess_op_mul = {
    .name = "mul",
    .takes = "a, b",
    .reads = TESS_READS_IN0 | TESS_READS_IN1,
    .infer = tess_same_shape,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .by_rows = true,
};

tess_tensor *tess_mul(tess_tensor *a, tess_tensor *b)
{
    return tess_node_add(&tess_op_mul, (tess_tensor *[]){a, b}, 2, NULL, 0);
}
