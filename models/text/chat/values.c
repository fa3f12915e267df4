/* Values of a template: as Python compares and writes them. */
#include "models/text/chat/template_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

tess_tpl_value tess_tpl_copy(tess_tpl_run *r, const char *s, size_t n)
{
    char *own = tess_tpl_get(r, n + 1);
    if (!own) return (tess_tpl_value){0};
    if (n) memcpy(own, s, n);
    return tess_tpl_string(own, n);
}

tess_tpl_value tess_tpl_made(tess_tpl_run *r, tess_bytes *text)
{
    const tess_tpl_value v = tess_tpl_copy(r, text->data, text->length);
    free(text->data);
    return v;
}

tess_tpl_value tess_tpl_list_new(tess_tpl_run *r, tess_tpl_kind kind)
{
    static tess_tpl_list none; /* what a run that failed goes on with */
    tess_tpl_list *l = tess_tpl_get(r, sizeof *l);
    return (tess_tpl_value){.kind = kind, .list = l ? l : &none};
}

void tess_tpl_push(tess_tpl_run *r, tess_tpl_list *l, tess_tpl_value v)
{
    if (r->status != TESS_OK) return;
    if (l->count == l->room) {
        const size_t room = l->room ? 2 * l->room : 8;
        tess_tpl_value *item = tess_tpl_get(r, room * sizeof *item);
        if (!item) return;
        if (l->count) memcpy(item, l->item, l->count * sizeof *item);
        l->item = item;
        l->room = room;
    }
    l->item[l->count++] = v;
}

void tess_tpl_put(tess_tpl_run *r, tess_tpl_list *m, tess_tpl_value key, tess_tpl_value value)
{
    for (size_t i = 0; i + 1 < m->count; i += 2)
        if (tess_tpl_equal(r, m->item[i], key)) {
            m->item[i + 1] = value;
            return;
        }
    tess_tpl_push(r, m, key);
    tess_tpl_push(r, m, value);
}

bool tess_tpl_find(tess_tpl_value m, const char *key, size_t n, tess_tpl_value *value)
{
    if (m.kind != TPL_MAPPING && m.kind != TPL_NAMESPACE) return false;
    for (size_t i = 0; i + 1 < m.list->count; i += 2) {
        const tess_tpl_value *k = &m.list->item[i];
        if (k->kind == TPL_STRING && k->n == n && memcmp(k->s, key, n) == 0) return *value = m.list->item[i + 1], true;
    }
    return false;
}

tess_tpl_value tess_tpl_of_json(tess_tpl_run *r, const json_t *json)
{
    const char *key;
    json_t *member;
    size_t i;
    tess_tpl_value v;
    switch (json_typeof(json)) {
    case JSON_STRING:
        return tess_tpl_copy(r, json_string_value(json), json_string_length(json));
    case JSON_INTEGER:
        return tess_tpl_int(json_integer_value(json));
    case JSON_REAL:
        return (tess_tpl_value){.kind = TPL_FLOAT, .f = json_real_value(json)};
    case JSON_TRUE:
    case JSON_FALSE:
        return tess_tpl_bool(json_is_true(json));
    case JSON_NULL:
        return (tess_tpl_value){.kind = TPL_NONE};
    case JSON_ARRAY:
        v = tess_tpl_list_new(r, TPL_SEQUENCE);
        json_array_foreach(json, i, member) tess_tpl_push(r, v.list, tess_tpl_of_json(r, member));
        return v;
    case JSON_OBJECT:
        break;
    }
    v = tess_tpl_list_new(r, TPL_MAPPING);
    json_object_foreach((json_t *)json, key, member)
    {
        tess_tpl_push(r, v.list, tess_tpl_copy(r, key, strlen(key)));
        tess_tpl_push(r, v.list, tess_tpl_of_json(r, member));
    }
    return v;
}

const char *tess_tpl_kind_name(tess_tpl_value v)
{
    static const char *const name[] = {"undefined", "None",    "a boolean",    "an integer",  "a float", "a string",
                                       "a list",    "a tuple", "a dictionary", "a namespace", "a loop",  "a function"};
    return name[v.kind];
}

bool tess_tpl_true(tess_tpl_value v)
{
    if (v.kind == TPL_UNDEFINED || v.kind == TPL_NONE) return false;
    if (v.kind == TPL_BOOL) return v.b;
    if (v.kind == TPL_INT) return v.i != 0;
    if (v.kind == TPL_FLOAT) return v.f != 0;
    if (v.kind == TPL_STRING) return v.n > 0;
    return v.kind > TPL_MAPPING || v.list->count > 0;
}

static bool number(tess_tpl_value v, double *x)
{
    if (v.kind != TPL_BOOL && v.kind != TPL_INT && v.kind != TPL_FLOAT) return false;
    *x = v.kind == TPL_BOOL ? v.b : v.kind == TPL_INT ? (double)v.i : v.f;
    return true;
}

static bool equal(tess_tpl_run *r, tess_tpl_value a, tess_tpl_value b, int depth)
{
    double x, y;
    if (a.kind == TPL_INT && b.kind == TPL_INT) return a.i == b.i;
    if (number(a, &x) && number(b, &y)) return x == y;
    if (a.kind != b.kind || depth > 64 || !tess_tpl_go_on(r, r->line)) return false;
    switch (a.kind) {
    case TPL_UNDEFINED:
    case TPL_NONE:
        return true;
    case TPL_STRING:
        return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
    case TPL_SEQUENCE:
    case TPL_FIXED:
        if (a.list->count != b.list->count) return false;
        for (size_t i = 0; i < a.list->count; i++)
            if (!equal(r, a.list->item[i], b.list->item[i], depth + 1)) return false;
        return true;
    case TPL_MAPPING:
        if (a.list->count != b.list->count) return false;
        for (size_t i = 0; i < a.list->count; i += 2) {
            size_t k = 0;
            while (k < b.list->count && !equal(r, a.list->item[i], b.list->item[k], depth + 1)) k += 2;
            if (k >= b.list->count || !equal(r, a.list->item[i + 1], b.list->item[k + 1], depth + 1)) return false;
        }
        return true;
    default:
        return a.list == b.list;
    }
}

bool tess_tpl_equal(tess_tpl_run *r, tess_tpl_value a, tess_tpl_value b)
{
    return equal(r, a, b, 0);
}

int tess_tpl_order(tess_tpl_run *r, tess_tpl_value a, tess_tpl_value b)
{
    double x, y;
    if (number(a, &x) && number(b, &y)) return (x > y) - (x < y);
    if (a.kind == TPL_STRING && b.kind == TPL_STRING) {
        const int c = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
        return c ? c : (a.n > b.n) - (a.n < b.n);
    }
    if (a.kind == b.kind && (a.kind == TPL_SEQUENCE || a.kind == TPL_FIXED)) {
        for (size_t i = 0; i < a.list->count && i < b.list->count; i++)
            if (!tess_tpl_equal(r, a.list->item[i], b.list->item[i]))
                return tess_tpl_order(r, a.list->item[i], b.list->item[i]);
        return (a.list->count > b.list->count) - (a.list->count < b.list->count);
    }
    tess_tpl_fail(r, "%s and %s have no order", tess_tpl_kind_name(a), tess_tpl_kind_name(b));
    return 0;
}

bool tess_tpl_contains(tess_tpl_run *r, tess_tpl_value in, tess_tpl_value what)
{
    if (in.kind == TPL_STRING) {
        if (what.kind == TPL_STRING) return !what.n || memmem(in.s, in.n, what.s, what.n);
        tess_tpl_fail(r, "%s in a string", tess_tpl_kind_name(what));
        return false;
    }
    if (in.kind == TPL_UNDEFINED) return false;
    if (in.kind != TPL_SEQUENCE && in.kind != TPL_FIXED && in.kind != TPL_MAPPING) {
        tess_tpl_fail(r, "what is asked for in %s", tess_tpl_kind_name(in));
        return false;
    }
    const size_t step = in.kind == TPL_MAPPING ? 2 : 1;
    for (size_t i = 0; i < in.list->count; i += step)
        if (tess_tpl_equal(r, in.list->item[i], what)) return true;
    return false;
}

size_t tess_tpl_characters(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += (s[i] & 0xc0) != 0x80;
    return count;
}

tess_tpl_list *tess_tpl_items(tess_tpl_run *r, tess_tpl_value v)
{
    if (v.kind == TPL_SEQUENCE || v.kind == TPL_FIXED) return v.list;
    tess_tpl_list *l = tess_tpl_list_new(r, TPL_SEQUENCE).list;
    if (v.kind == TPL_MAPPING)
        for (size_t i = 0; i < v.list->count; i += 2) tess_tpl_push(r, l, v.list->item[i]);
    else if (v.kind == TPL_STRING)
        for (size_t at = 0, n; at < v.n; at += n) {
            tess_utf8_get(v.s + at, &n);
            tess_tpl_push(r, l, tess_tpl_string(v.s + at, n));
        }
    else if (v.kind != TPL_UNDEFINED)
        tess_tpl_fail(r, "%s has no items to go over", tess_tpl_kind_name(v));
    return l;
}

/* ---- writing ---- */

static void add_text(tess_bytes *out, const char *s)
{
    tess_bytes_add(out, s, strlen(s));
}

/* The shortest digits that are the same number again, as Python writes them. */
static void write_float(double x, tess_bytes *out)
{
    char text[40], digits[40];
    if (isnan(x) || isinf(x)) {
        add_text(out, isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        return;
    }
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, x);
        if (strtod(text, NULL) == x) break;
    }
    const int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        char *e = strchr(text, 'e');
        snprintf(digits, sizeof digits, "%.*se%c%02d", (int)(e - text), text, exponent < 0 ? '-' : '+', abs(exponent));
    } else {
        const char *point = strchr(text, '.');
        const int have = point ? (int)(strchr(text, 'e') - point) - 1 : 0, places = have - exponent;
        snprintf(digits, sizeof digits, "%.*f", places > 1 ? places : 1, x);
    }
    add_text(out, digits);
}

static void write_repr_string(const char *s, size_t n, tess_bytes *out)
{
    const bool single = memchr(s, '\'', n) && !memchr(s, '"', n);
    const char quote = single ? '"' : '\'';
    tess_bytes_add(out, &quote, 1);
    for (size_t at = 0, bytes; at < n; at += bytes) {
        const uint32_t c = tess_utf8_get(s + at, &bytes);
        char text[16];
        if (c == '\n' || c == '\r' || c == '\t')
            add_text(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (c < 0x20 || c == 0x7f)
            snprintf(text, sizeof text, "\\x%02x", c), add_text(out, text);
        else {
            if (c == (uint32_t)quote || c == '\\') tess_bytes_add(out, "\\", 1);
            tess_bytes_add(out, s + at, bytes);
        }
    }
    tess_bytes_add(out, &quote, 1);
}

static void write_value(tess_tpl_run *r, tess_tpl_value v, bool inner, int depth, tess_bytes *out)
{
    char text[32];
    if (depth > 64) {
        tess_tpl_fail(r, "a value is nested too deeply to be written");
        return;
    }
    switch (v.kind) {
    case TPL_UNDEFINED:
        if (inner) add_text(out, "Undefined");
        return;
    case TPL_NONE:
        return add_text(out, "None");
    case TPL_BOOL:
        return add_text(out, v.b ? "True" : "False");
    case TPL_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.i);
        return add_text(out, text);
    case TPL_FLOAT:
        return write_float(v.f, out);
    case TPL_STRING:
        if (inner) return write_repr_string(v.s, v.n, out);
        return tess_bytes_add(out, v.s, v.n);
    case TPL_SEQUENCE:
    case TPL_FIXED:
    case TPL_MAPPING:
        break;
    default:
        tess_tpl_fail(r, "%s cannot be written", tess_tpl_kind_name(v));
        return;
    }
    const bool mapping = v.kind == TPL_MAPPING, tuple = v.kind == TPL_FIXED;
    add_text(out, mapping ? "{" : tuple ? "(" : "[");
    for (size_t i = 0; i < v.list->count && tess_tpl_grows(r, out); i++) {
        if (i) add_text(out, mapping && i % 2 ? ": " : ", ");
        write_value(r, v.list->item[i], true, depth + 1, out);
    }
    if (tuple && v.list->count == 1) add_text(out, ",");
    add_text(out, mapping ? "}" : tuple ? ")" : "]");
}

void tess_tpl_write(tess_tpl_run *r, tess_tpl_value v, tess_bytes *out)
{
    write_value(r, v, false, 0, out);
}

tess_tpl_value tess_tpl_text(tess_tpl_run *r, tess_tpl_value v)
{
    if (v.kind == TPL_STRING) return v;
    tess_bytes out = {0};
    tess_tpl_write(r, v, &out);
    return tess_tpl_made(r, &out);
}

static void write_json_string(const char *s, size_t n, bool ascii, tess_bytes *out)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    char text[16];
    add_text(out, "\"");
    for (size_t at = 0, bytes; at < n; at += bytes) {
        const uint32_t c = tess_utf8_get(s + at, &bytes);
        const char *known = c && c < 0x80 ? strchr(from, (int)c) : NULL;
        if (known) {
            snprintf(text, sizeof text, "\\%c", to[known - from]);
            add_text(out, text);
        } else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000 && c != 0x7f)) {
            snprintf(text, sizeof text, "\\u%04x", c);
            add_text(out, text);
        } else if (ascii && c >= 0x10000) {
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
            add_text(out, text);
        } else {
            tess_bytes_add(out, s + at, bytes);
        }
    }
    add_text(out, "\"");
}

static void new_line(int64_t indent, int level, tess_bytes *out)
{
    add_text(out, "\n");
    for (int64_t i = 0; i < indent * level; i++) add_text(out, " ");
}

static int by_key(const void *a, const void *b)
{
    const tess_tpl_value *x = a, *y = b;
    if (x->kind != TPL_STRING || y->kind != TPL_STRING) return 0;
    const int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

void tess_tpl_write_json(tess_tpl_run *r, tess_tpl_value v, int64_t indent, bool ascii, bool sort, int level,
                         tess_bytes *out)
{
    if (level > 64) {
        tess_tpl_fail(r, "a value is nested too deeply for tojson");
        return;
    }
    if (v.kind == TPL_NONE) return add_text(out, "null");
    if (v.kind == TPL_BOOL) return add_text(out, v.b ? "true" : "false");
    if (v.kind == TPL_INT || v.kind == TPL_FLOAT) return write_value(r, v, false, 0, out);
    if (v.kind == TPL_STRING) return write_json_string(v.s, v.n, ascii, out);
    if (v.kind != TPL_SEQUENCE && v.kind != TPL_FIXED && v.kind != TPL_MAPPING) {
        tess_tpl_fail(r, "%s is nothing for tojson", tess_tpl_kind_name(v));
        return;
    }
    const bool mapping = v.kind == TPL_MAPPING;
    const size_t step = mapping ? 2 : 1;
    const tess_tpl_value *item = v.list->item;
    if (mapping && sort && v.list->count) {
        tess_tpl_value *sorted = tess_tpl_get(r, v.list->count * sizeof *sorted);
        if (!sorted) return;
        memcpy(sorted, item, v.list->count * sizeof *sorted);
        qsort(sorted, v.list->count / 2, 2 * sizeof *sorted, by_key);
        item = sorted;
    }
    add_text(out, mapping ? "{" : "[");
    for (size_t i = 0; i < v.list->count && tess_tpl_grows(r, out); i += step) {
        if (i) add_text(out, indent < 0 ? ", " : ",");
        if (indent >= 0) new_line(indent, level + 1, out);
        if (mapping) {
            const tess_tpl_value key = tess_tpl_text(r, item[i]);
            write_json_string(key.s, key.n, ascii, out);
            add_text(out, ": ");
        }
        tess_tpl_write_json(r, item[i + step - 1], indent, ascii, sort, level + 1, out);
    }
    if (indent >= 0 && v.list->count) new_line(indent, level, out);
    add_text(out, mapping ? "}" : "]");
}
