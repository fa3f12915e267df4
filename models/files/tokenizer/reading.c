/* What parts are read by: members of JSON objects, and the names of fields for errors. */
#include "tokenizer_parts_impl.h"
#include <string.h>

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
