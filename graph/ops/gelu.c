/* gelu: elementwise, by the tanh formula or by erf. */
#include "graph/ops/lowering.h"

static tess_status infer(tess_node *n)
{
    const tess_gelu_kind kind = *(const tess_gelu_kind *)n->attributes;
    if (kind != TESS_GELU_TANH && kind != TESS_GELU_ERF)
        return tess_shape_error(n, "there is no kind %d of gelu", (int)kind);
    return tess_same_shape(n);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_forward(L, n, i, tess_gelu_forward, (tess_map_arg){.kind = *(const tess_gelu_kind *)n->attributes});
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_backward(L, n, i, tess_gelu_backward, (tess_map_arg){.kind = *(const tess_gelu_kind *)n->attributes});
}

static void join(void *arg, const void *linear, const void *gelu)
{
    *(tess_linear_gelu_arg *)arg =
        (tess_linear_gelu_arg){*(const tess_linear_arg *)linear, *(const tess_map_arg *)gelu};
}

/*     linear_forward          x, w[, b] -> pre        gelu_forward    pre -> y             one task, pre is kept
 *     linear_backward_input   dy, w -> dy of gelu     gelu_backward   dy, pre -> dpre      one task, dy of gelu is not
 */
static const tess_fusion fusions[] = {{tess_linear_forward, tess_gelu_forward, tess_linear_gelu_forward, true,
                                       sizeof(tess_linear_gelu_arg), join, &tess_op_linear},
                                      {tess_linear_backward_input, tess_gelu_backward, tess_gelu_linear_backward, false,
                                       sizeof(tess_linear_gelu_arg), join, NULL},
                                      {0}};

const tess_op tess_op_gelu = {
    .name = "gelu",
    .takes = "x",
    .reads = TESS_READS_IN0,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .fusions = fusions,
    .by_rows = true,
};

tess_tensor *tess_gelu(tess_tensor *x, tess_gelu_kind kind)
{
    return tess_node_add(&tess_op_gelu, &x, 1, &kind, sizeof kind);
}
