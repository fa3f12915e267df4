/* mm_pack: matrices on their way into the form that the library's kernels read fastest, and out of it. A part of mm.c.
 */
#ifndef TESS_MM_PACK_IMPL_H
#define TESS_MM_PACK_IMPL_H
#include "mm_impl.h"

enum { MM_PANEL = 64 }; /* columns of a panel of B */

/* A unit is what lies together along k: one fp32, or two of 16 bits, the lower k in the lower half; 32 bits. B's panel
 * p holds columns [64p, 64p+64) as (units, 64); A's rows are (m, units). Both are filled with zeros to whole blocks of
 * 16 units. */
static int64_t units_of(int64_t k, tess_dtype t)
{
    int64_t units = tess_is_half(t) ? (k + 1) / 2 : k;
    return (units + 15) / 16 * 16;
}
static int64_t depth_of(int64_t k, tess_dtype t)
{
    return units_of(k, t) * (tess_is_half(t) ? 2 : 1);
}
static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

typedef uint32_t mm_vector __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t mm_halves __attribute__((vector_size(32), aligned(2), may_alias));

/* Interleaves rows i and i+8 of a block of 16 x 16; four times over, that transposes it. */
#define MM_INTERLEAVE(to, from)                                                                                        \
    for (int i = 0; i < 8; i++) {                                                                                      \
        to[2 * i] =                                                                                                    \
            __builtin_shufflevector(from[i], from[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);     \
        to[2 * i + 1] = __builtin_shufflevector(from[i], from[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,    \
                                                14, 30, 15, 31);                                                       \
    }
TESS_INLINE void transpose(mm_vector x[16])
{
    mm_vector y[16];
    MM_INTERLEAVE(y, x)
    MM_INTERLEAVE(x, y)
    MM_INTERLEAVE(y, x)
    MM_INTERLEAVE(x, y)
}
TESS_INLINE void store(uint32_t *dst, int64_t ld, const mm_vector x[16], int64_t rows)
{
    if (rows >= 16)
        for (int i = 0; i < 16; i++) *(mm_vector *)(dst + i * ld) = x[i];
    else
        for (int i = 0; i < rows; i++) memcpy(dst + i * ld, &x[i], 64);
}

TESS_INLINE uint32_t unit_at(const void *x, int64_t step, bool second, tess_dtype t)
{
    if (t == TESS_F32) return *(const uint32_t *)x;
    const tess_bf16 *h = x;
    return h[0] | (second ? (uint32_t)h[step] << 16 : 0);
}

/* x (16 units, 16 columns) of a matrix stored (k, cols), from unit u and column c on; zeros beyond. */
TESS_INLINE void load_across(mm_vector x[16], const void *src, int64_t ld, int64_t u, int64_t c, int64_t k,
                             int64_t cols, tess_dtype t)
{
    const int64_t per = tess_is_half(t) ? 2 : 1;
    const bool whole = (u + 16) * per <= k && c + 16 <= cols;
    for (int64_t r = 0; r < 16; r++) {
        const int64_t row = (u + r) * per, at = row * ld + c;
        if (whole && tess_is_half(t)) {
            const mm_halves *low = tess_at(src, at, t), *high = tess_at(src, at + ld, t);
            x[r] = __builtin_convertvector(*low, mm_vector) | __builtin_convertvector(*high, mm_vector) << 16;
        } else if (whole) {
            x[r] = *(const mm_vector *)tess_at(src, at, t);
        } else {
            uint32_t part[16] = {0};
            for (int j = 0; j < 16 && row < k && c + j < cols; j++)
                part[j] = unit_at(tess_at(src, at + j, t), ld, row + 1 < k, t);
            memcpy(&x[r], part, 64);
        }
    }
}
/* x (16 rows, 16 units) of a matrix stored (rows, k), from row r and unit u on; zeros beyond. */
TESS_INLINE void load_along(mm_vector x[16], const void *src, int64_t ld, int64_t r, int64_t u, int64_t rows, int64_t k,
                            tess_dtype t)
{
    const int64_t per = tess_is_half(t) ? 2 : 1;
    const bool whole = (u + 16) * per <= k && r + 16 <= rows;
    for (int64_t i = 0; i < 16; i++) {
        const int64_t at = (r + i) * ld + u * per;
        if (whole) {
            memcpy(&x[i], tess_at(src, at, t), 64);
        } else {
            uint32_t part[16] = {0};
            for (int64_t j = 0; j < 16 && r + i < rows && (u + j) * per < k; j++)
                part[j] = unit_at(tess_at(src, at + j * per, t), 1, (u + j) * per + 1 < k, t);
            memcpy(&x[i], part, 64);
        }
    }
}

/* B, columns [0, n), into panels. */
TESS_INLINE void pack_b(uint32_t *dst, const void *b, const tess_mm *d, int64_t n, tess_dtype t)
{
    const int64_t units = units_of(d->k, t), cols = round_up(n, MM_PANEL);
    mm_vector x[16];
    if (d->tb)
        for (int64_t p = 0; p < cols; p += 16)
            for (int64_t u = 0; u < units; u += 16) {
                load_along(x, b, d->ldb, p, u, n, d->k, t);
                transpose(x);
                store(dst + p / MM_PANEL * MM_PANEL * units + u * MM_PANEL + p % MM_PANEL, MM_PANEL, x, 16);
            }
    else
        for (int64_t u = 0; u < units; u += 16)
            for (int64_t p = 0; p < cols; p += 16) {
                load_across(x, b, d->ldb, u, p, d->k, n, t);
                store(dst + p / MM_PANEL * MM_PANEL * units + u * MM_PANEL + p % MM_PANEL, MM_PANEL, x, 16);
            }
}
/* A, rows [0, m), dense and as deep as whole blocks. */
TESS_INLINE void pack_a(uint32_t *dst, const void *a, const tess_mm *d, int64_t m, tess_dtype t)
{
    const int64_t units = units_of(d->k, t);
    if (d->ta) {
        mm_vector x[16];
        for (int64_t u = 0; u < units; u += 16)
            for (int64_t i = 0; i < m; i += 16) {
                load_across(x, a, d->lda, u, i, d->k, m, t);
                transpose(x);
                store(dst + i * units + u, units, x, m - i);
            }
        return;
    }
    const size_t row = (size_t)d->k * (tess_is_half(t) ? 2 : 4);
    for (int64_t i = 0; i < m; i++) {
        memcpy(dst + i * units, tess_at(a, i * d->lda, t), row);
        memset((char *)(dst + i * units) + row, 0, (size_t)units * 4 - row);
    }
}
#define MM_BOTH(op)                                                                                                    \
    TESS_CLONES static void op##_f32(uint32_t *dst, const void *x, const tess_mm *d, int64_t n)                        \
    {                                                                                                                  \
        op(dst, x, d, n, TESS_F32);                                                                                    \
    }                                                                                                                  \
    TESS_CLONES static void op##_bf16(uint32_t *dst, const void *x, const tess_mm *d, int64_t n)                       \
    {                                                                                                                  \
        op(dst, x, d, n, TESS_BF16);                                                                                   \
    }
MM_BOTH(pack_a)
MM_BOTH(pack_b)

/* C [+]= a dense piece. */
TESS_INLINE void put(void *c, tess_dtype to, const tess_mm *d, const void *from, tess_dtype t, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++) {
        void *row = tess_at_mut(c, i * d->ldc, to);
        const void *piece = tess_at(from, i * n, t);
        if (d->acc) {
#pragma omp simd
            for (int64_t j = 0; j < n; j++) tess_store(row, j, to, tess_load(row, j, to) + tess_load(piece, j, t));
        } else {
#pragma omp simd
            for (int64_t j = 0; j < n; j++) tess_store(row, j, to, tess_load(piece, j, t));
        }
    }
}
TESS_CLONES static void put_f32(void *c, const tess_mm *d, const void *from, int64_t m, int64_t n)
{
    put(c, TESS_F32, d, from, TESS_F32, m, n);
}
TESS_CLONES static void put_bf16(void *c, const tess_mm *d, const void *from, int64_t m, int64_t n)
{
    put(c, TESS_BF16, d, from, TESS_F32, m, n);
}
TESS_CLONES static void put_f16(void *c, const tess_mm *d, const void *from, int64_t m, int64_t n)
{
    put(c, TESS_F16, d, from, TESS_F32, m, n);
}
TESS_CLONES static void widen_rows_bf16(float *dst, const void *src, int64_t ld, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) tess_widen(dst + i * cols, tess_at(src, i * ld, TESS_BF16), cols, TESS_BF16);
}
TESS_CLONES static void widen_rows_f16(float *dst, const void *src, int64_t ld, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) tess_widen(dst + i * cols, tess_at(src, i * ld, TESS_F16), cols, TESS_F16);
}

#endif
