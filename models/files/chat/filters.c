/* Filters and tests, by name. */
#include "template_impl.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

typedef tess_tpl_value filter(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a);

static bool listed(tess_tpl_value v)
{
    return v.kind == TPL_SEQUENCE || v.kind == TPL_FIXED;
}

/* ---- text ---- */

static tess_tpl_value cased(tess_tpl_run *r, tess_tpl_value v, int how)
{
    return tess_tpl_lower(r, tess_tpl_text(r, v), how);
}
static tess_tpl_value t_lower(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    return (void)a, cased(r, v, 0);
}
static tess_tpl_value t_upper(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    return (void)a, cased(r, v, 1);
}
static tess_tpl_value t_capitalize(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    return (void)a, cased(r, v, 3);
}

/* Jinja's own: words begin behind blanks, dashes and brackets. */
static tess_tpl_value t_title(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    const tess_tpl_value text = tess_tpl_text(r, v);
    tess_bytes out = {0};
    bool begins = true;
    (void)a;
    for (size_t at = 0, n; at < text.n; at += n) {
        const uint32_t c = tess_utf8_get(text.s + at, &n);
        if (begins)
            tess_bytes_put(&out, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
        else
            tess_bytes_put_lower(&out, c);
        begins = tess_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
    }
    const tess_tpl_value done = tess_tpl_copy(r, out.data, out.length);
    free(out.data);
    return done;
}

static tess_tpl_value t_trim(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    tess_tpl_value set;
    const tess_tpl_value text = tess_tpl_text(r, v);
    const bool given = tess_tpl_arg(a, 0, "chars", &set) && set.kind == TPL_STRING;
    if (r->status != TESS_OK) return text;
    return tess_tpl_strip(text.s, text.n, given ? set.s : NULL, given ? set.n : 0, true, true);
}

static tess_tpl_value t_replace(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    tess_tpl_value from, to, most;
    if (!tess_tpl_arg(a, 0, "old", &from) || !tess_tpl_arg(a, 1, "new", &to))
        return tess_tpl_fail(r, "replace takes two strings");
    v = tess_tpl_text(r, v), from = tess_tpl_text(r, from), to = tess_tpl_text(r, to);
    if (r->status != TESS_OK) return v;
    return tess_tpl_replace(r, v, from, to, tess_tpl_arg(a, 2, "count", &most) && most.kind == TPL_INT ? most.i : -1);
}

static tess_tpl_value t_indent(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    tess_tpl_value width = tess_tpl_int(4), first = {0}, blank = {0};
    tess_bytes out = {0};
    tess_tpl_arg(a, 0, "width", &width);
    tess_tpl_arg(a, 1, "first", &first);
    tess_tpl_arg(a, 2, "blank", &blank);
    v = tess_tpl_text(r, v);
    if (width.kind == TPL_INT && (width.i < 0 || width.i > 1000))
        return tess_tpl_fail(r, "indent by %lld", (long long)width.i);
    char spaces[1001];
    memset(spaces, ' ', sizeof spaces);
    const tess_tpl_value by =
        width.kind == TPL_STRING ? width : tess_tpl_string(spaces, width.kind == TPL_INT ? (size_t)width.i : 4);
    for (size_t at = 0, end; r->status == TESS_OK; at = end + 1) {
        const char *line = at < v.n ? memchr(v.s + at, '\n', v.n - at) : NULL;
        end = line ? (size_t)(line - v.s) : v.n;
        if (at ? end > at || tess_tpl_true(blank) : tess_tpl_true(first)) tess_bytes_add(&out, by.s, by.n);
        tess_bytes_add(&out, v.s + at, end > at ? end - at : 0);
        if (!line) break;
        tess_bytes_add(&out, "\n", 1);
    }
    const tess_tpl_value text = tess_tpl_copy(r, out.data, out.length);
    free(out.data);
    return text;
}

static tess_tpl_value t_string(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    return (void)a, tess_tpl_text(r, v);
}

static tess_tpl_value t_same(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    return (void)r, (void)a, v;
}

static tess_tpl_value t_tojson(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    tess_tpl_value ascii = {0}, indent = {0}, separators = {0}, sort = {0};
    tess_bytes out = {0};
    tess_tpl_arg(a, 0, "ensure_ascii", &ascii);
    tess_tpl_arg(a, 1, "indent", &indent);
    tess_tpl_arg(a, 2, "separators", &separators);
    tess_tpl_arg(a, 3, "sort_keys", &sort);
    if (tess_tpl_true(separators)) return tess_tpl_fail(r, "separators of tojson are not supported");
    const int64_t by = indent.kind == TPL_INT ? indent.i : -1;
    if (by > 100) return tess_tpl_fail(r, "tojson with an indent of %lld", (long long)by);
    tess_tpl_write_json(r, v, by, tess_tpl_true(ascii), tess_tpl_true(sort), 0, &out);
    const tess_tpl_value text = r->status == TESS_OK ? tess_tpl_copy(r, out.data, out.length) : v;
    free(out.data);
    return text;
}

/* ---- numbers ---- */

static tess_tpl_value t_int(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    tess_tpl_value otherwise = tess_tpl_int(0);
    (void)r;
    tess_tpl_arg(a, 0, "default", &otherwise);
    if (v.kind == TPL_BOOL) return tess_tpl_int(v.b);
    if (v.kind == TPL_INT) return v;
    if (v.kind == TPL_FLOAT && v.f > -9e18 && v.f < 9e18) return tess_tpl_int((int64_t)v.f);
    if (v.kind != TPL_STRING || v.n >= 30) return otherwise;
    char text[32], *end;
    memcpy(text, v.s, v.n);
    text[v.n] = 0;
    const double x = strtod(text, &end);
    while (*end == ' ') end++;
    return end == text || *end || x < -9e15 || x > 9e15 ? otherwise : tess_tpl_int((int64_t)x);
}

static tess_tpl_value t_float(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    tess_tpl_value otherwise = {.kind = TPL_FLOAT};
    (void)r;
    tess_tpl_arg(a, 0, "default", &otherwise);
    if (v.kind == TPL_FLOAT) return v;
    if (v.kind == TPL_INT || v.kind == TPL_BOOL)
        return (tess_tpl_value){.kind = TPL_FLOAT, .f = v.kind == TPL_INT ? (double)v.i : v.b};
    if (v.kind != TPL_STRING || v.n >= 60 || !v.n) return otherwise;
    char text[64], *end;
    memcpy(text, v.s, v.n);
    text[v.n] = 0;
    const double x = strtod(text, &end);
    return *end ? otherwise : (tess_tpl_value){.kind = TPL_FLOAT, .f = x};
}

static tess_tpl_value t_abs(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    (void)a;
    if (v.kind == TPL_INT && v.i != INT64_MIN) return tess_tpl_int(v.i < 0 ? -v.i : v.i);
    if (v.kind == TPL_FLOAT) return (tess_tpl_value){.kind = TPL_FLOAT, .f = v.f < 0 ? -v.f : v.f};
    return tess_tpl_fail(r, "abs of %s", tess_tpl_kind_name(v));
}

static tess_tpl_value t_length(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    (void)a;
    if (v.kind == TPL_UNDEFINED) return tess_tpl_int(0);
    if (v.kind == TPL_STRING) return tess_tpl_int((int64_t)tess_tpl_characters(v.s, v.n));
    if (listed(v)) return tess_tpl_int((int64_t)v.list->count);
    if (v.kind == TPL_MAPPING) return tess_tpl_int((int64_t)v.list->count / 2);
    return tess_tpl_fail(r, "length of %s", tess_tpl_kind_name(v));
}

/* ---- lists ---- */

static tess_tpl_value t_default(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    tess_tpl_value otherwise = tess_tpl_string("", 0), empty = {0};
    (void)r;
    tess_tpl_arg(a, 0, "default_value", &otherwise);
    tess_tpl_arg(a, 1, "boolean", &empty);
    return v.kind == TPL_UNDEFINED || (tess_tpl_true(empty) && !tess_tpl_true(v)) ? otherwise : v;
}

static tess_tpl_value t_first(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    (void)a;
    const tess_tpl_list *l = tess_tpl_items(r, v);
    return l->count ? l->item[0] : (tess_tpl_value){.s = "the first item", .n = 14};
}

static tess_tpl_value t_last(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    (void)a;
    const tess_tpl_list *l = tess_tpl_items(r, v);
    return l->count ? l->item[l->count - 1] : (tess_tpl_value){.s = "the last item", .n = 13};
}

static tess_tpl_value t_list(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    const tess_tpl_value out = tess_tpl_list_new(r, TPL_SEQUENCE);
    const tess_tpl_list *l = tess_tpl_items(r, v);
    (void)a;
    for (size_t i = 0; i < l->count; i++) tess_tpl_push(r, out.list, l->item[i]);
    return out;
}

static tess_tpl_value t_reverse(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    const tess_tpl_value out = tess_tpl_list_new(r, TPL_SEQUENCE);
    const tess_tpl_list *l = tess_tpl_items(r, v);
    (void)a;
    for (size_t i = l->count; i-- > 0;) tess_tpl_push(r, out.list, l->item[i]);
    if (v.kind != TPL_STRING) return out;
    return tess_tpl_join(r, out, tess_tpl_string("", 0), NULL);
}

static tess_tpl_value t_join(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    tess_tpl_value by = tess_tpl_string("", 0), path;
    tess_tpl_arg(a, 0, "d", &by);
    const bool attribute = tess_tpl_arg(a, 1, "attribute", &path);
    return tess_tpl_join(r, v, by, attribute ? &path : NULL);
}

static tess_tpl_args behind(const tess_tpl_args *a, size_t n)
{
    if (n > a->count) n = a->count;
    return (tess_tpl_args){a->value + n, a->name ? a->name + n : NULL, a->count - n};
}

static tess_tpl_value t_map(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    const tess_tpl_value out = tess_tpl_list_new(r, TPL_SEQUENCE);
    const tess_tpl_list *l = tess_tpl_items(r, v);
    tess_tpl_value name, otherwise;
    const bool attribute = tess_tpl_arg(a, SIZE_MAX, "attribute", &name);
    const bool has_default = tess_tpl_arg(a, SIZE_MAX, "default", &otherwise);
    if (!attribute && (!tess_tpl_arg(a, 0, "", &name) || name.kind != TPL_STRING))
        return tess_tpl_fail(r, "map takes the name of a filter, or attribute=");
    if (!attribute && !tess_tpl_has_filter(name.s)) return tess_tpl_fail(r, "filter %.60s is not supported", name.s);
    const tess_tpl_args rest = behind(a, 1);
    for (size_t i = 0; i < l->count && r->status == TESS_OK; i++) {
        tess_tpl_value x =
            attribute ? tess_tpl_path(r, l->item[i], name) : tess_tpl_filter(r, name.s, l->item[i], &rest);
        if (x.kind == TPL_UNDEFINED && has_default) x = otherwise;
        tess_tpl_push(r, out.list, x);
    }
    return out;
}

static tess_tpl_value choose(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a, bool attribute, bool want)
{
    const tess_tpl_value out = tess_tpl_list_new(r, TPL_SEQUENCE);
    const tess_tpl_list *l = tess_tpl_items(r, v);
    tess_tpl_value path = {0}, test = {0};
    if (attribute && !tess_tpl_arg(a, 0, "", &path))
        return tess_tpl_fail(r, "selectattr takes the name of an attribute");
    const bool tests = tess_tpl_arg(a, attribute, "", &test);
    if (tests && (test.kind != TPL_STRING || !tess_tpl_has_test(test.s)))
        return tess_tpl_fail(r, "test %.60s is not supported", test.kind == TPL_STRING ? test.s : "?");
    const tess_tpl_args rest = behind(a, 1 + attribute);
    for (size_t i = 0; i < l->count && r->status == TESS_OK; i++) {
        const tess_tpl_value x = attribute ? tess_tpl_path(r, l->item[i], path) : l->item[i];
        if (r->status == TESS_OK && (tests ? tess_tpl_test(r, test.s, x, &rest) : tess_tpl_true(x)) == want)
            tess_tpl_push(r, out.list, l->item[i]);
    }
    return out;
}
static tess_tpl_value t_select(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    return choose(r, v, a, false, true);
}
static tess_tpl_value t_reject(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    return choose(r, v, a, false, false);
}
static tess_tpl_value t_selectattr(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    return choose(r, v, a, true, true);
}
static tess_tpl_value t_rejectattr(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    return choose(r, v, a, true, false);
}

static tess_tpl_value t_items(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    if (v.kind == TPL_UNDEFINED) return tess_tpl_list_new(r, TPL_SEQUENCE);
    if (v.kind != TPL_MAPPING) return tess_tpl_fail(r, "items of %s", tess_tpl_kind_name(v));
    return tess_tpl_call(r, tess_tpl_member(r, v, "items", 5), a);
}

/* The order of two keys, of which the cases of letters do not count unless they are to. */
static int compare_keys(tess_tpl_run *r, tess_tpl_value a, tess_tpl_value b, bool cases)
{
    if (!cases) a = tess_tpl_lower(r, a, false), b = tess_tpl_lower(r, b, false);
    const int c = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
    return c ? c : a.n < b.n ? -1 : a.n > b.n;
}

static tess_tpl_value t_dictsort(tess_tpl_run *r, tess_tpl_value v, const tess_tpl_args *a)
{
    tess_tpl_value cases = {0}, by = {0}, backwards = {0};
    tess_tpl_arg(a, 0, "case_sensitive", &cases);
    tess_tpl_arg(a, 1, "by", &by);
    tess_tpl_arg(a, 2, "reverse", &backwards);
    if (by.kind == TPL_STRING && strcmp(by.s, "key"))
        return tess_tpl_fail(r, "dictsort by %.20s is not supported", by.s);
    if (v.kind != TPL_MAPPING) return tess_tpl_fail(r, "dictsort of %s", tess_tpl_kind_name(v));
    const tess_tpl_value out = t_items(r, v, &(tess_tpl_args){0});
    if (r->status != TESS_OK) return out;
    tess_tpl_value *item = out.list->item;
    for (size_t i = 0; i < out.list->count; i++)
        if (item[i].list->item[0].kind != TPL_STRING) return tess_tpl_fail(r, "dictsort of keys that are no text");
    for (size_t i = 1; i < out.list->count; i++)
        for (size_t k = i; k > 0 && tess_tpl_go_on(r, r->line); k--) {
            const int c = compare_keys(r, item[k - 1].list->item[0], item[k].list->item[0], tess_tpl_true(cases));
            if (tess_tpl_true(backwards) ? c >= 0 : c <= 0) break;
            const tess_tpl_value other = item[k];
            item[k] = item[k - 1];
            item[k - 1] = other;
        }
    return out;
}

static const struct {
    const char *name;
    filter *call;
} filters[] = {{"abs", t_abs},
               {"capitalize", t_capitalize},
               {"count", t_length},
               {"d", t_default},
               {"default", t_default},
               {"dictsort", t_dictsort},
               {"first", t_first},
               {"float", t_float},
               {"indent", t_indent},
               {"int", t_int},
               {"items", t_items},
               {"join", t_join},
               {"last", t_last},
               {"length", t_length},
               {"list", t_list},
               {"lower", t_lower},
               {"map", t_map},
               {"reject", t_reject},
               {"rejectattr", t_rejectattr},
               {"replace", t_replace},
               {"reverse", t_reverse},
               {"safe", t_same},
               {"select", t_select},
               {"selectattr", t_selectattr},
               {"string", t_string},
               {"title", t_title},
               {"tojson", t_tojson},
               {"trim", t_trim},
               {"upper", t_upper}};

bool tess_tpl_has_filter(const char *name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (!strcmp(name, filters[i].name)) return true;
    return false;
}

tess_tpl_value tess_tpl_filter(tess_tpl_run *r, const char *name, tess_tpl_value v, const tess_tpl_args *a)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (!strcmp(name, filters[i].name)) return r->status == TESS_OK ? filters[i].call(r, v, a) : v;
    return tess_tpl_fail(r, "filter %s is not supported", name);
}

/* ---- tests ---- */

static const char *const tests[] = {
    "defined",     "undefined", "none", "string", "number", "integer", "float",    "boolean",     "mapping",
    "sequence",    "iterable",  "true", "false",  "odd",    "even",    "callable", "divisibleby", "eq",
    "equalto",     "==",        "ne",   "!=",     "in",     "lt",      "lessthan", "<",           "gt",
    "greaterthan", ">",         "le",   "<=",     "ge",     ">=",      "lower",    "upper"};

bool tess_tpl_has_test(const char *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!strcmp(name, tests[i])) return true;
    return false;
}

static bool named(const char *name, const char *const *of)
{
    for (; *of; of++)
        if (!strcmp(name, *of)) return true;
    return false;
}
#define ONE_OF(name, ...) named(name, (const char *const[]){__VA_ARGS__, NULL})

static bool test_kind(const char *name, tess_tpl_value v)
{
    const tess_tpl_kind k = v.kind;
    if (!strcmp(name, "defined")) return k != TPL_UNDEFINED;
    if (!strcmp(name, "undefined")) return k == TPL_UNDEFINED;
    if (!strcmp(name, "none")) return k == TPL_NONE;
    if (!strcmp(name, "string")) return k == TPL_STRING;
    if (!strcmp(name, "number")) return k == TPL_INT || k == TPL_FLOAT || k == TPL_BOOL;
    if (!strcmp(name, "integer")) return k == TPL_INT;
    if (!strcmp(name, "float")) return k == TPL_FLOAT;
    if (!strcmp(name, "boolean")) return k == TPL_BOOL;
    if (!strcmp(name, "mapping")) return k == TPL_MAPPING;
    if (!strcmp(name, "sequence")) return listed(v) || k == TPL_STRING || k == TPL_MAPPING || k == TPL_UNDEFINED;
    if (!strcmp(name, "iterable")) return listed(v) || k == TPL_STRING || k == TPL_MAPPING || k == TPL_UNDEFINED;
    if (!strcmp(name, "callable")) return k == TPL_FUNCTION;
    if (!strcmp(name, "true")) return k == TPL_BOOL && v.b;
    return k == TPL_BOOL && !v.b; /* false */
}

bool tess_tpl_test(tess_tpl_run *r, const char *name, tess_tpl_value v, const tess_tpl_args *a)
{
    tess_tpl_value other;
    if (ONE_OF(name, "defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping",
               "sequence", "iterable", "callable", "true", "false"))
        return test_kind(name, v);
    if (ONE_OF(name, "lower", "upper"))
        return v.kind == TPL_STRING && v.n && tess_tpl_equal(r, v, tess_tpl_lower(r, v, name[0] == 'u'));
    if (ONE_OF(name, "odd", "even")) {
        if (v.kind != TPL_INT) return tess_tpl_fail(r, "%s of %s", name, tess_tpl_kind_name(v)), false;
        return (v.i % 2 != 0) == (name[0] == 'o');
    }
    if (!tess_tpl_arg(a, 0, "", &other)) return tess_tpl_fail(r, "test %s takes an argument", name), false;
    if (!strcmp(name, "divisibleby")) {
        if (v.kind != TPL_INT || other.kind != TPL_INT || !other.i)
            return tess_tpl_fail(r, "divisibleby of what is no number"), false;
        return other.i == -1 || v.i % other.i == 0;
    }
    if (ONE_OF(name, "eq", "equalto", "==")) return tess_tpl_equal(r, v, other);
    if (ONE_OF(name, "ne", "!=")) return !tess_tpl_equal(r, v, other);
    if (!strcmp(name, "in")) return tess_tpl_contains(r, other, v);
    const int order = tess_tpl_order(r, v, other);
    if (ONE_OF(name, "lt", "lessthan", "<")) return order < 0;
    if (ONE_OF(name, "gt", "greaterthan", ">")) return order > 0;
    return ONE_OF(name, "le", "<=") ? order <= 0 : order >= 0;
}
