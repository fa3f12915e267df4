/* half: the first or the second `dim` of each 2 dim columns of x (B,T,C), as strips of them. */
#include "graph/ops/lowering.h"

struct attributes {
    int64_t dim;
    bool second;
};

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[0];
    const int64_t dim = ((const struct attributes *)n->attributes)->dim;
    if (x->rank != 3 || dim < 1 || x->dim[2] % (2 * dim))
        return tess_shape_error(n, "x must be (B,T,C), C a multiple of 2 * %lld", (long long)dim);
    tess_set_shape(n, 3, x->dim[0], x->dim[1], x->dim[2] / 2);
    return TESS_OK;
}

static tess_strip_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *at = n->attributes;
    return TESS_ARG(L, tess_strip_arg, .rows = tess_rows(L, n->out, i) * tess_width(n->out) / at->dim,
                    .from_ld = 2 * at->dim, .to_ld = at->dim, .runs = 1,
                    .run = {{at->second ? at->dim : 0, 0, at->dim}});
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    TESS_EMIT(L, &tess_strip[tess_real(L)], arg(L, n, i), tess_in(L, n->in[0], i), tess_out(L, n->out, i));
}

/* The other half of the gradient begins with zeros. */
static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_strip_arg *a = arg(L, n, i);
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    if (!a->acc) tess_grad_zero(L, tess_real(L), 2 * a->rows * a->to_ld, &dx);
    a->run[0].to = a->run[0].from, a->run[0].from = 0;
    a->to_ld = a->from_ld, a->from_ld = a->run[0].n;
    TESS_EMIT(L, &tess_strip[tess_real(L)], a, tess_grad_read(L, n->out, i), dx);
}

const tess_op tess_op_half = {
    .name = "half",
    .takes = "x",
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .by_rows = true,
};

tess_tensor *tess_half(tess_tensor *x, int64_t dim, bool second)
{
    return tess_node_add(&tess_op_half, &x, 1, &(struct attributes){dim, second}, sizeof(struct attributes));
}
