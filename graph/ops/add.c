/* add: y = a + b, elementwise. Its gradient is passed on to both without a copy.
 *
 * A copy would cost a pass over memory for each residual in each layer. The lowering counts the tensors that share a
 * gradient tile and copies it only where a rule must add to a tile that another tensor still needs. In a transformer
 * that never happens, since the branch is finished before the norm adds to x's gradient; net_tangle in the tests is a
 * graph where it does. */
#include "graph/ops/lowering.h"

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_arg *a = TESS_ARG(L, tess_map_arg, .n = tess_rows(L, n->out, i) * tess_width(n->out));
    TESS_EMIT(L, &tess_add_forward[tess_real(L)], a, tess_in(L, n->in[0], i), tess_in(L, n->in[1], i),
              tess_out(L, n->out, i));
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_grad_pass(L, n->out, n->in[0], i);
    tess_grad_pass(L, n->out, n->in[1], i);
}

const tess_op tess_op_add = {
    .name = "add",
    .takes = "a, b",
    .infer = tess_same_shape,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .by_rows = true,
};

tess_tensor *tess_add(tess_tensor *a, tess_tensor *b)
{
    return tess_node_add(&tess_op_add, (tess_tensor *[]){a, b}, 2, NULL, 0);
}
