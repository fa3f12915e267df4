/* embedding: y (B,T,C) = scale table (V,C)[ids (B,T)] (+ positions (>=T,C)[t]). */
#include "graph/ops/lowering.h"
#include <math.h>

static tess_status infer(tess_node *n)
{
    const tess_tensor *ids = n->in[0], *table = n->in[1], *pos = n->in[2];
    const bool given = ids->kind == TESS_KIND_INPUT; /* else some op has made them, within the table */
    if ((!given && (ids->rank != 3 || ids->dim[2] != 1)) || table->kind != TESS_KIND_PARAM || table->rank != 2)
        return tess_shape_error(n, "ids must be an input (B,T), or made (B,T,1), and the table a parameter (V,C)");
    if (pos && (pos->kind != TESS_KIND_PARAM || pos->dim[1] != table->dim[1] || pos->dim[0] < ids->dim[1]))
        return tess_shape_error(n, "positions must be (at least T,C)");
    if (pos && pos->cut->tiles > TESS_MOST_USES - 3)
        return tess_shape_error(n, "positions are cut into %lld tiles, which is too many (raise tile_elements)",
                                (long long)pos->cut->tiles);
    if (!(*(const float *)n->attributes > 0))
        return tess_shape_error(n, "the scale is %g (expected above 0)", (double)*(const float *)n->attributes);
    if (!(ids->noise >= 0 && isfinite(ids->noise)))
        return tess_shape_error(n, "the noise is %g (expected 0 or more)", (double)ids->noise);
    if (given) tess_limit_ids(n->in[0], 0, table->cut->whole[0] - 1, table->name);
    tess_set_shape(n, 3, ids->dim[0], ids->dim[1], table->dim[1]);
    return TESS_OK;
}

/* A number as an activation holds it. */
static float scale_as(float x, tess_dtype t)
{
    return t == TESS_F32 ? x : tess_from_half(t, tess_to_half(t, x));
}

static tess_embedding_arg *arg(tess_lower *L, const tess_node *n, int i, const tess_tensor *p, int64_t j)
{
    const tess_tensor *table = n->in[1], *pos = n->in[2];
    const float scale = *(const float *)n->attributes;
    tess_embedding_arg *a = TESS_ARG(
        L, tess_embedding_arg, .rows = tess_rows(L, n->out, i), .width = table->dim[1], .sequence = n->out->dim[1],
        .rows_of_table = table->cut->whole[0], .position_tiles = pos ? pos->cut->tiles : 0,
        .position_tile_rows = pos ? pos->cut->tile_rows : 0, .scale = scale_as(scale, tess_real(L)),
        .noise = n->in[0]->noise / sqrtf((float)(n->out->dim[1] * table->dim[1])), .row0 = tess_first_row(L, n->out, i),
        .op = n->random);
    tess_param_rows(p, j, &a->first, &a->count);
    a->first += p->cut->first_tile * p->cut->tile_rows;
    return a;
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    const tess_tensor *table = n->in[1], *pos = n->in[2];
    tess_use use[3 + (pos ? pos->cut->tiles : 0)];
    use[0] = tess_in(L, n->in[0], i);
    use[1] = tess_out(L, n->out, i);
    for (int64_t j = 0; pos && j < pos->cut->tiles; j++) use[3 + j] = tess_weight(L, pos, j);
    if (table->cut->split) { /* the rows of tokens that other ranks have */
        tess_count_arg *a = TESS_ARG(L, tess_count_arg, .n = tess_rows(L, n->out, i) * tess_width(n->out));
        TESS_EMIT(L, &tess_fill[tess_real(L)], a, {use[1].tile, TESS_W});
        use[1].mode = TESS_RW;
    }
    for (int64_t j = 0; j < table->cut->tiles; j++) { /* each writes the rows of its tokens */
        use[2] = tess_weight(L, table, j);
        tess_emit(L, &tess_embedding_forward[tess_real(L)], arg(L, n, i, table, j), use,
                  3 + (pos ? pos->cut->tiles : 0));
        use[1].mode = TESS_RW;
    }
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    const tess_tensor *table = n->in[1], *pos = n->in[2];
    tess_use ids = tess_in(L, n->in[0], i), dy = tess_grad_read(L, n->out, i);
    for (int64_t j = 0; tess_wants_gradient(L, table) && j < table->cut->tiles; j++) {
        tess_embedding_arg *a = arg(L, n, i, table, j);
        TESS_EMIT(L, &tess_embedding_backward[tess_real(L)], a, ids, dy, tess_param_grad(L, table, j, &a->acc));
    }
    for (int64_t j = 0; pos && tess_wants_gradient(L, pos) && j < pos->cut->tiles; j++) {
        tess_embedding_arg *a = arg(L, n, i, pos, j);
        TESS_EMIT(L, &tess_embedding_backward_position[tess_real(L)], a, dy, tess_param_grad(L, pos, j, &a->acc));
    }
}

const tess_op tess_op_embedding = {
    .name = "embedding",
    .takes = "ids, table, positions?",
    .reads = TESS_READS_IN0,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .table = 1,
    .table_parts = true,
    .by_rows = true,
};

tess_tensor *tess_embedding(tess_tensor *ids, tess_tensor *table, tess_tensor *positions)
{
    return tess_node_add(&tess_op_embedding, (tess_tensor *[]){ids, table, positions}, 3, &(float){1}, sizeof(float));
}

tess_tensor *tess_embedding_noise(tess_tensor *ids, float alpha)
{
    if (ids) ids->noise = alpha;
    return ids;
}

tess_tensor *tess_embedding_scaled(tess_tensor *ids, tess_tensor *table, float scale)
{
    return tess_node_add(&tess_op_embedding, (tess_tensor *[]){ids, table, NULL}, 3, &scale, sizeof scale);
}
