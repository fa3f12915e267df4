/* kept: moments in fewer bits, for CPU and CUDA bodies alike and with the same bits: single fp32 operations, none
 * contracted, no table and no branch.
 *
 * A row of the whole matrix is cut into blocks: the fewest that have at most 256 elements each, a power of two of them,
 * as long as each other. Where tiles, slices and ranks end no block does, since those are of whole rows; ranks of the
 * tensor dimension that share out columns have whole blocks too where their number is a power of two that the blocks'
 * is a multiple of. Elsewhere the end of a rank's columns is the end of a block.
 *
 * In 16 bits an element is a bf16 that dice rounded: up or down, the nearer the likelier, so that many small steps are
 * kept in the mean. The dice are a function of seed, step, parameter and place in the whole parameter.
 *
 * In 8 bits a block has a scale, its element of largest magnitude with its sign, and each element a code: how much of
 * the scale it is. The codes are bitsandbytes' dynamic map: seven decades below 1, each with twice as many
 * steps as the one below it, evenly spaced; the last has 64, or 128 where nothing is negative. A code's number has the
 * decade in its leading bit and the step in the bits below. Of elements that are never negative none that is not 0
 * becomes 0, since others are divided by their roots. What codes say is coded as the same codes again. */
#ifndef TESS_MOMENT_FORMAT_IMPL_H
#define TESS_MOMENT_FORMAT_IMPL_H
#include "codelets/codelets.h"
#include "codelets/shared/scalar.h"

/* A block of a tile's elements. */
typedef struct tess_kept_span {
    int64_t at, n;  /* of the tile */
    uint64_t place; /* in the whole parameter, of the first */
} tess_kept_span;

/* Of the row's blocks which are here. */
typedef struct tess_kept_cut {
    int64_t block, first, blocks; /* elements of one, the first of them, how many */
} tess_kept_cut;

TESS_INLINE tess_kept_cut tess_kept_cut_of(const tess_kept *k)
{
    int64_t of_row = 1;
    while (of_row * TESS_KEPT_BLOCK < k->whole) of_row *= 2;
    tess_kept_cut c;
    c.block = (k->whole + of_row - 1) / of_row;
    c.first = k->column / c.block;
    c.blocks = (k->column + k->width - 1) / c.block + 1 - c.first;
    return c;
}
/* The i-th of a tile, row by row. */
TESS_INLINE tess_kept_span tess_kept_span_of(const tess_kept *k, tess_kept_cut c, int64_t i)
{
    int64_t row = i / c.blocks, begin = (c.first + i % c.blocks) * c.block, end = begin + c.block;
    begin = begin > k->column ? begin : k->column;
    end = end < k->column + k->width ? end : k->column + k->width;
    tess_kept_span s;
    s.at = row * k->width + begin - k->column;
    s.n = end - begin;
    int part = 0;
    for (; part + 1 < TESS_KEPT_PARTS && row >= k->part[part].rows; part++) row -= k->part[part].rows;
    s.place = (uint64_t)((k->part[part].first + row) * k->whole + begin);
    return s;
}
/* Where the scales are behind a tile's codes, in bytes. */
TESS_INLINE int64_t tess_kept_scales(int64_t elements)
{
    return (elements + 3) / 4 * 4;
}

/* ---- 16 bits ----------------------------------------------------------------------------------------------------- */

#define TESS_BF16_MOST 0x1.fep127f

/* `dice` are 16 random bits, which go below those that stay, and may carry. */
TESS_INLINE uint16_t tess_bf16_by_dice(float x, uint32_t dice)
{
    return (uint16_t)((tess_bits(tess_clampf(x, -TESS_BF16_MOST, TESS_BF16_MOST)) + dice) >> 16);
}
/* Returns the dice for one moment of an element, which has two moments at most. */
TESS_INLINE uint32_t tess_kept_dice(tess_random_key key, uint64_t place, uint32_t i, int moment)
{
    const uint32_t bits = tess_random_after(key, place, i);
    return moment ? bits >> 16 : bits & 0xffffu;
}

/* ---- 8 bits ------------------------------------------------------------------------------------------------------ */

/* a if c, else b: of comparisons with ? compilers make branches. */
TESS_INLINE uint32_t tess_pick(bool c, uint32_t a, uint32_t b)
{
    const uint32_t mask = 0u - (uint32_t)c;
    return (a & mask) | (b & ~mask);
}
/* 10^(d-6), or one over it. */
TESS_INLINE float tess_decade(int32_t d, bool inverse)
{
    uint32_t p = tess_bits(inverse ? 1e6f : 1e-6f);
    p = tess_pick(d > 0, tess_bits(inverse ? 1e5f : 1e-5f), p);
    p = tess_pick(d > 1, tess_bits(inverse ? 1e4f : 1e-4f), p);
    p = tess_pick(d > 2, tess_bits(inverse ? 1e3f : 1e-3f), p);
    p = tess_pick(d > 3, tess_bits(inverse ? 1e2f : 1e-2f), p);
    p = tess_pick(d > 4, tess_bits(inverse ? 1e1f : 1e-1f), p);
    return tess_float_of(tess_pick(d > 5, tess_bits(1.0f), p));
}
/* 2^e. */
TESS_INLINE float tess_two_to(int32_t e)
{
    return tess_float_of((uint32_t)(e + 127) << 23);
}

/* What share of the scale a code is. */
TESS_INLINE float tess_int8_share(int32_t code, bool positive)
{
    const int32_t side = positive ? code : code - 127, size = side < 0 ? -side : side;
    const int32_t number = positive ? size + 1 : size; /* with the leading bit */
    const uint32_t bits = tess_bits((float)number);
    const int32_t lead = (int32_t)(bits >> 23) - 127;
    const float step = tess_float_of((bits & 0x7fffffu) | 0x3f800000u) - 1.0f; /* of the decade, 0 to less than 1 */
    const float share =
        tess_decade(positive ? lead - 1 : lead, false) * (0.1f + 0.9f * (step + tess_two_to(-lead - 1)));
    uint32_t of = tess_pick(size == 0, 0, tess_bits(share));
    of = tess_pick(size == (positive ? 255 : 128), tess_bits(1.0f), of);
    return tess_float_of(of | ((uint32_t)side & 0x80000000u));
}

/* 1 where a float that is not negative is above a constant, which is not either, else 0: as integers. */
TESS_INLINE int32_t tess_is_above(float x, float limit)
{
    return (int32_t)tess_bits(x) > (int32_t)tess_bits(limit);
}

/* The code that is nearest to a share, -1 to 1. The limits between decades lie in the middle of the steps on both
 * sides, as do those of 0 and 1. */
TESS_INLINE int32_t tess_int8_code(float share, bool positive)
{
    const uint32_t sign = tess_bits(share) >> 31;
    const float size = tess_float_of(tess_bits(share) & 0x7fffffffu),
                n = positive ? 2.0f : 1.0f; /* the lowest's steps */
    int32_t d = tess_is_above(size, 1e-6f * (1 + 0.9f / n));
    d += tess_is_above(size, 1e-5f * (1 + 0.9f / (2 * n)));
    d += tess_is_above(size, 1e-4f * (1 + 0.9f / (4 * n)));
    d += tess_is_above(size, 1e-3f * (1 + 0.9f / (8 * n)));
    d += tess_is_above(size, 1e-2f * (1 + 0.9f / (16 * n)));
    d += tess_is_above(size, 1e-1f * (1 + 0.9f / (32 * n)));
    const float steps = tess_two_to(positive ? d + 1 : d);
    const int32_t most = (int32_t)steps - 1;
    int32_t step = (int32_t)((size * tess_decade(d, true) - 0.1f) * (steps * (1 / 0.9f)));
    step = step < 0 ? 0 : step;
    step = step < most ? step : most;
    const bool some = tess_is_above(size, 1e-6f * (0.05f + 0.225f / n)),
               all = tess_is_above(size, 1 - 0.225f / (64 * n));
    uint32_t number = (uint32_t)(most + 1 + step) - (positive ? 1u : 0u);
    if (positive) {
        number = tess_pick(all, 255, number);
        number = tess_pick(some, number, 1);
        return (int32_t)tess_pick(sign == 0 && size != 0, number, 0);
    }
    number = tess_pick(some, tess_pick(all, 128, number), 0);
    const uint32_t below = number < 127 ? number : 127;
    return (int32_t)(127 + tess_pick(sign, 0u - below, number));
}

/* A block's scale from its largest and smallest elements, each of them 0 at least and at most. What is as small as this
 * is 0, so that no share of a scale is denormal. */
TESS_INLINE float tess_int8_scale(float most, float least)
{
    const float scale = most >= -least ? most : least, size = most >= -least ? most : -least;
    return size < 0x1p-100f ? 0.0f : scale;
}
/* An element that has a code, and back. Where the scale is 0, so is the element. */
TESS_INLINE float tess_int8_value(int32_t code, float scale, bool positive)
{
    return scale != 0 ? tess_int8_share(code, positive) * scale : 0.0f;
}
TESS_INLINE int32_t tess_int8_of(float x, float scale, bool positive)
{
    return tess_int8_code(scale != 0 ? x / scale : 0.0f, positive);
}
/* No element is more, that a scale is finite. */
TESS_INLINE float tess_int8_held(float x)
{
    return tess_clampf(x, -3.40282347e38f, 3.40282347e38f);
}
#endif
