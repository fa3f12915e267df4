/* tensor_cores: tensor cores and what feeds them, in bf16 or fp16. A warp holds pieces of matrices spread over its 32
 * lanes; with g = lane / 4 and t = lane % 4, in pairs of neighbours along a row:
 *
 *     A (16,16) half   4 registers   a[0] (g, 2t)   a[1] (g+8, 2t)   a[2] (g, 2t+8)   a[3] (g+8, 2t+8)
 *     B (16,8) half    2 registers   b[0] (2t, g)   b[1] (2t+8, g), pairs along k, which is the row here
 *     C (16,8) f32     4 registers   c[0], c[1] (g, 2t), (g, 2t+1)   c[2], c[3] (g+8, ...)
 *
 * Tiles in shared memory have rows of DIM halves in chunks of 8, 16 bytes each. Chunk c of row r lies at place c ^ (r %
 * 8) of its row: then 8 rows of one chunk are in different banks, which is how the hardware reads them.
 */
#ifndef TESS_TENSOR_CORES_H
#define TESS_TENSOR_CORES_H
#include "codelets/shared/kernels.h"

typedef uint16_t half16; /* bf16 or fp16, as stored */

/* The element of a tile (rows, DIM) where chunk c of row r begins. */
template <int DIM> TESS_DEVICE int chunk_at(int r, int c)
{
    return r * DIM + ((c ^ (r & 7)) * 8);
}

#ifndef TESS_EMULATED
TESS_DEVICE uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
#endif
/* 8 x 8 matrices from the row addresses that lanes 0-7, 8-15, 16-23, 24-31 give; r[i] holds of matrix i row g, elements
 * 2t and 2t+1. */
TESS_DEVICE void load_matrices(uint32_t r[4], const half16 *row)
{
    TESS_PTX_MEMORY("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];",
                    (PTX_OUT("r", r[0]), PTX_OUT("r", r[1]), PTX_OUT("r", r[2]), PTX_OUT("r", r[3])),
                    (PTX_IN("r", shared_address(row))));
}
/* The same of their transposes. */
TESS_DEVICE void load_transposed(uint32_t r[4], const half16 *row)
{
    TESS_PTX_MEMORY("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];",
                    (PTX_OUT("r", r[0]), PTX_OUT("r", r[1]), PTX_OUT("r", r[2]), PTX_OUT("r", r[3])),
                    (PTX_IN("r", shared_address(row))));
}
/* c += a b */
#define TESS_MULTIPLY_ADD(type)                                                                                        \
    TESS_PTX("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "        \
             "{%8, %9}, {%0, %1, %2, %3};",                                                                            \
             (PTX_BOTH("f", c[0]), PTX_BOTH("f", c[1]), PTX_BOTH("f", c[2]), PTX_BOTH("f", c[3])),                     \
             (PTX_IN("r", a[0]), PTX_IN("r", a[1]), PTX_IN("r", a[2]), PTX_IN("r", a[3]), PTX_IN("r", b[0]),           \
              PTX_IN("r", b[1])))
template <tess_dtype T> TESS_DEVICE void multiply_add(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    static_assert(is_half(T), "");
    if constexpr (T == TESS_F16)
        TESS_MULTIPLY_ADD("f16");
    else
        TESS_MULTIPLY_ADD("bf16");
}
/* 16 bytes to shared memory, past the registers; zeros if not `valid`. They are there after copies_wait and a barrier.
 */
TESS_DEVICE void copy_async(void *to, const void *from, bool valid)
{
    TESS_PTX_MEMORY("cp.async.cg.shared.global [%0], [%1], 16, %2;", (),
                    (PTX_IN("r", shared_address(to)), PTX_IN("l", from), PTX_IN("r", valid ? 16 : 0)));
}
TESS_DEVICE void copies_end_group()
{
    TESS_PTX_MEMORY("cp.async.commit_group;", (), ());
}
/* All but the last N groups of this thread have arrived. */
template <int N> TESS_DEVICE void copies_wait()
{
    TESS_PTX_MEMORY("cp.async.wait_group %0;", (), (PTX_IN("n", N)));
}
/* 2^x, the hardware's: of -infinity 0. */
TESS_DEVICE float power_of_2(float x)
{
    float y;
    TESS_PTX_PURE("ex2.approx.ftz.f32 %0, %1;", (PTX_OUT("f", y)), (PTX_IN("f", x)));
    return y;
}

/* A from rows r... and columns c... of a tile. */
template <int DIM> TESS_DEVICE void load_a(uint32_t a[4], const half16 *tile, int r, int c, int lane)
{
    load_matrices(a, tile + chunk_at<DIM>(r + (lane & 15), c / 8 + (lane >> 4)));
}
/* Two Bs side by side, of a tile that holds (n, k): columns n..., n+8..., rows k.... */
template <int DIM> TESS_DEVICE void load_b_pair(uint32_t b[4], const half16 *tile, int n, int k, int lane)
{
    load_matrices(b, tile + chunk_at<DIM>(n + (lane & 7) + (lane >> 4) * 8, k / 8 + ((lane >> 3) & 1)));
}
/* The same of a tile that holds (k, n). */
template <int DIM> TESS_DEVICE void load_b_pair_across(uint32_t b[4], const half16 *tile, int k, int n, int lane)
{
    load_transposed(b, tile + chunk_at<DIM>(k + (lane & 15), n / 8 + (lane >> 4)));
}

/* Two neighbouring Cs (16,8) are one A (16,16), rounded. */
template <tess_dtype T> TESS_DEVICE void c_to_a(uint32_t a[4], const float left[4], const float right[4])
{
    a[0] = to_half2<T>(left[0], left[1]);
    a[1] = to_half2<T>(left[2], left[3]);
    a[2] = to_half2<T>(right[0], right[1]);
    a[3] = to_half2<T>(right[2], right[3]);
}

/* Begins to bring ROWS rows of `dim` elements from `from`, rows `ld` apart, to a tile, whose rows end with zeros; rows
 * from `valid` on are zeros. */
template <int DIM, int ROWS, int THREADS>
TESS_DEVICE void copy_tile(half16 *tile, const half16 *from, int64_t ld, int valid, int dim = DIM)
{
    constexpr int CHUNKS = DIM / 8;
    static_assert(THREADS % CHUNKS == 0, "a thread has one column");
    const int mine = (int)threadIdx.x % CHUNKS;
    if (mine * 8 >= dim) valid = 0;
#pragma unroll
    for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int r = i / CHUNKS, c = DIM > 128 ? mine : i % CHUNKS; /* the same, but for what ptxas spills */
        copy_async(tile + chunk_at<DIM>(r, c), r < valid ? from + r * ld + c * 8 : from, r < valid);
    }
}

/* A warp's C pieces (rows, DIM) go through its own rows of a tile, then out in 16 bytes a lane:
 * to (rows `ld` apart, of `dim` elements) [+]= them, for rows below `valid`. */
template <tess_dtype T, int DIM, int TILES>
TESS_DEVICE void put_rows(half16 *tile, const float c[TILES][DIM / 8][4], half16 *to, int64_t ld, int valid, bool acc,
                          int lane, int dim = DIM)
{
    constexpr int CHUNKS = DIM / 8;
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            *(uint32_t *)(tile + chunk_at<DIM>(m * 16 + g, n) + 2 * t) = to_half2<T>(c[m][n][0], c[m][n][1]);
            *(uint32_t *)(tile + chunk_at<DIM>(m * 16 + g + 8, n) + 2 * t) = to_half2<T>(c[m][n][2], c[m][n][3]);
        }
    __syncwarp();
    for (int i = lane; i < TILES * 16 * CHUNKS; i += WARP) {
        const int r = i / CHUNKS, k = i % CHUNKS;
        float v[WIDE];
        if (r >= valid || k * 8 >= dim) continue;
        load<T, WIDE>(v, tile + chunk_at<DIM>(r, k), 0);
        accumulate<T, WIDE>(to + r * ld + k * 8, 0, acc, v);
    }
}
#endif
