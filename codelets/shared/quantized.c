/* Frozen matrices, and messages, in 4 and 8 bits: bitsandbytes' NF4 and its dynamic code of 8 bits, in blocks of 64
 * elements, with the bits of its reference for codes, scales and values. A block of n elements is a scale, the largest
 * magnitude, and then n / 2 bytes, the first of two elements in the upper half, or n bytes.
 *
 * The blocks are those of the flattened matrix, since rows are whole blocks; so tiles, slices and ranks of whole rows
 * cut none, and what a tile takes in RAM, on disk and in messages is its rows' share. An element's value is code times
 * scale, rounded to the graph's dtype: a product has the bits that it has of a matrix which is stored as these values.
 * Scales are not quantized themselves, which would save 0.37 of 4.5 bits: 256 of them are 16,384 elements, which rows
 * and tiles cut, and their offset is a mean over the matrix, and a rank reads pieces.
 */
#include "codelets/shared/codes.h"
#include "codelets/shared/vector.h"
#include <pthread.h>

enum { BLOCK = TESS_QUANTIZED_BLOCK, SCALE = sizeof(float) };

typedef float q_floats __attribute__((vector_size(32)));
typedef int32_t q_ints __attribute__((vector_size(32)));

static const float nf4[16] = {TESS_NF4_VALUES};
static float int8[256], middle[256]; /* between a code of 8 bits and the next */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_int8(void)
{
    for (int i = 0; i < 256; i++) int8[i] = tess_int8_value(i);
    for (int i = 0; i < 255; i++) middle[i] = (int8[i] + int8[i + 1]) / 2;
}

/* The codes of shares: how many middles between neighbours are below each. */
TESS_INLINE void find_nf4(uint32_t *code, const float *share)
{
#pragma omp simd
    for (int i = 0; i < BLOCK; i++) {
        uint32_t below = 0;
#pragma GCC unroll 15
        for (int k = 0; k < 15; k++) below += share[i] > (nf4[k] + nf4[k + 1]) / 2;
        code[i] = below;
    }
}
TESS_INLINE void find_int8(uint32_t *code, const float *share)
{
    memset(code, 0, BLOCK * sizeof *code);
    for (uint32_t half = 128; half > 0; half /= 2) {
#pragma omp simd
        for (int i = 0; i < BLOCK; i++) code[i] += (share[i] > middle[code[i] + half - 1]) * half;
    }
}

/* What is not finite makes its block's scale NaN, and so each of its values. */
TESS_INLINE void write_blocks(uint8_t *to, tess_dtype as, const float *x, int64_t n, tess_dtype of)
{
    const size_t bytes = tess_dtype_bytes(as, BLOCK);
    for (int64_t b = 0; b < n / BLOCK; b++, to += bytes, x += BLOCK) {
        float share[BLOCK], scale;
        uint32_t code[BLOCK], most = 0;
#pragma omp simd reduction(max : most)
        for (int i = 0; i < BLOCK; i++) { /* of floats that are not negative the order is that of their bits */
            share[i] = tess_is_half(of) ? tess_from_half(of, tess_to_half(of, x[i])) : x[i];
            const uint32_t size = tess_bits(share[i]) & 0x7fffffffu;
            most = size > most ? size : most;
        }
        scale = most < 0x7f800000u ? tess_float_of(most) : NAN;
        const float by = 1.0f / (scale > 1e-38f ? scale : 1e-38f);
#pragma omp simd
        for (int i = 0; i < BLOCK; i++) share[i] = tess_clampf(share[i] * by, -1.0f, 1.0f);
        if (as == TESS_NF4)
            find_nf4(code, share);
        else
            find_int8(code, share);
        memcpy(to, &scale, SCALE);
        for (int i = 0; i < BLOCK && as == TESS_INT8; i++) to[SCALE + i] = (uint8_t)code[i];
        for (int i = 0; i < BLOCK / 2 && as == TESS_NF4; i++)
            to[SCALE + i] = (uint8_t)(code[2 * i] << 4 | code[2 * i + 1]);
    }
}
TESS_CLONES static void write_nf4(uint8_t *to, const float *x, int64_t n, tess_dtype of)
{
    write_blocks(to, TESS_NF4, x, n, of);
}
TESS_CLONES static void write_int8(uint8_t *to, const float *x, int64_t n, tess_dtype of)
{
    write_blocks(to, TESS_INT8, x, n, of);
}
void tess_quantize_write(void *to, tess_dtype as, const float *x, int64_t n, tess_dtype of)
{
    pthread_once(&once, fill_int8);
    (as == TESS_NF4 ? write_nf4 : write_int8)(to, x, n, of);
}

/* Of x, with `rest` of their sum, which then becomes what the codes lack. */
static void encode(const tess_work *w, tess_dtype t, void *codes, float *rest)
{
    enum { SOME = 32 * BLOCK };
    const tess_count_arg *a = w->arg;
    float x[SOME], value[SOME];
    for (int64_t i = 0, n; i < a->n; i += n) {
        uint8_t *to = (uint8_t *)codes + tess_dtype_bytes(a->as, a->at + i);
        n = a->n - i < SOME ? a->n - i : SOME;
        tess_widen(x, tess_at(w->buf[0].ptr, i, t), n, t);
        for (int64_t k = 0; k < (rest ? n : 0); k++) x[k] += rest[i + k];
        tess_quantize_write(to, a->as, x, n, a->of);
        if (rest) tess_quantize_read(value, TESS_F32, to, a->as, n);
        for (int64_t k = 0; k < (rest ? n : 0); k++) /* where it is not finite the step fails */
            rest[i + k] = fabsf(x[k] - value[k]) < INFINITY ? x[k] - value[k] : 0;
    }
}

static void quantize(const tess_work *w, tess_dtype t)
{
    encode(w, t, w->buf[1].ptr, NULL);
}

static void quantize_rest(const tess_work *w)
{
    encode(w, TESS_F32, w->buf[2].ptr, w->buf[1].ptr);
}

static void dequantize(const tess_work *w, tess_dtype t)
{
    const tess_count_arg *a = w->arg;
    tess_quantize_read(w->buf[1].ptr, t, w->buf[0].ptr, a->as, a->n);
}

#define BODY(op, name, t, ...)                                                                                         \
    static void op##_##name(const tess_work *w)                                                                        \
    {                                                                                                                  \
        op(w, t);                                                                                                      \
    }
#define ONE(op, name_of, t, ...) [t] = {.name = #op, .dtype = t, .cpu = op##_##name_of},
TESS_EACH_REAL(BODY, quantize, )
TESS_EACH_REAL(BODY, dequantize, )
tess_codelet tess_quantize[] = {TESS_EACH_REAL(ONE, quantize, )};
tess_codelet tess_dequantize[] = {TESS_EACH_REAL(ONE, dequantize, )};
tess_codelet tess_quantize_rest[] = {[TESS_F32] = {.name = "quantize_rest", .dtype = TESS_F32, .cpu = quantize_rest}};

/* 4 bytes are 8 elements: each lane has all of them, and shifts its own down. */
TESS_INLINE void read_nf4(float *y, const uint8_t *code, float scale)
{
    const q_ints down = {4, 0, 12, 8, 20, 16, 28, 24};
    q_floats low, high;
    memcpy(&low, nf4, sizeof low);
    memcpy(&high, nf4 + 8, sizeof high);
    low *= scale, high *= scale;
    for (int i = 0; i < BLOCK; i += 8) {
        int32_t word;
        memcpy(&word, code + i / 2, sizeof word);
        const q_floats v = __builtin_shuffle(low, high, ((q_ints){} + word) >> down & 15);
        memcpy(y + i, &v, sizeof v);
    }
}
TESS_INLINE void read_int8(float *y, const uint8_t *code, float scale)
{
#pragma omp simd
    for (int i = 0; i < BLOCK; i++) y[i] = int8[code[i]] * scale;
}
TESS_INLINE void read_blocks(void *to, tess_dtype as, const uint8_t *from, int64_t n, tess_dtype of)
{
    const size_t bytes = tess_dtype_bytes(of, BLOCK);
    for (int64_t i = 0; i < n; i += BLOCK, from += bytes) {
        float y[BLOCK], scale;
        memcpy(&scale, from, SCALE);
        if (of == TESS_NF4)
            read_nf4(y, from + SCALE, scale);
        else
            read_int8(y, from + SCALE, scale);
        tess_narrow(tess_at_mut(to, i, as), y, BLOCK, as);
    }
}
#define READ(op, name, t, ...)                                                                                         \
    TESS_CLONES static void op##_##name(void *to, const uint8_t *from, int64_t n)                                      \
    {                                                                                                                  \
        read_blocks(to, t, from, n, __VA_ARGS__);                                                                      \
    }
TESS_EACH_REAL(READ, read_nf4, TESS_NF4)
TESS_EACH_REAL(READ, read_int8, TESS_INT8)

void tess_quantize_read(void *to, tess_dtype as, const void *from, tess_dtype of, int64_t n)
{
    static void (*const read[2][TESS_REAL_DTYPES])(void *, const uint8_t *, int64_t) = {
        {read_nf4_f32, read_nf4_bf16, read_nf4_f16}, {read_int8_f32, read_int8_bf16, read_int8_f16}};
    pthread_once(&once, fill_int8);
    read[of == TESS_INT8][as](to, from, n);
}
