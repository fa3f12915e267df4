/* embedding: y[r] = scale (table[id[r]] [+ noise]) (+ position[r % sequence]). The ids were checked against the
 * vocabulary when they were read from the data; here they are only asserted. */
#include "codelets/shared/vector.h"

/* The position's row of the token in row r. */
TESS_INLINE const void *position_of(const tess_work *w, int64_t r, tess_dtype t)
{
    const tess_embedding_arg *a = w->arg;
    const int64_t place = (a->row0 + r) % a->sequence, j = place / a->position_tile_rows;
    TESS_ASSERT(j < a->position_tiles);
    return tess_at(w->buf[3 + j].ptr, place % a->position_tile_rows * a->width, t);
}

TESS_INLINE float scale_of(const tess_embedding_arg *a)
{
    return a->scale > 0 ? a->scale : 1;
}

/* A token's row with what is drawn for row r added. */
TESS_INLINE void noisy_row(const tess_work *w, void *y, const void *token, int64_t r, tess_random_key key, tess_dtype t)
{
    const tess_embedding_arg *a = w->arg;
    const uint64_t at = (uint64_t)((a->row0 + r) * a->width);
    const void *position = a->position_tiles ? position_of(w, r, t) : NULL;
    for (int64_t i = 0; i < a->width; i++) {
        const float x = tess_load(token, i, t) + a->noise * tess_uniform_at(key, at + (uint64_t)i);
        tess_store(y, i, t, x * scale_of(a) + (position ? tess_load(position, i, t) : 0));
    }
}

/* The rows whose token this tile of the table holds. */
TESS_INLINE void embedding_forward(const tess_work *w, tess_dtype t)
{
    const tess_embedding_arg *a = w->arg;
    const int32_t *id = w->buf[0].ptr;
    const int64_t n = a->width;
    const float scale = scale_of(a);
    const bool noisy = a->noise > 0 && w->env->train;
    const tess_random_key key = tess_random_begin(w->env->seed, (uint64_t)w->env->step, a->op);
    for (int64_t r = 0; r < a->rows; r++) {
        const int64_t row = id[r] - a->first;
        TESS_ASSERT(id[r] >= 0 && id[r] < a->rows_of_table);
        if (row < 0 || row >= a->count) continue;
        const void *token = tess_at(w->buf[2].ptr, row * n, t);
        void *y = tess_at_mut(w->buf[1].ptr, r * n, t);
        if (noisy) {
            noisy_row(w, y, token, r, key, t);
            continue;
        }
        if (a->position_tiles == 0) {
            if (scale == 1)
                memcpy(y, token, (size_t)n * tess_dtype_size(t));
            else
#pragma omp simd
                for (int64_t i = 0; i < n; i++) tess_store(y, i, t, tess_load(token, i, t) * scale);
            continue;
        }
        const void *position = position_of(w, r, t);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) tess_store(y, i, t, tess_load(token, i, t) * scale + tess_load(position, i, t));
    }
}

/* Of the table only the rows named move; of those this tile has its share. */
static tess_cost embedding_forward_cost(const void *arg, tess_dtype t)
{
    const tess_embedding_arg *a = arg;
    const double rows = a->position_tiles ? 3 : 2, share = (double)a->count / (double)a->rows_of_table;
    return (tess_cost){.bytes = (double)a->rows * (4 + rows * (double)a->width * (double)tess_dtype_size(t) * share)};
}

TESS_INLINE void add_row(float *dtable, const void *dy, float scale, int64_t n, tess_dtype t)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dtable[i] += tess_load(dy, i, t) * scale;
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
        if (row >= 0 && row < a->count) add_row(dtable + row * n, tess_at(w->buf[1].ptr, r * n, t), scale_of(a), n, t);
    }
}

TESS_INLINE void embedding_backward_position(const tess_work *w, tess_dtype t)
{
    const tess_embedding_arg *a = w->arg;
    const int64_t n = a->width;
    float *dposition = w->buf[1].ptr;
    if (!a->acc) memset(dposition, 0, (size_t)(a->count * n) * sizeof *dposition);
    for (int64_t r = 0; r < a->rows; r++) {
        const int64_t row = (a->row0 + r) % a->sequence - a->first;
        if (row >= 0 && row < a->count) add_row(dposition + row * n, tess_at(w->buf[0].ptr, r * n, t), 1, n, t);
    }
}

TESS_REAL_COST(embedding_forward)
TESS_REAL(embedding_backward)
TESS_REAL(embedding_backward_position)
