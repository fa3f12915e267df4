/* A run file in YAML, as the JSON that it stands for: libyaml's events become jansson's values.
 *
 * Plain scalars are what YAML 1.2's core schema says, so `yes` is a text and 1e-4 a number. Aliases are the value they
 * name, and `<<` merges as YAML 1.1 has it, since files of other trainers use both. */
#include "models/train/config/config_impl.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { DEEP = 64, VALUES_MOST = 1 << 20 }; /* what aliases expand to counts */

struct reading {
    yaml_parser_t parser;
    yaml_event_t event;
    const char *path;
    json_t *anchors, *lines;
    char at[TESS_KEY_PATH]; /* the path of the key at hand, with a dot behind it */
    size_t values, depth;
};

static tess_status TESS_PRINTF(3, 4) bad(struct reading *r, yaml_mark_t at, const char *format, ...)
{
    char where[512], what[400];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    snprintf(where, sizeof where, "%.480s:%zu:%zu", r->path, at.line + 1, at.column + 1);
    return tess_error(TESS_INVALID, where, "%s", what);
}

static tess_status next(struct reading *r)
{
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event)) return TESS_OK;
    const yaml_parser_t *p = &r->parser;
    const yaml_mark_t at = p->problem_mark.line || p->problem_mark.column ? p->problem_mark : p->mark;
    return bad(r, at, "%s (the file must be YAML)", p->problem ? p->problem : "cannot be read");
}

/* ---- scalars ---- */

static bool is_one_of(const char *text, const char *names)
{
    char name[32];
    snprintf(name, sizeof name, "|%.20s|", text);
    return strlen(text) < 20 && strstr(names, name);
}

/* A number, by YAML 1.2's core schema; NULL: it is none. What is infinite, or no number, JSON does not have. */
static json_t *number_of(const char *text)
{
    const char *p = text + (*text == '-' || *text == '+'), *digits = p;
    char *end;
    errno = 0;
    if (!strncmp(text, "0x", 2) || !strncmp(text, "0o", 2)) {
        const long long whole = strtoll(text + 2, &end, text[1] == 'x' ? 16 : 8);
        return text[2] && text[2] != '-' && !*end && !errno ? json_integer(whole) : NULL;
    }
    p += strspn(p, "0123456789");
    const bool whole = p > digits && !*p;
    const size_t before = (size_t)(p - digits), behind = *p == '.' ? strspn(p + 1, "0123456789") : 0;
    if (*p == '.') p += 1 + behind;
    if (!before && !behind) return NULL;
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '-' || p[1] == '+');
        if (!strspn(p, "0123456789")) return NULL;
        p += strspn(p, "0123456789");
    }
    if (*p) return NULL;
    const long long n = whole ? strtoll(text, NULL, 10) : 0;
    return whole && !errno ? json_integer(n) : json_real(strtod(text, NULL)); /* NULL of what is infinite */
}

static tess_status read_scalar(struct reading *r, json_t **value)
{
    const yaml_event_t *e = &r->event;
    const char *text = (const char *)e->data.scalar.value, *tag = (const char *)e->data.scalar.tag;
    const bool plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && !tag;
    if (tag && strcmp(tag, YAML_STR_TAG)) return bad(r, e->start_mark, "the tag %.60s, expected none", tag);
    if (plain && is_one_of(text, "||~|null|Null|NULL|"))
        *value = json_null();
    else if (plain && is_one_of(text, "|true|True|TRUE|"))
        *value = json_true();
    else if (plain && is_one_of(text, "|false|False|FALSE|"))
        *value = json_false();
    else
        *value = plain ? number_of(text) : NULL;
    if (!*value) *value = json_stringn(text, e->data.scalar.length);
    return *value ? TESS_OK : bad(r, e->start_mark, "a text that is not UTF-8");
}

/* ---- the rest ---- */

static tess_status read_value(struct reading *r, json_t **value);

static tess_status read_list(struct reading *r, json_t *list)
{
    for (;;) {
        json_t *value;
        TESS_TRY(next(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) return TESS_OK;
        TESS_TRY(read_value(r, &value));
        json_array_append_new(list, value);
    }
}

/* Members that the object does not have by itself, once all of its own are there. */
static tess_status merge(struct reading *r, yaml_mark_t at, json_t *object, json_t *from)
{
    json_t *one;
    size_t i;
    if (json_is_object(from)) return json_object_update_missing(object, from), TESS_OK;
    json_array_foreach(from, i, one)
    {
        if (!json_is_object(one)) break;
        json_object_update_missing(object, one);
    }
    if (!json_is_array(from) || i < json_array_size(from)) return bad(r, at, "<<, expected an alias of keys");
    return TESS_OK;
}

static tess_status read_object(struct reading *r, json_t *object)
{
    json_t *merged = NULL;
    yaml_mark_t merged_at = {0};
    tess_status status;
    for (;;) {
        TESS_TRY_DONE(next(r));
        const yaml_mark_t at = r->event.start_mark;
        if (r->event.type == YAML_MAPPING_END_EVENT) break;
        if (r->event.type != YAML_SCALAR_EVENT) {
            status = bad(r, at, "a key that is no text");
            goto done;
        }
        char *name = tess_format("%s", (const char *)r->event.data.scalar.value);
        json_t *value = NULL;
        const size_t outer = strlen(r->at);
        snprintf(r->at + outer, sizeof r->at - outer, "%s", name);
        json_object_set_new(r->lines, r->at, json_integer((json_int_t)at.line + 1));
        snprintf(r->at + outer, sizeof r->at - outer, "%s.", name);
        status = next(r);
        if (status == TESS_OK) status = read_value(r, &value);
        r->at[outer] = 0;
        if (status == TESS_OK && !strcmp(name, "<<")) {
            json_decref(merged);
            merged = value, merged_at = at;
        } else if (status == TESS_OK && json_object_get(object, name)) {
            json_decref(value);
            status = bad(r, at, "%.60s: stands here a second time", name);
        } else if (status == TESS_OK && json_object_set_new(object, name, value) != 0) {
            status = bad(r, at, "a key that is not UTF-8");
        }
        free(name);
        if (status != TESS_OK) goto done;
    }
    status = merged ? merge(r, merged_at, object, merged) : TESS_OK;
done:
    json_decref(merged);
    return status;
}

static size_t count(const json_t *value)
{
    size_t n = 1, i;
    const char *name;
    json_t *one;
    json_array_foreach(value, i, one) n += count(one);
    json_object_foreach((json_t *)value, name, one) n += count(one);
    return n;
}

/* An alias's value is the same one, so that what it stands for is counted rather than copied. */
static tess_status read_alias(struct reading *r, json_t **value)
{
    const yaml_mark_t at = r->event.start_mark;
    const char *name = (const char *)r->event.data.alias.anchor;
    *value = json_object_get(r->anchors, name);
    if (!*value) return bad(r, at, "*%.60s: no anchor &%.60s before it", name, name);
    r->values += count(*value);
    if (r->values > VALUES_MOST) return bad(r, at, "aliases that stand for more than %d values", VALUES_MOST);
    json_incref(*value);
    return TESS_OK;
}

/* What begins with the event that was read last. */
static tess_status read_value(struct reading *r, json_t **value)
{
    const yaml_event_t *e = &r->event;
    const yaml_mark_t at = e->start_mark;
    const bool list = e->type == YAML_SEQUENCE_START_EVENT;
    *value = NULL;
    if (e->type == YAML_ALIAS_EVENT) return read_alias(r, value);
    const yaml_char_t *tag = e->type == YAML_SCALAR_EVENT ? NULL
                             : list                       ? e->data.sequence_start.tag
                                                          : e->data.mapping_start.tag;
    if (tag) return bad(r, at, "the tag %.60s, expected none", (const char *)tag);
    if (r->depth == DEEP) return bad(r, at, "more than %d values inside one another", DEEP);
    char *anchor = (char *)(e->type == YAML_SCALAR_EVENT ? e->data.scalar.anchor
                            : list                       ? e->data.sequence_start.anchor
                                                         : e->data.mapping_start.anchor);
    anchor = anchor ? tess_strdup(anchor) : NULL;
    r->depth++;
    r->values++;
    if (e->type != YAML_SCALAR_EVENT) *value = list ? json_array() : json_object();
    tess_status status = e->type == YAML_SCALAR_EVENT ? read_scalar(r, value)
                         : list                       ? read_list(r, *value)
                                                      : read_object(r, *value);
    r->depth--;
    if (status == TESS_OK && anchor) json_object_set(r->anchors, anchor, *value);
    if (status != TESS_OK && *value) json_decref(*value);
    if (status != TESS_OK) *value = NULL;
    free(anchor);
    return status;
}

static tess_status read_stream(struct reading *r, json_t **root)
{
    TESS_TRY(next(r)); /* the stream begins */
    TESS_TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return *root = json_object(), TESS_OK;
    TESS_TRY(next(r)); /* in its first document */
    const yaml_mark_t at = r->event.start_mark;
    TESS_TRY(read_value(r, root));
    if (!json_is_object(*root)) return bad(r, at, "no KEY: VALUE, expected keys (the file must be YAML)");
    TESS_TRY(next(r)); /* which ends */
    TESS_TRY(next(r));
    return r->event.type == YAML_STREAM_END_EVENT ? TESS_OK
                                                  : bad(r, r->event.start_mark, "a second document, expected one");
}

tess_status tess_yaml_read(const char *path, const char *text, size_t size, json_t **root, json_t *lines)
{
    struct reading r = {.path = path, .anchors = json_object(), .lines = lines};
    *root = NULL;
    TESS_ASSERT(yaml_parser_initialize(&r.parser));
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, size);
    const tess_status status = read_stream(&r, root);
    if (status != TESS_OK) json_decref(*root), *root = NULL;
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    json_decref(r.anchors);
    return status;
}
