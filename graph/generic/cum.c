/* any_cum: sums and the like of what stands up to each place. The gradient of a sum is one that goes the other way. */
#include "graph/generic/generic_impl.h"

struct attributes {
    tess_nd nd;
    tess_cumulation fn;
    int dim;
    bool reverse;
};

static tess_any_cum_arg arg_of(const tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *a = n->attributes;
    const tess_nd_tile x = tess_nd_tile_of(L, n->in[0], i);
    const int64_t size = x.dim[a->dim], inner = x.by[a->dim];
    return (tess_any_cum_arg){.outer = x.size / size / inner,
                              .n = size,
                              .inner = inner,
                              .fn = a->fn,
                              .element = a->nd.element,
                              .reverse = a->reverse};
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    bool acc;
    if (i >= tess_nd_turns(L, n)) return;
    const tess_any_cum_arg arg = arg_of(L, n, i);
    const tess_use x = tess_nd_read(L, n, 0, i), y = tess_nd_out(L, n, i, &acc);
    TESS_EMIT(L, tess_any_cum, tess_arg_copy(L, &arg, sizeof arg), x, y);
}

static void sum_backward(tess_lower *L, const tess_node *n, int i)
{
    if (tess_nd_idle(L, n, i) || !tess_wants_gradient(L, n->in[0])) return;
    tess_any_cum_arg arg = arg_of(L, n, i);
    const tess_use dy = tess_grad_read(L, n->out, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[0], i, false);
    arg.reverse = !arg.reverse, arg.acc = g.acc;
    TESS_EMIT(L, tess_any_cum, tess_arg_copy(L, &arg, sizeof arg), dy, g.use);
    tess_nd_grad_end(L, &g);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    if (tess_nd_idle(L, n, i) || !tess_wants_gradient(L, n->in[0])) return;
    tess_any_cum_arg arg = arg_of(L, n, i);
    const tess_use dy = tess_grad_read(L, n->out, i), x = tess_nd_read(L, n, 0, i), y = tess_in(L, n->out, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[0], i, false);
    arg.acc = g.acc;
    TESS_EMIT(L, tess_any_cum_backward, tess_arg_copy(L, &arg, sizeof arg), x, y, dy, g.use);
    tess_nd_grad_end(L, &g);
}

static const char *split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    (void)slot;
    return tess_split_but(n, is, ((const struct attributes *)n->attributes)->dim, s);
}

static const tess_op op_sum = {.name = "any_cum",
                               .takes = "x",
                               .infer = tess_nd_infer,
                               .forward = forward,
                               .split = split,
                               .backward = sum_backward};
static const tess_op op = {.name = "any_cum",
                           .takes = "x",
                           .reads = TESS_READS_IN0 | TESS_READS_OUT,
                           .infer = tess_nd_infer,
                           .forward = forward,
                           .backward = backward};

tess_tensor *tess_nd_cum(tess_tensor *x, tess_cumulation fn, int dim, bool reverse)
{
    if (!tess_nd_are("cum", &x, 1)) return NULL;
    if (dim < 0 || dim >= x->nd->rank) return tess_nd_wrong("cum", &x, 1, "along dimension %d", dim);
    if (x->nd->element == TESS_BOOL || (fn == TESS_CUM_LOGSUMEXP && x->nd->element != TESS_REAL))
        return tess_nd_wrong("cum", &x, 1, "it takes float32 and, but for logsumexp, int32");
    if (x->nd->at == dim && !(x = tess_nd_join(x))) return NULL;
    if (!(x = tess_nd_widen(x))) return NULL;
    const tess_dims d = tess_nd_dims(x);
    const struct attributes a = {tess_nd_of(x->nd->element, &d, x->nd->at, x->nd->times), fn, dim, reverse};
    return tess_nd_node(x->g, fn == TESS_CUM_SUM ? &op_sum : &op, &x, 1, &a, sizeof a);
}
