/* route: of logits (B,T,E) the weights (B,T,k) of the k experts that each row chooses, which a bias (E) may sway. Which
 * those are, and where each choice lies among those sorted by expert, is the node's order, an aux tile that the ops
 * behind it read.
 *
 * Experts are many small matrices, and only the run knows which are used, while the list of tasks is planned ahead. So
 * rows are sorted by expert, and expert_linear has one task for each row tile and weight tile over a range of rows
 * that may be empty; every row has exactly k choices, so no row is dropped. All experts are one parameter whose tiles
 * belong to one expert each, since one parameter for each would make 36,000 nodes for a model of 235B. A task with
 * TESS_IF_CHOSEN does not fetch tiles of experts that were not chosen; the plan still has room for all. Submission
 * stops at each router until it has run, so the disk rests while a layer's attention is computed. */
#include "graph/ops/lowering.h"

enum { LOGITS, BOUNDS, BIAS, INPUTS };

enum { MOST_EXPERTS = 1 << 14 };

static tess_status infer(tess_node *n)
{
    const tess_route_conf *at = n->attributes;
    const tess_tensor *x = n->in[LOGITS], *bounds = n->in[BOUNDS], *bias = n->in[BIAS];
    if (x->rank != 3 || at->chosen < 1 || at->chosen > x->dim[2] || x->dim[2] > MOST_EXPERTS)
        return tess_shape_error(
            n,
            "%lld are chosen (logits must be (B,T,experts), with no more than %d experts, and from 1 to all "
            "of them be chosen)",
            (long long)at->chosen, MOST_EXPERTS);
    if (bounds && (bounds->kind != TESS_KIND_INPUT || bounds->dim[0] != x->dim[0] || bounds->dim[1] != 2 * x->dim[1]))
        return tess_shape_error(n, "the bounds must be an input (B,%lld)", (long long)(2 * x->dim[1]));
    if (bias && (!tess_is_param(bias, x->dim[2], 1) || bias->cut->tiles != 1 || !tess_param_frozen(bias)))
        return tess_shape_error(n, "the bias must be a frozen parameter (%lld), in one tile", (long long)x->dim[2]);
    if (at->groups && (!bias || at->groups < 1 || at->groups > TESS_ROUTE_GROUPS || x->dim[2] % at->groups ||
                       x->dim[2] / at->groups < 2 || at->kept < 1 || at->kept > at->groups ||
                       x->dim[2] / at->groups * at->kept < at->chosen))
        return tess_shape_error(n,
                                "%lld of %lld groups (they must be equal, of two or more, at most %d, have all that "
                                "are chosen, and a bias)",
                                (long long)at->kept, (long long)at->groups, TESS_ROUTE_GROUPS);
    tess_set_shape(n, 3, x->dim[0], x->dim[1], at->chosen);
    return TESS_OK;
}

static tess_route_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    const tess_route_conf *at = n->attributes;
    return TESS_ARG(L, tess_route_arg, .rows = tess_rows(L, n->out, i), .experts = tess_width(n->in[0]),
                    .chosen = at->chosen, .sequence = n->out->dim[1], .groups = at->groups, .kept = at->kept,
                    .scale = at->scale, .normalised = at->normalised, .scored = n->in[BIAS] != NULL,
                    .bounded = n->in[BOUNDS] != NULL, .place = tess_first_place(L, i));
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_route_arg *a = arg(L, n, i);
    unsigned k = 3;
    tess_use use[5] = {tess_in(L, n->in[0], i), tess_out(L, n->out, i),
                       tess_aux_out(L, n, i, tess_order_bytes(a->rows, a->experts, a->chosen))};
    if (n->in[BIAS]) use[k++] = tess_weight(L, n->in[BIAS], 0);
    if (n->in[BOUNDS]) use[k++] = tess_in(L, n->in[BOUNDS], i);
    a->choice = tess_choice_begin(L, n, i, a->experts);
    tess_emit(L, &tess_route_forward[tess_real(L)], a, use, k);
    if (a->choice) tess_emitted_chooses(L, a->choice, TESS_MAKES_CHOICE);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_route_arg *a = arg(L, n, i);
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_route_backward[tess_real(L)], a, tess_grad_read(L, n->out, i), tess_in(L, n->in[0], i),
              tess_aux_in(L, n, i), dx);
}

const tess_op tess_op_route = {
    .name = "route",
    .takes = "logits, bounds?, bias?",
    .reads = TESS_READS_IN0 | TESS_READS_AUX,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .by_places = true,
};

tess_tensor *tess_route(tess_tensor *logits, int64_t chosen, bool normalised, tess_tensor *bounds)
{
    return tess_route_scored(logits, NULL, bounds, (tess_route_conf){.chosen = chosen, .normalised = normalised});
}

tess_tensor *tess_route_scored(tess_tensor *logits, tess_tensor *bias, tess_tensor *bounds, tess_route_conf conf)
{
    if (logits && logits->producer) logits->producer->fp8 = false; /* a choice takes all bits that there are */
    return tess_node_add(&tess_op_route, (tess_tensor *[]){logits, bounds, bias}, INPUTS, &conf, sizeof conf);
}
