/* any_rows and any_back: a tensor of any rank as rows (B, T, C), which is what the ops of families take, and back. Both
 * are the same tiles: samples lie outermost in them either way. */
#include "graph/generic/generic_impl.h"

static void forward(tess_lower *L, const tess_node *n, int i)
{
    const tess_tensor *t = n->in[0];
    if (n->out != L->output) {
        L->value[n->out->id][tess_lower_place(L, n->out, i)] = tess_in(L, t, i).tile;
        return;
    }
    const tess_strides line = {.by = {1}, .t = tess_dtype_of(L, n->out)};
    const int64_t size = (int64_t)(tess_value_bytes(L, n->out, i) / tess_dtype_size(line.t));
    tess_nd_emit_copy(L, 1, &size, tess_in(L, t, i), line, tess_out(L, n->out, i), line, false);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    if (!tess_wants_gradient(L, n->in[0])) return;
    if (tess_has_gradient(L, n->out, i)) {
        tess_grad_pass(L, n->out, n->in[0], i);
        return;
    }
    bool acc; /* ops of families take it that there is one */
    tess_use use = tess_grad_write(L, n->in[0], i, &acc);
    const tess_dtype type = tess_dtype_of(L, n->in[0]);
    if (!acc) tess_grad_zero(L, type, (int64_t)(tess_value_bytes(L, n->in[0], i) / tess_dtype_size(type)), &use);
}

static tess_status infer_rows(tess_node *n)
{
    const int64_t *shape = n->attributes;
    tess_set_shape(n, 3, n->out->g->batch, shape[0], shape[1]);
    return TESS_OK;
}

static const tess_op rows_op = {.name = "any_rows",
                                .takes = "x",
                                .infer = infer_rows,
                                .forward = forward,
                                .backward = backward,
                                .split = tess_split_reshaped};
static const tess_op back_op = {.name = "any_back",
                                .takes = "x",
                                .infer = tess_nd_infer,
                                .forward = forward,
                                .backward = backward,
                                .split = tess_split_reshaped};

bool tess_nd_has_rows(const tess_tensor *x, int64_t width)
{
    if (!x || !x->nd || !tess_has_rows(x) || x->kind == TESS_KIND_PARAM) return false;
    for (int d = 0; d < x->nd->at; d++)
        if (x->nd->dim[d] != 1) return false;
    return width > 0 && x->dim[x->rank - 1] % width == 0;
}

int tess_nd_samples(const tess_tensor *x)
{
    return x && x->nd && tess_has_rows(x) && x->nd->times == 1 ? x->nd->at : -1;
}

tess_tensor *tess_nd_rows(tess_tensor *x, int64_t width)
{
    if (!tess_nd_are("rows", &x, 1)) return NULL;
    if (!tess_nd_has_rows(x, width)) return tess_nd_wrong("rows", &x, 1, "it has no rows of %lld", (long long)width);
    const int64_t shape[] = {x->dim[x->rank - 1] / width, width};
    tess_tensor *from = x->producer && x->producer->op == &back_op ? x->producer->in[0] : NULL;
    if (from && from->dim[1] == shape[0] && from->dim[2] == shape[1]) return from;
    if (x->nd->element == TESS_REAL) x = tess_nd_narrow(x);
    if (!x) return NULL;
    return tess_node_add(&rows_op, &x, 1, shape, sizeof shape);
}

tess_tensor *tess_nd_back(tess_tensor *y, tess_dims d)
{
    int at = 0;
    if (!y) return NULL;
    while (at + 1 < d.rank && d.dim[at] == 1 && y->g->batch > 1) at++; /* samples may lie behind dimensions of 1 */
    tess_nd nd = tess_nd_of(TESS_REAL, &d, at, d.rank ? d.dim[at] / y->g->batch : 0);
    nd.narrow = true;
    if (y->nd || y->rank != 3 || !d.rank || d.dim[at] % y->g->batch ||
        tess_dims_size(&d) != y->dim[0] * y->dim[1] * y->dim[2])
        return tess_nd_wrong("back", &y, 1, "it is no (B,T,C) of that many elements");
    return tess_nd_node(y->g, &back_op, &y, 1, &nd, sizeof nd);
}

tess_tensor *tess_nd_classes(tess_tensor *input, int64_t least, int64_t classes, const char *because)
{
    tess_limit_ids(input, least, classes - 1, because);
    return input;
}

bool tess_nd_is_whole(const tess_tensor *param)
{
    return param->cut && param->cut->tiles == 1;
}

bool tess_nd_cut_alike(tess_tensor *vector, tess_tensor *matrix)
{
    tess_param_cut_like(vector, matrix);
    return vector->cut->tile_rows == matrix->cut->tile_rows;
}
