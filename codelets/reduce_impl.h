/* reduce_impl: sums down the columns of a matrix, for gradients of gains and biases. A block has a few columns and all
 * rows: no scratch, no atomics, one order. 32 bytes of a row of bf16 are what DRAM moves at least, so that is how
 * narrow a block may be. */
#ifndef TESS_REDUCE_IMPL_H
#define TESS_REDUCE_IMPL_H
#include "cuda_impl.h"

constexpr int COLUMN_THREADS = 256, COLUMN_LANES = 2; /* threads side by side in a row */

/* F says what is summed: f.at<K>(v, r, c) fills v[SUMS][K] for row r and columns c...; f.put(s, c, total). */
template <class F, int K> TESS_KERNEL(COLUMN_THREADS) columns_kernel(F f, int64_t rows, int64_t columns)
{
    constexpr int GROUPS = COLUMN_THREADS / COLUMN_LANES, SUMS = F::SUMS;
    __shared__ float room[GROUPS][COLUMN_LANES * K];
    const int lane = (int)threadIdx.x % COLUMN_LANES, group = (int)threadIdx.x / COLUMN_LANES;
    const int64_t c = ((int64_t)blockIdx.x * COLUMN_LANES + lane) * K;
    const bool inside = c < columns; /* K divides columns */
    float sum[SUMS][K] = {};
    for (int64_t r = group; r < rows && inside; r += GROUPS) {
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
        const int64_t to = (int64_t)blockIdx.x * COLUMN_LANES * K + threadIdx.x;
        if (threadIdx.x < COLUMN_LANES * K && to < columns) f.put(s, to, room[0][threadIdx.x]);
        __syncthreads();
    }
}

/* `wide`: rows are aligned to what WIDE elements need, and their number of columns is a multiple. */
template <class F> static void sum_columns(const tess_work *w, F f, int64_t rows, int64_t columns, bool wide)
{
    if (wide)
        launch(w, columns_kernel<F, WIDE>, blocks_of(columns, COLUMN_LANES * WIDE), COLUMN_THREADS, 0, f, rows,
               columns);
    else
        launch(w, columns_kernel<F, 1>, blocks_of(columns, COLUMN_LANES), COLUMN_THREADS, 0, f, rows, columns);
}
#endif
