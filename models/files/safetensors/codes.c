/* Matrices that bitsandbytes quantized. Of 4 bits NAME has codes, of two elements the first in the upper half of a
 * byte, and beside it lie NAME.absmax, a scale for each block of the flattened matrix, NAME.quant_map, what the 16
 * codes stand for, and NAME.quant_state.bitsandbytes__nf4 or __fp4, a text of JSON with the shape. Scales may be codes
 * themselves, of blocks of 256 with scales in NAME.nested_absmax, plus an offset. Of 8 bits STEM.weight has a signed
 * byte for each element, and STEM.SCB 127 times a step for each row. */
#include "models/files/safetensors/safetensors_impl.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { NF4, FP4, EIGHT };
static const char *const kinds[EIGHT] = {"nf4", "fp4"};

struct tess_st_codes {
    int kind;
    int64_t block, nested_block;
    const tess_safetensor *scale, *nested; /* `nested` NULL: a scale is an fp32 */
    float offset, value[16], nested_value[256];
    tess_safetensors_dtype of; /* what it was quantized from, and is read as */
};

/* ---- reading ---- */

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
        float x = c->kind == EIGHT ? (float)(int8_t)code[i] * by * (1 / 127.0f)
                                   : c->value[code[i / 2] >> (i % 2 ? 0 : 4) & 15] * by;
        if (c->of == TESS_ST_BF16) x = tess_from_bf16(tess_to_bf16(x));
        if (c->of == TESS_ST_F16) x = tess_from_f16(tess_to_f16(x));
        out[i - first] = x;
    }
}

void tess_codes_forget(const tess_safetensor *t)
{
    tess_safetensor_forget(t->codes->scale);
}

tess_safetensors_dtype tess_safetensor_plain(const tess_safetensor *t)
{
    return t->dtype == TESS_ST_CODES   ? t->codes->of
           : t->dtype >= TESS_ST_COUNT ? TESS_ST_BF16
           : t->dtype == TESS_ST_F64   ? TESS_ST_F32
                                       : t->dtype;
}

bool tess_safetensor_blocks(const tess_safetensor *t, int64_t first, int64_t n, void *blocks)
{
    enum { BLOCK = TESS_QUANTIZED_BLOCK };
    const struct tess_st_codes *c = t->codes;
    if (!c || c->kind != NF4 || c->block != BLOCK || first % BLOCK || n % BLOCK) return false;
    uint8_t *to = blocks;
    for (int64_t b = first / BLOCK; b < (first + n) / BLOCK; b++, to += tess_dtype_bytes(TESS_NF4, BLOCK)) {
        const float by = scale_of(c, b);
        memcpy(to, &by, sizeof by);
        memcpy(to + sizeof by, (const uint8_t *)t->data + b * (BLOCK / 2), BLOCK / 2);
    }
    return true;
}

/* ---- opening ---- */

/* NAME.END, of that type and number of elements. */
static tess_status beside(const tess_safetensors *of, const tess_safetensor *t, const char *end,
                          tess_safetensors_dtype type, int64_t elements, const tess_safetensor **found)
{
    char name[520];
    snprintf(name, sizeof name, "%.480s.%s", t->name, end);
    *found = tess_safetensors_find(of, name);
    if (!*found) return tess_file_error(t->file, t->name, "is bitsandbytes' and has no %s beside it", name);
    if ((*found)->dtype == type && (*found)->elements == elements) return TESS_OK;
    return tess_file_error(t->file, name, "has %lld elements of %s (expected %lld of %s)",
                           (long long)(*found)->elements, tess_st_name((*found)->dtype), (long long)elements,
                           tess_st_name(type));
}

static int64_t blocks_of(int64_t n, int64_t block)
{
    return n / block + (n % block > 0);
}

/* What the text beside a matrix of 4 bits says. */
static bool read_state(const json_t *state, tess_safetensor *t, struct tess_st_codes *c)
{
    static const struct {
        const char *name;
        tess_safetensors_dtype is;
    } types[] = {{"float32", TESS_ST_F32}, {"float16", TESS_ST_F16}, {"bfloat16", TESS_ST_BF16}};
    const json_t *shape = json_object_get(state, "shape");
    const char *of = json_string_value(json_object_get(state, "dtype"));
    size_t k = 0;
    while (k < 3 && of && strcmp(of, types[k].name)) k++;
    c->block = json_integer_value(json_object_get(state, "blocksize"));
    c->nested_block = json_integer_value(json_object_get(state, "nested_blocksize")); /* 0: there is none */
    c->offset = (float)json_number_value(json_object_get(state, "nested_offset"));
    for (int d = 0; d < 2; d++) t->dims[d] = json_integer_value(json_array_get(shape, (size_t)d));
    const bool fits = !__builtin_mul_overflow(t->dims[0], t->dims[1], &t->elements) && t->dims[0] > 0 &&
                      t->dims[1] > 0 && t->elements % 2 == 0 && (uint64_t)t->elements / 2 == t->bytes;
    t->rank = 2, c->of = types[k % 3].is;
    return json_array_size(shape) == 2 && of && k < 3 && c->block > 0 && c->nested_block >= 0 && fits;
}

static tess_status read_four(const tess_safetensors *of, const tess_safetensor *text, tess_safetensor *t,
                             struct tess_st_codes *c)
{
    const tess_safetensor *map;
    json_t *state = json_loadb(text->data, text->bytes, 0, NULL);
    const bool good = read_state(state, t, c);
    json_decref(state);
    if (!good)
        return tess_file_error(text->file, text->name,
                               "expected an object with the blocksize, the dtype and the shape of %s, whose %zu bytes "
                               "have two elements each",
                               t->name, t->bytes);
    const int64_t scales = blocks_of(t->elements, c->block);
    TESS_TRY(beside(of, t, "absmax", c->nested_block ? TESS_ST_U8 : TESS_ST_F32, scales, &c->scale));
    TESS_TRY(beside(of, t, "quant_map", TESS_ST_F32, 16, &map));
    memcpy(c->value, map->data, sizeof c->value);
    if (!c->nested_block) return TESS_OK;
    TESS_TRY(beside(of, t, "nested_absmax", TESS_ST_F32, blocks_of(scales, c->nested_block), &c->nested));
    TESS_TRY(beside(of, t, "nested_quant_map", TESS_ST_F32, 256, &map));
    memcpy(c->nested_value, map->data, sizeof c->nested_value);
    return TESS_OK;
}

/* Whether it lies beside a matrix NAME, or STEM.weight. */
static bool is_beside(const tess_safetensors *of, const char *name)
{
    enum { STEM = 4, ENDS = 6 };
    static const char *const end[ENDS] = {".absmax",           ".quant_map", ".nested_absmax",
                                          ".nested_quant_map", ".SCB",       ".weight_format"};
    const char *state = strstr(name, ".quant_state.bitsandbytes__"), *last = state ? state : strrchr(name, '.');
    char stem[560];
    int k = 0;
    while (k < ENDS && last && strcmp(last, end[k])) k++;
    if (!last || last - name > 500 || (k == ENDS && !state)) return false;
    snprintf(stem, sizeof stem, "%.*s%s", (int)(last - name), name, k >= STEM && !state ? ".weight" : "");
    return tess_safetensors_find(of, stem);
}

tess_status tess_codes_add(tess_safetensors *s, const tess_safetensors *of, const tess_safetensor *t, bool *taken)
{
    struct tess_st_codes c = {.kind = NF4};
    tess_safetensor made = *t;
    char name[560], format[560];
    const size_t n = strlen(t->name);
    *taken = is_beside(of, t->name);
    for (; !*taken && c.kind < EIGHT; c.kind++) {
        snprintf(name, sizeof name, "%.500s.quant_state.bitsandbytes__%s", t->name, kinds[c.kind]);
        const tess_safetensor *text = tess_safetensors_find(of, name);
        if (!text) continue;
        *taken = true;
        TESS_TRY(read_four(of, text, &made, &c));
        break;
    }
    const tess_safetensor stem = {
        .name = tess_arena_format(s->arena, "%.*s", (int)(n > 7 ? n - 7 : 0), t->name), /* without ".weight" */
        .file = t->file};
    snprintf(name, sizeof name, "%.500s.SCB", stem.name);
    if (c.kind == EIGHT && t->dtype == TESS_ST_I8 && t->rank == 2 && t->elements && tess_safetensors_find(of, name)) {
        *taken = true;
        c.block = t->dims[1], c.of = TESS_ST_F32;
        TESS_TRY(beside(of, &stem, "SCB", TESS_ST_F32, t->dims[0], &c.scale));
        snprintf(format, sizeof format, "%.500s.weight_format", stem.name);
        const tess_safetensor *as = tess_safetensors_find(of, format);
        if (as && as->bytes && *(const uint8_t *)as->data)
            return tess_file_error(t->file, t->name, "lies as a GPU wanted it (expected rows: save it again)");
    }
    if (!c.scale) return TESS_OK;
    const tess_safetensor **held[] = {&c.scale, &c.nested};
    struct tess_st_codes *kept = tess_arena_get(s->arena, sizeof *kept);
    for (int k = 0; k < 2 && *held[k]; k++) {
        tess_safetensor *copy = tess_arena_get(s->arena, sizeof *copy);
        *copy = **held[k];
        *held[k] = copy;
    }
    *kept = c;
    made.dtype = TESS_ST_CODES;
    made.codes = kept;
    *tess_safetensors_add(s) = made;
    return TESS_OK;
}
