/* rescale: y = (z - bias) * m / |w + by b a| + bias: z is x w^T + by (x a^T) b^T + bias, and each row of the matrix
 * that x was multiplied by, of w and what is beside it, becomes one of the length m (DoRA). The lengths are found once
 * for all row tiles, and count as constants in the backward pass. */
#include "graph/ops/lowering.h"

enum { Z, W, A, B, M, BIAS };

static tess_status infer(tess_node *n)
{
    const tess_tensor *z = n->in[Z], *w = n->in[W], *a = n->in[A], *b = n->in[B], *bias = n->in[BIAS];
    if (z->rank != 3 || w->kind != TESS_KIND_PARAM || w->rank != 2 || w->dim[0] != z->dim[2])
        return tess_shape_error(n, "z must be (B,T,out) and w (out,in)");
    if (!tess_is_param(a, a->dim[0], w->dim[1]) || !tess_is_param(b, w->dim[0], a->dim[0]))
        return tess_shape_error(n, "a must be (r,in) and b (out,r)");
    if (a->cut->tiles > 1 || b->cut->tiles > 1)
        return tess_shape_error(n, "a or b is cut, but must be whole (raise tile_elements, or lower r)");
    if (!tess_is_param(n->in[M], w->dim[0], 1)) return tess_shape_error(n, "m must be (out)");
    if (bias && !tess_is_param(bias, w->dim[0], 1)) return tess_shape_error(n, "the bias must be (out)");
    if (n->in[M]->cut->tile_rows != w->cut->tile_rows || (bias && bias->cut->tile_rows != w->cut->tile_rows))
        return tess_shape_error(n, "m or the bias is cut otherwise than w");
    tess_set_shape(n, 3, z->dim[0], z->dim[1], z->dim[2]);
    return TESS_OK;
}

static tess_rescale_arg *arg(tess_lower *L, const tess_node *n, int i, int64_t j)
{
    int64_t first, count;
    tess_param_rows(n->in[W], j, &first, &count);
    return TESS_ARG(L, tess_rescale_arg, .rows = tess_rows(L, n->out, i), .ld = n->in[W]->dim[0], .col = first,
                    .out = count, .in = n->in[W]->dim[1], .r = n->in[A]->dim[0], .by = *(const float *)n->attributes,
                    .bias = n->in[BIAS] != NULL);
}

/* The lengths that the rows of w's tile j have, for the time of a stretch. */
struct lengths {
    uint64_t stretch;
    tess_tile **tile; /* [tiles] */
};

static tess_use length(tess_lower *L, const tess_node *n, int64_t j)
{
    const int64_t tiles = n->in[W]->cut->tiles;
    struct lengths *l = tess_node_room(L, n, sizeof *l);
    if (!l->tile) l->tile = tess_lower_get(L, (size_t)tiles * sizeof(tess_tile *));
    if (l->stretch != tess_stretch(L)) {
        l->stretch = tess_stretch(L);
        for (int64_t k = 0; k < tiles; k++) {
            tess_rescale_arg *a = arg(L, n, 0, k);
            l->tile[k] = tess_slot_between(L, (size_t)a->out * sizeof(float), tess_tensor_name(n->in[M]));
            TESS_EMIT(L, &tess_rescale_lengths[tess_real(L)], a, tess_weight(L, n->in[W], k),
                      tess_weight(L, n->in[A], 0), tess_weight(L, n->in[B], 0), {l->tile[k], TESS_W});
        }
    }
    return (tess_use){l->tile[j], TESS_R};
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_use z = tess_in(L, n->in[Z], i), y = tess_out(L, n->out, i);
    for (int64_t j = 0; j < n->in[W]->cut->tiles; j++) {
        tess_use use[] = {z, tess_weight(L, n->in[M], j), length(L, n, j), y, z};
        if (j > 0) use[3].mode = TESS_RW;
        if (n->in[BIAS]) use[4] = tess_weight(L, n->in[BIAS], j);
        tess_emit(L, &tess_rescale_forward[tess_real(L)], arg(L, n, i, j), use, n->in[BIAS] ? 5 : 4);
    }
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    bool acc;
    tess_use dy = tess_grad_read(L, n->out, i), z = tess_in(L, n->in[Z], i), dz = tess_grad_write(L, n->in[Z], i, &acc);
    for (int64_t j = 0; j < n->in[W]->cut->tiles; j++) {
        tess_rescale_arg *a = arg(L, n, i, j);
        a->acc = acc;
        if (j > 0) dz.mode = TESS_RW;
        tess_use use[] = {
            dy, z, tess_weight(L, n->in[M], j), length(L, n, j), dz, tess_param_grad(L, n->in[M], j, &a->acc_m), z};
        if (n->in[BIAS]) use[6] = tess_weight(L, n->in[BIAS], j);
        tess_emit(L, &tess_rescale_backward[tess_real(L)], a, use, n->in[BIAS] ? 7 : 6);
    }
}

const tess_op tess_op_rescale = {
    .name = "rescale",
    .takes = "z, w, a, b, m, bias?",
    .reads = TESS_READS_IN0,
    .reads_for_params = TESS_READS_IN0,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .times = 1 << W | 1 << A | 1 << B,
    .by_rows = true,
};

tess_tensor *tess_rescaled(tess_tensor *z, tess_tensor *w, tess_tensor *a, tess_tensor *b, float by, tess_tensor *m,
                           tess_tensor *bias)
{
    if (m && w) tess_param_cut_like(m, w);
    return tess_node_add(&tess_op_rescale, (tess_tensor *[]){z, w, a, b, m, bias}, 6, &by, sizeof by);
}
