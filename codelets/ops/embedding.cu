/* embedding: forward a block a row. The table's gradient is summed without atomics, in the order of the rows: the block
 * of the row where a token is met first gathers all of them. Which row that is a table says, a least number, which has
 * no order. */
#include "codelets/shared/kernels.h"

constexpr int THREADS = 256;

TESS_DEVICE float scale_of(const tess_embedding_arg &a)
{
    return a.scale > 0 ? a.scale : 1;
}

/* Rows whose token is in [first, first+count), and whose position, if there are any, is in [p0, p0+np). */
template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
embedding_kernel(const int32_t *id, void *y, const void *table, const void *position, tess_embedding_arg a, int64_t p0,
                 tess_random_key key)
{
    const int64_t r = blockIdx.x, row = id[r] - a.first, place = (a.row0 + r) % a.sequence - p0;
    if (row < 0 || row >= a.count) return;
    if (position && (place < 0 || place >= a.position_tile_rows)) return;
    for (int64_t i = threadIdx.x * K; i < a.width; i += THREADS * K) {
        float v[K], p[K];
        load<T, K>(v, table, row * a.width + i);
        const uint64_t at = (uint64_t)((a.row0 + r) * a.width + i);
        for (int k = 0; k < K && a.noise > 0; k++) v[k] += a.noise * tess_uniform_at(key, at + k);
        for (int k = 0; k < K; k++) v[k] *= scale_of(a);
        if (position) {
            load<T, K>(p, position, place * a.width + i);
            for (int k = 0; k < K; k++) v[k] += p[k];
        }
        store<T, K>(y, r * a.width + i, v);
    }
}
template <tess_dtype T> static void embedding_forward_body(const tess_work *w)
{
    const tess_embedding_arg *a = arg_of(w);
    tess_embedding_arg now = *a;
    if (!w->env->train) now.noise = 0;
    const tess_random_key key = tess_random_begin(w->env->seed, (uint64_t)w->env->step, a->op);
    const int64_t tiles = a->position_tiles > 0 ? a->position_tiles : 1;
    for (int64_t j = 0; j < tiles && j * a->position_tile_rows < a->sequence; j++) {
        const void *table = w->buf[2].ptr, *position = a->position_tiles > 0 ? w->buf[3 + j].ptr : NULL;
        const bool wide = a->width % WIDE == 0 && aligned(w->buf[1].ptr, table, position);
        launch(w, wide ? embedding_kernel<T, WIDE> : embedding_kernel<T, 1>, a->rows, THREADS, 0, buffer(w, 0),
               w->buf[1].ptr, table, position, now, j * a->position_tile_rows, key);
    }
}

constexpr int HELD = 4; /* times K columns that a thread sums at once */

typedef unsigned long long first_row;   /* as atomics have it */
constexpr int64_t MOST_FIRST = 1 << 20; /* of them: tokens of larger tiles share */

/* first[i % n] becomes the first row whose token is the i-th of this tile. */
TESS_KERNEL(THREADS) first_rows_kernel(const int32_t *id, first_row *first, int64_t n, tess_embedding_arg a)
{
    const int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = r < a.rows ? id[r] - a.first : -1;
    if (row >= 0 && row < a.count) atomicMin(&first[row % n], (first_row)r);
}

/* Returns to all threads whether row r is the first row with its token. `least` is the first row with a token of the
 * same slot of `first`: this token, or another one that shares the slot. */
TESS_DEVICE bool is_first(const int32_t *id, int64_t least, int64_t r)
{
    bool before = false;
    if (least == r || id[least] == id[r]) return least == r;
    for (int64_t i = least + threadIdx.x; i < r && !before; i += THREADS) before = id[i] == id[r];
    return !__syncthreads_or(before);
}

/* The rows of [base, base+THREADS) with that token, in order, to `list`; their number. */
TESS_DEVICE int list_rows(const int32_t *id, int64_t rows, int64_t base, int32_t token, int *list, int *counts)
{
    const int64_t mine = base + threadIdx.x;
    const bool hit = mine < rows && id[mine] == token;
    int before;
    const int all = count<THREADS>(hit, counts, &before);
    if (hit) list[before] = (int)threadIdx.x;
    __syncthreads();
    return all;
}

template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
embedding_backward_kernel(const int32_t *id, const first_row *first, int64_t firsts, const void *dy, float *dtable,
                          tess_embedding_arg a)
{
    TESS_SHARED(int, list, [THREADS]);
    TESS_SHARED(int, counts, [THREADS / WARP]);
    const int64_t r = blockIdx.x, row = id[r] - a.first;
    const int32_t token = id[r];
    if (row < 0 || row >= a.count || !is_first(id, (int64_t)first[row % firsts], r)) return; /* the whole block */
    for (int64_t strip = 0; strip < a.width; strip += THREADS * K * HELD) {
        float sum[HELD][K];
        const int64_t c = strip + threadIdx.x * K;
#pragma unroll
        for (int h = 0; h < HELD; h++)
            if (c + h * THREADS * K < a.width) load<TESS_F32, K>(sum[h], dtable, row * a.width + c + h * THREADS * K);
        for (int64_t base = r / THREADS * THREADS; base < a.rows; base += THREADS) {
            const int n = list_rows(id, a.rows, base, token, list, counts);
#pragma unroll 4
            for (int j = 0; j < n; j++) { /* a frequent token's rows: their loads do not wait for each other */
                const int64_t from = (base + list[j]) * a.width + c;
#pragma unroll
                for (int h = 0; h < HELD; h++) {
                    float d[K];
                    if (c + h * THREADS * K >= a.width) continue;
                    load<T, K>(d, dy, from + h * THREADS * K);
#pragma unroll
                    for (int k = 0; k < K; k++) sum[h][k] += d[k] * scale_of(a);
                }
            }
            __syncthreads(); /* the list is read */
        }
#pragma unroll
        for (int h = 0; h < HELD; h++)
            if (c + h * THREADS * K < a.width) store<TESS_F32, K>(dtable, row * a.width + c + h * THREADS * K, sum[h]);
    }
}
template <tess_dtype T> static void embedding_backward_body(const tess_work *w)
{
    const tess_embedding_arg *a = arg_of(w);
    const void *dy = w->buf[1].ptr;
    float *dtable = buffer(w, 2);
    const int64_t firsts = a->count < MOST_FIRST ? a->count : MOST_FIRST;
    first_row *first = (first_row *)room_of(w, (size_t)firsts * sizeof *first);
    if (!first) return;
    if (!a->acc) set_bytes(w, dtable, 0, (size_t)(a->count * a->width) * sizeof(float));
    set_bytes(w, first, 0xff, (size_t)firsts * sizeof *first);
    launch(w, first_rows_kernel, blocks_of(a->rows, THREADS), THREADS, 0, buffer(w, 0), first, firsts, *a);
    const bool wide = a->width % WIDE == 0 && aligned(dy, dtable);
    launch(w, wide ? embedding_backward_kernel<T, WIDE> : embedding_backward_kernel<T, 1>, a->rows, THREADS, 0,
           buffer(w, 0), first, firsts, dy, dtable, *a);
}

/* Block p: position first + p, summed over the sequences in their order. */
template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
position_kernel(const void *dy, float *dposition, tess_embedding_arg a)
{
    const int64_t p = blockIdx.x, place = a.first + p;
    for (int64_t i = threadIdx.x * K; i < a.width; i += THREADS * K) {
        float sum[K] = {}, d[K];
        if (a.acc) load<TESS_F32, K>(sum, dposition, p * a.width + i);
        const int64_t first = (place + a.sequence - a.row0 % a.sequence) % a.sequence;
        for (int64_t r = first; r < a.rows && place < a.sequence; r += a.sequence) {
            load<T, K>(d, dy, r * a.width + i);
            for (int k = 0; k < K; k++) sum[k] += d[k];
        }
        store<TESS_F32, K>(dposition, p * a.width + i, sum);
    }
}
template <tess_dtype T> static void embedding_backward_position_body(const tess_work *w)
{
    const tess_embedding_arg *a = arg_of(w);
    const void *dy = w->buf[0].ptr;
    float *dposition = buffer(w, 1);
    const bool wide = a->width % WIDE == 0 && aligned(dy, dposition);
    launch(w, wide ? position_kernel<T, WIDE> : position_kernel<T, 1>, a->count, THREADS, 0, dy, dposition, *a);
}

TESS_CUDA_REAL(embedding_forward)
TESS_CUDA_REAL(embedding_backward)
TESS_CUDA_REAL(embedding_backward_position)
