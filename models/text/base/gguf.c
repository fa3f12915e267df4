/* The head of a GGUF file: a magic, a version, the numbers of tensors and of values; values, each a key, a type and
 * what that says; of each tensor its name, sizes with the innermost first, type and place. All is little-endian, a text
 * is its length and its bytes. Nothing is believed. */
#include "models/text/base/gguf.h"
#include "models/text/base/mapped.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64, TYPES };
static const uint8_t size_of[TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
static const char magic[] = "GGUF";

struct cursor {
    const char *file;
    const uint8_t *byte;
    size_t n, at;
};

bool tess_gguf_is(const char *path)
{
    struct stat st;
    const size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".gguf") && (stat(path, &st) || !S_ISDIR(st.st_mode));
}

/* ---- reading ---- */

static tess_status take(struct cursor *c, size_t bytes, const uint8_t **from)
{
    *from = c->byte + c->at;
    if (bytes > c->n - c->at) return tess_error(TESS_INVALID, c->file, "ends within its header (is it truncated?)");
    c->at += bytes;
    return TESS_OK;
}

static tess_status take_number(struct cursor *c, size_t bytes, uint64_t *number)
{
    const uint8_t *from;
    *number = 0;
    TESS_TRY(take(c, bytes, &from));
    memcpy(number, from, bytes);
    return TESS_OK;
}

static tess_status take_text(struct cursor *c, const char **text, size_t *n)
{
    uint64_t length;
    const uint8_t *from;
    TESS_TRY(take_number(c, 8, &length));
    TESS_TRY(take(c, length, &from));
    *text = (const char *)from;
    *n = length;
    return tess_utf8_valid(*text, *n) == *n
               ? TESS_OK
               : tess_error(TESS_INVALID, c->file, "byte %zu: a text is no UTF-8", c->at - length);
}

/* The shortest decimal that is this float. */
static json_t *real_of(float x)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) break;
    }
    json_t *real = json_real(strtod(text, NULL));
    return real ? real : json_null();
}

static json_t *number_of(uint64_t type, uint64_t bits)
{
    float x;
    double wide;
    memcpy(&x, &bits, sizeof x);
    memcpy(&wide, &bits, sizeof wide);
    if (type == F32) return real_of(x);
    if (type == F64) return real_of((float)wide);
    if (type == BOOL) return json_boolean(bits);
    const int spare = type == I8 || type == I16 || type == I32 ? 64 - 8 * size_of[type] : 0;
    return json_integer((int64_t)(bits << spare) >> spare);
}

static tess_status take_value(struct cursor *c, uint64_t type, int depth, json_t **value)
{
    uint64_t number, count;
    if (type >= TYPES || (type == ARRAY && depth > 1))
        return tess_error(TESS_INVALID, c->file, "byte %zu: a value of type %llu, which is not known", c->at,
                          (unsigned long long)type);
    if (type == TEXT) {
        const char *text;
        size_t n;
        TESS_TRY(take_text(c, &text, &n));
        *value = json_stringn(text, n);
    } else if (type == ARRAY) {
        TESS_TRY(take_number(c, 4, &type));
        TESS_TRY(take_number(c, 8, &count));
        *value = json_array();
        for (uint64_t i = 0; i < count; i++) {
            json_t *item = NULL;
            TESS_TRY(take_value(c, type, depth + 1, &item));
            json_array_append_new(*value, item);
        }
    } else {
        TESS_TRY(take_number(c, size_of[type], &number));
        *value = number_of(type, number);
    }
    return TESS_OK;
}

static tess_status set_new(const struct cursor *c, json_t *object, const char *name, size_t n, json_t *value)
{
    const bool twice = json_object_getn(object, name, n);
    if (!twice && !memchr(name, 0, n)) return json_object_setn_new(object, name, n, value), TESS_OK;
    json_decref(value);
    return tess_error(TESS_INVALID, c->file, "%.*s: %s", (int)(n < 100 ? n : 100), name,
                      twice ? "is in it twice" : "the name has a 0 in it");
}

static tess_status take_pair(struct cursor *c, json_t *meta)
{
    const char *key;
    size_t n;
    uint64_t type;
    json_t *value = NULL;
    TESS_TRY(take_text(c, &key, &n));
    TESS_TRY(take_number(c, 4, &type));
    const tess_status status = take_value(c, type, 0, &value);
    if (status != TESS_OK) json_decref(value);
    return status == TESS_OK ? set_new(c, meta, key, n, value) : status;
}

static tess_status take_tensor(struct cursor *c, json_t *tensors)
{
    const char *name;
    size_t n;
    uint64_t rank, number;
    TESS_TRY(take_text(c, &name, &n));
    TESS_TRY(take_number(c, 4, &rank));
    json_t *shape = json_array(), *entry = json_pack("{so}", "shape", shape);
    TESS_TRY(set_new(c, tensors, name, n, entry));
    for (uint64_t i = 0; i < rank; i++) {
        TESS_TRY(take_number(c, 8, &number));
        json_array_insert_new(shape, 0, json_integer((json_int_t)number));
        if (i == 8) return tess_error(TESS_INVALID, c->file, "a tensor has more than 8 dimensions");
    }
    TESS_TRY(take_number(c, 4, &number));
    json_object_set_new(entry, "type", json_integer((json_int_t)number));
    TESS_TRY(take_number(c, 8, &number));
    json_object_set_new(entry, "offset", json_integer((json_int_t)number));
    return TESS_OK;
}

static tess_status read_head(struct cursor *c, tess_gguf *g)
{
    uint64_t version, tensors, pairs;
    if (c->n < 8 || memcmp(c->byte, magic, 4))
        return tess_error(TESS_INVALID, c->file, "is no GGUF file: it does not begin with these four letters");
    c->at = 4;
    TESS_TRY(take_number(c, 4, &version));
    if (version != 2 && version != 3)
        return tess_error(TESS_INVALID, c->file, "is of version %llu of GGUF (expected 2 or 3, little-endian)",
                          (unsigned long long)version);
    TESS_TRY(take_number(c, 8, &tensors));
    TESS_TRY(take_number(c, 8, &pairs));
    for (uint64_t i = 0; i < pairs; i++) TESS_TRY(take_pair(c, g->meta));
    for (uint64_t i = 0; i < tensors; i++) TESS_TRY(take_tensor(c, g->tensors));
    const json_t *given = json_object_get(g->meta, "general.alignment");
    const int64_t alignment = given ? json_integer_value(given) : TESS_GGUF_ALIGNMENT;
    if (alignment < 1 || alignment > 1 << 20)
        return tess_file_error(c->file, "general.alignment", "is no number from 1 to %d", 1 << 20);
    g->data = (c->at + (size_t)alignment - 1) / (size_t)alignment * (size_t)alignment;
    if (json_integer_value(json_object_get(g->meta, "split.count")) > 1)
        return tess_file_error(c->file, "split.count",
                               "is a part of a model (llama.cpp's llama-gguf-split --merge makes one file of them)");
    return TESS_OK;
}

tess_status tess_gguf_read(const char *file, const uint8_t *bytes, size_t n, tess_gguf *g)
{
    struct cursor c = {.file = file, .byte = bytes, .n = n};
    *g = (tess_gguf){.meta = json_object(), .tensors = json_object()};
    const tess_status status = read_head(&c, g);
    if (status != TESS_OK) tess_gguf_free(g);
    return status;
}

void tess_gguf_free(tess_gguf *g)
{
    json_decref(g->meta);
    json_decref(g->tensors);
    *g = (tess_gguf){0};
}

/* ---- writing ---- */

static void put_number(tess_bytes *to, uint64_t number, size_t bytes)
{
    tess_bytes_add(to, (const char *)&number, bytes);
}
static void put_text(tess_bytes *to, const char *text)
{
    put_number(to, strlen(text), 8);
    tess_bytes_add(to, text, strlen(text));
}

static uint32_t type_of(const json_t *v)
{
    return json_is_string(v)    ? TEXT
           : json_is_boolean(v) ? BOOL
           : json_is_real(v)    ? F32
           : json_is_array(v)   ? ARRAY
                                : U32;
}

static void put_value(tess_bytes *to, const json_t *v)
{
    const float x = (float)json_real_value(v);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (json_is_string(v)) put_text(to, json_string_value(v));
    if (json_is_boolean(v)) put_number(to, json_is_true(v), 1);
    if (json_is_real(v)) put_number(to, bits, 4);
    if (json_is_integer(v)) put_number(to, (uint64_t)json_integer_value(v), 4);
    if (!json_is_array(v)) return;
    const uint32_t of = type_of(json_array_get(v, 0));
    put_number(to, of == U32 ? I32 : of, 4);
    put_number(to, json_array_size(v), 8);
    for (size_t i = 0; i < json_array_size(v); i++) put_value(to, json_array_get(v, i));
}

void tess_gguf_put(tess_bytes *to, const tess_gguf *g)
{
    const char *name;
    json_t *v;
    tess_bytes_add(to, magic, 4);
    put_number(to, 3, 4);
    put_number(to, json_object_size(g->tensors), 8);
    put_number(to, json_object_size(g->meta), 8);
    json_object_foreach(g->meta, name, v)
    {
        put_text(to, name);
        put_number(to, type_of(v), 4);
        put_value(to, v);
    }
    json_object_foreach(g->tensors, name, v)
    {
        const json_t *shape = json_object_get(v, "shape");
        put_text(to, name);
        put_number(to, json_array_size(shape), 4);
        for (size_t i = json_array_size(shape); i-- > 0;)
            put_number(to, (uint64_t)json_integer_value(json_array_get(shape, i)), 8);
        put_number(to, (uint64_t)json_integer_value(json_object_get(v, "type")), 4);
        put_number(to, (uint64_t)json_integer_value(json_object_get(v, "offset")), 8);
    }
    while (to->length % TESS_GGUF_ALIGNMENT) put_number(to, 0, 1);
}
