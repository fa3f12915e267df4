/* any_sort: the places of elements in the order of their values. What stands there is gathered, with its gradient. */
#include "graph/generic/generic_impl.h"

struct attributes {
    tess_nd nd;
    int dim;
    bool descending;
};

static void forward(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *a = n->attributes;
    bool acc;
    if (i >= tess_nd_turns(L, n)) return;
    const tess_nd_tile x = tess_nd_tile_of(L, n->in[0], i);
    const int64_t size = x.dim[a->dim], inner = x.by[a->dim];
    const tess_any_sort_arg arg = {x.size / size / inner, size, inner, n->in[0]->nd->element, a->descending};
    const tess_use in = tess_nd_read(L, n, 0, i), out = tess_nd_out(L, n, i, &acc);
    TESS_EMIT(L, tess_any_sort, tess_arg_copy(L, &arg, sizeof arg), in, out,
              tess_scratch_use(L, tess_any_sort_scratch(&arg)));
}

static const char *split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    (void)slot;
    return tess_split_but(n, is, ((const struct attributes *)n->attributes)->dim, s);
}

static const tess_op op = {
    .name = "any_sort", .takes = "x", .infer = tess_nd_infer, .forward = forward, .split = split, .no_gradient = true};

tess_tensor *tess_nd_sort(tess_tensor *x, int dim, bool descending)
{
    if (!tess_nd_are("sort", &x, 1)) return NULL;
    if (dim < 0 || dim >= x->nd->rank || x->nd->dim[dim] > INT32_MAX)
        return tess_nd_wrong("sort", &x, 1, "along dimension %d", dim);
    if (x->nd->at == dim && !(x = tess_nd_join(x))) return NULL;
    if (!(x = tess_nd_widen(x))) return NULL;
    const tess_dims d = tess_nd_dims(x);
    const struct attributes a = {tess_nd_of(TESS_INT, &d, x->nd->at, x->nd->times), dim, descending};
    return tess_nd_node(x->g, &op, &x, 1, &a, sizeof a);
}
