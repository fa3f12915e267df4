/* any_map, any_fold: an expression over tensors, each read in its own way by one index space, and the sum of one over
 * some dimensions of the space. Backward makes, for each operand whose gradient is wanted, the program of its
 * derivative, and puts what that makes where the operand was read: directly where each element was read once, else
 * summed over the dimensions in which it was repeated. */
#include "graph/generic/generic_impl.h"
#include <stdlib.h>
#include <string.h>

struct operand {
    int input; /* of the node; -1: an index */
    tess_nd_reading by;
    const tess_formula *slope; /* of operands and dy, the last; NULL: it has none */
};
struct attributes {
    tess_nd nd;
    tess_nd space;                   /* that is walked: nd itself, or that which is summed to it */
    bool sums;                       /* over the dimensions of the space but for these: */
    int kept, order[TESS_RANK_MOST]; /* in nd's order */
    const tess_formula *formula;
    int operands;
    struct operand operand[TESS_ND_OPERANDS + 1];
    /* Operands that are repeated alike, and the one program of all their derivatives: its sums are made in one pass. */
    struct together {
        int members, of[TESS_FOLD_SUMS], at[TESS_FOLD_SUMS];
        const tess_formula *formula;
    } together;
};

enum { MOST_CONSTANT = 1 << 28 };

static const tess_op op, fold_op;

tess_nd_reading tess_nd_reading_same(int rank)
{
    tess_nd_reading r;
    for (int d = 0; d < TESS_RANK_MOST; d++) r.along[d] = (int8_t)(d < rank ? d : -1), r.first[d] = 0, r.step[d] = 1;
    return r;
}

/* ---- describing ---- */

/* Returns the dimension of the space that goes along dimension k of an operand; -1: none. */
static int goes_along(const tess_nd_reading *r, int rank, int k)
{
    for (int d = 0; d < rank; d++)
        if (r->along[d] == k) return d;
    return -1;
}

/* Each dimension of an operand is read within its bounds, by one of the space at most. */
static bool fits(const tess_nd_operand *o, const tess_dims *space)
{
    bool seen[TESS_RANK_MOST] = {false};
    const int rank = o->t ? o->t->nd->rank : 1;
    for (int d = 0; d < space->rank; d++) {
        const int k = o->by.along[d];
        if (k < 0) continue;
        if (k >= rank || seen[k]) return false;
        seen[k] = true;
    }
    for (int k = 0; k < rank && o->t; k++) {
        const int d = goes_along(&o->by, space->rank, k);
        const int64_t last = o->by.first[k] + (d < 0 ? 0 : (space->dim[d] - 1) * o->by.step[k]);
        if (o->by.first[k] < 0 || o->by.first[k] >= o->t->nd->dim[k] || last < 0 || last >= o->t->nd->dim[k])
            return false;
    }
    return true;
}

/* The rows of an operand are rows of the space: sets where, or returns false. */
static bool rows_of(const tess_nd_operand *o, const tess_dims *space, int *at)
{
    const int k = o->t->nd->at;
    *at = goes_along(&o->by, space->rank, k);
    return *at >= 0 && o->by.first[k] == 0 && o->by.step[k] == 1 && space->dim[*at] == o->t->nd->dim[k];
}

/* Finds the rows of the result, and joins operands that have others. */
static bool find_rows(tess_nd_operand *o, int n, const tess_dims *space, int *at, int64_t *times)
{
    *at = -1, *times = 0;
    for (int k = 0; k < n; k++) {
        int where;
        if (!o[k].t || !tess_has_rows(o[k].t)) continue;
        if (rows_of(&o[k], space, &where) && (*at < 0 || (*at == where && *times == o[k].t->nd->times))) {
            *at = where, *times = o[k].t->nd->times;
            continue;
        }
        o[k].t = tess_nd_join(o[k].t);
        if (!o[k].t) return false;
    }
    return true;
}

/* A space of indices alone is a constant. */
static tess_tensor *constant(tess_graph *g, const tess_formula *f, const tess_nd_operand *o, int n, tess_element e,
                             const tess_dims *space)
{
    const size_t size = (size_t)tess_dims_size(space);
    TESS_FREED int32_t *data = tess_alloc(size * sizeof *data);
    tess_any_map_arg a = {.rank = space->rank, .operands = n, .element = e, .formula = f};
    int64_t by = 1;
    memcpy(a.dim, space->dim, sizeof a.dim);
    for (int d = space->rank - 1; d >= 0; by *= space->dim[d--]) a.out.by[d] = by;
    for (int k = 0; k < n; k++) {
        a.index[k] = true;
        a.in[k].at = o[k].by.first[0];
        for (int d = 0; d < space->rank; d++) a.in[k].by[d] = o[k].by.along[d] == 0 ? o[k].by.step[0] : 0;
    }
    const tess_view view = {data, size * sizeof *data};
    tess_any_map[0].cpu(&(tess_work){.buf = &view, .nbuf = 1, .arg = &a});
    tess_tensor *t = tess_nd_data(g, "constant", e, *space, data);
    return t;
}

/* The largest floats that it is made of are of the graph's dtype: so what a sum made stays in fp32 until it is joined
 * with more. */
static bool is_narrow(const tess_nd_operand *o, int n, const tess_dims *space)
{
    int64_t most[2] = {0, 0};
    for (int k = 0; k < n; k++) {
        int64_t size = 1;
        if (!o[k].t || o[k].t->nd->element != TESS_REAL) continue;
        for (int d = 0; d < space->rank; d++) size *= o[k].by.along[d] < 0 ? 1 : space->dim[d];
        int64_t *of = &most[tess_nd_is_narrow(o[k].t)];
        if (size > *of) *of = size;
    }
    return most[1] > most[0];
}

/* Stores the dimensions of the space that an operand has, in its own order; returns how many they are. */
static int kept_dims(const struct operand *o, int rank, int of_rank, int *order)
{
    int kept = 0;
    for (int j = 0; j < of_rank; j++)
        if (goes_along(&o->by, rank, j) >= 0) order[kept++] = goes_along(&o->by, rank, j);
    return kept;
}

/* Operand k is repeated, and its gradient a sum: of the dimensions that it has. */
static bool is_summed(const struct attributes *a, tess_tensor *const *in, int k, int *order, int *kept)
{
    const struct operand *o = &a->operand[k];
    bool repeated = false;
    if (o->input < 0 || !o->slope) return false;
    for (int d = 0; d < a->space.rank; d++) repeated |= o->by.along[d] < 0 && a->space.dim[d] > 1;
    *kept = kept_dims(o, a->space.rank, in[o->input]->nd->rank, order);
    return repeated;
}

/* The first operands that are repeated alike. */
static void join_sums(tess_graph *g, struct attributes *a, const tess_draft *draft, int result, tess_tensor *const *in,
                      tess_draft *d)
{
    struct together t = {0};
    int order[2][TESS_RANK_MOST], kept[2], slope[TESS_FOLD_SUMS];
    *d = *draft;
    const int dy = tess_draft_load(d, a->operands, TESS_REAL);
    for (int k = 0; k < a->operands && t.members < TESS_FOLD_SUMS; k++) {
        const int one = t.members > 0;
        bool alike = is_summed(a, in, k, order[one], &kept[one]);
        if (alike && one) alike = kept[0] == kept[1] && !memcmp(order[0], order[1], (size_t)kept[0] * sizeof **order);
        for (int j = 0; j < t.members && alike; j++) alike = in[a->operand[t.of[j]].input] != in[a->operand[k].input];
        if (!alike) continue;
        slope[t.members] = tess_draft_derive(d, result, k, dy);
        t.of[t.members++] = k;
    }
    if (t.members < 2 || d->full) return;
    t.formula = tess_draft_finish_all(g->arena, d, slope, t.members, t.at);
    if (t.formula->registers <= TESS_MAP_REGISTERS) a->together = t;
}

static bool derive(tess_graph *g, struct attributes *a, const tess_draft *draft, int result, tess_tensor *const *in)
{
    TESS_FREED tess_draft *d = tess_alloc(sizeof *d);
    bool fine = true;
    a->nd.fixed = true;
    for (int k = 0; k < a->operands && fine && a->nd.element == TESS_REAL; k++) {
        if (a->operand[k].input < 0) continue;
        *d = *draft;
        const int dy = tess_draft_load(d, a->operands, TESS_REAL), slope = tess_draft_derive(d, result, k, dy);
        if (slope < 0) continue;
        a->operand[k].slope = tess_draft_finish(g->arena, d, slope);
        a->nd.fixed = false;
        fine = !d->full && a->operand[k].slope->registers <= TESS_MAP_REGISTERS;
    }
    if (fine) join_sums(g, a, draft, result, in, d);
    return fine && !draft->full && a->formula->registers <= TESS_MAP_REGISTERS;
}

/* Sums over some dimensions, those of a set: what is left is the node's tensor. */
static void sum_over(struct attributes *a, unsigned dims)
{
    tess_dims d = {0};
    int at = -1;
    for (int k = 0; k < a->space.rank; k++) {
        if (dims >> k & 1) continue;
        if (k == a->space.at) at = d.rank;
        a->order[a->kept++] = k;
        d.dim[d.rank++] = a->space.dim[k];
    }
    a->nd = tess_nd_of(TESS_REAL, &d, at, at < 0 ? 0 : a->space.times);
    a->sums = true;
}

static tess_tensor *described(tess_graph *g, const tess_draft *draft, int result, const tess_nd_operand *operand,
                              int operands, tess_dims space, bool sums, unsigned dims)
{
    tess_tensor *in[TESS_ND_OPERANDS] = {NULL};
    tess_nd_operand o[TESS_ND_OPERANDS];
    int inputs = 0, at;
    int64_t times;
    if (!g || g->failed) return NULL;
    if (operands > TESS_ND_OPERANDS || space.rank > TESS_RANK_MOST)
        return tess_nd_wrong("map", in, 0, "%d operands, %d dimensions", operands, space.rank);
    for (int k = 0; k < operands; k++)
        if (operand[k].t) in[inputs++] = operand[k].t;
    if (inputs && !tess_nd_are("map", in, inputs)) return NULL;
    const tess_element e = (tess_element)draft->step[result].element;
    if (sums && (!inputs || e != TESS_REAL)) return tess_nd_wrong("fold", in, inputs, "sums are of floats of tensors");
    for (int k = 0; k < operands; k++) {
        o[k] = operand[k];
        if (!fits(&o[k], &space)) return tess_nd_wrong("map", in, inputs, "one of them is read beyond its bounds");
    }
    struct attributes a = {.formula = tess_draft_finish(g->arena, draft, result), .operands = operands};
    if (!inputs && tess_dims_size(&space) > MOST_CONSTANT)
        return tess_nd_wrong("map", in, 0, "a constant of %lld elements", (long long)tess_dims_size(&space));
    if (!inputs) return constant(g, a.formula, o, operands, e, &space);
    if (!find_rows(o, operands, &space, &at, &times)) return NULL;
    a.nd = tess_nd_of(e, &space, at, times);
    a.nd.narrow = !sums && e == TESS_REAL && at >= 0 && is_narrow(o, operands, &space);
    inputs = 0;
    for (int k = 0; k < operands; k++) {
        a.operand[k] = (struct operand){o[k].t ? inputs : -1, o[k].by, NULL};
        if (o[k].t) in[inputs++] = o[k].t;
    }
    a.space = a.nd;
    if (sums) sum_over(&a, dims);
    if (!derive(g, &a, draft, result, in)) return tess_nd_wrong("map", in, inputs, "the expression is too long");
    return tess_nd_node(g, sums ? &fold_op : &op, in, inputs, &a, sizeof a);
}

tess_tensor *tess_nd_map(tess_graph *g, const tess_draft *draft, int result, const tess_nd_operand *operand,
                         int operands, tess_dims space)
{
    return described(g, draft, result, operand, operands, space, false, 0);
}

tess_tensor *tess_nd_fold(tess_graph *g, const tess_draft *draft, int result, const tess_nd_operand *operand,
                          int operands, tess_dims space, unsigned dims)
{
    return described(g, draft, result, operand, operands, space, true, dims);
}

/* ---- dtypes ---- */

/* Returns the same map with floats of another dtype. */
static tess_tensor *twin(tess_tensor *x, const struct attributes *a, tess_tensor *const *in, int inputs, bool narrow)
{
    for (int k = 0; k < x->g->nodes; k++) { /* it may be there */
        const tess_node *n = x->g->node[k];
        const struct attributes *b = n->attributes;
        if (n->op == &op && n->inputs == inputs && b->nd.narrow == narrow && b->formula == a->formula &&
            !memcmp(n->in, in, (size_t)inputs * sizeof *in))
            return n->out;
    }
    struct attributes as = *a;
    as.nd.narrow = narrow;
    return tess_nd_node(x->g, &op, in, inputs, &as, sizeof as);
}

static tess_tensor *with_floats(tess_tensor *x, bool narrow)
{
    static const tess_fn_step step[] = {{.fn = TESS_FN_load, .of = {0, -1, -1}},
                                        {.fn = TESS_FN_load, .of = {1, -1, -1}}};
    static const tess_formula same = {1, 1, &step[0]}, slope = {1, 1, &step[1]};
    if (!x || x->g->conf.dtype == TESS_F32 || x->nd->element != TESS_REAL || tess_nd_is_narrow(x) == narrow) return x;
    const tess_node *n = x->producer;
    if (n && n->op == &op) return twin(x, n->attributes, n->in, n->inputs, narrow);
    struct attributes a = {.nd = *x->nd, .space = *x->nd, .formula = &same, .operands = 1};
    a.operand[0] = (struct operand){0, tess_nd_reading_same(x->nd->rank), &slope};
    a.nd.fixed = x->nd->fixed;
    return twin(x, &a, &x, 1, narrow);
}

tess_tensor *tess_nd_widen(tess_tensor *x)
{
    return with_floats(x, false);
}

tess_tensor *tess_nd_narrow(tess_tensor *x)
{
    return x && x->kind != TESS_KIND_PARAM && tess_has_rows(x) ? with_floats(x, true) : x;
}

bool tess_nd_factors(tess_tensor *in[2], bool rows)
{
    tess_tensor *of[] = {tess_nd_narrow(in[0]), tess_nd_narrow(in[1])};
    const bool narrow = rows && of[0] && of[1] && tess_nd_is_narrow(of[0]) && tess_nd_is_narrow(of[1]);
    for (int k = 0; k < 2; k++) in[k] = narrow ? of[k] : tess_nd_widen(in[k]);
    return narrow;
}

/* ---- lowering ---- */

/* Where the space of turn i reads operand k, dense in a tile with these strides. */
static tess_strides strides_of(const tess_lower *L, const tess_node *n, int k, int i)
{
    const struct attributes *a = n->attributes;
    const struct operand *o = &a->operand[k];
    const tess_tensor *t = o->input < 0 ? NULL : n->in[o->input];
    const tess_nd_tile tile = t ? tess_nd_tile_of(L, t, i) : (tess_nd_tile){.rank = 1, .dim = {1}, .by = {1}};
    tess_strides s = {.t = tile.t};
    for (int j = 0; j < tile.rank; j++) s.at += o->by.first[j] * tile.by[j];
    for (int d = 0; d < a->space.rank; d++) {
        const int j = o->by.along[d];
        if (j < 0) continue;
        s.by[d] = o->by.step[j] * tile.by[j];
        if (d == a->space.at && !(t && tess_has_rows(t))) s.at += tess_first_sample(L, i) * a->space.times * s.by[d];
    }
    return s;
}

static tess_any_map_arg arg_of(const tess_lower *L, const tess_node *n, int i, const tess_nd_tile *space, tess_use *use,
                               unsigned *uses)
{
    const struct attributes *a = n->attributes;
    tess_any_map_arg m = {
        .rank = a->space.rank, .operands = a->operands, .element = a->nd.element, .formula = a->formula};
    memcpy(m.dim, space->dim, sizeof m.dim);
    for (int k = 0; k < a->operands; k++) {
        m.in[k] = strides_of(L, n, k, i);
        m.index[k] = a->operand[k].input < 0;
        if (!m.index[k]) use[(*uses)++] = tess_nd_read((tess_lower *)L, n, a->operand[k].input, i);
    }
    return m;
}

/* One sum, of what the formula ends with. */
static void emit_sum(tess_lower *L, const tess_any_map_arg *m, const int *order, int kept, tess_dtype t, bool acc,
                     const tess_use *use)
{
    const int at = m->formula->step[m->formula->steps - 1].at;
    const tess_any_fold_arg fold = {.map = *m, .kept = kept, .sums = 1, .sum = {{at, t, acc}}};
    tess_nd_emit_fold(L, &fold, order, use);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_use use[TESS_MAP_OPERANDS + 1];
    unsigned uses = 0;
    bool acc;
    if (i >= tess_nd_turns(L, n)) return;
    const struct attributes *a = n->attributes;
    const tess_nd_tile space = tess_nd_tile_as(L, &a->space, tess_dtype_of(L, n->out), i);
    tess_any_map_arg m = arg_of(L, n, i, &space, use, &uses);
    m.out = tess_strides_of(&space);
    use[uses] = tess_nd_out(L, n, i, &acc);
    if (a->sums)
        emit_sum(L, &m, a->order, a->kept, space.t, acc, use);
    else
        tess_nd_emit_map(L, &m, use);
}

/* How turn i of the space covers an operand's tile. */
struct covering {
    bool once; /* no element is read twice */
    bool all;  /* none is left out */
    bool same; /* it is read as it lies */
};
static struct covering covering_of(const tess_lower *L, const tess_node *n, int k, const tess_nd_tile *space, int i)
{
    const struct attributes *a = n->attributes;
    const struct operand *o = &a->operand[k];
    const tess_nd_tile tile = tess_nd_tile_of(L, n->in[o->input], i);
    const tess_strides s = strides_of(L, n, k, i);
    struct covering c = {true, true, s.at == 0 && tile.size == space->size};
    for (int d = 0; d < space->rank; d++) {
        c.once &= o->by.along[d] >= 0 || space->dim[d] == 1;
        c.same &= space->dim[d] == 1 || s.by[d] == space->by[d];
    }
    for (int j = 0; j < tile.rank; j++) {
        const int d = goes_along(&o->by, space->rank, j);
        c.all &= (d < 0 ? 1 : space->dim[d]) == tile.dim[j];
    }
    return c;
}

/* The map that makes gradients of dy by a program; its output is left open. Stores the buffers of what it reads, and
 * returns how many they are. */
static unsigned slope_of(tess_lower *L, const tess_node *n, const tess_formula *slope, int i, const tess_nd_tile *space,
                         tess_any_map_arg *m, tess_use *use)
{
    const struct attributes *a = n->attributes;
    tess_use all[TESS_MAP_OPERANDS + 1];
    unsigned uses = 0, kept = 0, from = 0;
    const tess_use dy = tess_grad_read(L, n->out, i);
    *m = arg_of(L, n, i, space, all, &uses);
    m->formula = slope;
    m->element = TESS_REAL;
    const tess_nd_tile of = tess_nd_tile_of(L, n->out, i);
    m->in[m->operands] = (tess_strides){.t = of.t};
    for (int d = 0; d < of.rank; d++) m->in[m->operands].by[a->sums ? a->order[d] : d] = of.by[d];
    m->index[m->operands++] = false;
    all[uses] = dy;
    /* Only what the slope reads is used. */
    bool read[TESS_MAP_OPERANDS] = {false};
    for (int s = 0; s < m->formula->steps; s++)
        if (m->formula->step[s].fn == TESS_FN_load) read[m->formula->step[s].of[0]] = true;
    for (int j = 0; j < m->operands; j++) {
        if (m->index[j]) continue;
        if (read[j])
            use[kept++] = all[from];
        else
            m->index[j] = true, memset(&m->in[j], 0, sizeof m->in[j]);
        from++;
    }
    return kept;
}

static void make_slope(tess_lower *L, const tess_node *n, int k, int i, const tess_nd_tile *space, bool all)
{
    const struct operand *o = &((const struct attributes *)n->attributes)->operand[k];
    const tess_formula *slope = o->slope;
    const tess_tensor *t = n->in[o->input];
    tess_any_map_arg m;
    tess_use use[TESS_MAP_OPERANDS + 2];
    const unsigned uses = slope_of(L, n, slope, i, space, &m, use);
    const tess_nd_grad g = tess_nd_grad_begin(L, t, i, !all);
    m.out = tess_strides_as(strides_of(L, n, k, i), tess_grad_dtype(L, t));
    m.acc = g.acc;
    use[uses] = g.use;
    tess_nd_emit_map(L, &m, use);
    tess_nd_grad_end(L, &g);
}

/* Each element was read by several places: their sum, in the order of the operand's dimensions. */
static void sum_slope(tess_lower *L, const tess_node *n, int k, int i, const tess_nd_tile *space, bool all)
{
    const struct attributes *a = n->attributes;
    const struct operand *o = &a->operand[k];
    const tess_tensor *t = n->in[o->input];
    const tess_formula *slope = o->slope;
    int order[TESS_RANK_MOST];
    const int kept = kept_dims(o, space->rank, t->nd->rank, order);
    tess_any_map_arg m;
    tess_use use[TESS_MAP_OPERANDS + 2];
    const unsigned uses = slope_of(L, n, slope, i, space, &m, use);
    if (all) {
        const tess_nd_grad g = tess_nd_grad_begin(L, t, i, false);
        use[uses] = g.use;
        emit_sum(L, &m, order, kept, tess_grad_dtype(L, t), g.acc, use);
        tess_nd_grad_end(L, &g);
        return;
    }
    int64_t dim[TESS_RANK_MOST], size = 1;
    tess_strides from = {0}, to = tess_strides_as(strides_of(L, n, k, i), tess_grad_dtype(L, t)), by = to;
    for (int j = kept - 1; j >= 0; j--) {
        dim[j] = space->dim[order[j]];
        from.by[j] = size;
        to.by[j] = by.by[order[j]];
        size *= dim[j];
    }
    tess_tile *sum = tess_nd_between(L, size, t);
    use[uses] = (tess_use){sum, TESS_W};
    emit_sum(L, &m, order, kept, TESS_F32, false, use);
    const tess_nd_grad g = tess_nd_grad_begin(L, t, i, true);
    tess_nd_emit_copy(L, kept, dim, (tess_use){sum, TESS_R}, from, g.use, to, g.acc);
    tess_nd_grad_end(L, &g);
}

/* The sums of operands that are repeated alike, in one pass; false: they are made one by one. */
static bool sum_slopes(tess_lower *L, const tess_node *n, int i, const tess_nd_tile *space)
{
    const struct attributes *a = n->attributes;
    const struct together *s = &a->together;
    for (int j = 0; j < s->members; j++) {
        const struct covering c = covering_of(L, n, s->of[j], space, i);
        if (c.once || !c.all || !tess_wants_gradient(L, n->in[a->operand[s->of[j]].input])) return false;
    }
    if (!s->members) return false;
    tess_any_fold_arg fold = {.sums = s->members};
    tess_use use[TESS_MAP_OPERANDS + 1 + TESS_FOLD_SUMS];
    tess_nd_grad g[TESS_FOLD_SUMS];
    int order[TESS_RANK_MOST];
    const struct operand *o = &a->operand[s->of[0]];
    const unsigned uses = slope_of(L, n, s->formula, i, space, &fold.map, use);
    fold.kept = kept_dims(o, space->rank, n->in[o->input]->nd->rank, order);
    for (int j = 0; j < s->members; j++) {
        const tess_tensor *t = n->in[a->operand[s->of[j]].input];
        g[j] = tess_nd_grad_begin(L, t, i, false);
        fold.sum[j] = (struct tess_fold_sum){s->at[j], tess_grad_dtype(L, t), g[j].acc};
        use[uses + (unsigned)j] = g[j].use;
    }
    tess_nd_emit_fold(L, &fold, order, use);
    for (int j = 0; j < s->members; j++) tess_nd_grad_end(L, &g[j]);
    return true;
}

static bool is_member(const struct together *s, int k)
{
    for (int j = 0; j < s->members; j++)
        if (s->of[j] == k) return true;
    return false;
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *a = n->attributes;
    if (tess_nd_idle(L, n, i)) return;
    const tess_nd_tile space = tess_nd_tile_as(L, &a->space, tess_dtype_of(L, n->out), i);
    const bool together = sum_slopes(L, n, i, &space);
    for (int k = 0; k < a->operands; k++) {
        const struct operand *o = &a->operand[k];
        if (o->input < 0 || !o->slope || !tess_wants_gradient(L, n->in[o->input])) continue;
        if (together && is_member(&a->together, k)) continue;
        const tess_tensor *t = n->in[o->input];
        const struct covering c = covering_of(L, n, k, &space, i);
        if (!a->sums && c.once && c.all && c.same && tess_formula_is_load(o->slope, a->operands) &&
            t->kind == TESS_KIND_ACTIVATION && tess_has_rows(t) == tess_has_rows(n->out) &&
            tess_dtype_of(L, t) == space.t) {
            tess_grad_pass(L, n->out, t, i);
        } else if (c.once) {
            make_slope(L, n, k, i, &space, c.all);
        } else
            sum_slope(L, n, k, i, &space, c.all);
    }
}

/* ---- sharing out ---- */

/* Returns whether a tensor is not an op's result: each rank has all of it, and reads a part. */
static bool is_given(const tess_tensor *t)
{
    return t->kind == TESS_KIND_INPUT || (t->producer && !t->producer->inputs);
}

/* Operand k's dimension j is read as the space's dimension d. */
static const char *split_operand(const tess_node *n, int k, int j, const tess_split *space, tess_splits *s)
{
    const struct attributes *a = n->attributes;
    const struct operand *o = &a->operand[k];
    const int64_t all = n->in[o->input]->nd->dim[j], first = o->by.first[j], size = a->space.dim[space->dim];
    tess_split *of = &s->of[o->input + 1];
    if (s->has[o->input + 1] == TESS_HAS_SOME && of->runs) return NULL; /* it is what the others follow */
    if (is_given(n->in[o->input])) return space->runs > 1 ? "reads an input along several runs" : NULL;
    if (o->by.step[j] != 1) return "reads in steps";
    s->has[o->input + 1] = TESS_HAS_SOME;
    *of = *space;
    of->dim = j;
    if (all == size) return NULL;
    if (space->runs > 1 || all % size || first % size || all / size > TESS_MOST_BESIDE)
        return "reads a part of what would be shared out";
    of->runs = (int)(all / size);
    for (int r = 0; r < of->runs; r++) of->length[r] = size;
    return NULL;
}

/* What the sums of a space that is split so are. */
static void of_sum(const struct attributes *a, const tess_split *space, tess_splits *s)
{
    s->has[0] = TESS_HAS_SUM;
    for (int k = 0; k < a->kept; k++)
        if (a->order[k] == space->dim) s->has[0] = TESS_HAS_SOME, s->of[0].dim = k;
}

static const char *split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    const struct attributes *a = n->attributes;
    tess_split space = *is;
    if (slot == 0 && a->sums) space.dim = a->order[is->dim];
    for (int k = 0; k < a->operands && slot; k++) {
        const struct operand *o = &a->operand[k];
        if (o->input != slot - 1) continue;
        const int d = goes_along(&o->by, a->space.rank, is->dim);
        const int64_t all = n->in[o->input]->nd->dim[is->dim], size = d < 0 ? 1 : a->space.dim[d];
        int from, runs;
        if (d < 0 || o->by.step[is->dim] != 1) return "reads in steps";
        space.dim = d;
        if (!tess_split_find(is, o->by.first[is->dim], size, &from, &runs)) {
            s->runs = all % size ? 0 : (int)(all / size);
            return "reads a part of what would be shared out";
        }
        space.runs = runs;
        memcpy(space.length, is->length + from, (size_t)runs * sizeof *space.length);
        s->has[slot] = TESS_HAS_SOME, s->of[slot] = *is;
    }
    s->has[0] = TESS_HAS_SOME, s->of[0] = space;
    if (a->sums) of_sum(a, &space, s);
    for (int k = 0; k < a->operands; k++) {
        const struct operand *o = &a->operand[k];
        const int j = o->by.along[space.dim];
        const char *why = NULL;
        if (o->input < 0)
            why = j >= 0 && space.runs > 1 ? "has an index along several runs" : NULL;
        else if (j >= 0)
            why = split_operand(n, k, j, &space, s);
        else if (s->has[o->input + 1] == TESS_HAS_SOME && s->of[o->input + 1].runs)
            why = "reads a tensor in two ways";
        if (why) return why;
    }
    return NULL;
}

/* Elements before the first of an operand that this rank reads. */
static int64_t first_of(const tess_split *of, int64_t first, const tess_portion *share)
{
    int64_t at = 0, own = 0;
    for (int k = 0; k < of->runs && at < first; k++) at += of->length[k], own += tess_portion_of(share, of->length[k]);
    return own;
}

static void keep(tess_node *n, const tess_splits *s, const tess_portion *share)
{
    struct attributes *a = n->attributes;
    tess_split of = s->of[0];
    const tess_split *space = &of;
    if (a->sums && s->has[0] == TESS_HAS_SOME) of.dim = a->order[of.dim];
    a->space.dim[of.dim] = tess_portion_of(share, a->space.dim[of.dim]);
    for (int k = 0; k < a->operands; k++) {
        struct operand *o = &a->operand[k];
        const int j = o->by.along[space->dim];
        if (j < 0) continue;
        if (o->input >= 0 && s->has[o->input + 1] == TESS_HAS_SOME)
            o->by.first[j] = first_of(&s->of[o->input + 1], o->by.first[j], share);
        else
            o->by.first[j] += o->by.step[j] * (space->length[0] / share->units * share->first);
    }
}

#define MAP_OP(called)                                                                                                 \
    {                                                                                                                  \
        .name = called, .takes = "a?, b?, c?, d?, e?",                                                                 \
        .reads = TESS_READS_IN0 | TESS_READS_IN1 | TESS_READS_IN2 | TESS_READS_IN3 | TESS_READS_IN4,                   \
        .infer = tess_nd_infer, .forward = forward, .backward = backward, .split = split, .keep = keep,                \
    }
static const tess_op op = MAP_OP("any_map"), fold_op = MAP_OP("any_fold");

/* ---- joining ---- */

static void join_forward(tess_lower *L, const tess_node *n, int i)
{
    bool acc;
    const tess_nd_tile tile = tess_nd_tile_of(L, n->in[0], i), whole = tess_nd_tile_of(L, n->out, i);
    tess_strides to = tess_strides_of(&whole);
    const tess_nd *rows = n->in[0]->nd;
    to.at = tess_first_sample(L, i) * rows->times * whole.by[rows->at];
    const tess_use in = tess_in(L, n->in[0], i), out = tess_nd_out(L, n, i, &acc);
    tess_nd_emit_copy(L, tile.rank, tile.dim, in, tess_strides_of(&tile), out, to, false);
}

static void join_backward(tess_lower *L, const tess_node *n, int i)
{
    if (tess_nd_idle(L, n, i) || !tess_wants_gradient(L, n->in[0])) return;
    const tess_nd_tile tile = tess_nd_tile_of(L, n->in[0], i), whole = tess_nd_tile_of(L, n->out, i);
    tess_strides from = tess_strides_of(&whole);
    const tess_nd *rows = n->in[0]->nd;
    from.at = tess_first_sample(L, i) * rows->times * whole.by[rows->at];
    const tess_use dy = tess_grad_read(L, n->out, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[0], i, false);
    tess_nd_emit_copy(L, tile.rank, tile.dim, dy, from, g.use, tess_strides_of(&tile), g.acc);
}

static const char *join_split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    (void)slot;
    return tess_split_same(n, is, s);
}

static const tess_op join_op = {.name = "any_join",
                                .takes = "x",
                                .infer = tess_nd_infer,
                                .forward = join_forward,
                                .backward = join_backward,
                                .split = join_split};

tess_tensor *tess_nd_join(tess_tensor *t)
{
    if (!t || !tess_has_rows(t)) return t;
    for (int k = 0; k < t->g->nodes; k++) /* it may be there */
        if (t->g->node[k]->op == &join_op && t->g->node[k]->in[0] == t) return t->g->node[k]->out;
    tess_nd nd = *t->nd;
    nd.at = -1, nd.times = 0, nd.narrow = false;
    return tess_nd_node(t->g, &join_op, &t, 1, &nd, sizeof nd);
}
