/* linear: y (B,T,out) = x (B,T,in) w^T + b, with w (out,in), b (out). A weight of several tiles makes y in stripes of
 * columns, one tile of w after the other: a matrix larger than the memory at hand needs one of its tiles at a time. */
#include "graph/ops/lowering.h"

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[0], *w = n->in[1], *b = n->in[2];
    if (x->rank != 3 || w->kind != TESS_KIND_PARAM || w->rank != 2 || w->dim[1] != x->dim[2])
        return tess_shape_error(n, "x must be (B,T,in) and w (out,in)");
    if (b && !tess_is_param(b, w->dim[0], 1)) return tess_shape_error(n, "the bias must be (out)");
    if (b && b->cut->tile_rows != w->cut->tile_rows) return tess_shape_error(n, "the bias is cut otherwise than w");
    tess_set_shape(n, 3, x->dim[0], x->dim[1], w->dim[0]);
    return TESS_OK;
}

static tess_linear_arg *arg(tess_lower *L, const tess_node *n, int i, int64_t j)
{
    int64_t first, count;
    tess_param_rows(n->in[1], j, &first, &count);
    return TESS_ARG(L, tess_linear_arg, .rows = tess_rows(L, n->out, i), .in = n->in[1]->dim[1], .out = count,
                    .ld = n->in[1]->dim[0], .col = first, .bias = n->in[2] != NULL, .w = tess_quantized(n->in[1]),
                    .fp8 = n->fp8 && tess_quantized(n->in[1]) == TESS_F32);
}

/* Where steps generate, tiles of w make stripes of y side by side, which are joined: with one tile of rows there is
 * nothing else for several workers to do. */
static void forward_stripes(tess_lower *L, const tess_node *n, int i)
{
    const tess_tensor *w = n->in[1];
    const int64_t tiles = w->cut->tiles, rows = tess_rows(L, n->out, i), size = (int64_t)tess_dtype_size(tess_real(L));
    tess_use *use = tess_lower_get(L, (size_t)(tiles + 1) * sizeof *use);
    for (int64_t j = 0; j < tiles; j++) {
        tess_linear_arg *a = arg(L, n, i, j);
        a->ld = a->out, a->col = 0, a->few = rows <= TESS_FEW_ROWS;
        tess_tile *stripe = tess_slot_between(L, (size_t)(rows * a->out * size), tess_tensor_name(n->out));
        use[j + 1] = (tess_use){stripe, TESS_R};
        tess_use of[] = {tess_in(L, n->in[0], i), tess_weight(L, w, j), {stripe, TESS_W}, {stripe, TESS_W}};
        if (n->in[2]) of[3] = tess_weight(L, n->in[2], j);
        tess_emit(L, &tess_linear_forward[tess_real(L)], a, of, n->in[2] ? 4 : 3);
    }
    use[0] = tess_out(L, n->out, i);
    tess_join_arg *a = TESS_ARG(L, tess_join_arg, .rows = rows, .width = w->dim[0], .stripe = w->cut->tile_rows);
    tess_emit(L, &tess_join[tess_real(L)], a, use, (unsigned)tiles + 1);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    if (tess_generates(L) && n->in[1]->cut->tiles > 1) {
        forward_stripes(L, n, i);
        return;
    }
    tess_use x = tess_in(L, n->in[0], i), y = tess_out(L, n->out, i);
    for (int64_t j = 0; j < n->in[1]->cut->tiles; j++) {
        if (j > 0) y.mode = TESS_RW;
        tess_linear_arg *a = arg(L, n, i, j);
        a->few = tess_generates(L) && a->rows <= TESS_FEW_ROWS;
        tess_use use[] = {x, tess_weight(L, n->in[1], j), y, n->in[2] ? tess_weight(L, n->in[2], j) : x};
        tess_emit(L, &tess_linear_forward[tess_real(L)], a, use, n->in[2] ? 4 : 3);
    }
}

/* dx from one tile of w. */
static void input_gradient(tess_lower *L, const tess_node *n, int i)
{
    tess_linear_arg *a = arg(L, n, i, 0);
    tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_linear_backward_input[tess_real(L)], a, tess_grad_read(L, n->out, i),
              tess_weight(L, n->in[1], 0), dx);
}

/* dx from several: summed in f32 and rounded once. */
static void input_gradient_sum(tess_lower *L, const tess_node *n, int i)
{
    const tess_tensor *x = n->in[0], *w = n->in[1];
    int64_t elements = tess_rows(L, x, i) * tess_width(x);
    tess_tile *sum = tess_slot_between(L, (size_t)elements * sizeof(float), tess_tensor_name(x));
    for (int64_t j = 0; j < w->cut->tiles; j++) {
        tess_linear_arg *a = arg(L, n, i, j);
        a->acc = j > 0;
        a->sum = true;
        TESS_EMIT(L, &tess_linear_backward_input[tess_real(L)], a, tess_grad_read(L, n->out, i), tess_weight(L, w, j),
                  {sum, a->acc ? TESS_RW : TESS_W});
    }
    tess_map_arg *a = TESS_ARG(L, tess_map_arg, .n = elements);
    tess_use dx = tess_grad_write(L, x, i, &a->acc);
    TESS_EMIT(L, &tess_add_sum[tess_real(L)], a, {sum, TESS_R}, dx);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    const tess_tensor *x = n->in[0], *w = n->in[1], *b = n->in[2];
    tess_use dy = tess_grad_read(L, n->out, i);
    const bool bias = b && tess_wants_gradient(L, b);
    if (tess_wants_gradient(L, x)) (w->cut->tiles > 1 ? input_gradient_sum : input_gradient)(L, n, i);
    for (int64_t j = 0; tess_wants_gradient(L, w) && j < w->cut->tiles; j++) {
        tess_linear_arg *a = arg(L, n, i, j);
        tess_use use[4] = {dy, tess_in(L, x, i), tess_param_grad(L, w, j, &a->acc)};
        a->bias = bias;
        if (bias) use[3] = tess_param_grad(L, b, j, &a->acc_bias);
        tess_emit(L, &tess_linear_backward_weight[tess_real(L)], a, use, bias ? 4 : 3);
    }
    for (int64_t j = 0; bias && !tess_wants_gradient(L, w) && j < w->cut->tiles; j++) {
        tess_linear_arg *a = arg(L, n, i, j);
        TESS_EMIT(L, &tess_linear_backward_bias[tess_real(L)], a, dy, tess_param_grad(L, b, j, &a->acc_bias));
    }
}

const tess_op tess_op_linear = {
    .name = "linear",
    .takes = "x, w, bias?",
    .reads = TESS_READS_IN0,
    .reads_for_params = TESS_READS_IN0,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_MATRIX,
    .times = 1 << 1,
    .by_rows = true,
    .quantized = true,
    .may_wait = true,
};

tess_tensor *tess_linear(tess_tensor *x, tess_tensor *w, tess_tensor *bias)
{
    if (bias) tess_param_cut_like(bias, w);
    return tess_linear_beside(x, w, bias, tess_node_add(&tess_op_linear, (tess_tensor *[]){x, w, bias}, 3, NULL, 0));
}
