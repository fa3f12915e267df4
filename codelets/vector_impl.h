/* vector_impl: what the bodies of this room are written with. An op is written once, over elements of `t`, and
 * instantiated for both dtypes and for three widths of vectors:
 *
 *     TESS_INLINE void twice(const tess_work *w, tess_dtype t)
 *     {
 *         const tess_map_arg *a = w->arg;
 *         const void *x = w->buf[0].ptr;
 *         void *y = w->buf[1].ptr;
 *     #pragma omp simd
 *         for (int64_t i = 0; i < a->n; i++) tess_store(y, i, t, 2 * tess_load(x, i, t));
 *     }
 *     TESS_REAL(twice)    // tess_codelet tess_twice[] = {[TESS_F32] = ..., [TESS_BF16] = ...}
 *
 * `t` is a constant in each instance, so that its tests disappear and the loop becomes one of vectors. Results have
 * the same bits with any width: elements are computed one by one with IEEE operations that are never contracted, and
 * sums run in 16 lanes.
 */
#ifndef TESS_VECTOR_IMPL_H
#define TESS_VECTOR_IMPL_H
#include "codelets.h"
#include <math.h>
#include <string.h>

/* Nobody reads errno: said again as a function of its argument alone, it becomes the instruction. */
extern __attribute__((const)) float sqrtf(float);

/* Sanitizers run before what chooses a clone, and must not. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || !defined __x86_64__
#define TESS_PLAIN
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define TESS_PLAIN
#endif
#endif
#ifdef TESS_PLAIN
#define TESS_CLONES
#else
#define TESS_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif
#define TESS_INLINE static inline __attribute__((always_inline))

/* The codelets of an op, from its body op(w, t). TESS_REAL leaves the cost to the runtime: no flops, the bytes of the
 * buffers, which is what most ops of this room move; TESS_REAL_COST takes it from op_cost(arg, t). */
#define TESS_REAL(op)                                                                                                  \
    TESS_REAL_BODIES(op)                                                                                               \
    tess_codelet tess_##op[TESS_REAL_DTYPES] = {                                                                       \
        [TESS_F32] = {.name = #op, .dtype = TESS_F32, .cpu = op##_f32},                                                \
        [TESS_BF16] = {.name = #op, .dtype = TESS_BF16, .cpu = op##_bf16},                                             \
    };
#define TESS_REAL_COST(op)                                                                                             \
    TESS_REAL_BODIES(op)                                                                                               \
    static tess_cost op##_cost_f32(const void *arg)                                                                    \
    {                                                                                                                  \
        return op##_cost(arg, TESS_F32);                                                                               \
    }                                                                                                                  \
    static tess_cost op##_cost_bf16(const void *arg)                                                                   \
    {                                                                                                                  \
        return op##_cost(arg, TESS_BF16);                                                                              \
    }                                                                                                                  \
    tess_codelet tess_##op[TESS_REAL_DTYPES] = {                                                                       \
        [TESS_F32] = {.name = #op, .dtype = TESS_F32, .cpu = op##_f32, .cost = op##_cost_f32},                         \
        [TESS_BF16] = {.name = #op, .dtype = TESS_BF16, .cpu = op##_bf16, .cost = op##_cost_bf16},                     \
    };
#define TESS_REAL_BODIES(op)                                                                                           \
    TESS_CLONES static void op##_f32(const tess_work *w)                                                               \
    {                                                                                                                  \
        op(w, TESS_F32);                                                                                               \
    }                                                                                                                  \
    TESS_CLONES static void op##_bf16(const tess_work *w)                                                              \
    {                                                                                                                  \
        op(w, TESS_BF16);                                                                                              \
    }

/* ---- elements ---------------------------------------------------------------------------------------------------- */

TESS_INLINE float tess_load(const void *x, int64_t i, tess_dtype t)
{
    return t == TESS_BF16 ? tess_from_bf16(((const tess_bf16 *)x)[i]) : ((const float *)x)[i];
}
TESS_INLINE void tess_store(void *y, int64_t i, tess_dtype t, float v)
{
    if (t == TESS_BF16)
        ((tess_bf16 *)y)[i] = tess_to_bf16(v);
    else
        ((float *)y)[i] = v;
}
/* "+=": to what is there with acc, else over it. What is there is not read then: it may be anything. */
TESS_INLINE void tess_accumulate(void *y, int64_t i, tess_dtype t, bool acc, float v)
{
    tess_store(y, i, t, acc ? tess_load(y, i, t) + v : v);
}
/* Element i on, where x is a row of a matrix. */
TESS_INLINE const void *tess_at(const void *x, int64_t i, tess_dtype t)
{
    return (const char *)x + i * (t == TESS_BF16 ? 2 : 4);
}
TESS_INLINE void *tess_at_mut(void *x, int64_t i, tess_dtype t)
{
    return (char *)x + i * (t == TESS_BF16 ? 2 : 4);
}

TESS_INLINE void tess_widen(float *dst, const tess_bf16 *src, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dst[i] = tess_from_bf16(src[i]);
}
TESS_INLINE void tess_narrow(tess_bf16 *dst, const float *src, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dst[i] = tess_to_bf16(src[i]);
}

/* ---- sums in 16 lanes -------------------------------------------------------------------------------------------- */

enum { TESS_LANES = 16 };

/* Runs a statement for i in [0, n), with l = i % 16:
 *
 *     float sum[TESS_LANES] = {0};
 *     TESS_EACH(i, l, n, sum[l] += x[i]);
 *     total = tess_sum16(sum);
 */
#define TESS_EACH(i, l, n, ...)                                                                                        \
    do {                                                                                                               \
        int64_t each_ = 0;                                                                                             \
        for (; each_ + TESS_LANES <= (n); each_ += TESS_LANES) {                                                       \
            _Pragma("omp simd") for (int l = 0; l < TESS_LANES; l++)                                                   \
            {                                                                                                          \
                const int64_t i = each_ + l;                                                                           \
                __VA_ARGS__;                                                                                           \
            }                                                                                                          \
        }                                                                                                              \
        for (int l = 0; each_ + l < (n); l++) {                                                                        \
            const int64_t i = each_ + l;                                                                               \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

/* The lanes combined in one fixed tree: halves onto halves. */
TESS_INLINE float tess_sum16(const float lane[TESS_LANES])
{
    float a[8], b[4];
    for (int l = 0; l < 8; l++) a[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++) b[l] = a[l] + a[l + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}
TESS_INLINE double tess_sum16d(const double lane[TESS_LANES])
{
    double a[8], b[4];
    for (int l = 0; l < 8; l++) a[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++) b[l] = a[l] + a[l + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}
/* The sum of squares of a gradient, exact to the double: what the global norm is made of. */
TESS_INLINE double tess_squares(const float *x, int64_t n)
{
    double sum[TESS_LANES] = {0};
    TESS_EACH(i, l, n, const double v = x[i]; sum[l] += v * v);
    return tess_sum16d(sum);
}
TESS_INLINE float tess_max16(const float lane[TESS_LANES])
{
    float m = lane[0];
    for (int l = 1; l < TESS_LANES; l++) m = lane[l] > m ? lane[l] : m;
    return m;
}

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

static const float tess_rounder = 12582912.0f; /* 1.5 * 2^23: adding it rounds, and leaves an integer in the low bits */

/* e^x = e^r 2^k with k = round(x / ln 2), |r| <= ln(2)/2, within one unit in the last place; below -104 it is 0, above
 * 89 infinity. ln 2 is taken off in two parts, the first with so few bits that its product with k is exact; 2^k comes
 * in two factors, so that it reaches the denormals, where the last product alone rounds, and overflows. */
TESS_INLINE float tess_expf(float x)
{
    float c = tess_clampf(x, -104.0f, 89.0f);
    float t = c * 1.44269504f + tess_rounder;
    float n = t - tess_rounder;
    float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.38145855e-3f;
    p = p * r + 8.36872269e-3f;
    p = p * r + 4.16683886e-2f;
    p = p * r + 0.166665206f;
    p = p * r + 0.499999934f;
    p = (p * (r * r) + r) + 1.0f;
    uint32_t k = tess_bits(t) - tess_bits(tess_rounder), half = (uint32_t)((int32_t)k >> 1);
    float y = p * tess_float_of((half + 127) << 23) * tess_float_of((k - half + 127) << 23);
    return x == x ? y : x;
}

/* 2^z with z held in [-125, 125], where k goes straight into the exponent: cheaper than tess_expf by half. Of a NaN it
 * makes a number: callers see to it. */
TESS_INLINE float tess_exp2f(float z)
{
    float c = tess_clampf(z, -125.0f, 125.0f);
    float t = c + tess_rounder;
    float r = c - (t - tess_rounder);
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
    return (tess_random_key){(uint32_t)z, (uint32_t)(z >> 32)};
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
    if (p >= 1) return (tess_dropout_rule){UINT32_MAX, 0};
    return (tess_dropout_rule){(uint32_t)((double)p * 4294967296.0), 1 / (1 - p)};
}

#endif
