/* embedding: y[r] = table[id[r]] (+ position[r % sequence]). The ids were checked against the vocabulary when they
 * were read from the data; here they are only asserted. */
#include "vector_impl.h"

/* Row `id` of a table that comes as buffers of tile_rows rows, from buffer `first` on. */
TESS_INLINE const void *table_row(const tess_work *w, int64_t first, int64_t tiles, int64_t tile_rows, int64_t id,
                                  tess_dtype t)
{
    const tess_embedding_arg *a = w->arg;
    TESS_ASSERT(id >= 0 && id / tile_rows < tiles);
    const tess_view *tile = &w->buf[first + id / tile_rows];
    const int64_t at = id % tile_rows * a->width;
    TESS_ASSERT((size_t)(at + a->width) * tess_dtype_size(t) <= tile->bytes);
    return tess_at(tile->ptr, at, t);
}

TESS_INLINE void embedding_forward(const tess_work *w, tess_dtype t)
{
    const tess_embedding_arg *a = w->arg;
    const int32_t *id = w->buf[0].ptr;
    const int64_t n = a->width;
    for (int64_t r = 0; r < a->rows; r++) {
        const void *token = table_row(w, 2, a->tiles, a->tile_rows, id[r], t);
        void *y = tess_at_mut(w->buf[1].ptr, r * n, t);
        if (a->position_tiles == 0) {
            memcpy(y, token, (size_t)n * tess_dtype_size(t));
            continue;
        }
        const void *position = table_row(w, 2 + a->tiles, a->position_tiles, a->position_tile_rows, r % a->sequence, t);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) tess_store(y, i, t, tess_load(token, i, t) + tess_load(position, i, t));
    }
}

/* Of the table only the rows named move. */
static tess_cost embedding_forward_cost(const void *arg, tess_dtype t)
{
    const tess_embedding_arg *a = arg;
    const double rows = a->position_tiles ? 3 : 2;
    return (tess_cost){.bytes = (double)a->rows * (4 + rows * (double)a->width * (double)tess_dtype_size(t))};
}

TESS_INLINE void add_row(float *dtable, const void *dy, int64_t n, tess_dtype t)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dtable[i] += tess_load(dy, i, t);
}

/* Rows are added in their order, which fixes the rounding. */
TESS_INLINE void embedding_backward(const tess_work *w, tess_dtype t)
{
    const tess_embedding_arg *a = w->arg;
    const int32_t *id = w->buf[0].ptr;
    const int64_t n = a->width;
    float *dtable = w->buf[2].ptr;
    if (!a->acc) memset(dtable, 0, (size_t)(a->count * n) * sizeof *dtable);
    for (int64_t r = 0; r < a->rows; r++) {
        const int64_t row = id[r] - a->first;
        if (row >= 0 && row < a->count) add_row(dtable + row * n, tess_at(w->buf[1].ptr, r * n, t), n, t);
    }
}

TESS_INLINE void embedding_backward_position(const tess_work *w, tess_dtype t)
{
    const tess_embedding_arg *a = w->arg;
    const int64_t n = a->width;
    float *dposition = w->buf[1].ptr;
    if (!a->acc) memset(dposition, 0, (size_t)(a->count * n) * sizeof *dposition);
    for (int64_t r = 0; r < a->rows; r++) {
        const int64_t row = r % a->sequence - a->first;
        if (row >= 0 && row < a->count) add_row(dposition + row * n, tess_at(w->buf[0].ptr, r * n, t), n, t);
    }
}

TESS_REAL_COST(embedding_forward)
TESS_REAL(embedding_backward)
TESS_REAL(embedding_backward_position)
