/* any_reshape, any_concat, any_pad. A reshape is the same tile: samples stay outermost, or the tensor is joined first.
 * The others copy tiles into one by strides, and their gradients out of it. */
#include "graph/generic/generic_impl.h"
#include <string.h>

/* ---- reshape ---- */

static void reshape_forward(tess_lower *L, const tess_node *n, int i)
{
    const tess_tensor *t = n->in[0];
    bool acc;
    if (i >= tess_nd_turns(L, n)) return;
    if (t->kind != TESS_KIND_PARAM && n->out != L->output) {
        L->value[n->out->id][tess_lower_place(L, n->out, i)] = tess_in(L, t, i).tile;
        return;
    }
    const tess_nd_tile tile = tess_nd_tile_of(L, n->out, i);
    const tess_strides line = {.by = {1}, .t = tess_dtype_of(L, t)};
    tess_nd_emit_copy(L, 1, &tile.size, tess_nd_read(L, n, 0, i), line, tess_nd_out(L, n, i, &acc),
                      tess_strides_as(line, tile.t), false);
}

static void reshape_backward(tess_lower *L, const tess_node *n, int i)
{
    const tess_tensor *t = n->in[0];
    if (tess_nd_idle(L, n, i) || !tess_wants_gradient(L, t)) return;
    if (t->kind != TESS_KIND_PARAM) {
        tess_grad_pass(L, n->out, t, i);
        return;
    }
    const tess_nd_tile tile = tess_nd_tile_of(L, n->out, i);
    const tess_strides line = {.by = {1}};
    const tess_use dy = tess_grad_read(L, n->out, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, t, i, false);
    tess_nd_emit_copy(L, 1, &tile.size, dy, line, g.use, line, g.acc);
    tess_nd_grad_end(L, &g);
}

static const tess_op reshape_op = {.name = "any_reshape",
                                   .takes = "x",
                                   .infer = tess_nd_infer,
                                   .forward = reshape_forward,
                                   .backward = reshape_backward,
                                   .split = tess_split_reshaped};

/* Where rows are in another shape: behind as many elements as before, the samples outermost there too. */
static int rows_in(const tess_nd *x, const tess_dims *d, int64_t batch, int64_t *times)
{
    int64_t before = 1, to = 1;
    for (int k = 0; k < x->at; k++) before *= x->dim[k];
    for (int k = 0; k < d->rank && to <= before; to *= d->dim[k++])
        if (to == before && d->dim[k] % batch == 0 && (d->dim[k] > 1 || batch == 1)) {
            *times = d->dim[k] / batch;
            return k;
        }
    return -1;
}

tess_tensor *tess_nd_reshape(tess_tensor *x, tess_dims d)
{
    if (!tess_nd_are("reshape", &x, 1)) return NULL;
    const tess_dims from = tess_nd_dims(x);
    if (tess_dims_size(&d) != tess_dims_size(&from))
        return tess_nd_wrong("reshape", &x, 1, "into %lld elements", (long long)tess_dims_size(&d));
    int64_t times = 0;
    int at = -1;
    if (tess_has_rows(x)) {
        at = rows_in(x->nd, &d, x->g->batch, &times);
        if (at < 0) x = tess_nd_join(x);
        if (!x) return NULL;
    }
    tess_nd nd = tess_nd_of(x->nd->element, &d, at, times);
    nd.narrow = x->nd->narrow;
    return tess_nd_node(x->g, &reshape_op, &x, 1, &nd, sizeof nd);
}

/* ---- concat ---- */

struct concat {
    tess_nd nd;
    int dim;
};

/* Where input k begins in the output's tile. */
static tess_strides behind(const tess_node *n, int k, const tess_nd_tile *out)
{
    const int d = ((const struct concat *)n->attributes)->dim;
    tess_strides s = tess_strides_of(out);
    for (int j = 0; j < k; j++) s.at += n->in[j]->nd->dim[d] * out->by[d];
    return s;
}

/* The tile of an input in turn i; a whole one beside rows is read from *at on. */
static tess_nd_tile input_tile(const tess_lower *L, const tess_node *n, int k, int i, tess_strides *from)
{
    const tess_tensor *t = n->in[k];
    tess_nd_tile tile = tess_nd_tile_of(L, t, i);
    const int at = n->out->nd->at;
    *from = tess_strides_of(&tile);
    if (tess_has_rows(t) || at < 0) return tile;
    from->at = tess_first_sample(L, i) * n->out->nd->times * tile.by[at];
    tile.dim[at] = tess_nd_tile_of(L, n->out, i).dim[at];
    return tile;
}

static void concat_forward(tess_lower *L, const tess_node *n, int i)
{
    bool acc;
    if (i >= tess_nd_turns(L, n)) return;
    const tess_nd_tile out = tess_nd_tile_of(L, n->out, i);
    tess_use to = tess_nd_out(L, n, i, &acc);
    for (int k = 0; k < n->inputs; k++) {
        tess_strides from;
        const tess_nd_tile tile = input_tile(L, n, k, i, &from);
        tess_nd_emit_copy(L, tile.rank, tile.dim, tess_nd_read(L, n, k, i), from, to, behind(n, k, &out), false);
        to.mode = TESS_RW;
    }
}

static void concat_backward(tess_lower *L, const tess_node *n, int i)
{
    if (tess_nd_idle(L, n, i)) return;
    const tess_nd_tile out = tess_nd_tile_of(L, n->out, i);
    for (int k = 0; k < n->inputs; k++) {
        if (!tess_wants_gradient(L, n->in[k])) continue;
        tess_strides to;
        const tess_nd_tile tile = input_tile(L, n, k, i, &to);
        const tess_use dy = tess_grad_read(L, n->out, i);
        const tess_nd_grad g = tess_nd_grad_begin(L, n->in[k], i, tess_has_rows(n->out) && !tess_has_rows(n->in[k]));
        to.t = tess_grad_dtype(L, n->in[k]);
        tess_nd_emit_copy(L, tile.rank, tile.dim, dy, behind(n, k, &out), g.use, to, g.acc);
        tess_nd_grad_end(L, &g);
    }
}

/* Along its dimension, each input is some of the runs. */
static const char *concat_split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    const int dim = ((const struct concat *)n->attributes)->dim;
    if (is->dim != dim) return tess_split_same(n, is, s);
    int64_t first = 0;
    tess_split *all = &s->of[0];
    *all = (tess_split){.dim = dim};
    for (int k = 0; k < n->inputs; k++) {
        const int64_t size = n->in[k]->nd->dim[dim];
        int from, runs = 1;
        tess_split of = {.dim = dim, .runs = 1, .length = {size}};
        if (slot == k + 1) of = *is;
        if (slot == 0) {
            if (!tess_split_find(is, first, size, &from, &runs))
                return s->runs = n->inputs, "has inputs that are no runs";
            of.runs = runs;
            memcpy(of.length, is->length + from, (size_t)runs * sizeof *of.length);
        }
        if (all->runs + of.runs > TESS_MOST_BESIDE) return "has too many runs";
        memcpy(all->length + all->runs, of.length, (size_t)of.runs * sizeof *of.length);
        all->runs += of.runs;
        s->of[k + 1] = of;
        first += size;
    }
    for (int k = 0; k <= n->inputs; k++) s->has[k] = TESS_HAS_SOME;
    return NULL;
}

static const tess_op concat_op = {.name = "any_concat",
                                  .takes = "a, b?, c?, d?, e?",
                                  .infer = tess_nd_infer,
                                  .forward = concat_forward,
                                  .backward = concat_backward,
                                  .split = concat_split};

static const char *join_shapes(tess_tensor *const *x, int n, int dim, tess_dims *d)
{
    if (dim < 0 || dim >= d->rank) return "there is no such dimension";
    d->dim[dim] = 0;
    for (int k = 0; k < n; k++) {
        if (x[k]->nd->rank != d->rank || x[k]->nd->element != x[0]->nd->element) return "they differ in kind";
        for (int j = 0; j < d->rank; j++)
            if (j != dim && x[k]->nd->dim[j] != d->dim[j]) return "they differ in another dimension";
        d->dim[dim] += x[k]->nd->dim[dim];
    }
    return NULL;
}

tess_tensor *tess_nd_concat(tess_tensor *const *x, int n, int dim)
{
    tess_tensor *in[TESS_ND_OPERANDS];
    if (n < 1 || n > TESS_ND_OPERANDS || !tess_nd_are("concat", x, n)) return NULL;
    tess_dims d = tess_nd_dims(x[0]);
    const char *wrong = join_shapes(x, n, dim, &d);
    if (wrong) return tess_nd_wrong("concat", x, n, "%s", wrong);
    int at = -1;
    int64_t times = 0;
    for (int k = 0; k < n; k++) {
        in[k] = x[k];
        const tess_nd *nd = x[k]->nd;
        if (nd->at < 0) continue;
        if (nd->at != dim && (at < 0 || (at == nd->at && times == nd->times)))
            at = nd->at, times = nd->times;
        else
            in[k] = tess_nd_join(x[k]);
        if (!in[k]) return NULL;
    }
    struct concat a = {tess_nd_of(x[0]->nd->element, &d, at, times), dim};
    a.nd.narrow = at >= 0;
    for (int k = 0; k < n; k++) a.nd.narrow &= !tess_has_rows(in[k]) || in[k]->nd->narrow;
    return tess_nd_node(x[0]->g, &concat_op, in, n, &a, sizeof a);
}

/* ---- pad ---- */

struct pad {
    tess_nd nd;
    const tess_formula *value;
    int64_t pads[TESS_RANK_MOST][3];
};

/* Finds the part of x that is inside the output, and its place: elements [first, first + dim) of each dimension. */
static void inside(const struct pad *a, const tess_nd_tile *x, const tess_nd_tile *out, int64_t *dim,
                   tess_strides *from, tess_strides *to)
{
    *from = tess_strides_of(x);
    *to = tess_strides_of(out);
    for (int d = 0; d < x->rank; d++) {
        const int64_t low = a->pads[d][0], step = a->pads[d][2] + 1;
        const int64_t first = low < 0 ? (-low + step - 1) / step : 0;
        int64_t end = out->dim[d] > low ? (out->dim[d] - low + step - 1) / step : 0;
        if (end > x->dim[d]) end = x->dim[d];
        dim[d] = end > first ? end - first : 0;
        from->at += first * x->by[d];
        to->at += (low + first * step) * out->by[d];
        to->by[d] = step * out->by[d];
    }
}

static bool is_empty(const int64_t *dim, int rank)
{
    for (int d = 0; d < rank; d++)
        if (dim[d] == 0) return true;
    return false;
}

static void pad_forward(tess_lower *L, const tess_node *n, int i)
{
    const struct pad *a = n->attributes;
    int64_t dim[TESS_RANK_MOST];
    tess_strides from, to;
    bool acc;
    if (i >= tess_nd_turns(L, n)) return;
    const tess_nd_tile x = tess_nd_tile_of(L, n->in[0], i), out = tess_nd_tile_of(L, n->out, i);
    tess_use y = tess_nd_out(L, n, i, &acc);
    const tess_any_map_arg fill = {
        .rank = 1, .dim = {out.size}, .out = {.by = {1}, .t = out.t}, .element = a->nd.element, .formula = a->value};
    tess_nd_emit_map(L, &fill, &y);
    y.mode = TESS_RW;
    inside(a, &x, &out, dim, &from, &to);
    if (!is_empty(dim, x.rank)) tess_nd_emit_copy(L, x.rank, dim, tess_nd_read(L, n, 0, i), from, y, to, false);
}

static void pad_backward(tess_lower *L, const tess_node *n, int i)
{
    const struct pad *a = n->attributes;
    int64_t dim[TESS_RANK_MOST];
    tess_strides from, to;
    if (tess_nd_idle(L, n, i) || !tess_wants_gradient(L, n->in[0])) return;
    const tess_nd_tile x = tess_nd_tile_of(L, n->in[0], i), out = tess_nd_tile_of(L, n->out, i);
    inside(a, &x, &out, dim, &from, &to);
    bool part = false;
    for (int d = 0; d < x.rank; d++) part |= dim[d] != x.dim[d];
    const tess_use dy = tess_grad_read(L, n->out, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[0], i, part);
    from.t = tess_grad_dtype(L, n->in[0]);
    if (!is_empty(dim, x.rank)) tess_nd_emit_copy(L, x.rank, dim, dy, to, g.use, from, g.acc);
    tess_nd_grad_end(L, &g);
}

static const char *pad_split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    const int64_t *pads = ((const struct pad *)n->attributes)->pads[is->dim];
    (void)slot;
    return pads[0] || pads[1] || pads[2] ? "pads along what would be shared out" : tess_split_same(n, is, s);
}

static const tess_op pad_op = {.name = "any_pad",
                               .takes = "x",
                               .infer = tess_nd_infer,
                               .forward = pad_forward,
                               .backward = pad_backward,
                               .split = pad_split};

tess_tensor *tess_nd_pad(tess_tensor *x, double value, const int64_t (*pads)[3])
{
    struct pad a = {0};
    if (!tess_nd_are("pad", &x, 1)) return NULL;
    const int at = x->nd->at;
    if (at >= 0 && (pads[at][0] || pads[at][1] || pads[at][2])) x = tess_nd_join(x);
    if (!x) return NULL;
    tess_dims d = tess_nd_dims(x);
    for (int k = 0; k < d.rank; k++) {
        memcpy(a.pads[k], pads[k], sizeof a.pads[k]);
        if (pads[k][2] < 0) return tess_nd_wrong("pad", &x, 1, "a number of elements between others is negative");
        int64_t between;
        if (__builtin_mul_overflow(d.dim[k] - 1, pads[k][2], &between) || between > (int64_t)1 << 40)
            return tess_nd_wrong("pad", &x, 1, "there is too much between elements");
        d.dim[k] += pads[k][0] + pads[k][1] + between;
    }
    tess_draft *draft = tess_arena_get(x->g->arena, sizeof *draft);
    const int v = x->nd->element == TESS_REAL ? tess_draft_real(draft, value)
                                              : tess_draft_whole(draft, (int32_t)value, x->nd->element);
    a.value = tess_draft_finish(x->g->arena, draft, v);
    a.nd = tess_nd_of(x->nd->element, &d, x->nd->at, x->nd->times);
    a.nd.narrow = x->nd->narrow;
    return tess_nd_node(x->g, &pad_op, &x, 1, &a, sizeof a);
}
