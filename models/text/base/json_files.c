/* JSON as Python reads it, for files that come from a hub: transformers writes int(1e30) for "no limit", and Infinity.
 */
#include "models/text/base/directories.h"
#include "models/text/base/gguf.h"
#include "models/text/base/mapped.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Past a run of digits; NULL: there is none. */
static const char *digits_end(const char *p, const char *end)
{
    const char *first = p;
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p > first ? p : NULL;
}

/* Where a number of JSON's ends that has no sign; NULL: it is none. */
static const char *number_end(const char *p, const char *end, bool *whole)
{
    const char *first = p, *next;
    if (!(p = digits_end(p, end)) || (*first == '0' && p > first + 1)) return NULL;
    *whole = true;
    if (p < end && *p == '.') {
        if (!(p = digits_end(p + 1, end))) return NULL;
        *whole = false;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        next = p + 1;
        if (next < end && (*next == '+' || *next == '-')) next++;
        if (!(p = digits_end(next, end))) return NULL;
        *whole = false;
    }
    return p < end && (*p == '.' || *p == 'e' || *p == 'E' || (*p >= '0' && *p <= '9')) ? NULL : p;
}

/* One number, or a word of Python's, from *at on, written as JSON that jansson takes. Returns false at anything else.
 */
static bool put_number(tess_bytes *to, const char **at, const char *end)
{
    static const char beyond[] = "1.7976931348623157e308";
    const char *p = *at;
    const bool negative = p < end && *p == '-';
    if (negative) p++;
    if (end - p >= 8 && !memcmp(p, "Infinity", 8)) {
        if (negative) tess_bytes_add(to, "-", 1);
        tess_bytes_add(to, beyond, sizeof beyond - 1);
        return *at = p + 8, true;
    }
    if (!negative && end - p >= 3 && !memcmp(p, "NaN", 3)) {
        tess_bytes_add(to, "null", 4);
        return *at = p + 3, true;
    }
    bool whole;
    p = number_end(p, end, &whole);
    if (!p) return false;
    TESS_FREED char *text = tess_format("%.*s", (int)(p - *at), *at);
    errno = 0;
    if (whole) (void)strtoll(text, NULL, 10);
    const bool large = errno == ERANGE, infinite = isinf(strtod(text, NULL));
    if (infinite && negative) tess_bytes_add(to, "-", 1);
    if (infinite)
        tess_bytes_add(to, beyond, sizeof beyond - 1);
    else
        tess_bytes_add(to, *at, (size_t)(p - *at));
    if (whole && large && !infinite) tess_bytes_add(to, "e0", 2); /* a real, then */
    return *at = p, true;
}

json_t *tess_json_parse(const char *text, size_t bytes, size_t flags, json_error_t *error)
{
    json_t *root = json_loadb(text, bytes, flags, error), *again;
    const enum json_error_code code = root ? json_error_unknown : json_error_code(error);
    if (root || (code != json_error_numeric_overflow && code != json_error_invalid_syntax)) return root;
    tess_bytes to = {0};
    json_error_t other;
    for (const char *at = text, *end = text + bytes; at < end;) {
        const char *from = at;
        if (*at == '"')
            for (at++; at < end && *at != '"'; at++) at += *at == '\\';
        else if (put_number(&to, &at, end))
            continue;
        at = at < end ? at + 1 : end;
        tess_bytes_add(&to, from, (size_t)(at - from));
    }
    again = json_loadb(to.data ? to.data : "", to.length, flags, &other);
    free(to.data);
    return again;
}

json_t *tess_json_load(const char *path, size_t flags, json_error_t *error)
{
    tess_map map;
    *error = (json_error_t){.line = -1, .column = -1};
    if (tess_gguf_has(path)) {
        json_t *made;
        if (tess_gguf_beside(path, &made) != TESS_OK) snprintf(error->text, sizeof error->text, "cannot be read");
        return tess_error_clear(), made;
    }
    if (tess_map_open(path, &map) != TESS_OK) {
        snprintf(error->text, sizeof error->text, "cannot be read");
        return tess_error_clear(), NULL;
    }
    json_t *root = tess_json_parse((const char *)map.data, map.bytes, flags, error);
    tess_map_close(&map);
    return root;
}

tess_status tess_json_beside(const char *dir, const char *name, json_t **root)
{
    TESS_FREED char *path = tess_format("%s/%s", dir, name);
    tess_status status = TESS_OK;
    *root = NULL;
    if (tess_dirs_has(dir, name)) status = tess_json_open(path, JSON_ALLOW_NUL, root, NULL);
    if (status == TESS_OK && *root && !json_is_object(*root))
        status = tess_error(TESS_INVALID, path, "is no JSON object");
    return status;
}

tess_status tess_json_open(const char *path, size_t flags, json_t **root, uint64_t *sum)
{
    tess_map map;
    json_error_t error;
    if (tess_gguf_has(path)) return tess_gguf_beside(path, root);
    TESS_TRY(tess_map_open(path, &map));
    *root = tess_json_parse((const char *)map.data, map.bytes, JSON_REJECT_DUPLICATES | flags, &error);
    if (sum) *sum = tess_sum_bytes(TESS_SUM, map.data, map.bytes);
    tess_map_close(&map);
    if (*root) return TESS_OK;
    TESS_FREED char *where = tess_format("%s:%d:%d", path, error.line, error.column);
    return tess_error(TESS_INVALID, where, "is no JSON: %s", error.text);
}
