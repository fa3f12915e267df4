/* Experts that data-parallel ranks own, some each (tess_graph_own_experts). States are the owners', and one of two goes
 * between ranks: weights to the rows, as a slice of any weight does in ZeRO, a tile having one slice; or rows to the
 * weights, which is what is here.
 *
 * Between tess_dispatch and tess_combine rows are sorted by expert, so those of an owner's experts are a run of each
 * row tile. An owner has a tile for each row tile of every place of the data dimension, its own too: its *guests*. It
 * makes of each what its place would have made of it, by the same tasks, so no bit changes; gradients of its weights
 * are one for each place, which add up as parts from all ranks do. No gradient of an expert goes anywhere.
 *
 *     route      the offsets of an owner's experts go there: how many rows of each will come
 *     dispatch   the rows go there                backward, behind all owners' tasks: their gradients come back
 *     ...        the owner's tasks, for each guest
 *     combine    before it what they made of the rows comes back     backward: its gradients go there
 *
 * How many rows a message has its two ends read in these offsets when it is carried, so there are no more bytes than
 * rows. The tile has room for all that could come, each row once for each of the owner's experts that it can choose: no
 * row is ever dropped. */
#include "graph/lower/parcels_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- where rows can go ---- */

/* Whether the owners of experts can make all that lies between a dispatch and a combine: products by stacks, and what
 * works on rows by themselves. Marks it in `routed` [tensor]. */
static bool find_routed(const tess_graph *g, const tess_tensor **routed)
{
    bool can = true;
    for (int k = 0; k < g->nodes; k++) {
        const tess_node *n = g->node[k];
        const tess_tensor *of = NULL;
        bool alike = true;
        const bool products = n->op == &tess_op_expert_linear;
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] && routed[n->in[i]->id]) of = routed[n->in[i]->id];
        if (n->op == &tess_op_dispatch) routed[n->out->id] = n->in[1];
        if (!of || n->op == &tess_op_combine) continue;
        for (int i = 0; i < n->inputs; i++) alike = alike && (!n->in[i] || routed[n->in[i]->id] == of || products);
        can = can && alike && (n->op->by_rows || products) && n->op != &tess_op_dropout;
        routed[n->out->id] = of;
    }
    return can;
}

void tess_guests_find(tess_lower *L)
{
    bool some = false;
    for (int k = 0; k < L->g->params; k++) some = some || L->g->param[k]->held->on.stays;
    if (!some) return;
    L->routed = tess_arena_get(L->p->arena, (size_t)L->g->tensors * sizeof *L->routed);
    TESS_ASSERT(find_routed(L->g, L->routed));
}

/* ---- rows or weights ---- */

/* Bytes that go between ranks in a step, of each place: rows forth and back, and their gradients. */
static double bytes_of_rows(const tess_graph *g)
{
    double bytes = 0;
    for (int k = 0; k < g->nodes; k++) {
        const tess_node *n = g->node[k];
        const tess_tensor *t = n->op == &tess_op_dispatch ? n->out : n->op == &tess_op_combine ? n->in[0] : NULL;
        if (t) bytes += 2. * (double)(t->dim[0] * t->dim[1] * t->dim[2]) * (double)tess_dtype_size(g->conf.dtype);
    }
    return bytes * fabs((double)g->expert_micros);
}

/* The same of weights, by docs/ranks.md: gathered for each use where a step has more weights than may be kept. */
static double bytes_of_weights(const tess_graph *g)
{
    const tess_grid *grid = &g->conf.grid;
    const double micros = fabs((double)g->expert_micros),
                 most = (double)(grid->live < grid->reuse ? grid->live : grid->reuse),
                 size = (double)tess_dtype_size(g->conf.dtype);
    const double sum = (double)tess_dtype_size(grid->sent),
                 gather = grid->weight_codes ? 1 + 4. / TESS_QUANTIZED_BLOCK : size;
    double bytes = 0, all = 0;
    for (int k = 0; k < g->params; k++) all += (double)(g->param[k]->dim[0] * g->param[k]->dim[1]);
    const double gathers = grid->stage < 3 ? 1 : all < most ? 1 : 2 * micros, sums = grid->stage < 2 ? 1 : micros;
    for (int k = 0; k < g->params; k++) {
        const tess_tensor *p = g->param[k];
        if (p->cut->members == 1) continue;
        const bool rests = tess_is_frozen(p) && grid->stage < 3;
        bytes +=
            (double)(p->dim[0] * p->dim[1]) * ((tess_is_frozen(p) ? 0 : sums * sum) + (rests ? 0 : gathers * gather));
    }
    return bytes;
}

void tess_guests_choose(tess_graph *g)
{
    if (g->going) return; /* parameters lie where they do by now */
    const tess_tensor **routed = tess_alloc((size_t)g->tensors * sizeof *routed);
    const bool can = find_routed(g, routed);
    const double part = (1 - 1. / g->conf.grid.data) / g->conf.grid.pipeline, rows = part * bytes_of_rows(g),
                 weights = part * bytes_of_weights(g);
    char text[2][32], other[80];
    free(routed);
    g->rows_go = can && (g->expert_micros < 0 || (g->expert_micros > 0 && rows < weights));
    snprintf(text[0], sizeof *text, "%s", tess_human_bytes(g->rows_go ? rows : weights));
    snprintf(text[1], sizeof *text, "%s", tess_human_bytes(g->rows_go ? weights : rows));
    snprintf(other, sizeof other, "%s would be %s", g->rows_go ? "weights to the rows" : "rows to the weights",
             text[1]);
    g->going = tess_arena_format(g->arena, "%s, some %s a rank and step; %s",
                                 g->rows_go ? "rows go to the ranks that own their experts"
                                            : "weights go from the ranks that own them to the rows",
                                 text[0],
                                 !can                ? "its experts have more than matrices"
                                 : !g->expert_micros ? "rows can go between CPUs alone"
                                                     : other);
}

void tess_graph_own_experts(tess_graph *g, int64_t micros)
{
    g->owned = g->conf.grid.data > 1;
    g->expert_micros = micros;
}

const char *tess_graph_experts(const tess_graph *g)
{
    return g->going;
}

tess_status tess_guests_check(const tess_graph *g)
{
    int64_t fewest = INT64_MAX;
    const int ranks = g->conf.grid.data;
    for (int k = 0; k < g->params; k++)
        if (g->param[k]->cut->members > 1 && g->param[k]->cut->members < fewest) fewest = g->param[k]->cut->members;
    if (!g->owned || (fewest >= ranks && fewest < INT64_MAX)) return TESS_OK;
    if (fewest == INT64_MAX)
        return tess_error(TESS_INVALID, "experts",
                          "%d ranks own experts, but the model has none (1 is all ranks alike)", ranks);
    return tess_error(TESS_INVALID, "experts", "%d ranks own experts, but there are %lld (at most as many ranks, or 1)",
                      ranks, (long long)fewest);
}

/* ---- tiles ---- */

int tess_guests_of(const tess_lower *L, const tess_node *n)
{
    const bool here = L->routed && L->routed[n->out->id] && n->op != &tess_op_dispatch;
    return here ? L->grid->data : 0;
}

/* The tile of a guest; d is -1 for this rank's own rows. */
static tess_use of_guest(tess_lower *L, const tess_tensor *t, int i, int d, bool gradient, bool writes)
{
    bool acc = false;
    L->guest = 1 + d;
    const tess_use use = gradient ? (writes ? tess_grad_write(L, t, i, &acc) : tess_grad_read(L, t, i))
                                  : (writes ? tess_out(L, t, i) : tess_in(L, t, i));
    TESS_ASSERT(!acc);
    L->guest = 0;
    return use;
}

static tess_use order_of(tess_lower *L, const tess_tensor *weights, int i, int d)
{
    L->guest = 1 + d;
    const tess_use use = tess_aux_in(L, weights->producer, i);
    L->guest = 0;
    return use;
}

/* ---- messages ---- */

/* How many of its rows are whose: the offsets of an owner's experts go there. */
static void send_offsets(tess_lower *L, const tess_tensor *weights, int i)
{
    const int ranks = L->grid->data, mine = tess_grid_data(L->grid), tag = tess_parcel_tag(L);
    const int64_t experts = tess_routed_experts(weights);
    const tess_use own = order_of(L, weights, i, -1);
    const size_t size = sizeof(int32_t);
    int64_t first, end;
    tess_parcel m = {0};
    for (int d = 0; d < ranks; d++) {
        tess_grid_experts(L->grid, experts, d, &first, &end);
        if (d != mine)
            tess_parcel_add(&m, own, tess_grid_peer(L->grid, d), tag, true, (size_t)first * size,
                            (size_t)(end - first + 1) * size);
    }
    tess_grid_experts(L->grid, experts, mine, &first, &end);
    for (int d = 0; d < ranks; d++) {
        tess_tile *to = d == mine ? own.tile : tess_slot_between(L, (size_t)(experts + 1) * size, weights->name);
        L->guest = 1 + d;
        L->aux[weights->producer->id][tess_lower_at(L, i)] = to;
        L->guest = 0;
        if (d != mine)
            tess_parcel_add(&m, (tess_use){to, TESS_W}, tess_grid_peer(L->grid, d), tag, false, (size_t)first * size,
                            (size_t)(end - first + 1) * size);
    }
    tess_parcel_send(L, &m);
}

/* Adds a span of use `at`, whose order is the next use: of rows of experts [of.first, of.end). */
static void add_counted(tess_lower *L, tess_parcel *m, unsigned at, int peer, int tag, bool sends, tess_counted of,
                        int64_t rows, int64_t experts)
{
    of.by = at + 1;
    tess_parcel_span(m, (tess_span){.use = at,
                                    .peer = peer,
                                    .tag = tag,
                                    .sends = sends,
                                    .bytes = (size_t)(rows * (of.end - of.first) / experts) * of.row,
                                    .counted = tess_arg_copy(L, &of, sizeof of)});
}

/* Rows of a tile, or their gradients, go to the guests at their experts' owners, or come back from there. */
static void exchange_tile(tess_lower *L, const tess_tensor *t, int i, bool gradient, bool back)
{
    const int ranks = L->grid->data, mine = tess_grid_data(L->grid), tag = tess_parcel_tag(L);
    const tess_tensor *weights = L->routed[t->id];
    const int64_t experts = tess_routed_experts(weights), rows = tess_rows(L, t, i);
    tess_use own = of_guest(L, t, i, -1, gradient, back), guest = of_guest(L, t, i, mine, gradient, !back);
    const tess_use order = order_of(L, weights, i, -1);
    tess_counted here = {.row = (size_t)tess_width(t) * tess_dtype_size(tess_dtype_of(L, t))}, there = here;
    there.inside = true;
    tess_grid_experts(L->grid, experts, mine, &here.first, &here.end);
    tess_share_arg *a =
        TESS_ARG(L, tess_share_arg, .first = here.first, .end = here.end, .experts = experts, .choices = rows,
                 .room = tess_guests_rows(L, t, rows), .width = tess_width(t), .back = back);
    TESS_EMIT(L, &tess_dispatch_share[tess_dtype_of(L, t)], a, own, order, guest);
    if (back) own.mode = TESS_RW;
    tess_parcel m = {0};
    tess_parcel_use(&m, own);
    tess_parcel_use(&m, order);
    for (int d = 0; d < ranks; d++) {
        const int peer = tess_grid_peer(L->grid, d);
        if (d == mine) continue;
        tess_grid_experts(L->grid, experts, d, &there.first, &there.end);
        add_counted(L, &m, 0, peer, tag, !back, there, rows, experts);
        const unsigned theirs = tess_parcel_use(&m, of_guest(L, t, i, d, gradient, !back));
        tess_parcel_use(&m, order_of(L, weights, i, d));
        add_counted(L, &m, theirs, peer, tag, back, here, rows, experts);
    }
    tess_parcel_send(L, &m);
}

static void exchange(tess_lower *L, const tess_tensor *t, bool gradient, bool back)
{
    if (gradient && !tess_wants_gradient(L, t)) return;
    for (int i = 0; i < L->row_tiles; i++) {
        exchange_tile(L, t, i, gradient, back);
        for (L->guest = back; gradient && L->guest <= (back ? L->grid->data : 0); L->guest++)
            tess_lower_release(L, t, i);
        L->guest = 0;
    }
}

static bool is_combined(const tess_lower *L, const tess_tensor *t)
{
    for (int k = t->producer->id; k < L->g->nodes; k++)
        if (L->g->node[k]->op == &tess_op_combine && L->g->node[k]->in[0] == t) return true;
    return false;
}

void tess_guests_forward(tess_lower *L, const tess_node *n)
{
    for (int i = 0; i < L->row_tiles && n->op == &tess_op_route; i++) send_offsets(L, n->out, i);
    if (n->op == &tess_op_dispatch) exchange(L, n->out, false, false);
    if (tess_guests_of(L, n) && is_combined(L, n->out)) exchange(L, n->out, false, true);
}

void tess_guests_before(tess_lower *L, const tess_node *n)
{
    if (n->op == &tess_op_dispatch) exchange(L, n->out, true, true);
}

void tess_guests_backward(tess_lower *L, const tess_node *n)
{
    if (n->op == &tess_op_combine) exchange(L, n->in[0], true, false);
}
