/* Reading a Hugging Face config.json by a family's table of fields: every field is known or an error. */
#include "model_impl.h"
#include <jansson.h>
#include <string.h>

static const tess_field *find(const tess_family *f, const char *name)
{
    for (const tess_field *d = f->field; d->name; d++)
        if (!strcmp(d->name, name)) return d->kind == TESS_FIELD_ALIAS ? find(f, d->text) : d;
    return NULL;
}

bool tess_fields_same(const tess_family *f, const char *a, const char *b)
{
    return !strcmp(a, b) || (find(f, a) && find(f, a) == find(f, b));
}

static tess_status unknown(const tess_family *f, const char *where, const char *name)
{
    const char *names[128];
    size_t n = 0;
    for (const tess_field *d = f->field; d->name && n < 128; d++) names[n++] = d->name;
    const char *near = tess_nearest(name, names, n);
    if (near)
        return tess_error(TESS_INVALID, where, "%s: unknown field of a %s (did you mean %s?)", name, f->type, near);
    return tess_error(TESS_INVALID, where, "%s: unknown field of a %s, it might change the arithmetic", name, f->type);
}

static tess_status wrong(const char *where, const char *name, const json_t *value, const char *expected)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    tess_status s = tess_error(TESS_INVALID, where, "%s: %.200s (expected %s)", name, text ? text : "?", expected);
    free(text);
    return s;
}

static const struct {
    const char *name;
    tess_gelu_kind kind;
} gelus[] = {{"gelu_new", TESS_GELU_TANH}, {"gelu_pytorch_tanh", TESS_GELU_TANH}, {"gelu", TESS_GELU_ERF}};

static tess_status read_gelu(const char *where, const char *name, const json_t *value, int64_t *out)
{
    for (size_t i = 0; i < sizeof gelus / sizeof gelus[0]; i++)
        if (json_is_string(value) && !strcmp(json_string_value(value), gelus[i].name)) {
            *out = gelus[i].kind;
            return TESS_OK;
        }
    return wrong(where, name, value, "gelu_new, gelu_pytorch_tanh or gelu");
}

static tess_status read_only(const char *where, const char *name, const json_t *value, const char *text)
{
    json_t *only = json_loads(text, JSON_DECODE_ANY, NULL);
    bool same = json_equal(value, only);
    json_decref(only);
    return same ? TESS_OK : wrong(where, name, value, text);
}

static tess_status read_field(const tess_field *d, const char *where, const char *name, const json_t *value,
                              char *numbers)
{
    char least[64];
    switch (d->kind) {
    case TESS_FIELD_INT:
        if (json_is_null(value) && d->preset == 0) return TESS_OK; /* "null" where it follows from other fields */
        snprintf(least, sizeof least, "a whole number of at least %g", d->least);
        if (!json_is_integer(value) || (double)json_integer_value(value) < d->least ||
            json_integer_value(value) > 1000000000)
            return wrong(where, name, value, least);
        memcpy(numbers + d->offset, &(int64_t){json_integer_value(value)}, sizeof(int64_t));
        return TESS_OK;
    case TESS_FIELD_REAL:
    case TESS_FIELD_TRAINING:
        snprintf(least, sizeof least, "a number of at least %g", d->least);
        if (!json_is_number(value) || json_number_value(value) < d->least) return wrong(where, name, value, least);
        memcpy(numbers + d->offset, &(double){json_number_value(value)}, sizeof(double));
        return TESS_OK;
    case TESS_FIELD_BOOL:
        if (!json_is_boolean(value)) return wrong(where, name, value, "true or false");
        memcpy(numbers + d->offset, &(int64_t){json_is_true(value)}, sizeof(int64_t));
        return TESS_OK;
    case TESS_FIELD_GELU: {
        int64_t kind = 0;
        TESS_TRY(read_gelu(where, name, value, &kind));
        memcpy(numbers + d->offset, &kind, sizeof kind);
        return TESS_OK;
    }
    case TESS_FIELD_ONLY:
        return read_only(where, name, value, d->text);
    case TESS_FIELD_ALIAS:
    case TESS_FIELD_IGNORED:
        break;
    }
    return TESS_OK;
}

static bool is_real(const tess_field *d)
{
    return d->kind == TESS_FIELD_REAL || d->kind == TESS_FIELD_TRAINING;
}

const tess_field *tess_fields_differ(const tess_family *f, const void *a, const void *b, const tess_field *after)
{
    _Static_assert(sizeof(double) == sizeof(int64_t), "every number of a struct has eight bytes");
    for (const tess_field *d = after ? after + 1 : f->field; d->name; d++)
        if (d->kind <= TESS_FIELD_GELU &&
            memcmp((const char *)a + d->offset, (const char *)b + d->offset, sizeof(int64_t)))
            return d;
    return NULL;
}

const char *tess_field_text(const tess_field *d, const void *numbers, char text[static 32])
{
    int64_t whole;
    double real;
    memcpy(&whole, (const char *)numbers + d->offset, sizeof whole);
    memcpy(&real, (const char *)numbers + d->offset, sizeof real);
    if (is_real(d))
        snprintf(text, 32, "%g", real);
    else if (d->kind == TESS_FIELD_BOOL)
        snprintf(text, 32, "%s", whole ? "true" : "false");
    else if (d->kind == TESS_FIELD_INT)
        snprintf(text, 32, "%lld", (long long)whole);
    else
        for (size_t i = sizeof gelus / sizeof gelus[0]; i-- > 0;)
            if ((int64_t)gelus[i].kind == whole) snprintf(text, 32, "%s", gelus[i].name);
    return text;
}

static void presets(const tess_family *f, char *numbers)
{
    for (const tess_field *d = f->field; d->name; d++)
        if (is_real(d))
            memcpy(numbers + d->offset, &d->preset, sizeof d->preset);
        else if (d->kind <= TESS_FIELD_GELU)
            memcpy(numbers + d->offset, &(int64_t){(int64_t)d->preset}, sizeof(int64_t));
}

tess_status tess_fields_read(const tess_family *f, const char *where, const char *json, void *numbers)
{
    TESS_ASSERT(f->numbers <= TESS_MODEL_NUMBERS);
    presets(f, numbers);
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
    TESS_ASSERT(root); /* tess_model_open parsed it */
    tess_status status = TESS_OK;
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value)
    {
        const tess_field *d = find(f, name);
        if (status == TESS_OK && strcmp(name, "model_type"))
            status = d ? read_field(d, where, name, value, numbers) : unknown(f, where, name);
    }
    json_decref(root);
    return status == TESS_OK ? f->check(numbers, where) : status;
}
