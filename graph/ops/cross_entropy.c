/* cross_entropy: the head and its loss in one op, since the logits must never exist as a whole. It is where gradients
 * begin, and its scale is known before the pass (1 / targets of the global batch), so its forward makes them too: for
 * each piece of rows one task computes the loss, dx and dlogits, and one a tile of w adds to dw. The tiles of dlogits
 * are a ring of a few sets: a piece waits until the set it writes was read. */
#include "graph_impl.h"

enum { SETS = 3 };

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[0], *w = n->in[1], *b = n->in[3], *targets = n->in[2];
    if (x->rank != 3 || w->kind != TESS_KIND_PARAM || w->rank != 2 || w->dim[1] != x->dim[2])
        return tess_shape_error(n, "x must be (B,T,C) and w (V,C)");
    if (targets->kind != TESS_KIND_INPUT || targets->dim[1] != x->dim[1])
        return tess_shape_error(n, "targets must be an input (B,T)");
    if (b && (!tess_is_param(b, w->dim[0], 1) || b->tiles > 1)) return tess_shape_error(n, "the bias must be (V)");
    n->out->kind = TESS_KIND_LOSS;
    tess_set_shape(n, 0, 0, 0, 0);
    return TESS_OK;
}

/* The tiles of dlogits for a piece, (rows, rows of w's tile j) each. */
static tess_tile **ring(tess_lower *L, const tess_tensor *w, int64_t rows)
{
    if (!L->ring) {
        L->ring = tess_arena_get(L->p->arena, (size_t)(SETS * w->tiles) * sizeof *L->ring);
        for (int64_t k = 0; k < SETS * w->tiles; k++) {
            int64_t first, count;
            tess_param_rows(w, k % w->tiles, &first, &count);
            size_t bytes = (size_t)(rows * count) * tess_dtype_size(L->dtype);
            L->ring[k] = tess_program_tile(L->p, bytes, TESS_ROLE_ACTIVATION, "dlogits");
        }
    }
    return &L->ring[(L->ring_turn++ % SETS) * w->tiles];
}

/* dw_j += dlogits_j^T x over one piece of rows. */
static void weight_gradient(tess_lower *L, const tess_node *n, int i, const tess_cross_entropy_arg *piece,
                            tess_tile **p)
{
    const tess_tensor *w = n->in[1];
    for (int64_t j = 0; j < w->tiles; j++) {
        int64_t first, count;
        tess_param_rows(w, j, &first, &count);
        tess_linear_arg *a = TESS_ARG(L, tess_linear_arg, .rows = piece->rows, .in = piece->in, .out = count,
                                      .ld = count, .row = piece->row);
        tess_use dw = tess_param_grad(L, w, j, &a->acc);
        TESS_EMIT(L, &tess_linear_backward_weight[L->dtype], a, {p[j], TESS_R}, tess_in(L, n->in[0], i), dw);
    }
}

/* dx: where the row tile's gradient goes; the first piece's mode and acc say what was there before. */
static void piece(tess_lower *L, const tess_node *n, int i, int64_t row, int64_t rows, int64_t most, tess_use dx,
                  bool acc)
{
    const tess_tensor *x = n->in[0], *w = n->in[1], *targets = n->in[2], *b = n->in[3];
    bool grad = L->conf->train;
    tess_cross_entropy_arg *a =
        TESS_ARG(L, tess_cross_entropy_arg, .rows = rows, .in = w->dim[1], .vocab = w->dim[0], .row = row,
                 .tiles = w->tiles, .tile_out = w->tile_rows, .bias = b != NULL, .grad = grad);
    tess_tile **p = grad ? ring(L, w, most) : NULL;
    tess_use use[7 + 2 * w->tiles];
    unsigned k = 0;
    use[k++] = tess_in(L, x, i);
    use[k++] = tess_in(L, targets, i);
    use[k++] = tess_loss_out(L);
    use[k++] = tess_scratch_use(L, tess_cross_entropy_scratch(a, L->dtype));
    for (int64_t j = 0; j < w->tiles; j++) use[k++] = tess_weight(w, j);
    if (b) use[k++] = tess_weight(b, 0);
    if (grad) {
        a->acc = acc;
        use[k++] = (tess_use){dx.tile, row == 0 ? dx.mode : TESS_RW};
        for (int64_t j = 0; j < w->tiles; j++) use[k++] = (tess_use){p[j], TESS_W};
        if (b) use[k++] = tess_param_grad(L, b, 0, &a->acc_bias);
    }
    tess_emit(L, &tess_cross_entropy_piece[L->dtype], a, use, k);
    if (grad) weight_gradient(L, n, i, a, p);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    int64_t rows = tess_rows(L, n->in[0], i), most = L->g->conf.loss_rows;
    if (rows < most) most = rows;
    bool acc = false;
    tess_use dx = {0};
    if (L->conf->train) dx = tess_grad_write(L, n->in[0], i, &acc);
    for (int64_t row = 0; row < rows; row += most)
        piece(L, n, i, row, rows - row < most ? rows - row : most, most, dx, acc);
}

const tess_op tess_op_cross_entropy = {"cross_entropy", infer, forward, NULL, 0};

tess_tensor *tess_cross_entropy(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets)
{
    if (!w || !targets) return NULL;
    return tess_node_add(&tess_op_cross_entropy, (tess_tensor *[]){x, w, targets, bias}, 4, &(tess_node){0});
}
