/* expert_linear: y (B,T*k,out), where each place is x's (B,T*k,in) times the matrix of its expert; w is a stack of
 * these. One task a row tile and tile of w, as in linear: no task takes places of two experts, and the
 * matrix of one that no row of the tile chose is not asked for. */
#include "graph/ops/lowering.h"

enum { X, WEIGHTS, W };

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[X], *weights = n->in[WEIGHTS], *w = n->in[W];
    if (!tess_is_routed(weights)) return tess_shape_error(n, "the weights must be those that tess_route returned");
    if (w->kind != TESS_KIND_PARAM || w->cut->members != tess_routed_experts(weights))
        return tess_shape_error(n, "w must be a stack of as many matrices as there are experts (tess_param_stack)");
    if (x->rank != 3 || x->dim[1] != weights->dim[1] * weights->dim[2] || w->dim[1] != x->dim[2])
        return tess_shape_error(n, "x must be (B,T*chosen,in) and each matrix of w (out,in)");
    tess_set_shape(n, 3, x->dim[0], x->dim[1], w->dim[0] / w->cut->members);
    return TESS_OK;
}

/* Tiles of one expert's matrix. */
static int64_t tiles_of_one(const tess_tensor *w)
{
    return w->cut->tiles / w->cut->members;
}

static tess_expert_arg *arg(tess_lower *L, const tess_node *n, int i, int64_t j)
{
    const tess_tensor *w = n->in[W];
    const int64_t out = w->dim[0] / w->cut->members, each = tiles_of_one(w);
    int64_t first, end;
    tess_experts_here(L, w->cut->members, &first, &end);
    return TESS_ARG(
        L, tess_expert_arg, .expert = j / each, .choices = tess_rows(L, n->out, i), .first = first, .end = end,
        .linear = {.in = w->dim[1], .out = w->cut->tile_rows, .ld = out, .col = j % each * w->cut->tile_rows});
}

/* Stores the tiles [first, end) of the experts whose places are here. */
static void tiles_here(const tess_lower *L, const tess_tensor *w, int64_t *first, int64_t *end)
{
    tess_experts_here(L, w->cut->members, first, end);
    *first *= tiles_of_one(w), *end *= tiles_of_one(w);
}

static tess_use order(tess_lower *L, const tess_node *n, int i)
{
    return tess_aux_in(L, n->in[WEIGHTS]->producer, i);
}

/* Emits a task that needs its tile of w only if the expert was chosen. */
static void emit_if_chosen(tess_lower *L, const tess_node *n, int i, tess_codelet *cl, tess_expert_arg *a,
                           tess_use from, int64_t j, tess_use to)
{
    tess_use w = tess_weight(L, n->in[W], j);
    if (!tess_is_guest(L)) w.mode |= TESS_IF_CHOSEN;
    TESS_EMIT(L, cl, a, from, w, order(L, n, i), to,
              tess_scratch_use(L, tess_expert_scratch(a->linear.in, a->linear.out)));
    if (!tess_is_guest(L)) tess_emitted_chooses(L, tess_choice_at(L, n->in[WEIGHTS]->producer, i), (int)a->expert);
}

/* With the last row tile, for all of them: expert by expert, so that a matrix is needed once, and that tasks which
 * follow each other write different tiles. */
static void forward(tess_lower *L, const tess_node *n, int i)
{
    const int tiles = tess_row_tiles(L);
    if (i + 1 < tiles) return;
    int64_t first, end;
    tiles_here(L, n->in[W], &first, &end);
    tess_use *y = tess_lower_get(L, (size_t)tiles * sizeof *y);
    for (int r = 0; r < tiles; r++) y[r] = tess_out(L, n->out, r);
    for (int64_t j = first; j < end; j++)
        for (int r = 0; r < tiles; r++) {
            tess_expert_arg *a = arg(L, n, r, j);
            a->rest = a->expert == a->first; /* of each column, whoever makes it first */
            if (j > first) y[r].mode = TESS_RW;
            emit_if_chosen(L, n, r, &tess_expert_linear_forward[tess_real(L)], a, tess_in(L, n->in[X], r), j, y[r]);
        }
}

/* Where the tiles of one expert's matrix are several, their parts of dx add up in f32, and are rounded once. */
struct dx {
    tess_use to;
    bool acc;
};

static void input_gradient(tess_lower *L, const tess_node *n, int tiles)
{
    const tess_tensor *x = n->in[X], *w = n->in[W];
    const int64_t each = tiles_of_one(w);
    const bool sums = each > 1;
    int64_t first, end;
    tiles_here(L, w, &first, &end);
    struct dx *dx = tess_lower_get(L, (size_t)tiles * sizeof *dx);
    for (int r = 0; r < tiles; r++) {
        const size_t elements = (size_t)(tess_rows(L, x, r) * tess_width(x));
        if (sums)
            dx[r].to = (tess_use){tess_slot_between(L, elements * sizeof(float), tess_tensor_name(x)), TESS_W};
        else
            dx[r].to = tess_grad_write(L, x, r, &dx[r].acc);
    }
    for (int64_t j = first; j < end; j++)
        for (int r = 0; r < tiles; r++) {
            tess_expert_arg *a = arg(L, n, r, j);
            a->linear.sum = sums;
            a->linear.acc = sums ? j % each > 0 : dx[r].acc;
            a->rest = j == first;
            if (j > first) dx[r].to.mode = TESS_RW;
            emit_if_chosen(L, n, r, &tess_expert_linear_backward_input[tess_real(L)], a, tess_grad_read(L, n->out, r),
                           j, dx[r].to);
        }
    for (int r = 0; r < tiles && sums; r++) {
        tess_map_arg *a = TESS_ARG(L, tess_map_arg, .n = tess_rows(L, x, r) * tess_width(x));
        tess_use to = tess_grad_write(L, x, r, &a->acc);
        TESS_EMIT(L, &tess_add_sum[tess_real(L)], a, {dx[r].to.tile, TESS_R}, to);
    }
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    const int tiles = tess_row_tiles(L);
    if (i + 1 < tiles) return;
    int64_t first, end;
    tiles_here(L, n->in[W], &first, &end);
    if (tess_wants_gradient(L, n->in[X])) input_gradient(L, n, tiles);
    for (int64_t j = first; tess_wants_gradient(L, n->in[W]) && j < end; j++)
        for (int r = 0; r < tiles; r++) {
            tess_lower_piece(L, r);
            tess_expert_arg *a = arg(L, n, r, j);
            tess_use dw = tess_param_grad(L, n->in[W], j, &a->linear.acc);
            TESS_EMIT(L, &tess_expert_linear_backward_weight[tess_real(L)], a, tess_grad_read(L, n->out, r),
                      tess_in(L, n->in[X], r), order(L, n, r), dw);
        }
}

const tess_op tess_op_expert_linear = {
    .name = "expert_linear",
    .takes = "x, weights, w",
    .reads = TESS_READS_IN0 | TESS_READS_IN1,
    .reads_for_params = TESS_READS_IN0,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .by_places = true,
    .stack = W,
    .times = 1 << W,
    .may_wait = true,
};

tess_tensor *tess_expert_linear(tess_tensor *x, tess_tensor *weights, tess_tensor *w)
{
    return tess_node_add(&tess_op_expert_linear, (tess_tensor *[]){x, weights, w}, 3, NULL, 0);
}
