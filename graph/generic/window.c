/* any_window: sums, most and least of windows. Samples have windows of one, or they are joined. */
#include "graph/generic/generic_impl.h"

enum { MOST = 1 << 20 };

struct attributes {
    tess_nd nd;
    tess_reduction fn;
    tess_window_dims d;
};

/* It has windows of one element, one for each of x. */
static bool is_free(const tess_window_dims *d, int k)
{
    return d->size[k] == 1 && d->strides[k] == 1 && d->between[k] == 1 && !d->pads[k][0] && !d->pads[k][1];
}

/* The argument of turn i: free dimensions first, but for the last one that x has more than one element along. */
static tess_any_window_arg arg_of(const tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *a = n->attributes;
    const tess_window_dims *d = &a->d;
    const tess_nd_tile x = tess_nd_tile_of(L, n->in[0], i), y = tess_nd_tile_of(L, n->out, i);
    tess_any_window_arg arg = {.rank = x.rank, .fn = a->fn, .element = a->nd.element};
    int order[TESS_RANK_MOST], count = 0, last = x.rank - 1;
    while (last > 0 && x.dim[last] == 1 && y.dim[last] == 1 && d->size[last] == 1) last--;
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; k < x.rank; k++)
            if (k != last && is_free(d, k) == !pass) order[count++] = k;
        if (!pass) arg.lead = count;
    }
    order[count] = last;
    for (int j = 0; j < x.rank; j++) {
        const int k = order[j];
        arg.in[j] = x.dim[k], arg.out[j] = y.dim[k], arg.x[j] = x.by[k], arg.y[j] = y.by[k];
        arg.size[j] = d->size[k], arg.step[j] = d->strides[k], arg.pad[j] = d->pads[k][0];
        arg.between[j] = d->between[k], arg.apart[j] = d->apart[k];
    }
    return arg;
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    bool acc;
    if (i >= tess_nd_turns(L, n)) return;
    const tess_any_window_arg arg = arg_of(L, n, i);
    const tess_use x = tess_nd_read(L, n, 0, i), y = tess_nd_out(L, n, i, &acc);
    TESS_EMIT(L, tess_any_window, tess_arg_copy(L, &arg, sizeof arg), x, y);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    if (tess_nd_idle(L, n, i) || !tess_wants_gradient(L, n->in[0])) return;
    const tess_any_window_arg arg = arg_of(L, n, i);
    const tess_use dy = tess_grad_read(L, n->out, i), x = tess_nd_read(L, n, 0, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[0], i, true);
    TESS_EMIT(L, tess_any_window_backward, tess_arg_copy(L, &arg, sizeof arg), x, dy, g.use);
    tess_nd_grad_end(L, &g);
}

static const char *split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    (void)slot;
    return tess_split_but(n, is, is_free(&((const struct attributes *)n->attributes)->d, is->dim) ? -1 : is->dim, s);
}

static const tess_op op = {.name = "any_window",
                           .takes = "x",
                           .reads = TESS_READS_IN0,
                           .infer = tess_nd_infer,
                           .forward = forward,
                           .backward = backward,
                           .split = split};

/* Returns what is wrong, or NULL and the shape of the result. */
static const char *wrong(const tess_nd *x, const tess_window_dims *d, tess_dims *out)
{
    if (x->rank < 1) return "x has no dimension";
    out->rank = x->rank;
    for (int k = 0; k < x->rank; k++) {
        const int64_t *pad = d->pads[k];
        if (d->size[k] < 1 || d->strides[k] < 1 || d->between[k] < 1 || d->apart[k] < 1 || d->size[k] > MOST ||
            d->strides[k] > MOST || d->between[k] > MOST || d->apart[k] > MOST || pad[0] < -MOST || pad[0] > MOST ||
            pad[1] < -MOST || pad[1] > MOST || x->dim[k] > (int64_t)1 << 40)
            return "a size, stride or dilation is below 1, or something is beyond a million";
        const int64_t left = (x->dim[k] - 1) * d->between[k] + pad[0] + pad[1] - (d->size[k] - 1) * d->apart[k];
        if (left < 0) return "the window is larger than x and its pads";
        out->dim[k] = left / d->strides[k] + 1;
    }
    return NULL;
}

tess_tensor *tess_nd_window(tess_tensor *x, tess_reduction fn, const tess_window_dims *d)
{
    struct attributes a = {.fn = fn, .d = *d};
    tess_dims out = {0};
    if (!tess_nd_are("window", &x, 1)) return NULL;
    const char *why = fn > TESS_REDUCE_MIN ? "it takes sum, max and min" : wrong(x->nd, d, &out);
    if (why) return tess_nd_wrong("window", &x, 1, "%s", why);
    if (tess_has_rows(x) && !is_free(d, x->nd->at) && !(x = tess_nd_join(x))) return NULL;
    if (!(x = tess_nd_widen(x))) return NULL;
    a.nd = tess_nd_of(x->nd->element, &out, x->nd->at, x->nd->times);
    return tess_nd_node(x->g, &op, &x, 1, &a, sizeof a);
}
