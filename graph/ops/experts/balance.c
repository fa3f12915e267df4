/* balance: statistics of a router, (B,1,4 experts + 2), to which those of the routers before it are added; and the loss
 * of all of them, which is added to another loss. The statistics are a tensor as others are, so they go from section to
 * section of a pipeline; the loss is one task over a micro-batch's, which leaves their gradient. */
#include "graph/ops/lowering.h"

enum { LOGITS, WEIGHTS, BEFORE };

static int64_t width_of(int64_t experts)
{
    return 2 * (2 * experts + 1);
}

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[LOGITS], *weights = n->in[WEIGHTS], *before = n->in[BEFORE];
    if (!tess_is_routed(weights) || weights->producer->in[0] != x)
        return tess_shape_error(n, "the weights must be those that tess_route made of these logits");
    tess_set_shape(n, 3, x->dim[0], 1, width_of(x->dim[2]));
    if (before &&
        (before->rank != 3 || before->dim[0] != x->dim[0] || before->dim[1] != 1 || before->dim[2] != n->out->dim[2]))
        return tess_shape_error(n, "those before must be of as many experts");
    return TESS_OK;
}

static tess_balance_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    const int64_t rows = tess_rows(L, n->in[LOGITS], i);
    return TESS_ARG(L, tess_balance_arg, .rows = rows, .experts = tess_width(n->in[LOGITS]),
                    .chosen = tess_width(n->in[WEIGHTS]), .sequence = rows / tess_rows(L, n->out, i),
                    .before = n->in[BEFORE] != NULL);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_use use[4] = {tess_in(L, n->in[LOGITS], i), tess_aux_in(L, n->in[WEIGHTS]->producer, i),
                       tess_out(L, n->out, i)};
    if (n->in[BEFORE]) use[3] = tess_in(L, n->in[BEFORE], i);
    tess_emit(L, &tess_balance_forward[tess_real(L)], arg(L, n, i), use, n->in[BEFORE] ? 4 : 3);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_balance_arg *a = arg(L, n, i);
    if (tess_wants_gradient(L, n->in[LOGITS])) {
        tess_use dx = tess_grad_write(L, n->in[LOGITS], i, &a->acc);
        TESS_EMIT(L, &tess_balance_backward[tess_real(L)], a, tess_grad_read(L, n->out, i),
                  tess_in(L, n->in[LOGITS], i), tess_aux_in(L, n->in[WEIGHTS]->producer, i), dx);
    }
    if (n->in[BEFORE]) tess_grad_pass(L, n->out, n->in[BEFORE], i);
}

const tess_op tess_op_balance = {
    .name = "balance",
    .takes = "logits, weights, before?",
    .reads = TESS_READS_IN0 | TESS_READS_IN1,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .by_places = true,
};

tess_tensor *tess_balance(tess_tensor *logits, tess_tensor *weights, tess_tensor *before)
{
    return tess_node_add(&tess_op_balance, (tess_tensor *[]){logits, weights, before}, 3, NULL, 0);
}

/* ---- the loss ---- */

enum { LOSS, STATISTICS, TARGETS };

static tess_status infer_loss(tess_node *n)
{
    const tess_tensor *s = n->in[STATISTICS];
    if (n->in[LOSS]->kind != TESS_KIND_LOSS || n->in[TARGETS]->kind != TESS_KIND_INPUT)
        return tess_shape_error(n, "it is added to a loss, over targets");
    if (tess_losses_of(n->in[LOSS]) > 1) return tess_shape_error(n, "the loss is a sum of others");
    if (!s->producer || s->producer->op != &tess_op_balance)
        return tess_shape_error(n, "the statistics must be those that tess_balance returned");
    if (!(*(const float *)n->attributes >= 0))
        return tess_shape_error(n, "its weight is %g (expected 0 or more)", (double)*(const float *)n->attributes);
    n->out->kind = TESS_KIND_LOSS;
    tess_set_shape(n, 0, 0, 0, 0);
    return TESS_OK;
}

/* The statistics of all spans of this micro-batch, in their order: ranks that share its sequences tell each other
 * theirs. Returns how many they are. */
static int64_t gather(tess_lower *L, const tess_tensor *s, tess_use *use)
{
    const struct tess_spans *cut = tess_spans(L);
    const int64_t tiles = tess_row_tiles(L), here = cut ? cut->here : tiles, all = cut ? cut->all : tiles,
                  ranks = cut ? cut->ranks : 1;
    for (int64_t k = 0; k < tiles; k++) {
        tess_tile **out = tess_lower_get(L, (size_t)ranks * sizeof *out),
                  **in = tess_lower_get(L, (size_t)ranks * sizeof *in);
        const tess_use mine = tess_in(L, s, (int)k);
        for (int64_t r = 0; r < ranks; r++) {
            const bool is_mine = !cut || r == cut->place;
            const int64_t span = cut ? tess_span_at(cut, r, k % here, here) : k % here;
            if (!is_mine) out[r] = mine.tile, in[r] = tess_slot_between(L, tess_tile_bytes(mine.tile), s->name);
            use[k / here * all + span] = is_mine ? mine : (tess_use){in[r], TESS_R};
        }
        if (ranks > 1) tess_lower_all_to_all(L, out, in);
    }
    return tiles * ranks;
}

/* With the last row tile, when all others' statistics are there. It is training's alone: what a model knows is the
 * other loss. Every micro-batch's counts alike, and on the first of the ranks that share it. */
static void forward_loss(tess_lower *L, const tess_node *n, int i)
{
    const int tiles = tess_row_tiles(L);
    if (i + 1 < tiles || !tess_trains(L)) return;
    const tess_tensor *s = n->in[STATISTICS];
    const struct tess_spans *cut = tess_spans(L);
    const int64_t ranks = cut ? cut->ranks : 1;
    tess_use *use = tess_lower_get(L, (size_t)(tiles * (ranks + 1) + 1) * sizeof *use);
    const int64_t all = gather(L, s, use + 1);
    tess_balance_arg *a = TESS_ARG(L, tess_balance_arg, .experts = (tess_width(s) / 2 - 1) / 2, .tiles = (unsigned)all,
                                   .own = (unsigned)tiles, .told = cut && cut->place > 0,
                                   .weight = (double)*(const float *)n->attributes / (double)tess_micros(L));
    use[0] = tess_loss_out(L);
    for (int k = 0; k < tiles; k++) {
        bool acc;
        use[1 + all + k] = tess_grad_write(L, s, k, &acc);
        TESS_ASSERT(!acc);
    }
    tess_emit(L, &tess_balance_loss[tess_real(L)], a, use, (unsigned)(1 + all + tiles));
}

static const tess_op balanced = {
    .name = "balanced",
    .takes = "loss, statistics, targets",
    .infer = infer_loss,
    .forward = forward_loss,
    .by_places = true,
    .targets = TARGETS,
};

tess_tensor *tess_balanced(tess_tensor *loss, tess_tensor *statistics, tess_tensor *targets, float weight)
{
    return tess_node_add(&balanced, (tess_tensor *[]){loss, statistics, targets}, 3, &weight, sizeof weight);
}
