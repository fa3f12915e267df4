/* Filters and tests, by name. */
#include "models/text/chat/template_impl.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static bool listed(tess_tpl_value v)
{
    return v.kind == TPL_SEQUENCE || v.kind == TPL_FIXED;
}

/* ---- text ---- */

TPL_BODY(t_lower)
{
    return tess_tpl_lower(r, tess_tpl_text(r, self), how);
}

/* Jinja's own: words begin behind blanks, dashes and brackets. */
TPL_BODY(t_title)
{
    const tess_tpl_value text = tess_tpl_text(r, self);
    tess_bytes out = {0};
    bool begins = true;
    for (size_t at = 0, n; at < text.n; at += n) {
        const uint32_t c = tess_utf8_get(text.s + at, &n);
        if (begins)
            tess_bytes_put(&out, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
        else
            tess_bytes_put_lower(&out, c);
        begins = tess_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
    }
    return tess_tpl_made(r, &out);
}

TPL_BODY(t_trim)
{
    tess_tpl_value set;
    const tess_tpl_value text = tess_tpl_text(r, self);
    const bool given = tess_tpl_arg(a, 0, "chars", &set) && set.kind == TPL_STRING;
    if (r->status != TESS_OK) return text;
    return tess_tpl_strip(text.s, text.n, given ? set.s : NULL, given ? set.n : 0, true, true);
}

TPL_BODY(t_replace)
{
    tess_tpl_value from, to, most;
    if (!tess_tpl_arg(a, 0, "old", &from) || !tess_tpl_arg(a, 1, "new", &to))
        return tess_tpl_fail(r, "replace takes two strings");
    self = tess_tpl_text(r, self), from = tess_tpl_text(r, from), to = tess_tpl_text(r, to);
    if (r->status != TESS_OK) return self;
    return tess_tpl_replace(r, self, from, to,
                            tess_tpl_arg(a, 2, "count", &most) && most.kind == TPL_INT ? most.i : -1);
}

TPL_BODY(t_indent)
{
    tess_tpl_value width = tess_tpl_int(4), first = {0}, blank = {0};
    tess_bytes out = {0};
    tess_tpl_arg(a, 0, "width", &width);
    tess_tpl_arg(a, 1, "first", &first);
    tess_tpl_arg(a, 2, "blank", &blank);
    self = tess_tpl_text(r, self);
    if (width.kind == TPL_INT && (width.i < 0 || width.i > 1000))
        return tess_tpl_fail(r, "indent by %lld", (long long)width.i);
    char spaces[1001];
    memset(spaces, ' ', sizeof spaces);
    const tess_tpl_value by =
        width.kind == TPL_STRING ? width : tess_tpl_string(spaces, width.kind == TPL_INT ? (size_t)width.i : 4);
    for (size_t at = 0, end; r->status == TESS_OK; at = end + 1) {
        const char *line = at < self.n ? memchr(self.s + at, '\n', self.n - at) : NULL;
        end = line ? (size_t)(line - self.s) : self.n;
        if (at ? end > at || tess_tpl_true(blank) : tess_tpl_true(first)) tess_bytes_add(&out, by.s, by.n);
        tess_bytes_add(&out, self.s + at, end > at ? end - at : 0);
        if (!line) break;
        tess_bytes_add(&out, "\n", 1);
    }
    return tess_tpl_made(r, &out);
}

TPL_BODY(t_string)
{
    return tess_tpl_text(r, self);
}

TPL_BODY(t_same)
{
    return self;
}

TPL_BODY(t_tojson)
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
    tess_tpl_write_json(r, self, by, tess_tpl_true(ascii), tess_tpl_true(sort), 0, &out);
    return tess_tpl_made(r, &out);
}

/* ---- numbers ---- */

TPL_BODY(t_int)
{
    tess_tpl_value otherwise = tess_tpl_int(0);
    tess_tpl_arg(a, 0, "default", &otherwise);
    if (self.kind == TPL_BOOL) return tess_tpl_int(self.b);
    if (self.kind == TPL_INT) return self;
    if (self.kind == TPL_FLOAT && self.f > -9e18 && self.f < 9e18) return tess_tpl_int((int64_t)self.f);
    if (self.kind != TPL_STRING || self.n >= 30) return otherwise;
    char text[32], *end;
    memcpy(text, self.s, self.n);
    text[self.n] = 0;
    const double x = strtod(text, &end);
    while (*end == ' ') end++;
    return end == text || *end || x < -9e15 || x > 9e15 ? otherwise : tess_tpl_int((int64_t)x);
}

TPL_BODY(t_float)
{
    tess_tpl_value otherwise = {.kind = TPL_FLOAT};
    tess_tpl_arg(a, 0, "default", &otherwise);
    if (self.kind == TPL_FLOAT) return self;
    if (self.kind == TPL_INT || self.kind == TPL_BOOL)
        return (tess_tpl_value){.kind = TPL_FLOAT, .f = self.kind == TPL_INT ? (double)self.i : self.b};
    if (self.kind != TPL_STRING || self.n >= 60 || !self.n) return otherwise;
    char text[64], *end;
    memcpy(text, self.s, self.n);
    text[self.n] = 0;
    const double x = strtod(text, &end);
    return *end ? otherwise : (tess_tpl_value){.kind = TPL_FLOAT, .f = x};
}

TPL_BODY(t_abs)
{
    if (self.kind == TPL_INT && self.i != INT64_MIN) return tess_tpl_int(self.i < 0 ? -self.i : self.i);
    if (self.kind == TPL_FLOAT) return (tess_tpl_value){.kind = TPL_FLOAT, .f = self.f < 0 ? -self.f : self.f};
    return tess_tpl_fail(r, "abs of %s", tess_tpl_kind_name(self));
}

TPL_BODY(t_length)
{
    if (self.kind == TPL_UNDEFINED) return tess_tpl_int(0);
    if (self.kind == TPL_STRING) return tess_tpl_int((int64_t)tess_tpl_characters(self.s, self.n));
    if (listed(self)) return tess_tpl_int((int64_t)self.list->count);
    if (self.kind == TPL_MAPPING) return tess_tpl_int((int64_t)self.list->count / 2);
    return tess_tpl_fail(r, "length of %s", tess_tpl_kind_name(self));
}

/* ---- lists ---- */

TPL_BODY(t_default)
{
    tess_tpl_value otherwise = tess_tpl_string("", 0), empty = {0};
    tess_tpl_arg(a, 0, "default_value", &otherwise);
    tess_tpl_arg(a, 1, "boolean", &empty);
    return self.kind == TPL_UNDEFINED || (tess_tpl_true(empty) && !tess_tpl_true(self)) ? otherwise : self;
}

/* The first, or the last. */
TPL_BODY(t_end)
{
    const tess_tpl_list *l = tess_tpl_items(r, self);
    if (l->count) return l->item[how ? l->count - 1 : 0];
    return how ? (tess_tpl_value){.s = "the last item", .n = 13} : (tess_tpl_value){.s = "the first item", .n = 14};
}

/* A list of the items; `how`: from behind, and of a string a string. */
TPL_BODY(t_list)
{
    const tess_tpl_value out = tess_tpl_list_new(r, TPL_SEQUENCE);
    const tess_tpl_list *l = tess_tpl_items(r, self);
    for (size_t i = 0; i < l->count; i++) tess_tpl_push(r, out.list, l->item[how ? l->count - 1 - i : i]);
    return how && self.kind == TPL_STRING ? tess_tpl_join(r, out, tess_tpl_string("", 0), NULL) : out;
}

TPL_BODY(t_join)
{
    tess_tpl_value by = tess_tpl_string("", 0), path;
    tess_tpl_arg(a, 0, "d", &by);
    const bool attribute = tess_tpl_arg(a, 1, "attribute", &path);
    return tess_tpl_join(r, self, by, attribute ? &path : NULL);
}

static tess_tpl_args behind(const tess_tpl_args *a, size_t n)
{
    if (n > a->count) n = a->count;
    return (tess_tpl_args){a->value + n, a->name ? a->name + n : NULL, a->count - n};
}

TPL_BODY(t_map)
{
    const tess_tpl_value out = tess_tpl_list_new(r, TPL_SEQUENCE);
    const tess_tpl_list *l = tess_tpl_items(r, self);
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

enum { ATTRIBUTE = 1, REJECT = 2 };

TPL_BODY(t_choose)
{
    const bool attribute = how & ATTRIBUTE, want = !(how & REJECT);
    const tess_tpl_value out = tess_tpl_list_new(r, TPL_SEQUENCE);
    const tess_tpl_list *l = tess_tpl_items(r, self);
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

TPL_BODY(t_items)
{
    if (self.kind == TPL_UNDEFINED) return tess_tpl_list_new(r, TPL_SEQUENCE);
    if (self.kind != TPL_MAPPING) return tess_tpl_fail(r, "items of %s", tess_tpl_kind_name(self));
    return tess_tpl_call(r, tess_tpl_member(r, self, "items", 5), a);
}

/* Returns the order of two keys. Upper and lower case differ only where `cases` is set. */
static int compare_keys(tess_tpl_run *r, tess_tpl_value a, tess_tpl_value b, bool cases)
{
    if (!cases) a = tess_tpl_lower(r, a, false), b = tess_tpl_lower(r, b, false);
    const int c = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
    return c ? c : a.n < b.n ? -1 : a.n > b.n;
}

TPL_BODY(t_dictsort)
{
    tess_tpl_value cases = {0}, by = {0}, backwards = {0};
    tess_tpl_arg(a, 0, "case_sensitive", &cases);
    tess_tpl_arg(a, 1, "by", &by);
    tess_tpl_arg(a, 2, "reverse", &backwards);
    if (by.kind == TPL_STRING && strcmp(by.s, "key"))
        return tess_tpl_fail(r, "dictsort by %.20s is not supported", by.s);
    if (self.kind != TPL_MAPPING) return tess_tpl_fail(r, "dictsort of %s", tess_tpl_kind_name(self));
    const tess_tpl_value out = t_items(r, self, &(tess_tpl_args){0}, 0);
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

static const tess_tpl_built_in filters[] = {{"abs", t_abs, 0},
                                            {"capitalize", t_lower, 3},
                                            {"count", t_length, 0},
                                            {"d", t_default, 0},
                                            {"default", t_default, 0},
                                            {"dictsort", t_dictsort, 0},
                                            {"first", t_end, 0},
                                            {"float", t_float, 0},
                                            {"indent", t_indent, 0},
                                            {"int", t_int, 0},
                                            {"items", t_items, 0},
                                            {"join", t_join, 0},
                                            {"last", t_end, 1},
                                            {"length", t_length, 0},
                                            {"list", t_list, 0},
                                            {"lower", t_lower, 0},
                                            {"map", t_map, 0},
                                            {"reject", t_choose, REJECT},
                                            {"rejectattr", t_choose, REJECT | ATTRIBUTE},
                                            {"replace", t_replace, 0},
                                            {"reverse", t_list, 1},
                                            {"safe", t_same, 0},
                                            {"select", t_choose, 0},
                                            {"selectattr", t_choose, ATTRIBUTE},
                                            {"string", t_string, 0},
                                            {"title", t_title, 0},
                                            {"tojson", t_tojson, 0},
                                            {"trim", t_trim, 0},
                                            {"upper", t_lower, 1},
                                            {NULL, NULL, 0}};

bool tess_tpl_has_filter(const char *name)
{
    return tess_tpl_built_in_of(filters, name);
}

tess_tpl_value tess_tpl_filter(tess_tpl_run *r, const char *name, tess_tpl_value v, const tess_tpl_args *a)
{
    const tess_tpl_built_in *f = tess_tpl_built_in_of(filters, name);
    if (!f) return tess_tpl_fail(r, "filter %s is not supported", name);
    return r->status == TESS_OK ? f->call(r, v, a, f->how) : v;
}

/* ---- tests ---- */

/* Of what kinds a value may be, as bits; or what else is asked of it. */
#define KIND(k) (1u << (k))
enum { LISTED = KIND(TPL_SEQUENCE) | KIND(TPL_FIXED) | KIND(TPL_STRING) | KIND(TPL_MAPPING) | KIND(TPL_UNDEFINED) };
enum question { OF_KIND, TRUTH, PARITY, CASE, DIVISIBLE, EQUAL, UNEQUAL, WITHIN, LESS, MORE, AT_MOST, AT_LEAST };
static const struct test {
    const char *names; /* between blanks */
    enum question question;
    unsigned kinds;
} tests[] = {{" defined ", OF_KIND, ~KIND(TPL_UNDEFINED)},
             {" undefined ", OF_KIND, KIND(TPL_UNDEFINED)},
             {" none ", OF_KIND, KIND(TPL_NONE)},
             {" string ", OF_KIND, KIND(TPL_STRING)},
             {" number ", OF_KIND, KIND(TPL_INT) | KIND(TPL_FLOAT) | KIND(TPL_BOOL)},
             {" integer ", OF_KIND, KIND(TPL_INT)},
             {" float ", OF_KIND, KIND(TPL_FLOAT)},
             {" boolean ", OF_KIND, KIND(TPL_BOOL)},
             {" mapping ", OF_KIND, KIND(TPL_MAPPING)},
             {" sequence iterable ", OF_KIND, LISTED},
             {" callable ", OF_KIND, KIND(TPL_FUNCTION)},
             {" true false ", TRUTH, 0},
             {" odd even ", PARITY, 0},
             {" lower upper ", CASE, 0},
             {" divisibleby ", DIVISIBLE, 0},
             {" eq equalto == ", EQUAL, 0},
             {" ne != ", UNEQUAL, 0},
             {" in ", WITHIN, 0},
             {" lt lessthan < ", LESS, 0},
             {" gt greaterthan > ", MORE, 0},
             {" le <= ", AT_MOST, 0},
             {" ge >= ", AT_LEAST, 0}};

static const struct test *test_of(const char *name)
{
    char word[24];
    snprintf(word, sizeof word, " %.20s ", name);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!strchr(name, ' ') && *name && strstr(tests[i].names, word)) return &tests[i];
    return NULL;
}

bool tess_tpl_has_test(const char *name)
{
    return test_of(name);
}

static bool divides(tess_tpl_run *r, tess_tpl_value v, tess_tpl_value by)
{
    if (v.kind != TPL_INT || by.kind != TPL_INT || !by.i)
        return tess_tpl_fail(r, "divisibleby of a value that is no number"), false;
    return by.i == -1 || v.i % by.i == 0;
}

bool tess_tpl_test(tess_tpl_run *r, const char *name, tess_tpl_value v, const tess_tpl_args *a)
{
    const struct test *t = test_of(name); /* there is one: the parser has looked */
    tess_tpl_value other;
    if (t->question == OF_KIND) return t->kinds >> v.kind & 1;
    if (t->question == TRUTH) return v.kind == TPL_BOOL && v.b == (name[0] == 't');
    if (t->question == CASE)
        return v.kind == TPL_STRING && v.n && tess_tpl_equal(r, v, tess_tpl_lower(r, v, name[0] == 'u'));
    if (t->question == PARITY) {
        if (v.kind != TPL_INT) return tess_tpl_fail(r, "%s of %s", name, tess_tpl_kind_name(v)), false;
        return (v.i % 2 != 0) == (name[0] == 'o');
    }
    if (!tess_tpl_arg(a, 0, "", &other)) return tess_tpl_fail(r, "test %s takes an argument", name), false;
    if (t->question == DIVISIBLE) return divides(r, v, other);
    if (t->question == EQUAL || t->question == UNEQUAL) return tess_tpl_equal(r, v, other) == (t->question == EQUAL);
    if (t->question == WITHIN) return tess_tpl_contains(r, other, v);
    const int order = tess_tpl_order(r, v, other);
    if (t->question == LESS || t->question == AT_LEAST) return (order < 0) == (t->question == LESS);
    return (order > 0) == (t->question == MORE);
}
