/* mm_pack: matrices on their way into the form that the library's kernels read fastest, and out of it. A part of mm.c.
 */
#ifndef TESS_MM_PACK_IMPL_H
#define TESS_MM_PACK_IMPL_H
#include "codelets/products/units.h"

enum { MM_PANEL = 64 }; /* columns of a panel of B */

/* B's panel p holds columns [64p, 64p+64) as (units, 64); A's rows are (m, units). Both are filled with zeros to whole
 * blocks of 16 units. */

/* How far the rows of A and B from unit u on lie behind where they would without those that are left out. */
TESS_INLINE int64_t moved(const tess_mm *d, int64_t u, tess_dtype as)
{
    const int64_t row = u * (tess_is_half(as) ? 2 : 1);
    return d->ta ? tess_idle_row(d->idle, row) - row : 0;
}

/* B, columns [0, n), into panels. */
TESS_INLINE void pack_b(uint32_t *dst, const void *b, const tess_mm *d, int64_t n, tess_dtype t, tess_dtype as)
{
    const int64_t units = units_of(d->k, as), cols = round_up(n, MM_PANEL);
    mm_vector x[16];
    if (d->tb)
        for (int64_t p = 0; p < cols; p += 16)
            for (int64_t u = 0; u < units; u += 16) {
                load_along(x, b, d->ldb, p, u, n, d->k, t, as);
                transpose(x);
                store(dst + p / MM_PANEL * MM_PANEL * units + u * MM_PANEL + p % MM_PANEL, MM_PANEL, x, 16);
            }
    else
        for (int64_t u = 0; u < units; u += 16)
            for (int64_t p = 0; p < cols; p += 16) {
                load_across(x, tess_at(b, moved(d, u, as) * d->ldb, t), d->ldb, u, p, d->k, n, t, as);
                store(dst + p / MM_PANEL * MM_PANEL * units + u * MM_PANEL + p % MM_PANEL, MM_PANEL, x, 16);
            }
}
/* A, rows [0, m), dense and as deep as whole blocks. */
TESS_INLINE void pack_a(uint32_t *dst, const void *a, const tess_mm *d, int64_t m, tess_dtype t, tess_dtype as)
{
    const int64_t units = units_of(d->k, as);
    if (d->ta) {
        mm_vector x[16];
        for (int64_t u = 0; u < units; u += 16)
            for (int64_t i = 0; i < m; i += 16) {
                load_across(x, tess_at(a, moved(d, u, as) * d->lda, t), d->lda, u, i, d->k, m, t, as);
                transpose(x);
                store(dst + i * units + u, units, x, m - i);
            }
        return;
    }
    const size_t row = (size_t)d->k * (tess_is_half(as) ? 2 : 4);
    for (int64_t i = 0; i < m; i++) {
        if (as == t)
            memcpy(dst + i * units, tess_at(a, i * d->lda, t), row);
        else
            tess_widen((float *)(void *)(dst + i * units), tess_at(a, i * d->lda, t), d->k, t);
        memset((char *)(dst + i * units) + row, 0, (size_t)units * 4 - row);
    }
}
/* From a dtype, as another: the same, or in fp32. */
typedef void (*mm_pack)(uint32_t *dst, const void *x, const tess_mm *d, int64_t n);
#define MM_PACK(op, name, t, as)                                                                                       \
    TESS_CLONES static void op##_##name(uint32_t *dst, const void *x, const tess_mm *d, int64_t n)                     \
    {                                                                                                                  \
        op(dst, x, d, n, t, as);                                                                                       \
    }
#define MM_PACKS(op)                                                                                                   \
    MM_PACK(op, f32, TESS_F32, TESS_F32)                                                                               \
    MM_PACK(op, bf16, TESS_BF16, TESS_BF16)                                                                            \
    MM_PACK(op, wide_bf16, TESS_BF16, TESS_F32)                                                                        \
    MM_PACK(op, wide_f16, TESS_F16, TESS_F32)                                                                          \
    static mm_pack op##_of(tess_dtype t, tess_dtype as)                                                                \
    {                                                                                                                  \
        if (t == TESS_F16) return op##_wide_f16;                                                                       \
        return t == TESS_F32 ? op##_f32 : as == TESS_F32 ? op##_wide_bf16 : op##_bf16;                                 \
    }
MM_PACKS(pack_a)
MM_PACKS(pack_b)

/* What was packed, in whatever order, as the numbers of 8 bits that stand for it. */
TESS_INLINE void round_packed(void *x, int64_t n, float scale, tess_fp8 as, tess_dtype t)
{
    const float by = 1 / scale;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) tess_store(x, i, t, tess_fp8_round(tess_load(x, i, t) * by, as) * scale);
}
typedef void (*mm_round)(void *x, int64_t n, float scale, tess_fp8 as);
TESS_CLONES static void round_f32(void *x, int64_t n, float scale, tess_fp8 as)
{
    round_packed(x, n, scale, as, TESS_F32);
}
TESS_CLONES static void round_bf16(void *x, int64_t n, float scale, tess_fp8 as)
{
    round_packed(x, n, scale, as, TESS_BF16);
}
/* The scale of rows of bf16; those that change nothing, whatever they hold, have no say. */
TESS_CLONES static float scale_of(const uint16_t *x, int64_t rows, int64_t width, int64_t ld, const tess_idle *idle,
                                  tess_fp8 as)
{
    uint32_t most = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (idle && idle->idle[r / TESS_IDLE_ROWS]) continue;
#pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < width; i++) {
            const uint32_t size = x[r * ld + i] & 0x7fffu;
            most = size > most ? size : most;
        }
    }
    return tess_fp8_scale(most << 16, as);
}

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
#define MM_PUT(op, name, to, ...)                                                                                      \
    TESS_CLONES static void op##_##name(void *c, const tess_mm *d, const void *from, int64_t m, int64_t n)             \
    {                                                                                                                  \
        op(c, to, d, from, TESS_F32, m, n);                                                                            \
    }
TESS_EACH_REAL(MM_PUT, put, )

#endif
