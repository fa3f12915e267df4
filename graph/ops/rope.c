/* rope: rotary positions on x (B,T,heads*dim). */
#include "graph/ops/lowering.h"
#include <math.h>

enum { MOST_PLACE = 1 << 24 }; /* what fp32 counts to */

static tess_status infer(tess_node *n)
{
    const tess_rope_conf *c = n->attributes;
    if (n->in[0]->rank != 3 || c->dim < 1 || n->in[0]->dim[2] % c->dim)
        return tess_shape_error(n, "the last axis must be a multiple of the head size %lld", (long long)c->dim);
    if (c->rotary < 2 || c->rotary > c->dim || c->rotary % 2)
        return tess_shape_error(n, "%lld of a head's %lld elements rotate (an even number of them must)",
                                (long long)c->rotary, (long long)c->dim);
    if (c->of && (n->in[0]->dim[2] / c->dim % c->of || c->turning < 1 || c->turning >= c->of))
        return tess_shape_error(n, "of each %lld heads %lld turn, but there are %lld", (long long)c->of,
                                (long long)c->turning, (long long)(n->in[0]->dim[2] / c->dim));
    if (!(c->base > 0) || isinf(c->base))
        return tess_shape_error(n, "the base is %g (expected above 0)", (double)c->base);
    const tess_rope_scaling *s = &c->scaling;
    for (int64_t i = 0; s->kind == TESS_ROPE_LONG && i < c->rotary / 2; i++)
        if (i == TESS_MOST_PAIRS || !(s->pair[i] > 0))
            return tess_shape_error(n, "the scaling's number of pair %lld is %g (expected above 0, of at most %d)",
                                    (long long)i, i < TESS_MOST_PAIRS ? (double)s->pair[i] : 0, TESS_MOST_PAIRS);
    if (s->kind != TESS_ROPE_PLAIN && s->kind != TESS_ROPE_LONG && !(s->factor > 0))
        return tess_shape_error(n, "the scaling's factor is %g (expected above 0)", s->factor);
    if (s->kind == TESS_ROPE_LLAMA3 && !(s->low > 0 && s->high > s->low && s->length > 0))
        return tess_shape_error(n, "the scaling is from %g to %g turns in %g positions (expected above 0, and more)",
                                s->low, s->high, s->length);
    if (s->kind == TESS_ROPE_YARN && !(s->high > s->low))
        return tess_shape_error(n, "the scaling is from pair %g to %g (expected more)", s->low, s->high);
    if (!(s->size >= 0) || isinf(s->size))
        return tess_shape_error(n, "the size is %g (expected at least 0)", (double)s->size);
    const tess_tensor *x = n->in[0], *places = n->in[1];
    if (places && (places->kind != TESS_KIND_INPUT || places->dim[0] != x->dim[0] || places->dim[1] != x->dim[1]))
        return tess_shape_error(n, "the places must be an input (B,T)");
    if (places) tess_limit_ids(n->in[1], 0, MOST_PLACE, "a place in a sequence");
    tess_set_shape(n, 3, x->dim[0], x->dim[1], x->dim[2]);
    return TESS_OK;
}

static tess_rope_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    const tess_rope_conf *c = n->attributes;
    return TESS_ARG(L, tess_rope_arg, .rows = tess_rows(L, n->out, i), .sequence = n->out->dim[1],
                    .heads = tess_width(n->out) / c->dim, .dim = c->dim, .rotary = c->rotary,
                    .skip = c->last ? c->dim - c->rotary : 0, .base = c->base, .scaling = c->scaling, .of = c->of,
                    .turning = c->turning, .half = !c->neighbours, .placed = n->in[1] != NULL,
                    .row0 = tess_first_row(L, n->out, i));
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    const tess_use x = tess_in(L, n->in[0], i), y = tess_out(L, n->out, i);
    const tess_use use[] = {x, y, n->in[1] ? tess_in(L, n->in[1], i) : x};
    tess_emit(L, &tess_rope_forward[tess_real(L)], arg(L, n, i), use, n->in[1] ? 3 : 2);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_rope_arg *a = arg(L, n, i);
    const tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc), dy = tess_grad_read(L, n->out, i);
    const tess_use use[] = {dy, dx, n->in[1] ? tess_in(L, n->in[1], i) : dy};
    tess_emit(L, &tess_rope_backward[tess_real(L)], a, use, n->in[1] ? 3 : 2);
}

/* Heads of q, k and v that lie part by part, not head by head. */
static bool by_part(const tess_node *n)
{
    const tess_rope_conf *c = n->attributes;
    return c->of && tess_width(n->out) == c->of * c->dim;
}

/* Heads stay whole. By part a unit is a group, as attention has it. */
static int64_t units(const tess_node *n, bool *exact)
{
    const tess_rope_conf *c = n->attributes;
    *exact = by_part(n);
    return *exact ? c->of - c->turning : tess_width(n->out) / (c->of ? c->of * c->dim : c->dim);
}

static int beside(const tess_node *n, int64_t units, int64_t width[TESS_MOST_BESIDE])
{
    const tess_rope_conf *c = n->attributes;
    if (!by_part(n)) return 1;
    width[0] = (2 * c->turning - c->of) / units * c->dim;
    width[1] = width[2] = c->dim;
    return 3;
}

static void keep(tess_node *n, int64_t units, int64_t first, int64_t end)
{
    tess_rope_conf *c = n->attributes;
    const int64_t group = c->of / units;
    if (c->of <= 3) return; /* head by head */
    c->of = (end - first) * group;
    c->turning = (end - first) * (group - 1);
}

const tess_op tess_op_rope = {
    .name = "rope",
    .takes = "x, places?",
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .units = {units, beside, keep},
    .by_rows = true,
};

tess_tensor *tess_rope(tess_tensor *x, tess_rope_conf conf)
{
    if (conf.rotary == 0) conf.rotary = conf.dim;
    if (conf.base == 0) conf.base = 10000;
    return tess_node_add(&tess_op_rope, (tess_tensor *[]){x, conf.places}, 2, &conf, sizeof conf);
}
