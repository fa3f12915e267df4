/* Reading of matrices that bitsandbytes quantized; codes_in.c says how they lie in files. */
#include "models/files/safetensors/safetensors_impl.h"
#include <string.h>

static float float_at(const tess_safetensor *t, int64_t i)
{
    float x;
    memcpy(&x, (const uint8_t *)t->data + (size_t)i * sizeof x, sizeof x);
    return x;
}

static float scale_of(const struct tess_st_codes *c, int64_t block)
{
    if (!c->nested) return float_at(c->scale, block);
    return c->nested_value[((const uint8_t *)c->scale->data)[block]] * float_at(c->nested, block / c->nested_block) +
           c->offset;
}

void tess_codes_read(const tess_safetensor *t, int64_t first, int64_t n, float *out)
{
    const struct tess_st_codes *c = t->codes;
    const uint8_t *code = t->data;
    float by = 0;
    for (int64_t i = first; i < first + n; i++) {
        if (i == first || i % c->block == 0) by = scale_of(c, i / c->block);
        float x = c->kind == TESS_CODES_EIGHT ? (float)(int8_t)code[i] * by * (1 / 127.0f)
                                              : c->value[code[i / 2] >> (i % 2 ? 0 : 4) & 15] * by;
        if (c->of == TESS_ST_BF16) x = tess_from_bf16(tess_to_bf16(x));
        if (c->of == TESS_ST_F16) x = tess_from_f16(tess_to_f16(x));
        out[i - first] = x;
    }
}

tess_safetensors_dtype tess_safetensor_plain(const tess_safetensor *t)
{
    return t->scales                   ? TESS_ST_BF16
           : t->dtype == TESS_ST_CODES ? t->codes->of
           : t->dtype >= TESS_ST_COUNT ? TESS_ST_BF16
           : t->dtype == TESS_ST_F64   ? TESS_ST_F32
                                       : t->dtype;
}

bool tess_safetensor_blocks(const tess_safetensor *t, int64_t first, int64_t n, void *blocks)
{
    enum { BLOCK = TESS_QUANTIZED_BLOCK };
    const struct tess_st_codes *c = t->codes;
    if (!c || c->kind != TESS_CODES_NF4 || c->block != BLOCK || first % BLOCK || n % BLOCK) return false;
    uint8_t *to = blocks;
    for (int64_t b = first / BLOCK; b < (first + n) / BLOCK; b++, to += tess_dtype_bytes(TESS_NF4, BLOCK)) {
        const float by = scale_of(c, b);
        memcpy(to, &by, sizeof by);
        memcpy(to + sizeof by, (const uint8_t *)t->data + b * (BLOCK / 2), BLOCK / 2);
    }
    return true;
}
