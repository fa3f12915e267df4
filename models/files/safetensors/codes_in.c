/* Matrices that bitsandbytes quantized. Of 4 bits NAME has codes, of two elements the first in the upper half of a
 * byte, and beside it lie NAME.absmax, a scale for each block of the flattened matrix, NAME.quant_map, what the 16
 * codes stand for, and NAME.quant_state.bitsandbytes__nf4 or __fp4, a text of JSON with the shape. Scales may be codes
 * themselves, of blocks of 256 with scales in NAME.nested_absmax, plus an offset. Of 8 bits STEM.weight has a signed
 * byte for each element, and STEM.SCB 127 times a step for each row. */
#include "models/files/safetensors/safetensors_impl.h"
#include <jansson.h>
#include <string.h>

static const char *const kinds[TESS_CODES_EIGHT] = {"nf4", "fp4"};

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
    struct tess_st_codes c = {.kind = TESS_CODES_NF4};
    tess_safetensor made = *t;
    char name[560], format[560];
    const size_t n = strlen(t->name);
    *taken = is_beside(of, t->name);
    for (; !*taken && c.kind < TESS_CODES_EIGHT; c.kind++) {
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
    if (c.kind == TESS_CODES_EIGHT && t->dtype == TESS_ST_I8 && t->rank == 2 && t->elements &&
        tess_safetensors_find(of, name)) {
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
