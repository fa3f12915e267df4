/* reduce: sums down the columns of a matrix, for gradients of gains and biases. A block has a few columns and a
 * stretch of rows; what it sums goes to the worker's scratch, and a second kernel adds the stretches up in their order.
 * No atomics, and an order that the shapes alone say. 32 bytes of a row of bf16 are what DRAM moves at least, so that
 * is how narrow a block may be; a GPU wants a thousand blocks to have all of its memory in flight, which a matrix of
 * 1600 columns has by its stretches alone. */
#ifndef TESS_REDUCE_H
#define TESS_REDUCE_H
#include "codelets/shared/kernels.h"

constexpr int COLUMN_THREADS = 256, COLUMN_LANES = 2;      /* threads side by side in a row */
constexpr int64_t COLUMN_BLOCKS = 1024, COLUMN_ROWS = 256; /* blocks that are wished for, rows of a stretch at least */
constexpr size_t COLUMN_ROOM = 16 << 20;

/* How many stretches rows are cut into. */
static inline int64_t stretches_of(int64_t rows, int64_t columns, int64_t blocks, int sums)
{
    const int64_t wished = blocks_of(COLUMN_BLOCKS, blocks), most = rows / COLUMN_ROWS;
    const int64_t room = (int64_t)(COLUMN_ROOM / sizeof(float)) / (columns * sums);
    int64_t n = wished < most ? wished : most;
    if (n > room) n = room;
    return n > 1 ? n : 1;
}

/* F says what is summed: f.at<K>(v, r, c) fills v[SUMS][K] for row r and columns c...; f.put(s, c, total). With a
 * `part` (stretches, SUMS, columns) a block puts there what its stretch of `each` rows has. */
template <class F, int K>
TESS_KERNEL(COLUMN_THREADS)
columns_kernel(F f, int64_t rows, int64_t columns, int64_t blocks, int64_t each, float *part)
{
    constexpr int GROUPS = COLUMN_THREADS / COLUMN_LANES, SUMS = F::SUMS;
    TESS_SHARED(float, room, [GROUPS][COLUMN_LANES * K]);
    const int lane = (int)threadIdx.x % COLUMN_LANES, group = (int)threadIdx.x / COLUMN_LANES;
    const int64_t block = blockIdx.x % blocks, stretch = blockIdx.x / blocks, first = stretch * each;
    const int64_t end = first + each < rows ? first + each : rows;
    const int64_t c = (block * COLUMN_LANES + lane) * K;
    const bool inside = c < columns; /* K divides columns */
    float sum[SUMS][K] = {};
    for (int64_t r = first + group; r < end && inside; r += GROUPS) {
        float v[SUMS][K];
        f.template at<K>(v, r, c);
#pragma unroll
        for (int s = 0; s < SUMS; s++)
#pragma unroll
            for (int k = 0; k < K; k++) sum[s][k] += v[s][k];
    }
    for (int s = 0; s < SUMS; s++) {
        for (int k = 0; k < K; k++) room[group][lane * K + k] = sum[s][k];
        __syncthreads();
        for (int half = GROUPS / 2; half > 0; half /= 2) {
            for (int i = (int)threadIdx.x; i < half * COLUMN_LANES * K; i += COLUMN_THREADS) {
                const int g = i / (COLUMN_LANES * K), k = i % (COLUMN_LANES * K);
                room[g][k] += room[g + half][k];
            }
            __syncthreads();
        }
        const int64_t to = block * COLUMN_LANES * K + threadIdx.x;
        if (threadIdx.x < COLUMN_LANES * K && to < columns) {
            if (part)
                part[(stretch * SUMS + s) * columns + to] = room[0][threadIdx.x];
            else
                f.put(s, to, room[0][threadIdx.x]);
        }
        __syncthreads();
    }
}

/* A thread a sum of a column: over its stretches, in their order. */
template <class F>
TESS_KERNEL(COLUMN_THREADS)
stretches_kernel(F f, int64_t columns, int64_t stretches, const float *part)
{
    const int64_t i = (int64_t)blockIdx.x * COLUMN_THREADS + threadIdx.x, all = F::SUMS * columns;
    float sum = 0;
    if (i >= all) return;
    for (int64_t j = 0; j < stretches; j++) sum += part[j * all + i];
    f.put((int)(i / columns), i % columns, sum);
}

/* `wide`: rows are aligned to what WIDE elements need, and their number of columns is a multiple. */
template <class F> static void sum_columns(const tess_work *w, F f, int64_t rows, int64_t columns, bool wide)
{
    const int64_t blocks = blocks_of(columns, COLUMN_LANES * (wide ? WIDE : 1));
    const int64_t n = stretches_of(rows, columns, blocks, F::SUMS), each = blocks_of(rows, n);
    float *part = n > 1 ? (float *)room_of(w, (size_t)(n * F::SUMS * columns) * sizeof *part) : NULL;
    if (n > 1 && !part) return;
    launch(w, wide ? columns_kernel<F, WIDE> : columns_kernel<F, 1>, n * blocks, COLUMN_THREADS, 0, f, rows, columns,
           blocks, each, part);
    if (part)
        launch(w, stretches_kernel<F>, blocks_of(F::SUMS * columns, COLUMN_THREADS), COLUMN_THREADS, 0, f, columns, n,
               part);
}
#endif
