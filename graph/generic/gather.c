/* any_gather, any_scatter: slices of a tensor by indices. The gradient of the one that gathers is scattered, that of
 * the one that scatters sums is gathered, and of others what any_scatter_back makes. Rows may come with the indices (a
 * table that is whole), with both (batch dimensions), or with x alone, along a dimension that slices have whole. */
#include "graph/generic/generic_impl.h"
#include <string.h>

struct attributes {
    tess_nd nd;
    tess_gather_dims d;
    tess_scattering fn;
};
enum { X, INDICES, UPDATES };

static bool holds(const int *list, int n, int d)
{
    for (int k = 0; k < n; k++)
        if (list[k] == d) return true;
    return false;
}

/* Dimensions of x that slices have, in order: the j-th is the result's dimension offset[j]. */
static int slice_dims(const tess_gather_dims *d, int rank, int *of)
{
    int n = 0;
    for (int k = 0; k < rank; k++)
        if (!holds(d->collapsed, d->collapses, k) && !holds(d->batch[0], d->batches, k)) of[n++] = k;
    return n;
}

/* Dimensions of y that places have, in the order of the indices'. */
static int place_dims(const tess_gather_dims *d, int rank, int *of)
{
    int n = 0;
    for (int k = 0; k < rank; k++)
        if (!holds(d->offset, d->offsets, k)) of[n++] = k;
    return n;
}

/* ---- lowering ---- */

/* The task's argument: x is a tensor like the node's first input, y like what is gathered. */
static tess_any_gather_arg *arg_of(tess_lower *L, const tess_node *n, const tess_tensor *x, const tess_tensor *y, int i)
{
    const struct attributes *at = n->attributes;
    const tess_gather_dims *d = &at->d;
    const tess_nd_tile tx = tess_nd_tile_of(L, x, i), ty = tess_nd_tile_of(L, y, i),
                       ti = tess_nd_tile_of(L, n->in[INDICES], i);
    tess_any_gather_arg *a = TESS_ARG(L, tess_any_gather_arg, .clip = d->clip, .element = x->nd->element, .fn = at->fn);
    int slices[TESS_RANK_MOST], places[TESS_RANK_MOST];
    const int over = slice_dims(d, x->nd->rank, slices);
    a->places = place_dims(d, y->nd->rank, places);
    for (int k = 0; k < a->places; k++) {
        a->dim[k] = ty.dim[places[k]];
        a->y[k] = ty.by[places[k]];
        a->index[k] = ti.by[k];
        for (int j = 0; j < d->batches; j++)
            if (d->batch[1][j] == k) a->x[k] = tx.by[d->batch[0][j]];
    }
    a->rank = a->places;
    for (int k = 0; k < over; k++) {
        a->dim[a->rank] = ty.dim[d->offset[k]];
        a->x[a->rank] = tx.by[slices[k]];
        a->y[a->rank++] = ty.by[d->offset[k]];
    }
    a->along = d->starts;
    a->index_by = 1;
    for (int k = 0; k < d->starts; k++) {
        a->step[k] = tx.by[d->start[k]];
        a->most[k] = tx.dim[d->start[k]] - 1;
        for (int j = 0; j < over; j++)
            if (slices[j] == d->start[k]) a->most[k] = tx.dim[d->start[k]] - ty.dim[d->offset[j]];
    }
    if (a->element == TESS_REAL)
        a->fill.real = (float)d->fill;
    else
        a->fill.whole = (int32_t)d->fill;
    return a;
}

static void gather_forward(tess_lower *L, const tess_node *n, int i)
{
    bool acc;
    if (i >= tess_nd_turns(L, n)) return;
    const tess_use x = tess_nd_read(L, n, X, i), at = tess_nd_read(L, n, INDICES, i), y = tess_nd_out(L, n, i, &acc);
    TESS_EMIT(L, tess_any_gather, arg_of(L, n, n->in[X], n->out, i), x, at, y);
}

static void gather_backward(tess_lower *L, const tess_node *n, int i)
{
    if (tess_nd_idle(L, n, i) || !tess_wants_gradient(L, n->in[X])) return;
    const tess_use dy = tess_grad_read(L, n->out, i), at = tess_nd_read(L, n, INDICES, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[X], i, true);
    tess_any_gather_arg *a = arg_of(L, n, n->in[X], n->out, i);
    a->fn = TESS_SCATTER_ADD;
    TESS_EMIT(L, tess_any_scatter, a, g.use, at, dy);
    tess_nd_grad_end(L, &g);
}

/* Along a dimension that slices have whole. */
static const char *gather_split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    const tess_gather_dims *d = &((const struct attributes *)n->attributes)->d;
    int slices[TESS_RANK_MOST];
    const int over = slice_dims(d, n->in[X]->nd->rank, slices);
    for (int k = 0; k < over && slot < 2; k++) {
        if (is->dim != (slot ? slices[k] : d->offset[k]) || holds(d->start, d->starts, slices[k])) continue;
        s->has[0] = s->has[1] = TESS_HAS_SOME;
        s->of[0] = s->of[1] = *is;
        s->of[0].dim = d->offset[k], s->of[1].dim = slices[k];
        return NULL;
    }
    return "picks along what would be shared out";
}

static const tess_op gather_op = {.name = "any_gather",
                                  .takes = "x, indices",
                                  .reads = TESS_READS_IN1,
                                  .infer = tess_nd_infer,
                                  .forward = gather_forward,
                                  .backward = gather_backward,
                                  .split = gather_split};

static void scatter_forward(tess_lower *L, const tess_node *n, int i)
{
    bool acc;
    if (i >= tess_nd_turns(L, n)) return;
    const tess_nd_tile tile = tess_nd_tile_of(L, n->out, i);
    const tess_strides line = {.by = {1}};
    const tess_use x = tess_nd_read(L, n, X, i);
    tess_use out = tess_nd_out(L, n, i, &acc);
    tess_nd_emit_copy(L, 1, &tile.size, x, line, out, line, false);
    out.mode = TESS_RW;
    const tess_use at = tess_nd_read(L, n, INDICES, i), y = tess_nd_read(L, n, UPDATES, i);
    TESS_EMIT(L, tess_any_scatter, arg_of(L, n, n->out, n->in[UPDATES], i), out, at, y);
}

static void scatter_backward(tess_lower *L, const tess_node *n, int i)
{
    if (tess_nd_idle(L, n, i)) return;
    const tess_use dy = tess_grad_read(L, n->out, i);
    const tess_nd_tile tile = tess_nd_tile_of(L, n->out, i);
    const tess_strides line = {.by = {1}};
    if (tess_wants_gradient(L, n->in[UPDATES])) {
        const tess_use at = tess_nd_read(L, n, INDICES, i);
        const tess_nd_grad g = tess_nd_grad_begin(L, n->in[UPDATES], i, false);
        tess_any_gather_arg *a = arg_of(L, n, n->out, n->in[UPDATES], i);
        a->acc = g.acc;
        a->fill.real = 0; /* what was dropped has no gradient */
        TESS_EMIT(L, tess_any_gather, a, dy, at, g.use);
        tess_nd_grad_end(L, &g);
    }
    if (!tess_wants_gradient(L, n->in[X])) return;
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[X], i, false);
    tess_nd_emit_copy(L, 1, &tile.size, dy, line, g.use, line, g.acc);
    tess_nd_grad_end(L, &g);
}

static const tess_op scatter_op = {.name = "any_scatter",
                                   .takes = "x, indices, updates",
                                   .reads = TESS_READS_IN1,
                                   .infer = tess_nd_infer,
                                   .forward = scatter_forward,
                                   .backward = scatter_backward};
/* ---- the gradients of those that do not add ---- */

static const tess_strides line = {.by = {1}};

/* A pass over the updates; `d` is like x, `with` where there is one, `out` where something is written. */
static void pass(tess_lower *L, const tess_node *n, int i, tess_scatter_way way, tess_tile *d, const tess_use *with,
                 const tess_use *out, bool acc)
{
    tess_any_scatter_back_arg a = {*arg_of(L, n, n->out, n->in[UPDATES], i), way};
    tess_use use[5] = {{d, TESS_RW}, tess_nd_read(L, n, INDICES, i)};
    unsigned uses = 2;
    a.at.acc = acc;
    if (way != TESS_BACK_SET) use[uses++] = tess_nd_read(L, n, UPDATES, i);
    if (with) use[uses++] = *with;
    if (out) use[uses++] = *out;
    tess_emit(L, tess_any_scatter_back, tess_arg_copy(L, &a, sizeof a), use, uses);
}

/* Emits to [+]= what a formula makes of tensors like x, element by element. */
static void emit_each(tess_lower *L, int64_t size, tess_draft *d, int result, const tess_use *in, int operands,
                      tess_use to, bool acc)
{
    tess_any_map_arg m = {.rank = 1, .dim = {size}, .operands = operands, .out = line, .acc = acc};
    tess_use use[TESS_MAP_OPERANDS + 1];
    for (int k = 0; k < operands; k++) m.in[k] = line, use[k] = in[k];
    m.formula = tess_draft_finish(L->p->arena, d, result);
    use[operands] = to;
    tess_nd_emit_map(L, &m, use);
}

static tess_tile *copy_of(tess_lower *L, const tess_node *n, int64_t size, tess_use from)
{
    tess_tile *t = tess_nd_between(L, size, n->out);
    tess_nd_emit_copy(L, 1, &size, from, line, (tess_use){t, TESS_W}, line, false);
    return t;
}

/* dy shared among x and the updates that are the most. */
static tess_tile *shares(tess_lower *L, const tess_node *n, int i, int64_t size, const tess_use *y)
{
    tess_tile *count = tess_nd_between(L, size, n->out), *d = tess_nd_between(L, size, n->out);
    tess_draft *f = tess_lower_get(L, sizeof *f);
    const int a = tess_draft_load(f, 0, TESS_REAL), b = tess_draft_load(f, 1, TESS_REAL),
              same = tess_draft_cast(f, tess_draft_add(f, TESS_FN_eq, a, b, -1), TESS_REAL);
    emit_each(L, size, f, same, (tess_use[]){tess_nd_read(L, n, X, i), *y}, 2, (tess_use){count, TESS_W}, false);
    pass(L, n, i, TESS_BACK_COUNT, count, y, NULL, false);
    emit_each(L, size, f, tess_draft_add(f, TESS_FN_div, a, b, -1),
              (tess_use[]){tess_grad_read(L, n->out, i), {count, TESS_R}}, 2, (tess_use){d, TESS_W}, false);
    return d;
}

/* x's own part of what is left: all of it, or where it is the most. */
static void leave(tess_lower *L, const tess_node *n, int i, int64_t size, tess_tile *d, const tess_use *y)
{
    tess_draft *f = tess_lower_get(L, sizeof *f);
    int left = tess_draft_load(f, 0, TESS_REAL);
    if (y)
        left = tess_draft_add(
            f, TESS_FN_select,
            tess_draft_add(f, TESS_FN_eq, tess_draft_load(f, 1, TESS_REAL), tess_draft_load(f, 2, TESS_REAL), -1), left,
            tess_draft_real(f, 0));
    tess_use in[3] = {{d, TESS_R}};
    if (y) in[1] = tess_nd_read(L, n, X, i), in[2] = *y;
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[X], i, false);
    emit_each(L, size, f, left, in, y ? 3 : 1, g.use, g.acc);
    tess_nd_grad_end(L, &g);
}

static void other_backward(tess_lower *L, const tess_node *n, int i)
{
    const tess_scattering fn = ((const struct attributes *)n->attributes)->fn;
    const bool most = fn == TESS_SCATTER_MAX || fn == TESS_SCATTER_MIN;
    if (tess_nd_idle(L, n, i)) return;
    const int64_t size = tess_nd_tile_of(L, n->out, i).size, updates = tess_nd_tile_of(L, n->in[UPDATES], i).size;
    tess_use y = {0}, with = {0};
    if (most) y = with = tess_in(L, n->out, i);
    if (fn == TESS_SCATTER_MUL) {
        tess_tile *before = tess_nd_between(L, updates, n->in[UPDATES]);
        pass(L, n, i, TESS_BACK_TRACE, copy_of(L, n, size, tess_nd_read(L, n, X, i)), NULL, &(tess_use){before, TESS_W},
             false);
        with = (tess_use){before, TESS_R};
    }
    tess_tile *d = most ? shares(L, n, i, size, &y) : copy_of(L, n, size, tess_grad_read(L, n->out, i));
    const bool wants = tess_wants_gradient(L, n->in[UPDATES]);
    tess_nd_grad g = {.use = {NULL, TESS_W}};
    if (wants)
        g = tess_nd_grad_begin(L, n->in[UPDATES], i, false);
    else
        g.use.tile = tess_nd_between(L, updates, n->in[UPDATES]);
    pass(L, n, i,
         fn == TESS_SCATTER_SET ? TESS_BACK_SET
         : most                 ? TESS_BACK_MOST
                                : TESS_BACK_MUL,
         d, fn == TESS_SCATTER_SET ? NULL : &with, &g.use, g.acc);
    if (wants) tess_nd_grad_end(L, &g);
    if (tess_wants_gradient(L, n->in[X])) leave(L, n, i, size, d, most ? &y : NULL);
}

#define OTHER(name_of, what)                                                                                           \
    static const tess_op name_of = {.name = "any_scatter",                                                             \
                                    .takes = "x, indices, updates",                                                    \
                                    .reads = what,                                                                     \
                                    .infer = tess_nd_infer,                                                            \
                                    .forward = scatter_forward,                                                        \
                                    .backward = other_backward}
OTHER(set_op, TESS_READS_IN1);
OTHER(mul_op, TESS_READS_IN0 | TESS_READS_IN1 | TESS_READS_IN2);
OTHER(most_op, TESS_READS_IN0 | TESS_READS_IN1 | TESS_READS_IN2 | TESS_READS_OUT);
static const tess_op *const scatter_ops[] = {[TESS_SCATTER_SET] = &set_op,
                                             [TESS_SCATTER_ADD] = &scatter_op,
                                             [TESS_SCATTER_MUL] = &mul_op,
                                             [TESS_SCATTER_MIN] = &most_op,
                                             [TESS_SCATTER_MAX] = &most_op};

/* ---- describing ---- */

static bool lists_fit(const tess_gather_dims *d, int x, int indices, int y)
{
    const struct {
        const int *list;
        int n, below;
    } list[] = {{d->offset, d->offsets, y},
                {d->collapsed, d->collapses, x},
                {d->start, d->starts, x},
                {d->batch[0], d->batches, x},
                {d->batch[1], d->batches, indices - 1}};
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        if (list[k].n < 0 || list[k].n > TESS_RANK_MOST) return false;
        for (int j = 0; j < list[k].n; j++)
            if (list[k].list[j] < 0 || list[k].list[j] >= list[k].below || holds(list[k].list, j, list[k].list[j]))
                return false;
    }
    return true;
}

/* Returns what is wrong with x, indices and the shape of what is gathered, or NULL. */
static const char *wrong(const tess_nd *x, const tess_nd *indices, int y, const tess_gather_dims *d)
{
    int slices[TESS_RANK_MOST];
    if (indices->element != TESS_INT) return "indices are int32";
    if (indices->rank < 1 || y > TESS_RANK_MOST || !lists_fit(d, x->rank, indices->rank, y))
        return "its lists of dimensions do not fit";
    if (indices->dim[indices->rank - 1] != d->starts) return "an index vector has another length than `start`";
    if (slice_dims(d, x->rank, slices) != d->offsets) return "`offset` and `collapsed` do not go with the rank";
    for (int k = 0; k < d->batches; k++)
        if (x->dim[d->batch[0][k]] != indices->dim[d->batch[1][k]]) return "batch dimensions differ";
    return NULL;
}

/* The shape of what is gathered. */
static const char *shape_of(const tess_nd *x, const tess_nd *indices, const tess_gather_dims *d, tess_dims *out)
{
    int slices[TESS_RANK_MOST], place = 0;
    out->rank = indices->rank - 1 + d->offsets;
    const char *why = wrong(x, indices, out->rank, d);
    if (why) return why;
    slice_dims(d, x->rank, slices);
    for (int k = 0; k < x->rank; k++) {
        const bool one = holds(d->collapsed, d->collapses, k) || holds(d->batch[0], d->batches, k);
        if (d->sizes[k] < 1 || d->sizes[k] > x->dim[k] || (one && d->sizes[k] != 1)) return "its sizes do not fit";
        if (!holds(d->start, d->starts, k) && !holds(d->batch[0], d->batches, k) && !one && d->sizes[k] != x->dim[k] &&
            d->sizes[k] < 1)
            return "its sizes do not fit";
    }
    for (int k = 0; k < out->rank; k++) out->dim[k] = -1;
    for (int k = 0; k < d->offsets; k++) out->dim[d->offset[k]] = d->sizes[slices[k]];
    for (int k = 0; k < out->rank; k++)
        if (out->dim[k] < 0) out->dim[k] = indices->dim[place++];
    return NULL;
}

/* Which dimension of y has the rows of the indices, or of x; -1: none can. */
static int rows_of_indices(const tess_tensor *t, const tess_gather_dims *d, int y)
{
    int places[TESS_RANK_MOST];
    const int n = place_dims(d, y, places);
    return t->nd->at < n ? places[t->nd->at] : -1;
}
static int rows_of_x(const tess_tensor *x, const tess_gather_dims *d, int64_t size)
{
    int slices[TESS_RANK_MOST];
    const int n = slice_dims(d, x->nd->rank, slices);
    if (holds(d->start, d->starts, x->nd->at) || size != x->nd->dim[x->nd->at]) return -1;
    for (int k = 0; k < n; k++)
        if (slices[k] == x->nd->at) return d->offset[k];
    return -1;
}

/* Both have rows: in dimensions that go together. */
static bool go_together(const tess_tensor *x, const tess_tensor *indices, const tess_gather_dims *d)
{
    for (int k = 0; k < d->batches; k++)
        if (d->batch[0][k] == x->nd->at && d->batch[1][k] == indices->nd->at) return x->nd->times == indices->nd->times;
    return false;
}

tess_tensor *tess_nd_gather(tess_tensor *x, tess_tensor *indices, const tess_gather_dims *d)
{
    tess_tensor *in[] = {x, indices};
    tess_dims out = {0};
    int at = -1;
    int64_t times = 0;
    if (!tess_nd_are("gather", in, 2)) return NULL;
    const char *why = shape_of(x->nd, indices->nd, d, &out);
    if (why) return tess_nd_wrong("gather", in, 2, "%s", why);
    const bool batched = holds(d->batch[1], d->batches, tess_has_rows(indices) ? indices->nd->at : -1);
    if (tess_has_rows(x) && tess_has_rows(indices) && go_together(x, indices, d)) {
        at = rows_of_indices(indices, d, out.rank), times = indices->nd->times;
    } else if (tess_has_rows(x) && !tess_has_rows(indices) && rows_of_x(x, d, d->sizes[x->nd->at]) >= 0) {
        at = rows_of_x(x, d, d->sizes[x->nd->at]), times = x->nd->times;
    } else {
        in[X] = tess_nd_join(x);
        if (tess_has_rows(indices) && batched) in[INDICES] = tess_nd_join(indices);
        if (!in[X] || !in[INDICES]) return NULL;
        if (tess_has_rows(in[INDICES])) at = rows_of_indices(indices, d, out.rank), times = indices->nd->times;
    }
    if (!(in[X] = tess_nd_widen(in[X]))) return NULL;
    struct attributes a = {tess_nd_of(x->nd->element, &out, at, at < 0 ? 0 : times), *d, TESS_SCATTER_ADD};
    return tess_nd_node(x->g, &gather_op, in, 2, &a, sizeof a);
}

tess_tensor *tess_nd_scatter(tess_tensor *x, tess_tensor *indices, tess_tensor *updates, const tess_gather_dims *d,
                             tess_scattering fn)
{
    tess_tensor *in[] = {x, indices, updates};
    if (!tess_nd_are("scatter", in, 3)) return NULL;
    const char *why = wrong(x->nd, indices->nd, updates->nd->rank, d);
    int slices[TESS_RANK_MOST], places[TESS_RANK_MOST];
    if (!why && updates->nd->element != x->nd->element) why = "x and the updates have different dtypes";
    if (!why && updates->nd->rank != indices->nd->rank - 1 + d->offsets) why = "the updates have another rank";
    if (why) return tess_nd_wrong("scatter", in, 3, "%s", why);
    const int over = slice_dims(d, x->nd->rank, slices), n = place_dims(d, updates->nd->rank, places);
    for (int k = 0; k < over; k++)
        if (updates->nd->dim[d->offset[k]] > x->nd->dim[slices[k]])
            return tess_nd_wrong("scatter", in, 3, "a slice is larger than x");
    for (int k = 0; k < n; k++)
        if (updates->nd->dim[places[k]] != indices->nd->dim[k])
            return tess_nd_wrong("scatter", in, 3, "the updates have other places than the indices");
    const bool together = tess_has_rows(x) && tess_has_rows(indices) && tess_has_rows(updates) &&
                          go_together(x, indices, d) &&
                          updates->nd->at == rows_of_indices(indices, d, updates->nd->rank);
    for (int k = 0; k < 3; k++)
        if (!(in[k] = tess_nd_widen(together ? in[k] : tess_nd_join(in[k])))) return NULL;
    const tess_dims shape = tess_nd_dims(x);
    struct attributes a = {tess_nd_of(x->nd->element, &shape, in[0]->nd->at, in[0]->nd->times), *d, fn};
    return tess_nd_node(x->g, scatter_ops[fn], in, 3, &a, sizeof a);
}
