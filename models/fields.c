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

static tess_status read_gelu(const char *where, const char *name, const json_t *value, int64_t *out)
{
    static const struct {
        const char *name;
        tess_gelu_kind kind;
    } known[] = {{"gelu_new", TESS_GELU_TANH}, {"gelu_pytorch_tanh", TESS_GELU_TANH}, {"gelu", TESS_GELU_ERF}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (json_is_string(value) && !strcmp(json_string_value(value), known[i].name)) {
            *out = known[i].kind;
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

static void presets(const tess_family *f, char *numbers)
{
    for (const tess_field *d = f->field; d->name; d++)
        if (d->kind == TESS_FIELD_REAL)
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
