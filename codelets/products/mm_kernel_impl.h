/* mm_kernel: products in fp32 with vectors of WIDE fp32, where the library has none that is as fast. A part of mm_256.c
 * and mm_128.c.
 *
 * A comes in panels of KERNEL_ROWS rows and B in panels of KERNEL_COLUMNS columns, k by k; 16 bits are widened and
 * matrices transposed on the way there. A tile of C, a panel of A by one of B, is held in registers for DEPTH steps of
 * k, in which B's part of the panel stays in the first cache. An element of C is one chain of additions along k,
 * whatever lies beside it and wherever the product is cut. */
#ifndef TESS_MM_KERNEL_IMPL_H
#define TESS_MM_KERNEL_IMPL_H
#include "codelets/products/mm_widths_impl.h"
#include "codelets/shared/wide.h"

enum {
    KERNEL_ROWS = WIDE == 16 ? 14 : 6,
    KERNEL_VECTORS = WIDE == 16 ? 2 : WIDE_VECTORS,
    KERNEL_COLUMNS = KERNEL_VECTORS * WIDE,
    DEPTH = 256,
    STAGE = 64, /* of k, widened or filled up at a time */
    FEW = 16,   /* of k, whose rows stay in the first cache while they are dealt out to panels */
};

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Rows [0, rows) of a matrix stored (rows, k) into panels of `each` rows. Vectors are longer than what is left of a
 * panel: what they write beyond it the next ones write over. */
WIDE_INLINE void pack_along(float *to, const void *x, int64_t ld, int64_t rows, int64_t k, const int64_t each,
                            const tess_dtype t)
{
    enum { MOST = 4 }; /* vectors of a panel's rows */
    const int64_t groups = (each + WIDE - 1) / WIDE;
    float stage[MOST * WIDE * STAGE];
    TESS_ASSERT(groups <= MOST);
    for (int64_t r = 0; r < rows; r += each)
        for (int64_t u0 = 0; u0 < k; u0 += STAGE) {
            const int64_t n = least(STAGE, k - u0), some = least(rows - r, groups * WIDE);
            const bool direct = t == TESS_F32 && some == groups * WIDE && n == STAGE;
            const float *from = direct ? (const float *)tess_at(x, r * ld + u0, t) : stage;
            const int64_t apart = direct ? ld : STAGE;
            for (int64_t i = 0; !direct && i < groups * WIDE; i++) {
                const int64_t known = i < some ? n : 0;
                if (known) tess_widen(stage + i * STAGE, tess_at(x, (r + i) * ld + u0, t), known, t);
                for (int64_t u = known; u < STAGE; u++) stage[i * STAGE + u] = 0;
            }
            for (int64_t u = 0; u < n; u += 4) {
                wide y[MOST][4];
                for (int64_t g = 0; g < groups; g++) wide_turn(y[g], from + g * WIDE * apart + u, apart);
                for (int64_t c = 0; c < least(4, n - u); c++)
                    for (int64_t g = 0; g < groups; g++)
                        wide_store(to + r * k + (u0 + u + c) * each + g * WIDE, y[g][c]);
            }
        }
}
/* Columns [0, columns) of a matrix stored (k, columns) into panels of `each` columns. */
WIDE_INLINE void pack_across(float *to, const void *x, int64_t ld, int64_t columns, int64_t k, const int64_t each,
                             const tess_idle *idle, const tess_dtype t)
{
    for (int64_t u0 = 0; u0 < k; u0 += FEW)
        for (int64_t c = 0; c < columns; c += each)
            for (int64_t u = u0; u < least(u0 + FEW, k); u++) {
                const void *from = tess_at(x, tess_idle_row(idle, u) * ld + c, t);
                float *row = to + c * k + u * each;
                if (c + each <= columns) {
                    tess_widen(row, from, each, t);
                } else {
                    tess_widen(row, from, columns - c, t);
                    for (int64_t j = columns - c; j < each; j++) row[j] = 0;
                }
            }
}
static void pack_a(float *to, const void *a, const tess_mm *d, int64_t m)
{
    if (d->ta)
        TESS_BY_DTYPE(d->in, pack_across, to, a, d->lda, m, d->k, KERNEL_ROWS, d->idle);
    else
        TESS_BY_DTYPE(d->in, pack_along, to, a, d->lda, m, d->k, KERNEL_ROWS);
}
static void pack_b(float *to, const void *b, const tess_mm *d, int64_t n)
{
    if (d->tb)
        TESS_BY_DTYPE(d->in, pack_along, to, b, d->ldb, n, d->k, KERNEL_COLUMNS);
    else
        TESS_BY_DTYPE(d->in, pack_across, to, b, d->ldb, n, d->k, KERNEL_COLUMNS, d->ta ? d->idle : NULL);
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* Element i of a step's column of A. Arm multiplies by a lane: two vectors have all six, where six of one would leave
 * too few registers. */
#if WIDE == 4 && defined __aarch64__
#define KERNEL_LEFT(i) wide_all(i < 4 ? wide_load(a)[i] : wide_load(a + 2)[i - 2])
#else
#define KERNEL_LEFT(i) wide_all(a[i])
#endif

/* ROWS by KERNEL_COLUMNS of C; its panel of A has KERNEL_ROWS. */
WIDE_INLINE void tile(const int ROWS, int64_t k, const float *a, const float *b, float *c, int64_t ldc, bool acc)
{
    wide sum[KERNEL_ROWS][KERNEL_VECTORS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < KERNEL_VECTORS; j++) sum[i][j] = acc ? wide_load(c + i * ldc + j * WIDE) : (wide){0};
#pragma GCC unroll 4
    for (int64_t u = 0; u < k; u++, a += KERNEL_ROWS, b += KERNEL_COLUMNS) {
        wide right[KERNEL_VECTORS];
        for (int j = 0; j < KERNEL_VECTORS; j++) right[j] = wide_load(b + j * WIDE);
        for (int i = 0; i < ROWS; i++) {
            const wide left = KERNEL_LEFT(i);
            for (int j = 0; j < KERNEL_VECTORS; j++) sum[i][j] = wide_fma(left, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < KERNEL_VECTORS; j++) wide_store(c + i * ldc + j * WIDE, sum[i][j]);
}
static void whole_tile(int64_t k, const float *a, const float *b, float *c, int64_t ldc, bool acc)
{
    tile(KERNEL_ROWS, k, a, b, c, ldc, acc);
}
/* A tile at the edge, of n rows. */
#define SOME_ROWS(n)                                                                                                   \
    case n:                                                                                                            \
        tile(n, k, a, b, c, ldc, acc);                                                                                 \
        break
static void some_rows(int64_t rows, int64_t k, const float *a, const float *b, float *c, int64_t ldc, bool acc)
{
    switch (rows) {
        SOME_ROWS(1);
        SOME_ROWS(2);
        SOME_ROWS(3);
        SOME_ROWS(4);
        SOME_ROWS(5);
#if WIDE == 16
        SOME_ROWS(6);
        SOME_ROWS(7);
        SOME_ROWS(8);
        SOME_ROWS(9);
        SOME_ROWS(10);
        SOME_ROWS(11);
        SOME_ROWS(12);
        SOME_ROWS(13);
#endif
    }
}
#undef SOME_ROWS
static void some_tile(int64_t rows, int64_t columns, int64_t k, const float *a, const float *b, float *c, int64_t ldc,
                      bool acc)
{
    float part[KERNEL_ROWS * KERNEL_COLUMNS];
    float *to = columns < KERNEL_COLUMNS ? part : c;
    const int64_t apart = columns < KERNEL_COLUMNS ? KERNEL_COLUMNS : ldc;
    for (int64_t i = 0; to == part && i < rows; i++)
        for (int64_t j = 0; j < KERNEL_COLUMNS; j++) part[i * apart + j] = acc && j < columns ? c[i * ldc + j] : 0;
    if (rows == KERNEL_ROWS)
        whole_tile(k, a, b, to, apart, acc);
    else
        some_rows(rows, k, a, b, to, apart, acc);
    for (int64_t i = 0; to == part && i < rows; i++) memcpy(c + i * ldc, part + i * apart, (size_t)columns * sizeof *c);
}

/* Fetches a tile's share of what the next column of tiles reads of B, which comes from memory as far away as the third
 * cache. */
WIDE_INLINE void ahead(const float *b, int64_t many, int64_t row, int64_t rows)
{
    enum { LINE = 16 };
    const int64_t tiles = (rows + KERNEL_ROWS - 1) / KERNEL_ROWS, each = (many / LINE + tiles - 1) / tiles;
    const int64_t first = row / KERNEL_ROWS * each * LINE;
    for (int64_t i = first; i < least(first + each * LINE, many); i += LINE) __builtin_prefetch(b + i, 0, 2);
}

static void multiply(int64_t m, int64_t n, int64_t k, const float *a, const float *b, const float *bias, float *c,
                     int64_t ldc, bool acc)
{
    for (int64_t i = 0; bias && i < m; i++)
        for (int64_t j = 0; j < n; j++) c[i * ldc + j] = acc ? c[i * ldc + j] + bias[j] : bias[j];
    for (int64_t u = 0; u < k; u += DEPTH) {
        const int64_t deep = least(DEPTH, k - u);
        const bool more = acc || bias || u > 0;
        for (int64_t j = 0; j < n; j += KERNEL_COLUMNS)
            for (int64_t i = 0; i < m; i += KERNEL_ROWS) {
                const int64_t rows = least(KERNEL_ROWS, m - i), columns = least(KERNEL_COLUMNS, n - j);
                const float *left = a + i * k + u * KERNEL_ROWS, *right = b + j * k + u * KERNEL_COLUMNS;
                float *to = c + i * ldc + j;
                if (j + KERNEL_COLUMNS < n) ahead(right + k * KERNEL_COLUMNS, deep * KERNEL_COLUMNS, i, m);
                if (rows == KERNEL_ROWS && columns == KERNEL_COLUMNS)
                    whole_tile(deep, left, right, to, ldc, more);
                else
                    some_tile(rows, columns, deep, left, right, to, ldc, more);
            }
    }
}

#endif
