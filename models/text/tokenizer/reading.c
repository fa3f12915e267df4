/* What parts are read by: members of JSON objects, and the names of fields for errors. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <string.h>

tess_status tess_json_flag(const tess_reader *r, const char *field, const json_t *object, const char *name,
                           bool otherwise, bool *flag)
{
    const json_t *value = json_object_get(object, name);
    if (value && !json_is_boolean(value))
        return tess_file_error(r->path, tess_field(r, field, name), "expected true or false");
    *flag = value ? json_is_true(value) : otherwise;
    return TESS_OK;
}

const char *tess_field(const tess_reader *r, const char *field, const char *name)
{
    return tess_arena_format(r->arena, "%s.%s", field, name);
}

const char *tess_field_at(const tess_reader *r, const char *field, const char *name, size_t index)
{
    return tess_arena_format(r->arena, "%s.%s[%zu]", field, name, index);
}

tess_token tess_token_copy(const tess_reader *r, const char *s, size_t n)
{
    return (tess_token){memcpy(tess_arena_get(r->arena, n + 1), s, n), n};
}

static tess_status read_member(const tess_reader *r, const char *field, const json_t *json, const tess_member *m,
                               void *to)
{
    const json_t *value = json_object_get(json, m->name);
    const char *text = json_string_value(value);
    const size_t n = json_string_length(value);
    if (m->kind == TESS_MEMBER_FLAG) return tess_json_flag(r, field, json, m->name, true, to);
    if (m->kind == TESS_MEMBER_PATTERN) return tess_pattern_read(r, field, value, to);
    if (m->kind == TESS_MEMBER_COUNT) {
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return tess_file_error(r->path, field, "expected a whole number \"%s\"", m->name);
        *(int64_t *)to = json_integer_value(value);
        return TESS_OK;
    }
    if (m->kind == TESS_MEMBER_CHARACTER && (!n || tess_utf8_step(text, n) != (int)n))
        return tess_file_error(r->path, field, "expected one character \"%s\"", m->name);
    if (!text) return tess_file_error(r->path, field, "expected a string \"%s\"", m->name);
    *(tess_token *)to = tess_token_copy(r, text, n);
    return TESS_OK;
}

tess_status tess_members_read(const tess_reader *r, const tess_part_reader *reader, const char *field,
                              const json_t *json, int type, void *part)
{
    for (size_t i = 0; i < reader->members; i++)
        if (reader->member[i].of == type)
            TESS_TRY(read_member(r, field, json, &reader->member[i], (char *)part + reader->member[i].offset));
    return TESS_OK;
}

tess_status tess_parts_more(const tess_reader *r, const tess_part_reader *reader, const char *field, int most,
                            int *count)
{
    if (*count == most)
        return tess_file_error(r->path, field, "more than %d %ss are not supported", most, reader->what);
    ++*count;
    return TESS_OK;
}

static tess_status read_part(const tess_reader *r, const tess_part_reader *reader, const char *field,
                             const json_t *json, int depth, void *all)
{
    const char *type = tess_json_text(json, "type");
    int known = 0;
    if (reader->enter) TESS_TRY(reader->enter(r, field, all));
    if (!type) return tess_file_error(r->path, field, "expected an object with a \"type\"");
    if (!strcmp(type, "Sequence") && depth < reader->deepest) {
        const json_t *list = json_object_get(json, reader->list);
        if (!json_is_array(list)) return tess_file_error(r->path, field, "expected an array \"%s\"", reader->list);
        for (size_t i = 0; i < json_array_size(list); i++)
            TESS_TRY(read_part(r, reader, tess_field_at(r, field, reader->list, i), json_array_get(list, i), depth + 1,
                               all));
        return TESS_OK;
    }
    while (known < reader->types && strcmp(type, reader->type[known])) known++;
    if (known < reader->types) return reader->read(r, field, json, known, all);
    return tess_file_error(r->path, field, "%s %.60s is not supported", reader->what, type);
}

tess_status tess_parts_read(const tess_reader *r, const tess_part_reader *reader, const char *field, const json_t *json,
                            void *all)
{
    return !json || json_is_null(json) ? TESS_OK : read_part(r, reader, field, json, 0, all);
}
