/* units: matrices in units of 32 bits, by blocks of 16 x 16, as they are and transposed: what brings operands into the
 * form that kernels read. */
#ifndef TESS_UNITS_H
#define TESS_UNITS_H
#include "codelets/products/mm.h"

/* A unit is what lies together along k: one fp32, or two of 16 bits, the lower k in the lower half; 32 bits. */
TESS_INLINE int64_t units_of(int64_t k, tess_dtype t)
{
    int64_t units = tess_is_half(t) ? (k + 1) / 2 : k;
    return (units + 15) / 16 * 16;
}
TESS_INLINE int64_t depth_of(int64_t k, tess_dtype t)
{
    return units_of(k, t) * (tess_is_half(t) ? 2 : 1);
}
TESS_INLINE int64_t round_up(int64_t n, int64_t to)
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

/* 16 elements as fp32. */
TESS_INLINE void load_16(mm_vector *x, const void *from, tess_dtype t)
{
    float wide[16];
    if (t == TESS_F32) {
        *x = *(const mm_vector *)from;
        return;
    }
    tess_widen(wide, from, 16, t);
    memcpy(x, wide, sizeof *x);
}

TESS_INLINE uint32_t unit_at(const void *x, int64_t step, bool second, tess_dtype t, tess_dtype as)
{
    if (as == TESS_F32) return tess_bits(tess_load(x, 0, t));
    const tess_bf16 *h = x;
    return h[0] | (second ? (uint32_t)h[step] << 16 : 0);
}

/* x (16 units of `as`, 16 columns) of a matrix stored (k, cols), from unit u and column c on; zeros beyond. */
TESS_INLINE void load_across(mm_vector x[16], const void *src, int64_t ld, int64_t u, int64_t c, int64_t k,
                             int64_t cols, tess_dtype t, tess_dtype as)
{
    const int64_t per = tess_is_half(as) ? 2 : 1;
    const bool whole = (u + 16) * per <= k && c + 16 <= cols;
    for (int64_t r = 0; r < 16; r++) {
        const int64_t row = (u + r) * per, at = row * ld + c;
        if (whole && tess_is_half(as)) {
            const mm_halves *low = tess_at(src, at, t), *high = tess_at(src, at + ld, t);
            x[r] = __builtin_convertvector(*low, mm_vector) | __builtin_convertvector(*high, mm_vector) << 16;
        } else if (whole) {
            load_16(&x[r], tess_at(src, at, t), t);
        } else {
            uint32_t part[16] = {0};
            for (int j = 0; j < 16 && row < k && c + j < cols; j++)
                part[j] = unit_at(tess_at(src, at + j, t), ld, row + 1 < k, t, as);
            memcpy(&x[r], part, 64);
        }
    }
}
/* x (16 rows, 16 units of `as`) of a matrix stored (rows, k), from row r and unit u on; zeros beyond. */
TESS_INLINE void load_along(mm_vector x[16], const void *src, int64_t ld, int64_t r, int64_t u, int64_t rows, int64_t k,
                            tess_dtype t, tess_dtype as)
{
    const int64_t per = tess_is_half(as) ? 2 : 1;
    const bool whole = (u + 16) * per <= k && r + 16 <= rows;
    for (int64_t i = 0; i < 16; i++) {
        const int64_t at = (r + i) * ld + u * per;
        if (whole && tess_is_half(as)) {
            memcpy(&x[i], tess_at(src, at, t), 64);
        } else if (whole) {
            load_16(&x[i], tess_at(src, at, t), t);
        } else {
            uint32_t part[16] = {0};
            for (int64_t j = 0; j < 16 && r + i < rows && (u + j) * per < k; j++)
                part[j] = unit_at(tess_at(src, at + j * per, t), 1, (u + j) * per + 1 < k, t, as);
            memcpy(&x[i], part, 64);
        }
    }
}

#endif
