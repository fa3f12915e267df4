/* cross_entropy: the head and its loss in one op, since the logits must never exist as a whole. It is where gradients
 * begin, and its scale is known before the pass (1 / targets of the global batch), so its forward makes them too. For
 * each piece of rows: one task a tile of w for the logits, one for the loss of the rows, then two a tile of w, for
 * dlogits with its share of dx, and for dw. The tiles of a piece are a ring of a few sets: a piece waits until the set
 * it writes was read.
 *
 * Why the forward pass makes the gradient: for GPT-2 124M the head is a third of all matrix flops, and computing the
 * logits again in the backward pass would add a tenth to the step. In return a loss must be the root of a training
 * graph. Why a task works on one tile of the weight: a task with the whole weight would hold 126 MiB for GPT-2 124M in
 * bf16, and RAM under a cap must have room for the largest task. The softmax of a row needs little from outside the
 * tile, the largest logit and the sum of exponentials of each strip of 512 columns, so no exponential is computed
 * twice. dx adds up tile by tile in fp32 and is rounded once. */
#include "graph/ops/lowering.h"

enum { SETS = 2, LARGE = 2048 };
#define MOST_LOGITS ((int64_t)1 << 29) /* of a piece: 1 GiB in 16 bits */

/* What ops of a head are made of. */
struct head {
    float cap, heat, weight;
    int64_t soft;  /* tokens of a target, or the likeliest of a row, */
    int64_t vocab; /* among this many; 0: all */
};
static const struct head *head_of(const tess_node *n)
{
    return n->attributes;
}

/* What one piece leaves between its tasks. */
struct set {
    tess_tile **p;       /* a tile of w each: (rows, its rows) */
    tess_tile **stats;   /* the same; where ranks share w out, of all tiles that it has on all of them */
    tess_tile *lse, *dx; /* f32: (rows), (rows, in) */
};

/* Rows of a piece. The whole of w decides, and no cap: pieces are what dw adds up over, on ranks that have parts of w
 * too. */
static int64_t piece_rows(const tess_tensor *w)
{
    const int64_t most = tess_loss_rows(w->g), fit = MOST_LOGITS / w->cut->whole[0] / 512 * 512;
    return fit > 0 && fit < most ? fit : most;
}

static tess_status infer_head(tess_node *n)
{
    const tess_tensor *x = n->in[0], *w = n->in[1], *b = n->in[3], *targets = n->in[2];
    if (x->rank != 3 || w->kind != TESS_KIND_PARAM || w->rank != 2 || w->dim[1] != x->dim[2])
        return tess_shape_error(n, "x must be (B,T,C) and w (V,C)");
    if (targets->kind != TESS_KIND_INPUT || targets->dim[1] != x->dim[1])
        return tess_shape_error(n, "targets must be an input (B,T)");
    if (w->cut->tiles > TESS_MOST_USES - 3)
        return tess_shape_error(n, "w is cut into %lld tiles, which is too many (raise tile_elements)",
                                (long long)w->cut->tiles);
    if (!tess_fits_tile(piece_rows(w), w->cut->tile_rows + tess_loss_align(n->out->g) - 1))
        return tess_shape_error(n, "logits of %lld rows of x and %lld of w are too large a tile (lower loss_rows)",
                                (long long)piece_rows(w), (long long)w->cut->tile_rows);
    if (b && !tess_is_param(b, w->dim[0], 1)) return tess_shape_error(n, "the bias must be (V)");
    if (b && b->cut->tile_rows != w->cut->tile_rows) return tess_shape_error(n, "the bias is cut otherwise than w");
    tess_limit_ids(n->in[2], INT32_MIN, w->cut->whole[0] - 1, w->name);
    if (!(head_of(n)->cap >= 0))
        return tess_shape_error(n, "logits are capped at %g (expected above 0, or 0)", (double)head_of(n)->cap);
    if (head_of(n)->soft < 0 || head_of(n)->soft > TESS_MOST_LIKELIEST || head_of(n)->soft > w->cut->whole[0])
        return tess_shape_error(n, "%lld tokens of a row are wanted (expected 1 to %d, of %lld)",
                                (long long)head_of(n)->soft, TESS_MOST_LIKELIEST, (long long)w->cut->whole[0]);
    return TESS_OK;
}

static tess_status infer(tess_node *n)
{
    TESS_TRY(infer_head(n));
    if (n->in[4] && n->in[4]->kind != TESS_KIND_LOSS) return tess_shape_error(n, "what it is added to must be a loss");
    if (n->in[4] && n->in[4]->producer->op != &tess_op_cross_entropy)
        return tess_shape_error(n, "what it is added to is %s (expected a cross_entropy)",
                                n->in[4]->producer->op->name);
    if (tess_losses_of(n->out) > TESS_MOST_LOSSES)
        return tess_shape_error(n, "more than %d losses are added", TESS_MOST_LOSSES);
    const tess_tensor *soft = n->in[5];
    if (soft && (soft->kind != TESS_KIND_INPUT || soft->dim[1] != 2 * head_of(n)->soft * n->in[0]->dim[1]))
        return tess_shape_error(n, "soft targets must be an input (B,%lld)",
                                (long long)(2 * head_of(n)->soft * n->in[0]->dim[1]));
    n->out->kind = TESS_KIND_LOSS;
    tess_set_shape(n, 0, 0, 0, 0);
    return TESS_OK;
}

/* Returns whether a gradient that begins here is needed: one of several losses may depend on frozen parameters alone.
 */
static bool trains(const tess_lower *L, const tess_node *n)
{
    return tess_wants_gradient(L, n->in[0]) || tess_wants_gradient(L, n->in[1]) ||
           (n->in[3] && tess_wants_gradient(L, n->in[3]));
}

static int64_t columns(const tess_tensor *w, int64_t tile)
{
    int64_t first, count;
    tess_param_rows(w, tile, &first, &count);
    return count;
}

/* From row to row of dlogits. */
static int64_t apart(const tess_tensor *w, int64_t tile)
{
    const int64_t align = tess_loss_align(w->g), n = columns(w, tile);
    return (n + align - 1) / align * align;
}

static int64_t all_tiles(const tess_tensor *w)
{
    return w->cut->split ? w->cut->all_tiles : w->cut->tiles;
}

static int64_t columns_of_all(const tess_tensor *w, int64_t tile)
{
    int64_t left = w->cut->whole[0] - tile * w->cut->tile_rows;
    return left < w->cut->tile_rows ? left : w->cut->tile_rows;
}

static void make_set(tess_lower *L, const tess_node *n, int64_t rows, struct set *s)
{
    const tess_tensor *w = n->in[1];
    s->p = tess_lower_get(L, (size_t)w->cut->tiles * sizeof *s->p);
    s->stats = tess_lower_get(L, (size_t)all_tiles(w) * sizeof *s->stats);
    for (int64_t j = 0; j < w->cut->tiles && trains(L, n); j++)
        s->p[j] = tess_tile_between(L, (size_t)(rows * apart(w, j)) * tess_dtype_size(tess_real(L)), "dlogits");
    for (int64_t j = 0; j < all_tiles(w); j++)
        s->stats[j] = tess_tile_between(L,
                                        tess_cross_entropy_stats(rows, columns_of_all(w, j)) +
                                            (head_of(n)->soft ? (size_t)((head_of(n)->soft - 1) * rows) * 4 : 0),
                                        "statistics of logits");
    s->lse = tess_tile_between(L, (size_t)rows * sizeof(float), "lse");
    if (tess_wants_gradient(L, n->in[0]))
        s->dx = tess_tile_between(L, (size_t)(rows * w->dim[1]) * sizeof(float), "dx of the head");
}

struct ring {
    struct set set[SETS];
    int turn;
};

/* Rows of a piece of row tile i. */
static int64_t most_rows(tess_lower *L, const tess_node *n, int i)
{
    const int64_t all = tess_rows(L, n->in[0], i), most = piece_rows(n->in[1]);
    return all < most ? all : most;
}

/* The set of a piece of at most `rows` rows. Large ones are a GPU's, which has one after the other in any case, since
 * they add to the same dw: one set, in the room of two of half as many rows. */
static struct set *next_set(tess_lower *L, const tess_node *n, int64_t rows)
{
    struct ring *ring = tess_node_room(L, n, sizeof *ring);
    const int sets = rows > LARGE ? 1 : SETS;
    for (int k = 0; k < sets && !ring->turn; k++) make_set(L, n, rows, &ring->set[k]);
    return &ring->set[ring->turn++ % sets];
}

/* A task's argument for tile j, but for what only one kind of them has. */
static tess_cross_entropy_arg *arg(tess_lower *L, const tess_node *n, int64_t row, int64_t rows, int64_t j)
{
    const tess_tensor *w = n->in[1];
    return TESS_ARG(L, tess_cross_entropy_arg, .rows = rows, .in = w->dim[1], .row = row,
                    .first = (w->cut->first_tile + j) * w->cut->tile_rows, .out = columns(w, j), .ld = apart(w, j),
                    .tiles = all_tiles(w), .tile_out = w->cut->tile_rows, .vocab = w->cut->whole[0],
                    .bias = n->in[3] != NULL, .cap = head_of(n)->cap, .heat = head_of(n)->heat,
                    .weight = head_of(n)->weight, .soft = head_of(n)->soft, .loss = tess_losses_of(n->out) - 1,
                    .losses = tess_losses(L), .hits = tess_numbers(L) > 0, .grad = trains(L, n),
                    .whole = trains(L, n) && all_tiles(w) == 1 && n->out->kind == TESS_KIND_LOSS,
                    .ends = !tess_wants_gradient(L, n->in[0]));
}

/* Soft targets of this row tile, which are those of whole sequences, lie behind all else. */
static unsigned add_soft(tess_lower *L, const tess_node *n, int i, tess_cross_entropy_arg *a, tess_use *use, unsigned k)
{
    if (!a->soft) return k;
    if (tess_spans(L)) a->soft_row = tess_first_row(L, n->in[0], i) % n->in[0]->dim[1];
    use[k] = tess_in(L, n->in[5], i);
    return k + 1;
}

static void logits(tess_lower *L, const tess_node *n, int i, int64_t row, int64_t rows, const struct set *set,
                   bool grad)
{
    const tess_tensor *w = n->in[1], *b = n->in[3];
    tess_use x = tess_in(L, n->in[0], i), target = tess_in(L, n->in[2], i);
    for (int64_t j = 0; j < w->cut->tiles; j++) {
        tess_cross_entropy_arg *a = arg(L, n, row, rows, j);
        a->grad = grad;
        tess_use use[8] = {x, target, tess_weight(L, w, j), {set->stats[w->cut->first_tile + j], TESS_W}};
        unsigned k = 4;
        use[k++] = tess_scratch_use(L, tess_cross_entropy_scratch());
        if (a->grad) use[k++] = (tess_use){set->p[j], TESS_W};
        if (b) use[k++] = tess_weight(L, b, j);
        k = add_soft(L, n, i, a, use, k);
        tess_emit(L, &tess_cross_entropy_logits[tess_real(L)], a, use, k);
    }
    for (int64_t j = 0; w->cut->split && j < w->cut->all_tiles; j++)
        tess_lower_broadcast(L, set->stats[j], tess_table_owner(w, j));
}

/* What comes out of all tiles' statistics: lse, and a loss or scores. */
static void losses(tess_lower *L, const tess_node *n, int i, tess_cross_entropy_arg *a, const struct set *set,
                   tess_use lse, tess_use out)
{
    const int64_t tiles = all_tiles(n->in[1]);
    tess_use use[4 + tiles];
    use[0] = tess_in(L, n->in[2], i);
    use[1] = lse;
    use[2] = out;
    for (int64_t j = 0; j < tiles; j++) use[3 + j] = (tess_use){set->stats[j], TESS_R};
    tess_emit(L, &tess_cross_entropy_rows[TESS_F32], a, use, add_soft(L, n, i, a, use, 3 + (unsigned)tiles));
}

/* Rows of a sequence, or of its part in this row tile. */
static int64_t sequence_of(tess_lower *L, const tess_node *n, int i)
{
    return tess_rows(L, n->in[0], i) / tess_rows(L, n->out, i);
}

/* dw_j += dlogits_j^T x, and db_j. */
static void weight_gradient(tess_lower *L, const tess_node *n, int i, int64_t row, int64_t rows, int64_t j,
                            tess_tile *p)
{
    const tess_tensor *w = n->in[1], *b = n->in[3];
    int64_t out = columns(w, j);
    const bool bias = b && tess_wants_gradient(L, b);
    tess_linear_arg *a = TESS_ARG(L, tess_linear_arg, .rows = rows, .in = w->dim[1], .out = out, .ld = apart(w, j),
                                  .row = row, .bias = bias);
    if (tess_wants_gradient(L, w)) {
        tess_use use[4] = {{p, TESS_R}, tess_in(L, n->in[0], i), tess_param_grad(L, w, j, &a->acc)};
        if (bias) use[3] = tess_param_grad(L, b, j, &a->acc_bias);
        tess_emit(L, &tess_linear_backward_weight[tess_real(L)], a, use, bias ? 4 : 3);
    } else if (bias)
        TESS_EMIT(L, &tess_linear_backward_bias[tess_real(L)], a, {p, TESS_R}, tess_param_grad(L, b, j, &a->acc_bias));
}

/* dx is the row tile's gradient, with the mode and acc of the first piece; without a tile it is not needed. `scores` is
 * the gradient of scores, if they are what is wanted. */
static void gradients(tess_lower *L, const tess_node *n, int i, int64_t row, int64_t rows, const struct set *set,
                      tess_use lse, tess_use scores, tess_use dx, bool acc)
{
    const tess_tensor *w = n->in[1];
    for (int64_t j = 0; j < w->cut->tiles; j++) {
        tess_cross_entropy_arg *a = arg(L, n, row, rows, j);
        a->acc = j > 0;
        a->sequence = scores.tile ? sequence_of(L, n, i) : 0;
        tess_use use[7] = {
            {set->p[j], TESS_RW}, {set->stats[w->cut->first_tile + j], TESS_R}, lse, tess_in(L, n->in[2], i)};
        unsigned k = 4;
        if (dx.tile) {
            use[k++] = tess_weight(L, w, j);
            use[k++] = (tess_use){set->dx, a->acc ? TESS_RW : TESS_W};
        }
        if (scores.tile) use[k++] = scores;
        k = add_soft(L, n, i, a, use, k);
        tess_emit(L, &tess_cross_entropy_gradient[tess_real(L)], a, use, k);
        weight_gradient(L, n, i, row, rows, j, set->p[j]);
    }
    if (!dx.tile) return;
    if (w->cut->split) tess_lower_all_reduce(L, set->dx, rows * w->dim[1], TESS_F32);
    tess_map_arg *a = TESS_ARG(L, tess_map_arg, .n = rows * w->dim[1], .first = row * w->dim[1], .acc = acc);
    TESS_EMIT(L, &tess_add_sum[tess_real(L)], a, {set->dx, TESS_R}, {dx.tile, row == 0 ? dx.mode : TESS_RW});
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    const int64_t all = tess_rows(L, n->in[0], i), most = most_rows(L, n, i);
    bool acc = false;
    tess_use dx = {0};
    if (tess_wants_gradient(L, n->in[0])) dx = tess_grad_write(L, n->in[0], i, &acc);
    for (int64_t row = 0; row < all; row += most) {
        int64_t rows = all - row < most ? all - row : most;
        const struct set *set = next_set(L, n, most);
        logits(L, n, i, row, rows, set, trains(L, n));
        losses(L, n, i, arg(L, n, row, rows, 0), set, (tess_use){set->lse, TESS_W}, tess_loss_out(L));
        if (trains(L, n)) gradients(L, n, i, row, rows, set, (tess_use){set->lse, TESS_R}, (tess_use){0}, dx, acc);
    }
}

const tess_op tess_op_cross_entropy = {
    .name = "cross_entropy",
    .takes = "x, w, targets, bias?, loss?",
    .infer = infer,
    .forward = forward,
    .table = 1,
    .table_bias = 3,
    .targets = 2,
    .counts_hits = true,
    .by_rows = true,
};

tess_tensor *tess_cross_entropy(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets)
{
    return tess_cross_entropy_capped(x, w, bias, targets, 0);
}

tess_tensor *tess_cross_entropy_capped(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets,
                                       float cap)
{
    const struct head head = {.cap = cap};
    if (bias) tess_param_cut_like(bias, w);
    return tess_node_add(&tess_op_cross_entropy, (tess_tensor *[]){x, w, targets, bias}, 4, &head, sizeof head);
}

tess_tensor *tess_loss_add(tess_tensor *loss, tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets)
{
    const struct head head = {0};
    if (!loss) return NULL;
    if (bias) tess_param_cut_like(bias, w);
    return tess_node_add(&tess_op_cross_entropy, (tess_tensor *[]){x, w, targets, bias, loss}, 5, &head, sizeof head);
}

/* ---- what another model says of each row ---- */

/* A second loss, whose soft targets are of whole sequences. */
static const tess_op distill_op = {
    .name = "distill",
    .takes = "x, w, targets, bias?, loss?, soft",
    .infer = infer,
    .forward = forward,
    .table = 1,
    .table_bias = 3,
    .targets = 2,
    .counts_hits = true,
    .by_rows = true,
    .by_places = true,
};

/* The teacher's loss has a factor of the square of what logits are divided by, so that its gradient is as large
 * whatever that is. */
tess_tensor *tess_distill(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets, tess_tensor *soft,
                          float cap, const tess_distill_conf *conf)
{
    tess_tensor *loss = NULL;
    const struct head label = {.cap = cap, .weight = 1 - conf->weight},
                      teacher = {.cap = cap,
                                 .heat = conf->temperature,
                                 .weight = conf->weight * conf->temperature * conf->temperature,
                                 .soft = conf->top};
    if (bias) tess_param_cut_like(bias, w);
    if (conf->weight < 1)
        loss = tess_node_add(&tess_op_cross_entropy, (tess_tensor *[]){x, w, targets, bias}, 4, &label, sizeof label);
    return tess_node_add(&distill_op, (tess_tensor *[]){x, w, targets, bias, loss, soft}, 6, &teacher, sizeof teacher);
}

static tess_status infer_likeliest(tess_node *n)
{
    TESS_TRY(infer_head(n));
    n->out->wide = true;
    tess_set_shape(n, 3, n->in[0]->dim[0], n->in[0]->dim[1], 2 + 2 * head_of(n)->soft);
    return TESS_OK;
}

static void forward_likeliest(tess_lower *L, const tess_node *n, int i)
{
    const tess_tensor *w = n->in[1], *b = n->in[3];
    tess_use out = tess_out(L, n->out, i);
    for (int64_t j = 0; j < w->cut->tiles; j++) {
        tess_cross_entropy_arg *a = arg(L, n, 0, tess_rows(L, n->in[0], i), j);
        tess_use use[5] = {tess_in(L, n->in[0], i), tess_weight(L, w, j), out,
                           tess_scratch_use(L, tess_cross_entropy_scratch())};
        if (head_of(n)->vocab) a->vocab = head_of(n)->vocab;
        if (b) use[4] = tess_weight(L, b, j);
        tess_emit(L, &tess_cross_entropy_likeliest[tess_real(L)], a, use, b ? 5 : 4);
        out.mode = TESS_RW;
    }
}

static const tess_op likeliest_op = {
    .name = "likeliest",
    .takes = "x, w, targets, bias?",
    .infer = infer_likeliest,
    .forward = forward_likeliest,
    .table = 1,
    .table_bias = 3,
    .by_rows = true,
    .by_places = true,
};

tess_tensor *tess_likeliest(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets, float cap,
                            int64_t count, int64_t vocab)
{
    const struct head head = {.cap = cap, .soft = count, .vocab = vocab};
    if (bias) tess_param_cut_like(bias, w);
    return tess_node_add(&likeliest_op, (tess_tensor *[]){x, w, targets, bias}, 4, &head, sizeof head);
}

/* ---- scores of sequences ---- */

/* What a loss of them makes of a sequence is known when all of its micro-batch are there, so logits are computed once
 * more on the way back. */
static tess_status infer_scores(tess_node *n)
{
    TESS_TRY(infer_head(n));
    n->out->wide = true;
    tess_set_shape(n, 3, n->in[0]->dim[0], 1, 2);
    return TESS_OK;
}

static void forward_scores(tess_lower *L, const tess_node *n, int i)
{
    const int64_t all = tess_rows(L, n->in[0], i), most = most_rows(L, n, i);
    tess_use lse = tess_aux_out(L, n, i, (size_t)all * sizeof(float)), out = tess_out(L, n->out, i);
    for (int64_t row = 0; row < all; row += most) {
        const int64_t rows = all - row < most ? all - row : most;
        const struct set *set = next_set(L, n, most);
        logits(L, n, i, row, rows, set, false);
        tess_cross_entropy_arg *a = arg(L, n, row, rows, 0);
        a->sequence = sequence_of(L, n, i);
        losses(L, n, i, a, set, lse, out);
        lse.mode = out.mode = TESS_RW;
    }
}

static void backward_scores(tess_lower *L, const tess_node *n, int i)
{
    const int64_t all = tess_rows(L, n->in[0], i), most = most_rows(L, n, i);
    bool acc = false;
    tess_use dx = {0};
    if (tess_wants_gradient(L, n->in[0])) dx = tess_grad_write(L, n->in[0], i, &acc);
    for (int64_t row = 0; row < all; row += most) {
        const int64_t rows = all - row < most ? all - row : most;
        const struct set *set = next_set(L, n, most);
        logits(L, n, i, row, rows, set, true);
        gradients(L, n, i, row, rows, set, tess_aux_in(L, n, i), tess_grad_read(L, n->out, i), dx, acc);
    }
}

static const tess_op scores_op = {
    .name = "scores",
    .takes = "x, w, targets, bias?",
    .reads = TESS_READS_IN0 | TESS_READS_AUX,
    .infer = infer_scores,
    .forward = forward_scores,
    .backward = backward_scores,
    .table = 1,
    .table_bias = 3,
    .targets = 2,
    .by_rows = true,
    .by_places = true,
};

tess_tensor *tess_scores(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets, float cap)
{
    const struct head head = {.cap = cap};
    if (bias) tess_param_cut_like(bias, w);
    return tess_node_add(&scores_op, (tess_tensor *[]){x, w, targets, bias}, 4, &head, sizeof head);
}

/* ---- a loss of them ---- */

static tess_status infer_preference(tess_node *n)
{
    const tess_preference_conf *c = n->attributes;
    const tess_tensor *scores = n->in[0], *reference = n->in[1];
    if (!scores->producer || scores->producer->op != &scores_op)
        return tess_shape_error(n, "the scores must be those that tess_scores returned");
    if (c->kind < TESS_PREFERENCE_DPO || c->kind > TESS_PREFERENCE_KTO)
        return tess_shape_error(n, "its kind is %d (expected one of tess_preference_kind)", (int)c->kind);
    const bool pairs = c->kind != TESS_PREFERENCE_KTO;
    if (pairs && scores->dim[0] % 2) return tess_shape_error(n, "the sequences are pairs, and their number is odd");
    if ((c->kind == TESS_PREFERENCE_DPO || !pairs) != (reference != NULL))
        return tess_shape_error(n, "DPO and KTO have a reference, the others have none");
    const int width = pairs ? 1 : TESS_KTO_REFERENCE;
    if (reference && (reference->kind != TESS_KIND_INPUT || reference->dim[1] != width))
        return tess_shape_error(n, "the reference must be an input (B,%d)", width);
    n->out->kind = TESS_KIND_LOSS;
    tess_set_shape(n, 0, 0, 0, 0);
    return TESS_OK;
}

/* With the last row tile, when all others' scores are there. */
static void forward_preference(tess_lower *L, const tess_node *n, int i)
{
    const int tiles = tess_row_tiles(L);
    const struct tess_spans *cut = tess_spans(L);
    if (i + 1 < tiles) return;
    tess_preference_arg *a =
        TESS_ARG(L, tess_preference_arg, .conf = *(const tess_preference_conf *)n->attributes, .tiles = (unsigned)tiles,
                 .spans = cut ? (unsigned)cut->here : 1, .reference = n->in[1], .numbers = tess_numbers(L) > 0,
                 .grad = tess_trains(L) && tess_wants_gradient(L, n->in[0]));
    tess_use *use = tess_lower_get(L, (size_t)(3 * tiles + 1) * sizeof *use);
    unsigned k = 0;
    use[k++] = tess_loss_out(L);
    for (int t = 0; t < tiles; t++) use[k++] = tess_in(L, n->in[0], t);
    for (int t = 0; t < tiles && a->reference; t += (int)a->spans) use[k++] = tess_in(L, n->in[1], t);
    for (int t = 0; t < tiles && a->grad; t++) {
        bool acc;
        use[k++] = tess_grad_write(L, n->in[0], t, &acc);
        TESS_ASSERT(!acc);
    }
    tess_emit(L, tess_preference_loss, a, use, k);
}

static const tess_op preference_op = {
    .name = "preference",
    .takes = "scores, reference?",
    .infer = infer_preference,
    .forward = forward_preference,
    .by_places = true,
    .reports = TESS_PREFERENCE_NUMBERS,
};

tess_tensor *tess_preference(tess_tensor *scores, tess_tensor *reference, const tess_preference_conf *conf)
{
    return tess_node_add(&preference_op, (tess_tensor *[]){scores, reference}, 2, conf, sizeof *conf);
}
