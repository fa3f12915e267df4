/* any_conv: convolutions. One reads patches of a large tensor and makes a small one; where x is dilated, it is the
 * small one, and the result is large: what is then computed is the gradient of a convolution by its input, and no zeros
 * are multiplied. So forward and both gradients are three tasks in either case. */
#include "graph/generic/generic_impl.h"
#include <string.h>

enum { SPACE = TESS_CONV_SPACE, SIDES = 2 + SPACE, MOST = 1 << 20 };
enum { SAMPLES, CHANNELS };
enum { LARGE, WEIGHT, SMALL }; /* the tiles of a task; it writes one of them */

struct attributes {
    tess_nd nd;
    bool up; /* the result is the large one */
    tess_any_conv_arg arg;
    int large[SIDES], w[SIDES], small[SIDES]; /* dimensions of tensors; -1: there is none */
};

/* ---- lowering ---- */

static void strides(const int *of, const tess_nd_tile *t, int64_t *by)
{
    for (int k = 0; k < SIDES; k++) by[k] = of[k] < 0 ? 0 : t->by[of[k]];
}

/* The argument of turn i. */
static tess_any_conv_arg arg_of(const tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *a = n->attributes;
    const tess_nd_tile in = tess_nd_tile_of(L, n->in[0], i), out = tess_nd_tile_of(L, n->out, i),
                       w = tess_nd_tile_of(L, n->in[1], i);
    tess_any_conv_arg arg = a->arg;
    arg.samples = (a->up ? in : out).dim[a->small[SAMPLES]];
    strides(a->large, a->up ? &out : &in, arg.x);
    strides(a->small, a->up ? &in : &out, arg.y);
    strides(a->w, &w, arg.w);
    return arg;
}

static void emit(tess_lower *L, tess_dtype in, const tess_any_conv_arg *arg, int written, const tess_use use_of[3])
{
    tess_codelet *const cl[] = {tess_any_conv_input, tess_any_conv_weight, tess_any_conv};
    const size_t scratch = tess_any_conv_scratch(arg, written, in);
    tess_use use[4] = {use_of[0], use_of[1], use_of[2]};
    if (scratch) use[3] = tess_scratch_use(L, scratch);
    tess_emit(L, &cl[written][in], tess_arg_copy(L, arg, sizeof *arg), use, scratch ? 4 : 3);
}

/* Of the large one, whose patches add up in fp32: those of 16 bits are rounded behind it. */
static void emit_large(tess_lower *L, tess_dtype in, const tess_any_conv_arg *arg, const tess_tensor *t, int i,
                       tess_use large, tess_use w, tess_use small)
{
    const tess_nd_tile tile = tess_nd_tile_of(L, t, i);
    const tess_dtype to = tess_grad_dtype(L, t);
    const tess_strides line = {.by = {1}};
    tess_any_conv_arg sum = *arg;
    sum.to = TESS_F32;
    if (to == TESS_F32) {
        emit(L, in, &sum, LARGE, (tess_use[]){large, w, small});
        return;
    }
    tess_tile *made = tess_nd_between(L, tile.size, t);
    sum.acc = false;
    emit(L, in, &sum, LARGE, (tess_use[]){{made, TESS_W}, w, small});
    tess_nd_emit_copy(L, 1, &tile.size, (tess_use){made, TESS_R}, line, large, tess_strides_as(line, to), arg->acc);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *a = n->attributes;
    const tess_dtype in = tess_dtype_of(L, n->in[0]);
    if (i >= tess_nd_turns(L, n)) return;
    tess_any_conv_arg arg = arg_of(L, n, i);
    arg.to = tess_dtype_of(L, n->out);
    const tess_use x = tess_nd_read(L, n, 0, i), w = tess_nd_read(L, n, 1, i), y = tess_nd_out(L, n, i, &arg.acc);
    if (a->up)
        emit_large(L, in, &arg, n->out, i, y, w, x);
    else
        emit(L, in, &arg, SMALL, (tess_use[]){x, w, y});
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *a = n->attributes;
    const tess_dtype in = tess_dtype_of(L, n->out);
    if (tess_nd_idle(L, n, i)) return;
    tess_any_conv_arg arg = arg_of(L, n, i);
    if (tess_wants_gradient(L, n->in[0])) {
        const tess_use dy = tess_grad_read(L, n->out, i), w = tess_nd_read(L, n, 1, i);
        const tess_nd_grad g = tess_nd_grad_begin(L, n->in[0], i, false);
        arg.acc = g.acc;
        arg.to = tess_grad_dtype(L, n->in[0]);
        if (a->up)
            emit(L, in, &arg, SMALL, (tess_use[]){dy, w, g.use});
        else
            emit_large(L, in, &arg, n->in[0], i, g.use, w, dy);
        tess_nd_grad_end(L, &g);
    }
    if (!tess_wants_gradient(L, n->in[1])) return;
    const tess_use dy = tess_grad_read(L, n->out, i), x = tess_nd_read(L, n, 0, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[1], i, false);
    arg.acc = g.acc;
    arg.to = tess_grad_dtype(L, n->in[1]);
    emit(L, in, &arg, WEIGHT, (tess_use[]){a->up ? dy : x, g.use, a->up ? x : dy});
    tess_nd_grad_end(L, &g);
}

/* ---- sharing out ---- */

static void dense(const int *of, const int64_t *dim, int rank, int64_t *by)
{
    int64_t step[TESS_RANK_MOST], all = 1;
    for (int k = rank - 1; k >= 0; all *= dim[k--]) step[k] = all;
    for (int k = 0; k < SIDES; k++) by[k] = of[k] < 0 ? 0 : step[of[k]];
}

/* The channels of x, of the result, and both dimensions of w that go with them. */
struct channels {
    int x, y, of_x, of_y;
};
static struct channels channels_of(const struct attributes *a)
{
    return (struct channels){(a->up ? a->small : a->large)[CHANNELS], (a->up ? a->large : a->small)[CHANNELS],
                             a->w[a->up ? 0 : 1], a->w[a->up ? 1 : 0]};
}

/* Whole groups: their channels, before and behind. */
static const char *split_groups(const tess_node *n, const struct channels *c, const tess_split *is, int64_t channels,
                                tess_splits *s)
{
    const int dim[] = {c->y, c->x, c->of_y};
    const int64_t all[] = {n->out->nd->dim[c->y], n->in[0]->nd->dim[c->x], n->in[1]->nd->dim[c->of_y]};
    if (is->runs > 1) return "has groups side by side";
    for (int k = 0; k < 3; k++) {
        s->has[k] = TESS_HAS_SOME;
        s->of[k] = (tess_split){.dim = dim[k], .runs = 1, .length = {all[k]}};
    }
    s->divides = channels;
    return NULL;
}

static const char *split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    const struct attributes *a = n->attributes;
    const struct channels c = channels_of(a);
    const bool outputs = is->dim == (slot == 0 ? c.y : c.of_y) && slot != 1,
               inputs = is->dim == (slot == 1 ? c.x : c.of_x) && slot != 0;
    if (!outputs && !inputs) return "takes neighbours along what would be shared out";
    if (a->arg.groups > 1 && slot == 2 && inputs) return "has groups";
    if (a->arg.groups > 1) return split_groups(n, &c, is, a->arg.groups, s);
    for (int k = 0; k < 3; k++) s->of[k] = *is;
    s->has[2] = TESS_HAS_SOME, s->of[2].dim = outputs ? c.of_y : c.of_x;
    s->has[1] = outputs ? TESS_HAS_ALL : TESS_HAS_SOME, s->of[1].dim = c.x;
    s->has[0] = outputs ? TESS_HAS_SOME : TESS_HAS_SUM, s->of[0].dim = c.y;
    return NULL;
}

static void keep(tess_node *n, const tess_splits *s, const tess_portion *of)
{
    struct attributes *a = n->attributes;
    const struct channels c = channels_of(a);
    const tess_nd *w = n->in[1]->nd;
    if (a->arg.groups > 1) a->arg.groups = tess_portion_of(of, a->arg.groups);
    const int64_t inputs = w->dim[c.of_x], outputs = w->dim[c.of_y] / a->arg.groups;
    int64_t by[SIDES];
    (void)s;
    a->arg.inputs = a->up ? outputs : inputs, a->arg.outputs = a->up ? inputs : outputs;
    dense(a->w, w->dim, w->rank, by);
    a->arg.w_group = a->up ? a->arg.inputs * by[1] : a->arg.outputs * by[0];
}

static int begins(const tess_node *n, int k)
{
    return k || !tess_nd_is_weight(n->in[1]) ? -1 : channels_of(n->attributes).y;
}

static const tess_op op = {.name = "any_conv",
                           .takes = "x, w",
                           .reads = TESS_READS_IN0 | TESS_READS_IN1,
                           .infer = tess_nd_infer,
                           .forward = forward,
                           .backward = backward,
                           .split = split,
                           .keep = keep,
                           .begins = begins};

/* ---- describing ---- */

static bool names_all(const int *side, int space, int rank)
{
    unsigned seen = 0;
    for (int k = 0; k < 2 + space; k++) seen |= side[k] >= 0 && side[k] < rank ? 1u << side[k] : 0;
    return rank == 2 + space && seen == (1u << rank) - 1;
}

/* Returns what is wrong, or NULL and the shape of the result. */
static const char *wrong(const tess_nd *x, const tess_nd *w, const tess_conv_dims *d, tess_dims *out)
{
    if (x->element != TESS_REAL || w->element != TESS_REAL) return "convolutions are of float32";
    if (d->space < 1 || d->space > SPACE) return "it has no one to three spatial dimensions";
    if (!names_all(d->x, d->space, x->rank) || !names_all(d->w, d->space, w->rank) ||
        !names_all(d->y, d->space, 2 + d->space))
        return "lhs, rhs and out do not name each dimension once";
    if (d->groups < 1 || x->dim[d->x[CHANNELS]] != d->groups * w->dim[d->w[CHANNELS]] || w->dim[d->w[0]] % d->groups)
        return "its channels and groups do not fit";
    out->rank = x->rank;
    out->dim[d->y[SAMPLES]] = x->dim[d->x[SAMPLES]], out->dim[d->y[CHANNELS]] = w->dim[d->w[0]];
    for (int k = 0; k < d->space; k++) {
        const int64_t in = x->dim[d->x[2 + k]], size = w->dim[d->w[2 + k]], *pad = d->pads[k];
        if (d->strides[k] < 1 || d->strides[k] > MOST || d->between[k] < 1 || d->between[k] > MOST || d->apart[k] < 1 ||
            d->apart[k] > MOST || pad[0] < -MOST || pad[0] > MOST || pad[1] < -MOST || pad[1] > MOST ||
            in > (int64_t)1 << 40 || size > MOST)
            return "a stride or dilation is below 1, or something is beyond a million";
        const int64_t left = (in - 1) * d->between[k] + pad[0] + pad[1] - (size - 1) * d->apart[k];
        if (left < 0) return "the window is larger than x and its pads";
        out->dim[d->y[2 + k]] = left / d->strides[k] + 1;
    }
    return NULL;
}

/* Sizes and steps of space, with dimensions of 1 before those that there are. */
static void space_of(struct attributes *a, const tess_nd *x, const tess_nd *w, const tess_dims *y,
                     const tess_conv_dims *d)
{
    tess_any_conv_arg *arg = &a->arg;
    const int none = SPACE - d->space;
    const int *large = a->up ? d->y : d->x, *small = a->up ? d->x : d->y;
    for (int k = 0; k < SIDES; k++) a->large[k] = a->w[k] = a->small[k] = -1;
    for (int k = 0; k < 2; k++) a->large[k] = large[k], a->small[k] = small[k], a->w[k] = d->w[a->up ? 1 - k : k];
    for (int k = 0; k < SPACE; k++) {
        arg->in[k] = arg->out[k] = arg->window[k] = arg->step[k] = arg->apart[k] = arg->between[k] = 1;
        if (k < none) continue;
        const int j = k - none, to = 2 + k;
        a->large[to] = large[2 + j], a->small[to] = small[2 + j], a->w[to] = d->w[2 + j];
        arg->in[k] = a->up ? y->dim[d->y[2 + j]] : x->dim[d->x[2 + j]];
        arg->out[k] = a->up ? x->dim[d->x[2 + j]] : y->dim[d->y[2 + j]];
        arg->window[k] = w->dim[d->w[2 + j]];
        arg->step[k] = a->up ? d->between[j] : d->strides[j];
        arg->between[k] = a->up ? d->strides[j] : d->between[j];
        arg->apart[k] = a->up ? -d->apart[j] : d->apart[j];
        arg->pad[k] = a->up ? -d->pads[j][0] : d->pads[j][0];
    }
    arg->groups = d->groups;
    const int64_t inputs = w->dim[d->w[CHANNELS]], outputs = w->dim[d->w[0]] / d->groups;
    arg->inputs = a->up ? outputs : inputs, arg->outputs = a->up ? inputs : outputs;
}

/* Returns t with its dimensions in another order: the k-th is its dimension order[k]. */
static tess_tensor *turned(tess_tensor *t, const int *order)
{
    tess_draft *draft = tess_arena_get(t->g->arena, sizeof *draft);
    tess_nd_operand o = {t, tess_nd_reading_same(0)};
    tess_dims d = {t->nd->rank, {0}};
    for (int k = 0; k < d.rank; k++) o.by.along[k] = (int8_t)order[k], d.dim[k] = t->nd->dim[order[k]];
    return tess_nd_map(t->g, draft, tess_draft_load(draft, 0, TESS_REAL), &o, 1, d);
}

/* Bodies can work with tensors that have their dimensions in that order. */
static bool fits(struct attributes *a, const tess_nd *x, const tess_nd *w, const tess_dims *y)
{
    dense(a->large, a->up ? y->dim : x->dim, x->rank, a->arg.x);
    dense(a->small, a->up ? x->dim : y->dim, x->rank, a->arg.y);
    dense(a->w, w->dim, w->rank, a->arg.w);
    a->arg.samples = x->dim[a->up ? a->small[SAMPLES] : a->large[SAMPLES]];
    a->arg.w_group = a->up ? a->arg.inputs * a->arg.w[1] : a->arg.outputs * a->arg.w[0];
    return tess_any_conv_fits(&a->arg);
}

/* The same of tensors in an order that fits, and the result's order behind it. */
static tess_tensor *in_usual_order(tess_tensor *x, tess_tensor *w, const tess_conv_dims *d, bool up)
{
    tess_conv_dims usual = *d;
    int back[TESS_RANK_MOST], w_order[SIDES];
    memcpy(w_order, d->w, sizeof w_order);
    for (int k = 0; k < 2 + d->space; k++) usual.x[k] = usual.w[k] = usual.y[k] = k, back[d->y[k]] = k;
    if (up) w_order[0] = d->w[1], w_order[1] = d->w[0], usual.w[0] = 1, usual.w[1] = 0;
    tess_tensor *y = tess_nd_conv(turned(x, d->x), turned(w, w_order), &usual);
    return y ? turned(y, back) : NULL;
}

tess_tensor *tess_nd_conv(tess_tensor *x, tess_tensor *w, const tess_conv_dims *d)
{
    tess_tensor *in[] = {x, w};
    struct attributes a = {.up = false};
    tess_dims out = {0};
    bool steps = false;
    if (!tess_nd_are("conv", in, 2)) return NULL;
    const char *why = wrong(x->nd, w->nd, d, &out);
    if (why) return tess_nd_wrong("conv", in, 2, "%s", why);
    for (int k = 0; k < d->space; k++) a.up |= d->between[k] > 1, steps |= d->strides[k] > 1;
    a.up &= !steps;
    space_of(&a, x->nd, w->nd, &out, d);
    if (!fits(&a, x->nd, w->nd, &out)) return in_usual_order(x, w, d, a.up);
    if (tess_has_rows(x) && x->nd->at != d->x[SAMPLES]) in[0] = tess_nd_join(x);
    in[1] = tess_nd_join(w);
    if (!in[0] || !in[1]) return NULL;
    const bool rows = tess_has_rows(in[0]);
    a.nd = tess_nd_of(TESS_REAL, &out, rows ? d->y[SAMPLES] : -1, rows ? x->nd->times : 0);
    a.nd.narrow = tess_nd_factors(in, rows);
    if (!in[0] || !in[1]) return NULL;
    return tess_nd_node(x->g, &op, in, 2, &a, sizeof a);
}
