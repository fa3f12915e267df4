/* any_reduce: sums and the like over dimensions. A sum over rows is whole: tile after tile adds to it. */
#include "graph/generic/generic_impl.h"
#include <string.h>

struct attributes {
    tess_nd nd;
    tess_reduction fn;
    unsigned dims;
    int kept, order[TESS_RANK_MOST]; /* the dimensions that stay */
};

static void forward(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *a = n->attributes;
    bool acc;
    if (i >= tess_nd_turns(L, n)) return;
    const tess_nd_tile tile = tess_nd_tile_of(L, n->in[0], i);
    const tess_use in = tess_nd_read(L, n, 0, i), out = tess_nd_out(L, n, i, &acc);
    tess_nd_emit_reduce(L, a->fn, n->in[0]->nd->element, &tile, a->order, a->kept, in, out, tess_dtype_of(L, n->out),
                        acc);
}

/* Strides by which the space of x reads what has its kept dimensions, dense. */
static tess_strides kept_strides(const struct attributes *a, const tess_nd_tile *of)
{
    tess_strides s = {.t = of->t};
    for (int k = 0; k < a->kept; k++) s.by[a->order[k]] = of->by[k];
    return s;
}

/* dx = dy where x is the largest, shared among as many as there are: value 2 are x, out and dy shared. */
static void spread(tess_lower *L, const tess_node *n, int i, const tess_nd_tile *x, const tess_nd_tile *y)
{
    const struct attributes *a = n->attributes;
    tess_draft *d = tess_lower_get(L, sizeof *d);
    const int vx = tess_draft_load(d, 0, TESS_REAL), vy = tess_draft_load(d, 1, TESS_REAL);
    const int one = tess_draft_cast(d, tess_draft_add(d, TESS_FN_eq, vx, vy, -1), TESS_REAL);
    const tess_formula *is = tess_draft_finish(L->p->arena, d, one);
    const int part =
        tess_draft_add(d, TESS_FN_div, tess_draft_load(d, 2, TESS_REAL), tess_draft_load(d, 3, TESS_REAL), -1);
    const tess_formula *share = tess_draft_finish(L->p->arena, d, tess_draft_add(d, TESS_FN_mul, one, part, -1));
    const tess_strides at = tess_strides_of(x), kept = kept_strides(a, y);
    tess_any_map_arg m = {.rank = x->rank, .operands = 2, .in = {at, kept, kept, kept}, .formula = is};
    tess_nd_tile found = *x;
    found.t = TESS_F32;
    m.out = tess_strides_of(&found);
    memcpy(m.dim, x->dim, sizeof m.dim);
    const tess_use in = tess_nd_read(L, n, 0, i), out = tess_in(L, n->out, i), dy = tess_grad_read(L, n->out, i);
    tess_tile *equal = tess_nd_between(L, x->size, n->in[0]), *count = tess_nd_between(L, y->size, n->out);
    tess_nd_emit_map(L, &m, (tess_use[]){in, out, {equal, TESS_W}});
    tess_nd_emit_reduce(L, TESS_REDUCE_SUM, TESS_REAL, &found, a->order, a->kept, (tess_use){equal, TESS_R},
                        (tess_use){count, TESS_W}, TESS_F32, false);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[0], i, false);
    m.operands = 4, m.formula = share, m.acc = g.acc;
    m.out.t = tess_grad_dtype(L, n->in[0]);
    tess_nd_emit_map(L, &m, (tess_use[]){in, out, dy, {count, TESS_R}, g.use});
    tess_nd_grad_end(L, &g);
}

/* Reduces what a formula makes of x. */
static tess_use reduced(tess_lower *L, const tess_node *n, int i, const tess_formula *f, tess_reduction fn)
{
    const struct attributes *a = n->attributes;
    const tess_nd_tile y = tess_nd_tile_of(L, n->out, i);
    tess_nd_tile x = tess_nd_tile_of(L, n->in[0], i);
    tess_any_map_arg m = {.rank = x.rank, .operands = 1, .in = {tess_strides_of(&x)}, .formula = f};
    x.t = TESS_F32;
    m.out = tess_strides_of(&x);
    memcpy(m.dim, x.dim, sizeof m.dim);
    tess_tile *each = tess_nd_between(L, x.size, n->in[0]), *all = tess_nd_between(L, y.size, n->out);
    tess_nd_emit_map(L, &m, (tess_use[]){tess_nd_read(L, n, 0, i), {each, TESS_W}});
    tess_nd_emit_reduce(L, fn, TESS_REAL, &x, a->order, a->kept, (tess_use){each, TESS_R}, (tess_use){all, TESS_W},
                        TESS_F32, false);
    return (tess_use){all, TESS_R};
}

/* dx = dy times the product of the others: that of all that are not 0, without x, where none of the others is. */
static void factor(tess_lower *L, const tess_node *n, int i, const tess_nd_tile *x, const tess_nd_tile *y)
{
    tess_draft *d = tess_lower_get(L, sizeof *d);
    const int vx = tess_draft_load(d, 0, TESS_REAL), zero = tess_draft_real(d, 0),
              is = tess_draft_add(d, TESS_FN_eq, vx, zero, -1), one = tess_draft_cast(d, is, TESS_REAL);
    const int rest = tess_draft_add(d, TESS_FN_select, is, tess_draft_real(d, 1), vx);
    const tess_use product = reduced(L, n, i, tess_draft_finish(L->p->arena, d, rest), TESS_REDUCE_PROD),
                   zeros = reduced(L, n, i, tess_draft_finish(L->p->arena, d, one), TESS_REDUCE_SUM);
    const int alone = tess_draft_add(d, TESS_FN_eq, tess_draft_load(d, 2, TESS_REAL), one, -1);
    const int others = tess_draft_add(d, TESS_FN_div, tess_draft_load(d, 1, TESS_REAL), rest, -1);
    const int slope = tess_draft_add(d, TESS_FN_mul, tess_draft_load(d, 3, TESS_REAL), others, -1);
    const tess_strides at = tess_strides_of(x), kept = kept_strides(n->attributes, y),
                       wide = tess_strides_as(kept, TESS_F32);
    tess_any_map_arg m = {.rank = x->rank, .operands = 4, .in = {at, wide, wide, kept}, .out = at};
    m.formula = tess_draft_finish(L->p->arena, d, tess_draft_add(d, TESS_FN_select, alone, slope, zero));
    memcpy(m.dim, x->dim, sizeof m.dim);
    const tess_use in = tess_nd_read(L, n, 0, i), dy = tess_grad_read(L, n->out, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[0], i, false);
    m.acc = g.acc;
    m.out.t = tess_grad_dtype(L, n->in[0]);
    tess_nd_emit_map(L, &m, (tess_use[]){in, product, zeros, dy, g.use});
    tess_nd_grad_end(L, &g);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *a = n->attributes;
    if (tess_nd_idle(L, n, i) || !tess_wants_gradient(L, n->in[0])) return;
    const tess_nd_tile x = tess_nd_tile_of(L, n->in[0], i), y = tess_nd_tile_of(L, n->out, i);
    if (a->fn != TESS_REDUCE_SUM) {
        (a->fn == TESS_REDUCE_PROD ? factor : spread)(L, n, i, &x, &y);
        return;
    }
    const tess_use dy = tess_grad_read(L, n->out, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[0], i, false);
    tess_nd_emit_copy(L, x.rank, x.dim, dy, kept_strides(a, &y), g.use,
                      tess_strides_as(tess_strides_of(&x), tess_grad_dtype(L, n->in[0])), g.acc);
    tess_nd_grad_end(L, &g);
}

static const char *split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    const struct attributes *a = n->attributes;
    tess_split in = *is, out = *is;
    if (slot == 0)
        in.dim = a->order[is->dim];
    else
        for (out.dim = 0; out.dim < a->kept && a->order[out.dim] != is->dim;) out.dim++;
    s->has[1] = TESS_HAS_SOME, s->of[1] = in;
    s->has[0] = out.dim < a->kept ? TESS_HAS_SOME : TESS_HAS_SUM, s->of[0] = out;
    if (s->has[0] == TESS_HAS_SUM && (a->fn != TESS_REDUCE_SUM || a->nd.element != TESS_REAL))
        return "is no sum over what would be shared out";
    return NULL;
}

static const tess_op op = {.name = "any_reduce",
                           .takes = "x",
                           .infer = tess_nd_infer,
                           .forward = forward,
                           .backward = backward,
                           .split = split};
static const tess_op op_prod = {.name = "any_reduce",
                                .takes = "x",
                                .reads = TESS_READS_IN0,
                                .infer = tess_nd_infer,
                                .forward = forward,
                                .backward = backward,
                                .split = split};
static const tess_op op_most = {.name = "any_reduce",
                                .takes = "x",
                                .reads = TESS_READS_IN0 | TESS_READS_OUT,
                                .infer = tess_nd_infer,
                                .forward = forward,
                                .backward = backward,
                                .split = split};

tess_tensor *tess_nd_reduce(tess_tensor *x, tess_reduction fn, unsigned dims)
{
    if (!tess_nd_are("reduce", &x, 1)) return NULL;
    const bool finds = fn >= TESS_REDUCE_ARGMAX, most = fn == TESS_REDUCE_MAX || fn == TESS_REDUCE_MIN;
    if (dims >> x->nd->rank || (finds && (!dims || dims & (dims - 1))))
        return tess_nd_wrong("reduce", &x, 1, "over dimensions %#x", dims);
    if ((fn == TESS_REDUCE_AND || fn == TESS_REDUCE_OR) && x->nd->element == TESS_REAL)
        return tess_nd_wrong("reduce", &x, 1, "and, or take int32 and bool");
    const bool over_rows = tess_has_rows(x) && dims >> x->nd->at & 1;
    if (over_rows && (finds || (fn != TESS_REDUCE_SUM && x->nd->element == TESS_REAL))) {
        x = tess_nd_join(x);
        if (!x) return NULL;
    }
    struct attributes a = {.fn = fn, .dims = dims};
    tess_dims d = {0};
    int at = -1;
    for (int k = 0; k < x->nd->rank; k++) {
        if (dims >> k & 1) continue;
        if (k == x->nd->at) at = d.rank;
        a.order[a.kept++] = k;
        d.dim[d.rank++] = x->nd->dim[k];
    }
    a.nd = tess_nd_of(finds ? TESS_INT : x->nd->element, &d, at, at < 0 ? 0 : x->nd->times);
    return tess_nd_node(x->g, most ? &op_most : fn == TESS_REDUCE_PROD ? &op_prod : &op, &x, 1, &a, sizeof a);
}
