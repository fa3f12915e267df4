/* wide: products of blocks, and exponentials, with vectors of 512 bits and, for bf16, tiles (AMX). For callers whose
 * blocks stay in the first caches, where a call of the library costs more than the product. Their sums have an order of
 * their own, so that who uses them asks tess_mm_wide first, which goes by the CPU as the library sees it. */
#ifndef TESS_WIDE_IMPL_H
#define TESS_WIDE_IMPL_H
#include "units.h"
#include <immintrin.h>

#define TESS_WIDE        __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define TESS_WIDE_INLINE static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512dq,avx512vl")))

enum { WIDE = 16, WIDE_EVEN = 32 }; /* fp32 of a vector; what sides of blocks are multiples of */

/* ---- products of fp32 -------------------------------------------------------------------------------------------- */

/* ROWS x 16*VECTORS of C, held in registers. */
TESS_WIDE_INLINE void wide_rows(const int ROWS, const int VECTORS, int64_t k, const float *a, int64_t row,
                                int64_t column, const float *b, int64_t ldb, float *c, int64_t ldc, bool acc)
{
    __m512 sum[6][4];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < VECTORS; j++)
            sum[i][j] = acc ? _mm512_loadu_ps(c + i * ldc + j * WIDE) : _mm512_setzero_ps();
    for (int64_t u = 0; u < k; u++, a += column, b += ldb) {
        __m512 right[4];
        for (int j = 0; j < VECTORS; j++) right[j] = _mm512_loadu_ps(b + j * WIDE);
        for (int i = 0; i < ROWS; i++) {
            const __m512 left = _mm512_set1_ps(a[i * row]);
            for (int j = 0; j < VECTORS; j++) sum[i][j] = _mm512_fmadd_ps(left, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < VECTORS; j++) _mm512_storeu_ps(c + i * ldc + j * WIDE, sum[i][j]);
}
/* 16*VECTORS columns of C. */
TESS_WIDE_INLINE void wide_columns(const int VECTORS, int64_t m, int64_t k, const float *a, int64_t row, int64_t column,
                                   const float *b, int64_t ldb, float *c, int64_t ldc, bool acc)
{
    int64_t i = 0;
    for (; i + 6 <= m; i += 6) wide_rows(6, VECTORS, k, a + i * row, row, column, b, ldb, c + i * ldc, ldc, acc);
    for (; i + 2 <= m; i += 2) wide_rows(2, VECTORS, k, a + i * row, row, column, b, ldb, c + i * ldc, ldc, acc);
}

/* C (m,n) = [C +] A (m,k) B (k,n), m even, n a multiple of 16. Element (i, u) of A is a[i*row + u*column]. */
TESS_WIDE __attribute__((noinline)) static void wide_product(int64_t m, int64_t n, int64_t k, const float *a,
                                                             int64_t row, int64_t column, const float *b, int64_t ldb,
                                                             float *c, int64_t ldc, bool acc)
{
    for (int64_t j = 0; j < n;) {
        const int64_t left = (n - j) / WIDE;
        if (left >= 4)
            wide_columns(4, m, k, a, row, column, b + j, ldb, c + j, ldc, acc);
        else if (left >= 2)
            wide_columns(2, m, k, a, row, column, b + j, ldb, c + j, ldc, acc);
        else
            wide_columns(1, m, k, a, row, column, b + j, ldb, c + j, ldc, acc);
        j += (left >= 4 ? 4 : left >= 2 ? 2 : 1) * WIDE;
    }
}

/* ---- products of bf16 -------------------------------------------------------------------------------------------- */

#define TESS_TILES __attribute__((target("avx512f,amx-tile,amx-bf16"), noinline))

/* From here to wide_tiles_end the thread's tiles are 16 rows of 64 bytes. */
TESS_TILES static void wide_tiles_begin(void)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape __attribute__((aligned(64))) = {.palette = 1};
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = 16;
    __asm__ volatile("" ::"r"(&shape) : "memory"); /* the instruction does not say that it reads all of this */
    _tile_loadconfig(&shape);
}
TESS_TILES static void wide_tiles_end(void)
{
    _tile_release();
}

/* C (m,n) = [C +] A (m,k) B (k,n), all multiples of 32: A bf16 by rows, B in units, two of k, C fp32. */
TESS_TILES static void wide_tiles(int64_t m, int64_t n, int64_t k, const tess_bf16 *a, int64_t lda, const uint32_t *b,
                                  int64_t ldb, float *c, int64_t ldc, bool acc)
{
    __asm__ volatile("" ::: "memory"); /* the instructions do not say what they read */
    const int64_t bytes_a = lda * 2, bytes_b = ldb * 4, bytes_c = ldc * 4;
    for (int64_t j = 0; j < n; j += 32)
        for (int64_t i = 0; i < m; i += 32) {
            float *low = c + i * ldc + j, *high = low + 16 * ldc;
            if (acc) {
                _tile_loadd(0, low, bytes_c);
                _tile_loadd(1, low + 16, bytes_c);
                _tile_loadd(2, high, bytes_c);
                _tile_loadd(3, high + 16, bytes_c);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (int64_t u = 0; u < k; u += 32) {
                const tess_bf16 *left = a + i * lda + u;
                const uint32_t *right = b + u / 2 * ldb + j;
                _tile_loadd(4, left, bytes_a);
                _tile_loadd(6, right, bytes_b);
                _tile_loadd(7, right + 16, bytes_b);
                _tile_loadd(5, left + 16 * lda, bytes_a);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, low, bytes_c);
            _tile_stored(1, low + 16, bytes_c);
            _tile_stored(2, high, bytes_c);
            _tile_stored(3, high + 16, bytes_c);
        }
    __asm__ volatile("" ::: "memory");
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* tess_power_of_2 with fused multiplications; 0 where `seen` has no bit. */
TESS_WIDE_INLINE __m512 wide_power_of_2(__mmask16 seen, __m512 z)
{
    const __m512 big = _mm512_set1_ps(12582912.0f);
    z = _mm512_max_ps(_mm512_set1_ps(-126.0f), z); /* of a NaN the NaN */
    const __m512 t = _mm512_add_ps(z, big), f = _mm512_sub_ps(z, _mm512_sub_ps(t, big));
    __m512 p = _mm512_set1_ps(1.32647366e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.67151672e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55073358e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240222424f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693147004f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    const __m512i k = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(seen, _mm512_castps_si512(p), k));
}

/* 32 bf16, rounded: 16 of `low`, then 16 of `high`. Only where there are tiles. */
TESS_WIDE_INLINE __m512i wide_halves(__m512 low, __m512 high)
{
    __m512i both;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(high), "v"(low));
    return both;
}
/* Those as 16 units. */
TESS_WIDE_INLINE __m512i wide_units(__m512i halves)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, halves);
}

#endif
