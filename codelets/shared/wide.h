/* wide: vectors of WIDE fp32, 16, 8 or 4, which a file says before it includes this: what it has then is compiled for
 * CPUs with AVX-512, with AVX2, or for all others. Its functions are products of blocks, for callers whose blocks stay
 * in the first caches, where a call of the library costs more than the product; exponentials; and with 16 and for bf16
 * products on tiles (AMX). Which width a CPU has tess_mm_lanes says. A sum is one chain of fused multiplications along
 * k whatever the width, so that all have the same bits, but for SSE, which rounds a product before it is added. */
#ifndef TESS_WIDE_H
#define TESS_WIDE_H
#include "codelets/shared/vector.h"
#ifdef __x86_64__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#endif

/* For these all is compiled that follows in the file, which ends with WIDE_END. */
#if WIDE == 16
#define WIDE_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
#elif WIDE == 8
#define WIDE_TARGET "avx2,fma,f16c"
#endif
#define WIDE_PRAGMA(...) _Pragma(#__VA_ARGS__)
#define WIDE_SAY(...)    WIDE_PRAGMA(__VA_ARGS__)
#ifndef WIDE_TARGET
#define WIDE_END
#elif defined __clang__
WIDE_SAY(clang attribute push(__attribute__((target(WIDE_TARGET))), apply_to = function))
#define WIDE_END _Pragma("clang attribute pop")
#else
#pragma GCC push_options
WIDE_SAY(GCC target(WIDE_TARGET))
#define WIDE_END _Pragma("GCC pop_options")
#endif

#define WIDE_INLINE static inline __attribute__((always_inline))

typedef float wide __attribute__((vector_size(WIDE * 4)));
typedef int32_t wide_int __attribute__((vector_size(WIDE * 4)));
typedef uint32_t wide_bits __attribute__((vector_size(WIDE * 4)));
typedef float wide_there __attribute__((vector_size(WIDE * 4), aligned(4), may_alias)); /* in memory, anywhere */
typedef int32_t wide_int_there __attribute__((vector_size(WIDE * 4), aligned(4), may_alias));

WIDE_INLINE wide wide_load(const float *p)
{
    return *(const wide_there *)p;
}
WIDE_INLINE wide_int wide_load_int(const int32_t *p)
{
    return *(const wide_int_there *)p;
}
WIDE_INLINE void wide_store(float *p, wide x)
{
    *(wide_there *)p = x;
}
WIDE_INLINE wide wide_all(float x)
{
    return x - (wide){0};
}

/* a b + c; max(a, b), of a NaN b; lanes where a > b; where `first` <= key < `end`; lanes of a where the mask has them,
 * else of b, or 0; whether there are any. */
#if WIDE == 16
typedef __mmask16 wide_mask;
#define WIDE_EACH                  ((wide_mask)~0)
#define wide_fma(a, b, c)          ((wide)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define wide_fms(a, b, c)          ((wide)_mm512_fmsub_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define wide_max(a, b)             ((wide)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define wide_max_where(mask, a, b) ((wide)_mm512_mask_max_ps((__m512)(a), mask, (__m512)(a), (__m512)(b)))
#define wide_above(a, b)           _mm512_cmp_ps_mask((__m512)(a), (__m512)(b), _CMP_GT_OQ)
#define wide_pick(mask, a, b)      ((wide)_mm512_mask_mov_ps((__m512)(b), mask, (__m512)(a)))
#define wide_where(mask, a)        ((wide)_mm512_maskz_mov_ps(mask, (__m512)(a)))
#define wide_any(mask)             ((mask) != 0)
WIDE_INLINE wide_mask wide_sees(wide_int first, wide_int end, int32_t key)
{
    const __m512i k = _mm512_set1_epi32(key);
    return _mm512_cmple_epi32_mask((__m512i)first, k) & _mm512_cmpgt_epi32_mask((__m512i)end, k);
}
#else
typedef wide_int wide_mask;
#define WIDE_EACH                  (~(wide_int){0})
#define wide_above(a, b)           ((a) > (b))
#define wide_pick(mask, a, b)      ((wide)(((wide_int)(a) & (mask)) | ((wide_int)(b) & ~(mask))))
#define wide_where(mask, a)        ((wide)((wide_int)(a) & (mask)))
WIDE_INLINE wide_mask wide_sees(wide_int first, wide_int end, int32_t key)
{
    return (first <= key) & (end > key);
}
#define wide_max_where(mask, a, b) wide_pick(mask, wide_max(a, b), a)
#if WIDE == 8
#define wide_fma(a, b, c) ((wide)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define wide_fms(a, b, c) ((wide)_mm256_fmsub_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define wide_max(a, b)    ((wide)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define wide_any(mask)    (_mm256_movemask_ps((__m256)(mask)) != 0)
#else
#define wide_max(a, b) wide_pick(wide_above(a, b), a, b)
#ifdef __aarch64__
#define wide_fma(a, b, c) ((wide)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#define wide_fms(a, b, c) wide_fma(a, b, -(c))
#define wide_any(mask)    (vmaxvq_u32((uint32x4_t)(mask)) != 0)
#else
#define wide_fma(a, b, c) ((a) * (b) + (c))
#define wide_fms(a, b, c) ((a) * (b) - (c))
WIDE_INLINE bool wide_any(wide_mask m)
{
    return m[0] | m[1] | m[2] | m[3];
}
#endif
#endif
#endif

/* ---- products of blocks ------------------------------------------------------------------------------------------ */

/* A tile of C that registers hold (AVX-512 and Arm have 32): its rows, and the vectors of a row at most. */
#if WIDE == 16 || defined __aarch64__
enum { WIDE_ROWS = 6, WIDE_VECTORS = 4 };
#else
enum { WIDE_ROWS = 6, WIDE_VECTORS = 2 };
#endif

/* sum + left right, of fp32 or of units, each two bf16 that lie together along k. */
WIDE_INLINE wide wide_step(const bool pairs, wide left, wide right, wide sum)
{
#if WIDE == 16
    if (pairs) {
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(right), "v"(left));
        return sum;
    }
#endif
    (void)pairs;
    return wide_fma(left, right, sum);
}

/* ROWS x WIDE*VECTORS of C. */
WIDE_INLINE void wide_rows(const int ROWS, const int VECTORS, const bool pairs, int64_t k, const float *a, int64_t row,
                           int64_t column, const float *b, int64_t ldb, float *c, int64_t ldc, bool acc)
{
    wide sum[WIDE_ROWS][WIDE_VECTORS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < VECTORS; j++) sum[i][j] = acc ? wide_load(c + i * ldc + j * WIDE) : (wide){0};
    for (int64_t u = 0; u < k; u++, a += column, b += ldb) {
        wide right[WIDE_VECTORS];
        for (int j = 0; j < VECTORS; j++) right[j] = wide_load(b + j * WIDE);
        for (int i = 0; i < ROWS; i++) {
            const wide left = wide_all(a[i * row]);
            for (int j = 0; j < VECTORS; j++) sum[i][j] = wide_step(pairs, left, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < VECTORS; j++) wide_store(c + i * ldc + j * WIDE, sum[i][j]);
}
/* WIDE*VECTORS columns of C. */
WIDE_INLINE void wide_columns(const int VECTORS, const bool pairs, int64_t m, int64_t k, const float *a, int64_t row,
                              int64_t column, const float *b, int64_t ldb, float *c, int64_t ldc, bool acc)
{
    int64_t i = 0;
    for (; i + 6 <= m; i += 6) wide_rows(6, VECTORS, pairs, k, a + i * row, row, column, b, ldb, c + i * ldc, ldc, acc);
    if (VECTORS < 4 && i + 4 <= m) {
        wide_rows(4, VECTORS, pairs, k, a + i * row, row, column, b, ldb, c + i * ldc, ldc, acc);
        i += 4;
    }
    for (; i + 2 <= m; i += 2) wide_rows(2, VECTORS, pairs, k, a + i * row, row, column, b, ldb, c + i * ldc, ldc, acc);
}
/* C (m,n) = [C +] A (m,k) B (k,n), m even, n a multiple of 16. Element (i, u) of A is a[i*row + u*column]. It is
 * inlined into functions of the caller's, so that what is constant there is so here. */
WIDE_INLINE void wide_product(const bool pairs, int64_t m, int64_t n, int64_t k, const float *a, int64_t row,
                              int64_t column, const float *b, int64_t ldb, float *c, int64_t ldc, bool acc)
{
    for (int64_t j = 0; j < n;) {
        const int64_t left = (n - j) / WIDE;
        const int vectors = left >= 4 && WIDE_VECTORS == 4 ? 4 : left >= 2 ? 2 : 1;
        if (WIDE_VECTORS == 4 && vectors == 4)
            wide_columns(WIDE_VECTORS, pairs, m, k, a, row, column, b + j, ldb, c + j, ldc, acc);
        else if (vectors == 2)
            wide_columns(2, pairs, m, k, a, row, column, b + j, ldb, c + j, ldc, acc);
        else
            wide_columns(1, pairs, m, k, a, row, column, b + j, ldb, c + j, ldc, acc);
        j += vectors * WIDE;
    }
}

/* ---- blocks, transposed ------------------------------------------------------------------------------------------ */

/* 4 elements of each of WIDE / 4 rows that lie 4 apart. */
WIDE_INLINE wide wide_quarters(const float *x, int64_t ld)
{
#if WIDE == 16
    __m512 r = _mm512_castps128_ps512(_mm_loadu_ps(x));
    r = _mm512_insertf32x4(r, _mm_loadu_ps(x + 4 * ld), 1);
    r = _mm512_insertf32x4(r, _mm_loadu_ps(x + 8 * ld), 2);
    return (wide)_mm512_insertf32x4(r, _mm_loadu_ps(x + 12 * ld), 3);
#elif WIDE == 8
    return (wide)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x)), _mm_loadu_ps(x + 4 * ld), 1);
#else
    (void)ld;
    return wide_load(x);
#endif
}
/* y[c], of c in [0, 4): element c of each of WIDE rows. No vector is crossed. */
WIDE_INLINE void wide_turn(wide y[4], const float *x, int64_t ld)
{
    wide r[4];
    for (int i = 0; i < 4; i++) r[i] = wide_quarters(x + i * ld, ld);
#if WIDE == 16
#define WIDE_LOW(a, b)        __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define WIDE_HIGH(a, b)       __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define WIDE_LOW_PAIRS(a, b)  __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define WIDE_HIGH_PAIRS(a, b) __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#elif WIDE == 8
#define WIDE_LOW(a, b)        __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define WIDE_HIGH(a, b)       __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define WIDE_LOW_PAIRS(a, b)  __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define WIDE_HIGH_PAIRS(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#else
#define WIDE_LOW(a, b)        __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define WIDE_HIGH(a, b)       __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define WIDE_LOW_PAIRS(a, b)  __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define WIDE_HIGH_PAIRS(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
#endif
    const wide low01 = WIDE_LOW(r[0], r[1]), high01 = WIDE_HIGH(r[0], r[1]);
    const wide low23 = WIDE_LOW(r[2], r[3]), high23 = WIDE_HIGH(r[2], r[3]);
    y[0] = WIDE_LOW_PAIRS(low01, low23), y[1] = WIDE_HIGH_PAIRS(low01, low23);
    y[2] = WIDE_LOW_PAIRS(high01, high23), y[3] = WIDE_HIGH_PAIRS(high01, high23);
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* tess_power_of_2 with fused multiplications; 0 where `seen` has no lane. */
WIDE_INLINE wide wide_power_of_2(wide_mask seen, wide z)
{
    const wide big = wide_all(12582912.0f);
    z = wide_max(wide_all(-126.0f), z); /* of a NaN the NaN */
    const wide t = z + big, f = z - (t - big);
    wide p = wide_all(1.32647366e-3f);
    p = wide_fma(p, f, wide_all(9.67151672e-3f));
    p = wide_fma(p, f, wide_all(5.55073358e-2f));
    p = wide_fma(p, f, wide_all(0.240222424f));
    p = wide_fma(p, f, wide_all(0.693147004f));
    p = wide_fma(p, f, wide_all(1.0f));
    return wide_where(seen, (wide)((wide_bits)p + ((wide_bits)t << 23)));
}

#if WIDE == 16
/* ---- products of bf16 -------------------------------------------------------------------------------------------- */

#define TESS_TILES __attribute__((target("avx512f,amx-tile,amx-bf16"), noinline, unused))

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

/* C (m,n) = [C +] A (m,k) B (k,n), all multiples of 32: A bf16 by rows, B in units, two of k, C fp32; on tiles, */
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

/* and in pairs, where there are none; */
__attribute__((noinline, unused)) static void wide_pairs(int64_t m, int64_t n, int64_t k, const tess_bf16 *a,
                                                         int64_t lda, const uint32_t *b, int64_t ldb, float *c,
                                                         int64_t ldc, bool acc)
{
    const float *left = (const void *)a, *right = (const void *)b;
    wide_product(true, m, n, k / 2, left, lda / 2, 1, right, ldb, c, ldc, acc);
}
/* and either way. */
WIDE_INLINE void wide_half_product(const bool pairs, int64_t m, int64_t n, int64_t k, const tess_bf16 *a, int64_t lda,
                                   const uint32_t *b, int64_t ldb, float *c, int64_t ldc, bool acc)
{
    if (pairs)
        wide_pairs(m, n, k, a, lda, b, ldb, c, ldc, acc);
    else
        wide_tiles(m, n, k, a, lda, b, ldb, c, ldc, acc);
}

/* 32 bf16, rounded: 16 of `low`, then 16 of `high`. Only where there are instructions for bf16. */
WIDE_INLINE __m512i wide_halves(wide low, wide high)
{
    __m512i both;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(high), "v"(low));
    return both;
}
/* Those as 16 units. */
WIDE_INLINE __m512i wide_units(__m512i halves)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, halves);
}

/* Two rows of 16 as bf16, `apart` elements from each other, or as units. */
WIDE_INLINE void wide_store_halves(tess_bf16 *to, int64_t apart, wide low, wide high)
{
    const __m512i both = wide_halves(low, high);
    _mm256_storeu_si256((__m256i *)to, _mm512_castsi512_si256(both));
    _mm256_storeu_si256((__m256i *)(to + apart), _mm512_extracti64x4_epi64(both, 1));
}
WIDE_INLINE void wide_store_units(float *to, wide low, wide high)
{
    _mm512_storeu_si512(to, wide_units(wide_halves(low, high)));
}
#else /* no one asks for what is of 16 bits */
#define wide_half_product(pairs, m, n, k, a, lda, b, ldb, c, ldc, acc)                                                 \
    ((void)(a), (void)(b), (void)(c), (void)(m), (void)(n), (void)(k))
#define wide_store_halves(to, apart, low, high) ((void)(to), (void)(low), (void)(high))
#define wide_store_units(to, low, high)         ((void)(to), (void)(low), (void)(high))
#endif

#endif
