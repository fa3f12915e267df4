/* A file as rows, one behind the other: the lines of a .jsonl, the elements of a .json's list, the records of a table.
 * Each is found in the mapped text by itself. */
#include "models/files/data/data_lines_impl.h"
#include "models/text/base/text.h"
#include <string.h>

#define BAD(byte, ...) tess_line_error(r, byte, tess_format(__VA_ARGS__))

/* ---- where a row ends ---- */

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The first place from `at` on that is neither blank nor the end of a line. */
static uint64_t behind_blanks(const tess_map *f, uint64_t at)
{
    while (at < f->bytes && (is_blank(f->data[at]) || f->data[at] == '\n')) at++;
    return at;
}

static uint64_t behind_line(const tess_map *f, uint64_t at)
{
    const uint8_t *end = memchr(f->data + at, '\n', f->bytes - at);
    return end ? (uint64_t)(end - f->data) + 1 : f->bytes;
}

/* The next line that is not blank, without the blanks around it. */
static void next_line(const tess_rows *r, uint64_t at, tess_line *line)
{
    const tess_map *f = &r->file;
    const uint64_t begin = behind_blanks(f, at), end = begin < f->bytes ? behind_line(f, begin) : begin;
    size_t length = (size_t)(end - begin);
    while (length && (is_blank(f->data[begin + length - 1]) || f->data[begin + length - 1] == '\n')) length--;
    *line = (tess_line){r, begin, length};
}

/* Behind the value of JSON at `at`: where what it opens is closed, or, of a number or a word, before what separates. */
static uint64_t behind_value(const tess_map *f, uint64_t at)
{
    uint64_t depth = 0;
    bool quoted = false;
    for (uint64_t p = at; p < f->bytes; p++) {
        const uint8_t c = f->data[p];
        if (quoted) {
            p += c == '\\';
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth <= 1) return p + (depth || p == at);
            depth--;
        } else if (!depth && (c == ',' || c == '\n')) {
            return p + (p == at);
        }
    }
    return f->bytes;
}

static tess_status next_element(const tess_rows *r, uint64_t at, tess_line *line)
{
    const tess_map *f = &r->file;
    uint64_t p = behind_blanks(f, at);
    *line = (tess_line){r, p, 0};
    if (at > r->first && p < f->bytes && f->data[p] == ',') {
        p = behind_blanks(f, p + 1);
    } else if (p < f->bytes && f->data[p] == ']') {
        if (behind_blanks(f, p + 1) == f->bytes) return TESS_OK;
        return BAD(behind_blanks(f, p + 1), "the file goes on behind its list, expected one list of objects");
    } else if (at > r->first && p < f->bytes) {
        return BAD(p, "no comma between two elements of the list");
    }
    if (p == f->bytes) return BAD(p, "the list does not end, expected a ]");
    *line = (tess_line){r, p, (size_t)(behind_value(f, p) - p)};
    return TESS_OK;
}

/* ---- all of them ---- */

void tess_row_at(const tess_rows *r, uint64_t at, tess_line *line)
{
    if (r->syntax == TESS_ROWS_LINES) return next_line(r, at, line);
    if (r->syntax == TESS_ROWS_LIST)
        *line = (tess_line){r, at, (size_t)(behind_value(&r->file, at) - at)};
    else
        tess_record_next(r, at, line);
}

tess_status tess_row_next(const tess_rows *r, uint64_t at, tess_line *line)
{
    if (at < r->first) at = r->first;
    if (r->syntax == TESS_ROWS_LIST) return next_element(r, at, line);
    if (r->syntax == TESS_ROWS_LINES) return next_line(r, at, line), TESS_OK;
    tess_record_next(r, at, line);
    return TESS_OK;
}

/* ---- opening ---- */

/* Returns whether a file's name has this end, or it and .gz. */
static bool is_called(const char *path, const char *end)
{
    char packed[16];
    snprintf(packed, sizeof packed, "%s.gz", end);
    return tess_ends(path, end) || tess_ends(path, packed);
}

/* A .json is a list; many that are called so have an object a line. */
static tess_status begin_json(tess_rows *r)
{
    const tess_map *f = &r->file;
    tess_line line;
    r->first = behind_blanks(f, r->first);
    if (r->first < f->bytes && f->data[r->first] == '[') {
        r->syntax = TESS_ROWS_LIST;
        r->first++;
        return TESS_OK;
    }
    next_line(r, r->first, &line);
    TESS_FREED_JSON json_t *one =
        line.length ? json_loadb((const char *)f->data + line.byte, line.length, 0, NULL) : NULL;
    const bool object = json_is_object(one);
    return object ? TESS_OK
                  : BAD(r->first, "is neither a list of objects, [{...}, ...], nor an object a line (a list in an "
                                  "object: jq '.NAME' FILE > list.json)");
}

tess_status tess_rows_begin(tess_rows *r)
{
    static const uint8_t mark[] = {0xef, 0xbb, 0xbf}; /* of UTF-8, which some editors put first */
    const tess_map *f = &r->file;
    r->syntax = TESS_ROWS_LINES;
    r->first = f->bytes >= sizeof mark && !memcmp(f->data, mark, sizeof mark) ? sizeof mark : 0;
    if (is_called(f->path, ".json")) return begin_json(r);
    if (is_called(f->path, ".csv")) r->syntax = TESS_ROWS_COMMAS;
    if (is_called(f->path, ".tsv")) r->syntax = TESS_ROWS_TABS;
    return r->syntax == TESS_ROWS_LINES ? TESS_OK : tess_table_begin(r);
}

void tess_rows_close(tess_rows *r)
{
    tess_map_close(&r->file);
    json_decref(r->columns);
    *r = (tess_rows){0};
}
