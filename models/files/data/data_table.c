/* A table, .csv or .tsv: its first record names the columns, and each further one is an object with these members.
 * Quotes are RFC 4180's: a field that begins with one ends with one, two of them stand for one, and between them lie
 * separators and ends of lines as well. */
#include "models/files/data/data_lines_impl.h"
#include "models/text/base/text.h"
#include <stdlib.h>
#include <string.h>

#define BAD(byte, ...) tess_line_error(r, byte, tess_format(__VA_ARGS__))

/* Behind the quote that ends a quoted field, which begins at `at`; the end of the file where it has none. */
static uint64_t behind_quotes(const tess_map *f, uint64_t at)
{
    for (uint64_t p = at + 1; p < f->bytes; p++) {
        const uint8_t *quote = memchr(f->data + p, '"', f->bytes - p);
        if (!quote) break;
        p = (uint64_t)(quote - f->data) + 1;
        if (p == f->bytes || f->data[p] != '"') return p;
    }
    return f->bytes;
}

/* The place of what ends the field at `at`: the separator, the end of a line, or of the file. */
static uint64_t field_end(const tess_map *f, uint64_t at, uint8_t separator)
{
    uint64_t p = at < f->bytes && f->data[at] == '"' ? behind_quotes(f, at) : at;
    while (p < f->bytes && f->data[p] != separator && f->data[p] != '\n') p++;
    return p;
}

static uint8_t separator_of(const tess_rows *r)
{
    return r->syntax == TESS_ROWS_TABS ? '\t' : ',';
}

void tess_record_next(const tess_rows *r, uint64_t at, tess_line *line)
{
    const tess_map *f = &r->file;
    while (at < f->bytes && (f->data[at] == '\n' || f->data[at] == '\r')) at++;
    uint64_t end = at < f->bytes ? field_end(f, at, separator_of(r)) : at;
    while (end < f->bytes && f->data[end] != '\n') end = field_end(f, end + 1, separator_of(r));
    *line = (tess_line){r, at, (size_t)(end - at)};
}

/* A field's text, which is [at, end) of the file, as a string of JSON. */
static tess_status read_field(const tess_rows *r, uint64_t at, uint64_t end, json_t **text)
{
    const char *data = (const char *)r->file.data;
    tess_bytes b = {0};
    if (at < end && data[at] == '"') {
        const uint64_t behind = behind_quotes(&r->file, at);
        if (behind == r->file.bytes && (behind < at + 2 || data[behind - 1] != '"'))
            return BAD(at, "a quoted field that does not end, expected a \" behind it");
        if (behind != end) return BAD(behind, "a quoted field goes on behind its \" (a \" within one is written \"\")");
        for (uint64_t p = at + 1; p < end - 1; p++) {
            tess_bytes_add(&b, data + p, 1);
            p += data[p] == '"';
        }
    } else {
        tess_bytes_add(&b, data + at, (size_t)(end - at));
    }
    *text = json_stringn(b.data ? b.data : "", b.length);
    free(b.data);
    return *text ? TESS_OK : BAD(at, "a field that is not UTF-8");
}

/* A record's fields as a list of strings. */
static tess_status read_record(const tess_line *line, json_t **fields)
{
    const tess_rows *r = line->rows;
    uint64_t stop = line->byte + line->length;
    if (stop > line->byte && r->file.data[stop - 1] == '\r') stop--;
    *fields = json_array();
    for (uint64_t at = line->byte, end; at <= stop; at = end + 1) {
        json_t *text;
        end = field_end(&r->file, at, separator_of(r));
        if (end > stop) end = stop;
        TESS_TRY(read_field(r, at, end, &text));
        json_array_append_new(*fields, text);
    }
    return TESS_OK;
}

tess_status tess_table_begin(tess_rows *r)
{
    tess_line line;
    tess_record_next(r, r->first, &line);
    if (!line.length) return BAD(line.byte, "is empty, expected a line with the names of the columns");
    TESS_TRY(read_record(&line, &r->columns));
    for (size_t i = 0; i < json_array_size(r->columns); i++)
        for (size_t k = 0; k < i; k++)
            if (json_equal(json_array_get(r->columns, i), json_array_get(r->columns, k)))
                return BAD(line.byte, "two columns are called \"%.60s\"",
                           json_string_value(json_array_get(r->columns, i)));
    r->first = line.byte + line.length;
    return TESS_OK;
}

/* What is a number in a line is one here. */
static json_t *value_of(const char *name, json_t *text)
{
    const bool number = !strcmp(name, "label") || !strcmp(name, "next_sentence_label");
    json_t *value = number ? json_loads(json_string_value(text), JSON_DECODE_ANY, NULL) : NULL;
    if (!value) return json_incref(text);
    return value;
}

tess_status tess_record_read(const tess_line *line, json_t **root)
{
    const tess_rows *r = line->rows;
    TESS_FREED_JSON json_t *fields = NULL;
    tess_status status = read_record(line, &fields);
    const size_t n = json_array_size(fields), columns = json_array_size(r->columns);
    *root = status == TESS_OK ? json_object() : NULL;
    if (status == TESS_OK && n != columns)
        status = BAD(line->byte, "has %zu fields, and there are %zu columns (a field with a separator in it is quoted)",
                     n, columns);
    for (size_t i = 0; i < n && status == TESS_OK; i++) {
        const char *name = json_string_value(json_array_get(r->columns, i));
        json_object_set_new(*root, name, value_of(name, json_array_get(fields, i)));
    }
    if (status != TESS_OK) json_decref(*root);
    return status;
}
