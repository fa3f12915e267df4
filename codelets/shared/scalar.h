/* scalar: what CPU and CUDA bodies compute of one element, written once. Where both are compiled without
 * contraction they have the same bits: these are IEEE operations on 32 bits in one order, with no call and no branch.
 */
#ifndef TESS_SCALAR_H
#define TESS_SCALAR_H
#include "runtime/tessera_runtime.h"
#include <math.h>

/* Nothing reads errno: declared again as a function of its argument alone, sqrtf becomes the instruction. */
#ifndef __cplusplus
extern __attribute__((const)) float sqrtf(float);
#endif

/* ---- functions, without a branch --------------------------------------------------------------------------------- */

TESS_INLINE uint32_t tess_bits(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = x};
    return v.u;
}
TESS_INLINE float tess_float_of(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = bits};
    return v.f;
}
/* x held in [low, high], low < 0 < high, by comparing bits: positive floats are ordered as signed integers, negative
 * ones as unsigned (of comparisons of floats compilers make branches). A NaN ends at a limit. */
TESS_INLINE float tess_clampf(float x, float low, float high)
{
    int32_t below = (int32_t)tess_bits(x), top = (int32_t)tess_bits(high);
    below = below < top ? below : top;
    uint32_t above = (uint32_t)below, bottom = tess_bits(low);
    return tess_float_of(above < bottom ? above : bottom);
}

#define TESS_ROUNDER 12582912.0f /* 1.5 * 2^23: adding it rounds, and leaves an integer in the low bits */

/* e^x = e^r 2^k with k = round(x / ln 2), |r| <= ln(2)/2, within one unit in the last place; below -104 it is 0, above
 * 89 infinity. ln 2 is taken off in two parts, the first with so few bits that its product with k is exact; 2^k comes
 * in two factors, so that it reaches the denormals, where the last product alone rounds, and overflows. */
TESS_INLINE float tess_expf(float x)
{
    float c = tess_clampf(x, -104.0f, 89.0f);
    float t = c * 1.44269504f + TESS_ROUNDER;
    float n = t - TESS_ROUNDER;
    float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.38145855e-3f;
    p = p * r + 8.36872269e-3f;
    p = p * r + 4.16683886e-2f;
    p = p * r + 0.166665206f;
    p = p * r + 0.499999934f;
    p = (p * (r * r) + r) + 1.0f;
    uint32_t k = tess_bits(t) - tess_bits(TESS_ROUNDER), half = (uint32_t)((int32_t)k >> 1);
    float y = p * tess_float_of((half + 127) << 23) * tess_float_of((k - half + 127) << 23);
    return x == x ? y : x;
}

/* 2^z with z held in [-125, 125], where k goes straight into the exponent: cheaper than tess_expf by half. Of a NaN it
 * makes a number: callers see to it. */
TESS_INLINE float tess_exp2f(float z)
{
    float c = tess_clampf(z, -125.0f, 125.0f);
    float t = c + TESS_ROUNDER;
    float r = c - (t - TESS_ROUNDER);
    float p = 1.32647202e-3f;
    p = p * r + 9.67151361e-3f;
    p = p * r + 5.55073377e-2f;
    p = p * r + 0.240222421f;
    p = p * r + 0.693146978f;
    p = p * r + 1.0f;
    return tess_float_of(tess_bits(p) + (tess_bits(t) << 23));
}

/* 1 / (1 + e^-x) of x = -ln(2) z, and its slope by x. A NaN goes in as a number: the callers multiply by x. */
TESS_INLINE float tess_sigmoidf(float z, float *slope)
{
    float e = tess_exp2f(z), y = 1 / (1 + e);
    *slope = e * y * y;
    return y;
}

/* To one unit in the last place: near 0 x + x^3 times a polynomial of x^2, elsewhere 1 - 2 / (e^2x + 1). */
TESS_INLINE float tess_tanhf(float x)
{
    const float u = x * x, far = 1 - 2 / (tess_exp2f(x * (2 * 1.44269504f)) + 1);
    float p = -5.593915e-3f;
    p = p * u + 2.0541998e-2f;
    p = p * u - 5.3710856e-2f;
    p = p * u + 0.13331111f;
    p = p * u - 0.33333272f;
    const float near = p * u * x + x, y = u < 0.4f ? near : far;
    return x == x ? y : x;
}

/* sin and cos of quadrant * pi/2 + r, |r| <= pi/4. */
TESS_INLINE void tess_sincosf(uint32_t quadrant, float r, float *sine, float *cosine)
{
    float u = r * r;
    float s = -1.95172313e-4f;
    s = s * u + 8.33217766e-3f;
    s = s * u - 0.166666549f;
    s = s * (u * r) + r;
    float c = 2.44383742e-5f;
    c = c * u - 1.38873669e-3f;
    c = c * u + 4.16666469e-2f;
    c = c * (u * u) + (1.0f - 0.5f * u);
    uint32_t swap = 0u - (quadrant & 1), si = tess_bits(s), ci = tess_bits(c);
    *sine = tess_float_of(((si & ~swap) | (ci & swap)) ^ (quadrant & 2) << 30);
    *cosine = tess_float_of(((ci & ~swap) | (si & swap)) ^ ((quadrant + 1) & 2) << 30);
}

/* ---- random bits, inside a loop ---------------------------------------------------------------------------------- */

/* tess_random in two steps. The first mixes what is the same for a whole task into two words:
 *
 *     mix(z) = z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z >> 31  (64 bits)
 *     z = mix(mix(mix(seed + 0x9e3779b97f4a7c15) + step) + op + 0x9e3779b97f4a7c15);  a = low word, b = high word
 *
 * The second is the loop's: with lo and hi the words of place, in 32 bits, wrapping,
 *
 *     x = lo + a;                x ^= x >> 16;  x *= 0x21f0aaad;
 *     x ^= b + hi * 0x9e3779b1;  x ^= x >> 15;  x *= 0x735a2d97;
 *     x += a;                    x ^= x >> 15;  x *= 0x85ebca6b;  x ^= x >> 13;
 */
typedef struct tess_random_key {
    uint32_t a, b;
} tess_random_key;

TESS_INLINE uint64_t tess_random_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
TESS_INLINE tess_random_key tess_random_begin(uint64_t seed, uint64_t step, uint32_t op)
{
    const uint64_t odd = 0x9e3779b97f4a7c15u;
    uint64_t z = tess_random_mix(tess_random_mix(tess_random_mix(seed + odd) + step) + op + odd);
    tess_random_key key = {(uint32_t)z, (uint32_t)(z >> 32)};
    return key;
}
TESS_INLINE uint32_t tess_random_of(tess_random_key key, uint32_t lo, uint32_t hi)
{
    uint32_t x = lo + key.a;
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x ^= key.b + hi * 0x9e3779b1u;
    x = (x ^ (x >> 15)) * 0x735a2d97u;
    x += key.a;
    x = (x ^ (x >> 15)) * 0x85ebca6bu;
    return x ^ (x >> 13);
}
TESS_INLINE uint32_t tess_random_at(tess_random_key key, uint64_t place)
{
    return tess_random_of(key, (uint32_t)place, (uint32_t)(place >> 32));
}
/* At place + i: in a loop over i cheaper than with places of 64 bits. */
TESS_INLINE uint32_t tess_random_after(tess_random_key key, uint64_t place, uint32_t i)
{
    uint32_t lo = (uint32_t)place + i;
    return tess_random_of(key, lo, (uint32_t)(place >> 32) + (lo < i));
}

/* Dropout keeps an element whose random bits are at least `below`, and scales it. */
typedef struct tess_dropout_rule {
    uint32_t below;
    float scale;
} tess_dropout_rule;
TESS_INLINE tess_dropout_rule tess_dropout_begin(float p)
{
    tess_dropout_rule rule = {UINT32_MAX, 0};
    if (p < 1) {
        rule.below = (uint32_t)((double)p * 4294967296.0);
        rule.scale = 1 / (1 - p);
    }
    return rule;
}

/* ---- what attention and cross_entropy do with a product ---------------------------------------------------------- */

#define TESS_LOG2_E 1.44269504f
#define TESS_LN_2   0.693147181f

/* 2^z for z below 127, to 2e-7: a softmax's exponential, at half the work of tess_expf. Below -126 it stays at 2^-126,
 * which is as good as 0 here. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits, from where it goes
 * into the exponent. NaN stays NaN. */
TESS_INLINE float tess_power_of_2(float z)
{
    const float big = 12582912.0f;
    z = -126.0f > z ? -126.0f : z;
    const float t = z + big, f = z - (t - big);
    float p = 1.32647366e-3f;
    p = p * f + 9.67151672e-3f;
    p = p * f + 5.55073358e-2f;
    p = p * f + 0.240222424f;
    p = p * f + 0.693147004f;
    p = p * f + 1.0f;
    return tess_float_of(tess_bits(p) + (tess_bits(t) << 23));
}

/* ---- numbers of 8 bits ------------------------------------------------------------------------------------------ */

/* e4m3 has 3 bits behind the first one and ends at 448, e5m2 has 2 and ends at 57344: 1.75 times a power of 2, both. */
typedef enum tess_fp8 { TESS_NO_FP8, TESS_E4M3, TESS_E5M2 } tess_fp8;

/* What a tile's codes are to be multiplied by, if its largest magnitude has these bits: the least power of 2 by which
 * all of it is in range. So scaling rounds nothing, and what a code stands for is a bf16. Where a number is not finite
 * the scale is NaN, and so is each product: an overflow is seen. Below 2^-100 a tile's numbers lose bits. */
TESS_INLINE float tess_fp8_scale(uint32_t most, tess_fp8 as)
{
    const int32_t e = (int32_t)((most + 0x1fffffu) >> 23) - (as == TESS_E4M3 ? 8 : 15);
    return tess_float_of(most < 0x7f800000u ? (uint32_t)(e < 27 ? 27 : e) << 23 : 0x7fc00000u);
}
/* The nearest number of 8 bits, of two the even one, and at most the last: adding 2^23 times their distance rounds. */
TESS_INLINE float tess_fp8_round(float x, tess_fp8 as)
{
    const uint32_t last = as == TESS_E4M3 ? 0x43e00000u : 0x47600000u; /* 448, 57344 */
    const uint32_t normal = as == TESS_E4M3 ? 121u << 23 : 113u << 23; /* 2^-6, 2^-14: the least with all its bits */
    uint32_t size = tess_bits(x) & 0x7fffffffu, e;
    size = size < last ? size : last;
    e = size & 0x7f800000u;
    const float far = tess_float_of((e < normal ? normal : e) + (as == TESS_E4M3 ? 20u << 23 : 21u << 23));
    const float y = (tess_float_of(size) + far) - far;
    return tess_float_of(tess_bits(y) | (tess_bits(x) & 0x80000000u));
}
/* Its code: the exponent of a float ends where that of the code does once it is so much less. */
TESS_INLINE uint8_t tess_fp8_code(float y, tess_fp8 as)
{
    const uint32_t bits = tess_bits(y * (as == TESS_E4M3 ? 0x1p-120f : 0x1p-112f));
    return (uint8_t)((bits >> 24 & 0x80u) | (bits & 0x7fffffffu) >> (as == TESS_E4M3 ? 20 : 21));
}

/* ---- drawing -------------------------------------------------------------------------------------------------- */

/* Of a normal positive x = 2^e m, with m between the root of 1/2 and the root of 2. */
TESS_INLINE float tess_logf(float x)
{
    uint32_t above = tess_bits(x) - 0x3f3504f3u; /* the root of 1/2 */
    float e = (float)((int32_t)above >> 23);
    float f = tess_float_of((above & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float p = -7.63435416e-2f;
    p = p * f + 0.127615315f;
    p = p * f - 0.13160215f;
    p = p * f + 0.142017664f;
    p = p * f - 0.166233548f;
    p = p * f + 0.200012265f;
    p = p * f - 0.250008211f;
    p = p * f + 0.333333317f;
    float square = f * f;
    return p * (square * f) - 0.5f * square + f + e * 0.693147181f;
}

/* A standard normal number of a place: Box and Muller's sqrt(-2 log u) cos(2 pi v) with u in (0, 1] from 24 random bits
 * and v from 32; the first two bits of v (rounded) are the quadrant. */
TESS_INLINE float tess_normal_at(tess_random_key key, uint64_t at)
{
    uint64_t place = 2 * at;
    float u = (float)(int32_t)((tess_random_at(key, place) >> 8) + 1) * 0x1p-24f;
    uint32_t turn = tess_random_at(key, place + 1), quadrant = (turn + 0x20000000u) >> 30;
    float r = (float)(int32_t)(turn - (quadrant << 30)) * (1.57079633f * 0x1p-30f);
    float sine, cosine;
    tess_sincosf(quadrant, r, &sine, &cosine);
    return sqrtf(-2.0f * tess_logf(u)) * cosine;
}

/* A number of a place that is uniform in [-1, 1). */
TESS_INLINE float tess_uniform_at(tess_random_key key, uint64_t at)
{
    return (float)((int32_t)tess_random_at(key, at) >> 8) * 0x1p-23f;
}

#endif
