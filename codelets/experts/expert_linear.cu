/* expert_linear: how many places an expert has only the device knows, so the products are kernels of their own, of as
 * many blocks as all places would take; those beyond the expert's end at once. In bf16, where sizes allow it, they run
 * on tensor cores, in blocks of 64 by 64; else in fp32, each thread 4 by 4. */
#include "codelets/experts/order_impl.h"
#include "codelets/shared/tensor_cores.h"

constexpr int SIDE = 64; /* of a block of C, and the depth of a step on tensor cores */

/* y = x w^T, dx = dy w, dw = dy^T x; the expert's places are the rows of A and C, and of dw the depth. */
enum product_kind { FORWARD, INPUT, WEIGHT };
struct product {
    const void *a, *b;
    void *c;
    const int32_t *offset; /* of the expert, and of the next */
    const int32_t *base;   /* of the first expert whose places the tiles have */
    int64_t lda, ldb, ldc;
    int64_t m, n, k; /* m of dw alone, k of the others */
    bool acc;
};

/* The block's part of C, in rows from m0 and columns from n0. */
struct part {
    int64_t first, m0, n0, rows, depth;
};
template <int KIND> TESS_DEVICE part part_of(const product &p)
{
    part at;
    const int64_t across = (p.n + SIDE - 1) / SIDE, places = p.offset[1] - p.offset[0];
    at.first = p.offset[0] - *p.base;
    at.m0 = blockIdx.x / across * SIDE, at.n0 = blockIdx.x % across * SIDE;
    at.rows = KIND == WEIGHT ? p.m : places;
    at.depth = KIND == WEIGHT ? places : p.k;
    return at;
}

/* ---- tensor cores ---- */

constexpr int TENSOR_THREADS = 4 * WARP, TILE = SIDE * SIDE;

TESS_DEVICE int fewer(int64_t left)
{
    return left < SIDE ? (int)left : SIDE;
}

/* Begins to bring the tiles of depth k0 and more. */
template <int KIND> TESS_DEVICE void bring(const product &p, const part &at, int64_t k0, half16 *a, half16 *b)
{
    const half16 *from_a = (const half16 *)p.a, *from_b = (const half16 *)p.b;
    if (KIND == WEIGHT) {
        copy_tile<SIDE, SIDE, TENSOR_THREADS>(a, from_a + (at.first + k0) * p.lda + at.m0, p.lda, fewer(at.depth - k0));
        copy_tile<SIDE, SIDE, TENSOR_THREADS>(b, from_b + (at.first + k0) * p.ldb + at.n0, p.ldb, fewer(at.depth - k0));
    } else {
        copy_tile<SIDE, SIDE, TENSOR_THREADS>(a, from_a + (at.first + at.m0) * p.lda + k0, p.lda,
                                              fewer(at.rows - at.m0));
        copy_tile<SIDE, SIDE, TENSOR_THREADS>(
            b, KIND == FORWARD ? from_b + at.n0 * p.ldb + k0 : from_b + k0 * p.ldb + at.n0, p.ldb, SIDE);
    }
    copies_end_group();
}

/* A from a tile that holds (k, m). */
TESS_DEVICE void load_a_across(uint32_t a[4], const half16 *tile, int m, int k, int lane)
{
    load_transposed(a, tile + chunk_at<SIDE>(k + (lane & 7) + (lane >> 4) * 8, m / 8 + ((lane >> 3) & 1)));
}

/* The warp's 16 rows of C += those of the tiles. */
template <int KIND>
TESS_DEVICE void multiply(float c[1][SIDE / 8][4], const half16 *a, const half16 *b, int warp, int lane)
{
#pragma unroll
    for (int k = 0; k < SIDE; k += 16) {
        uint32_t fa[4], fb[4];
        if (KIND == WEIGHT)
            load_a_across(fa, a, warp * 16, k, lane);
        else
            load_a<SIDE>(fa, a, warp * 16, k, lane);
#pragma unroll
        for (int n = 0; n < SIDE; n += 16) {
            if (KIND == FORWARD)
                load_b_pair<SIDE>(fb, b, n, k, lane);
            else
                load_b_pair_across<SIDE>(fb, b, k, n, lane);
            multiply_add<TESS_BF16>(c[0][n / 8], fa, fb);
            multiply_add<TESS_BF16>(c[0][n / 8 + 1], fa, fb + 2);
        }
    }
}

template <int KIND, tess_dtype OUT> TESS_KERNEL(TENSOR_THREADS) tensor_kernel(product p)
{
    TESS_DYNAMIC_SHARED(shared);
    const part at = part_of<KIND>(p);
    if (at.m0 >= at.rows) return;
    half16 *tile = (half16 *)shared;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, g = lane >> 2, t = lane & 3;
    float c[1][SIDE / 8][4] = {};
    int turn = 0;
    if (at.depth > 0) bring<KIND>(p, at, 0, tile, tile + TILE);
    for (int64_t k = 0; k < at.depth; k += SIDE, turn ^= 1) {
        half16 *now = tile + turn * 2 * TILE, *next = tile + (turn ^ 1) * 2 * TILE;
        copies_wait<0>();
        __syncthreads();
        if (k + SIDE < at.depth) bring<KIND>(p, at, k + SIDE, next, next + TILE);
        multiply<KIND>(c, now, now + TILE, warp, lane);
    }
    __syncthreads();
    const int64_t row = at.m0 + warp * 16, to = (KIND == WEIGHT ? 0 : at.first) + row;
    if constexpr (OUT == TESS_BF16) {
        put_rows<TESS_BF16, SIDE, 1>(tile + warp * 16 * SIDE, c, (half16 *)p.c + to * p.ldc + at.n0, p.ldc,
                                     (int)(at.rows - row), p.acc, lane);
    } else {
        for (int n = 0; n < SIDE / 8; n++)
            for (int i = 0; i < 4; i++) {
                const int r = g + i / 2 * 8;
                if (row + r < at.rows)
                    add_at<OUT>(p.c, (to + r) * p.ldc + at.n0 + n * 8 + 2 * t + i % 2, p.acc, c[0][n][i]);
            }
    }
}

/* ---- any size, any dtype ---- */

constexpr int GENERAL_THREADS = 256, STEP = 16, EACH = 4;

template <int KIND, tess_dtype T> TESS_DEVICE float a_at(const product &p, const part &at, int64_t m, int64_t k)
{
    if (m >= at.rows || k >= at.depth) return 0;
    return value_at<T>(p.a, KIND == WEIGHT ? (at.first + k) * p.lda + m : (at.first + m) * p.lda + k);
}
template <int KIND, tess_dtype T> TESS_DEVICE float b_at(const product &p, const part &at, int64_t k, int64_t n)
{
    if (n >= p.n || k >= at.depth) return 0;
    if (KIND == FORWARD) return value_at<T>(p.b, n * p.ldb + k);
    return value_at<T>(p.b, (KIND == INPUT ? k : at.first + k) * p.ldb + n);
}

template <int KIND, tess_dtype T, tess_dtype OUT> TESS_KERNEL(GENERAL_THREADS) general_kernel(product p)
{
    TESS_SHARED(float, a, [STEP][SIDE + 1]);
    TESS_SHARED(float, b, [STEP][SIDE + 1]);
    const part at = part_of<KIND>(p);
    if (at.m0 >= at.rows) return;
    const int thread = (int)threadIdx.x, r = thread / STEP * EACH, q = thread % STEP * EACH;
    float c[EACH][EACH] = {};
    for (int64_t k0 = 0; k0 < at.depth; k0 += STEP) {
        for (int i = thread; i < STEP * SIDE; i += GENERAL_THREADS) { /* neighbours read neighbours */
            const int am = KIND == WEIGHT ? i % SIDE : i / STEP, ak = KIND == WEIGHT ? i / SIDE : i % STEP;
            const int bn = KIND == FORWARD ? i / STEP : i % SIDE, bk = KIND == FORWARD ? i % STEP : i / SIDE;
            a[ak][am] = a_at<KIND, T>(p, at, at.m0 + am, k0 + ak);
            b[bk][bn] = b_at<KIND, T>(p, at, k0 + bk, at.n0 + bn);
        }
        __syncthreads();
        for (int k = 0; k < STEP; k++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++) c[i][j] += a[k][r + i] * b[k][q + j];
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            const int64_t m = at.m0 + r + i, n = at.n0 + q + j;
            if (m < at.rows && n < p.n)
                add_at<OUT>(p.c, ((KIND == WEIGHT ? 0 : at.first) + m) * p.ldc + n, p.acc, c[i][j]);
        }
}

/* `most`: rows that C may have. */
template <int KIND, tess_dtype T, tess_dtype OUT> static void run(const tess_work *w, const product &p, int64_t most)
{
    const int64_t blocks = blocks_of(most, SIDE) * blocks_of(p.n, SIDE);
    if constexpr (T == TESS_BF16) {
        const int64_t fixed = KIND == WEIGHT ? p.m : p.k;
        if (p.n % SIDE == 0 && fixed % SIDE == 0 && p.lda % 8 == 0 && p.ldb % 8 == 0 && p.ldc % 8 == 0 &&
            aligned(p.a, p.b, p.c)) {
            launch(w, tensor_kernel<KIND, OUT>, blocks, TENSOR_THREADS, 4 * TILE * sizeof(half16), p);
            return;
        }
    }
    launch(w, general_kernel<KIND, T, OUT>, blocks, GENERAL_THREADS, 0, p);
}

/* Zeros in `width` columns from `col` on of the places that no row has; a block a place. */
template <tess_dtype T>
TESS_KERNEL(GENERAL_THREADS)
clear_kernel(const int32_t *end, const int32_t *base, void *y, int64_t ld, int64_t col, int64_t width)
{
    const int64_t p = blockIdx.x;
    for (int64_t i = threadIdx.x; i < width && p >= *end - *base; i += GENERAL_THREADS)
        put_at<T>(y, p * ld + col + i, 0);
}

/* The product of a task; y and dy are columns from col on. */
template <int KIND, tess_dtype T> static product product_of(const tess_work *w)
{
    const tess_expert_arg *a = arg_of(w);
    const tess_linear_arg *l = &a->linear;
    const int32_t *offset = (const int32_t *)w->buf[2].ptr;
    product p = {
        w->buf[0].ptr, w->buf[1].ptr, w->buf[3].ptr, offset + a->expert, offset + a->first, l->in, l->in, l->in, l->out,
        l->in,         l->out,        l->acc};
    if (KIND == FORWARD)
        p.c = at(p.c, l->col, T), p.ldc = l->ld, p.n = l->out, p.k = l->in, p.acc = false;
    else
        p.a = at(p.a, l->col, T), p.lda = l->ld;
    return p;
}
template <tess_dtype T>
static void clear(const tess_work *w, const tess_expert_arg *a, int64_t ld, int64_t col, int64_t width)
{
    const int32_t *offset = (const int32_t *)w->buf[2].ptr;
    launch(w, clear_kernel<T>, a->choices, GENERAL_THREADS, 0, offset + a->end, offset + a->first, w->buf[3].ptr, ld,
           col, width);
}

template <tess_dtype T> static void expert_linear_forward_body(const tess_work *w)
{
    const tess_expert_arg *a = arg_of(w);
    if (a->rest) clear<T>(w, a, a->linear.ld, a->linear.col, a->linear.out);
    run<FORWARD, T, T>(w, product_of<FORWARD, T>(w), a->choices);
}
template <tess_dtype T, tess_dtype OUT> static void backward_input(const tess_work *w)
{
    const tess_expert_arg *a = arg_of(w);
    if (a->rest && !a->linear.acc) clear<OUT>(w, a, a->linear.in, 0, a->linear.in);
    run<INPUT, T, OUT>(w, product_of<INPUT, T>(w), a->choices);
}

TESS_CUDA_REAL(expert_linear_forward)
TESS_CUDA_REAL_OF(expert_linear_backward_input, ((const tess_expert_arg *)w->arg)->linear.sum
                                                    ? backward_input<T, TESS_F32>(w)
                                                    : backward_input<T, T>(w))
TESS_CUDA_REAL_OF(expert_linear_backward_weight,
                  run<WEIGHT, T, TESS_F32>(w, product_of<WEIGHT, T>(w), ((const tess_expert_arg *)w->arg)->linear.out))
