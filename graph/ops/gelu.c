/* gelu: elementwise, by the tanh formula or by erf. */
#include "graph_impl.h"

static tess_status infer(tess_node *n)
{
    if (n->gelu != TESS_GELU_TANH && n->gelu != TESS_GELU_ERF)
        return tess_shape_error(n, "there is no kind %d of gelu", (int)n->gelu);
    return tess_same_shape(n);
}

static tess_map_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    return TESS_ARG(L, tess_map_arg, .n = tess_rows(L, n->out, i) * tess_width(n->out), .kind = n->gelu);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    TESS_EMIT(L, &tess_gelu_forward[L->dtype], arg(L, n, i), tess_in(L, n->in[0], i), tess_out(L, n->out, i));
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_map_arg *a = arg(L, n, i);
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_gelu_backward[L->dtype], a, tess_grad_read(L, n->out, i), tess_in(L, n->in[0], i), dx);
}

const tess_op tess_op_gelu = {"gelu", infer, forward, backward, TESS_READS_IN0, "x"};

tess_tensor *tess_gelu(tess_tensor *x, tess_gelu_kind kind)
{
    return tess_node_add(&tess_op_gelu, &x, 1, &(tess_node){.gelu = kind});
}
