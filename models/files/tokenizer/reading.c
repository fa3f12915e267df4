/* What parts are read by: members of JSON objects, and the names of fields for errors. */
#include "parts_impl.h"
#include <string.h>

const char *tess_json_text(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

bool tess_json_is(const json_t *object, const char *type)
{
    const char *s = tess_json_text(object, "type");
    return s && strcmp(s, type) == 0;
}

tess_status tess_json_flag(const tess_reading *r, const char *field, const json_t *object, const char *name,
                           bool otherwise, bool *flag)
{
    const json_t *value = json_object_get(object, name);
    if (value && !json_is_boolean(value))
        return tess_file_error(r->path, tess_field(r, field, name), "expected true or false");
    *flag = value ? json_is_true(value) : otherwise;
    return TESS_OK;
}

const char *tess_field(const tess_reading *r, const char *field, const char *name)
{
    return tess_arena_format(r->arena, "%s.%s", field, name);
}

const char *tess_field_at(const tess_reading *r, const char *field, const char *name, size_t index)
{
    return tess_arena_format(r->arena, "%s.%s[%zu]", field, name, index);
}
