/* balance: statistics of a router, (B,1,4 experts + 2), to which those of the routers before it are added; and the loss
 * of all of them, which is added to another loss. The statistics are a tensor as others are, so they go from section to
 * section of a pipeline; the loss is one task over a micro-batch's, which leaves their gradient. */
#include "lowering.h"

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
    return TESS_ARG(L, tess_balance_arg, .rows = tess_rows(L, n->in[LOGITS], i), .experts = tess_width(n->in[LOGITS]),
                    .chosen = tess_width(n->in[WEIGHTS]), .sequence = n->in[LOGITS]->dim[1],
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

/* With the last row tile, when all others' statistics are there. It is training's alone: what a model knows is the
 * other loss. Every micro-batch's counts alike. */
static void forward_loss(tess_lower *L, const tess_node *n, int i)
{
    const int tiles = tess_row_tiles(L);
    if (i + 1 < tiles || !tess_trains(L)) return;
    const tess_tensor *s = n->in[STATISTICS];
    tess_use *use = tess_lower_get(L, (size_t)(2 * tiles + 1) * sizeof *use);
    tess_balance_arg *a =
        TESS_ARG(L, tess_balance_arg, .experts = (tess_width(s) / 2 - 1) / 2, .tiles = (unsigned)tiles,
                 .weight = (double)*(const float *)n->attributes / (double)tess_micros(L));
    use[0] = tess_loss_out(L);
    for (int k = 0; k < tiles; k++) {
        bool acc;
        use[1 + k] = tess_in(L, s, k);
        use[1 + tiles + k] = tess_grad_write(L, s, k, &acc);
        TESS_ASSERT(!acc);
    }
    tess_emit(L, &tess_balance_loss[tess_real(L)], a, use, (unsigned)(2 * tiles + 1));
}

static const tess_op balanced = {
    .name = "balanced",
    .takes = "loss, statistics, targets",
    .infer = infer_loss,
    .forward = forward_loss,
    .targets = TARGETS,
};

tess_tensor *tess_balanced(tess_tensor *loss, tess_tensor *statistics, tess_tensor *targets, float weight)
{
    return tess_node_add(&balanced, (tess_tensor *[]){loss, statistics, targets}, 3, &weight, sizeof weight);
}
