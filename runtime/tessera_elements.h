/* tessera.h: dtypes, and functions that read and write an element of a tile whatever its dtype is. Where the dtype is a
 * constant for the compiler, no test of it remains, and loops are vectorized. CUDA compiles them for host and device.
 */
#ifndef TESSERA_ELEMENTS_H
#define TESSERA_ELEMENTS_H
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TESS_INLINE static __host__ __device__ __forceinline__
#else
#define TESS_INLINE static inline __attribute__((always_inline))
#endif

typedef enum tess_dtype { TESS_F32, TESS_BF16, TESS_F16, TESS_I32, TESS_DTYPE_COUNT } tess_dtype;

typedef uint16_t tess_bf16;
/* Returns the same value in fp32. */
TESS_INLINE float tess_from_bf16(tess_bf16 x)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = (uint32_t)x << 16;
    return v.f;
}
/* Returns the nearest bf16, on a tie the even one; a NaN stays one. */
TESS_INLINE tess_bf16 tess_to_bf16(float x)
{
    union {
        float f;
        uint32_t u;
    } v;
    v.f = x;
    uint32_t nan = (v.u & 0x7fffffffu) > 0x7f800000u;
    uint32_t rounded = (v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16;
    return (tess_bf16)(nan ? (v.u >> 16) | 0x40u : rounded);
}

typedef uint16_t tess_f16;
/* Returns the same value in fp32. This function and its opposite compute all cases and choose one, without a branch. */
TESS_INLINE float tess_from_f16(tess_f16 x)
{
    union {
        uint32_t u;
        float f;
    } normal, tiny, one;
    one.u = 0x38800000u; /* 2^-14 */
    const uint32_t bits = ((uint32_t)x & 0x7fffu) << 13, sign = ((uint32_t)x & 0x8000u) << 16;
    const uint32_t exponent = bits & 0x0f800000u;
    normal.u = bits + 0x38000000u + (exponent == 0x0f800000u ? 0x38000000u : 0);
    tiny.u = bits + 0x38800000u;
    tiny.f -= one.f;
    normal.u = (exponent ? normal.u : tiny.u) | sign;
    return normal.f;
}
/* Returns the nearest fp16, on a tie the even one, and infinity beyond the largest; a NaN stays one. */
TESS_INLINE tess_f16 tess_to_f16(float x)
{
    union {
        uint32_t u;
        float f;
    } v, tiny, half;
    v.f = x;
    half.u = 0x3f000000u;
    const uint32_t sign = (v.u >> 16) & 0x8000u, size = v.u & 0x7fffffffu;
    const uint32_t normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
    tiny.u = size;
    tiny.f += half.f; /* the last bit of 0.5f has the value of the smallest fp16 */
    uint32_t y = size < 0x38800000u ? tiny.u - 0x3f000000u : normal;
    y = size >= 0x47800000u ? 0x7c00u : y;
    y = size > 0x7f800000u ? 0x7e00u : y;
    return (tess_f16)(y | sign);
}

/* Returns in fp32 an element of bf16 or fp16. */
TESS_INLINE float tess_from_half(tess_dtype t, uint16_t x)
{
    return t == TESS_F16 ? tess_from_f16(x) : tess_from_bf16(x);
}
/* Returns an element of bf16 or fp16. */
TESS_INLINE uint16_t tess_to_half(tess_dtype t, float x)
{
    return t == TESS_F16 ? tess_to_f16(x) : tess_to_bf16(x);
}

/* Returns whether elements of a dtype have 16 bits. */
TESS_INLINE bool tess_is_half(tess_dtype t)
{
    return t == TESS_BF16 || t == TESS_F16;
}
/* Returns element i of x in fp32. */
TESS_INLINE float tess_load(const void *x, int64_t i, tess_dtype t)
{
    if (t == TESS_BF16) return tess_from_bf16(((const tess_bf16 *)x)[i]);
    return t == TESS_F16 ? tess_from_f16(((const tess_f16 *)x)[i]) : ((const float *)x)[i];
}
/* Stores v as element i of y. */
TESS_INLINE void tess_store(void *y, int64_t i, tess_dtype t, float v)
{
    if (t == TESS_BF16)
        ((tess_bf16 *)y)[i] = tess_to_bf16(v);
    else if (t == TESS_F16)
        ((tess_f16 *)y)[i] = tess_to_f16(v);
    else
        ((float *)y)[i] = v;
}
/* Adds v to element i of y, or, without `acc`, stores it there and does not read what was there. */
TESS_INLINE void tess_accumulate(void *y, int64_t i, tess_dtype t, bool acc, float v)
{
    tess_store(y, i, t, acc ? tess_load(y, i, t) + v : v);
}
/* Returns the address of element i of x. */
TESS_INLINE const void *tess_at(const void *x, int64_t i, tess_dtype t)
{
    return (const char *)x + i * (tess_is_half(t) ? 2 : 4);
}
/* Returns it to write there. */
TESS_INLINE void *tess_at_mut(void *x, int64_t i, tess_dtype t)
{
    return (char *)x + i * (tess_is_half(t) ? 2 : 4);
}

#endif
