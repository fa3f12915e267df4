/* Members, subscripts, functions and methods. */
#include "models/text/chat/template_impl.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool tess_tpl_arg(const tess_tpl_args *a, size_t place, const char *name, tess_tpl_value *v)
{
    for (size_t i = 0, k = 0; i < a->count; i++) {
        const char *given = a->name ? a->name[i] : NULL;
        if (given ? !strcmp(given, name) : k++ == place) return *v = a->value[i], true;
    }
    return false;
}

/* A string among the arguments; false: it is not there, or no string, which is a failure. */
static bool string_arg(tess_tpl_run *r, const tess_tpl_args *a, size_t place, const char *name, tess_tpl_value *v)
{
    if (!tess_tpl_arg(a, place, name, v) || v->kind == TPL_NONE) return false;
    if (v->kind == TPL_STRING) return true;
    tess_tpl_fail(r, "expected a string, found %s", tess_tpl_kind_name(*v));
    return false;
}

static int64_t int_arg(const tess_tpl_args *a, size_t place, const char *name, int64_t otherwise)
{
    tess_tpl_value v;
    return tess_tpl_arg(a, place, name, &v) && v.kind == TPL_INT ? v.i : otherwise;
}

/* ---- methods of strings ---- */

enum { LEFT = 1, RIGHT = 2 }; /* of strip, split and what is at an end */

TPL_BODY(m_strip)
{
    tess_tpl_value set;
    const bool given = string_arg(r, a, 0, "chars", &set);
    return tess_tpl_strip(self.s, self.n, given ? set.s : NULL, given ? set.n : 0, how & LEFT, how & RIGHT);
}

/* str.split at blanks: runs of them part, and none stands at either end. */
static tess_tpl_value split_blanks(tess_tpl_run *r, tess_tpl_value self, int64_t most)
{
    const tess_tpl_value v = tess_tpl_list_new(r, TPL_SEQUENCE);
    tess_tpl_value rest = tess_tpl_strip(self.s, self.n, NULL, 0, true, false);
    for (size_t k; rest.n; most--) {
        size_t end = 0;
        while (most && end < rest.n && !tess_tpl_blank(rest.s + end, &k)) end += k;
        if (!most) {
            tess_tpl_push(r, v.list, rest);
            break;
        }
        tess_tpl_push(r, v.list, tess_tpl_string(rest.s, end));
        rest = tess_tpl_strip(rest.s + end, rest.n - end, NULL, 0, true, false);
    }
    return v;
}

static const char *find_last(const char *s, size_t n, const char *what, size_t k)
{
    for (size_t at = n; at >= k; at--)
        if (memcmp(s + at - k, what, k) == 0) return s + at - k;
    return NULL;
}

TPL_BODY(m_split)
{
    const bool from_right = how == RIGHT;
    tess_tpl_value by;
    int64_t most = int_arg(a, 1, "maxsplit", -1);
    if (!string_arg(r, a, 0, "sep", &by)) {
        if (from_right && most >= 0) return tess_tpl_fail(r, "rsplit at blanks with a limit is not supported");
        return split_blanks(r, self, most);
    }
    if (!by.n) return tess_tpl_fail(r, "split at an empty string");
    tess_tpl_value v = tess_tpl_list_new(r, TPL_SEQUENCE);
    for (const char *at; most != 0; most--) {
        at = from_right ? find_last(self.s, self.n, by.s, by.n) : memmem(self.s, self.n, by.s, by.n);
        if (!at || r->status != TESS_OK) break;
        if (from_right) {
            tess_tpl_push(r, v.list, tess_tpl_string(at + by.n, (size_t)(self.s + self.n - at) - by.n));
            self.n = (size_t)(at - self.s);
        } else {
            tess_tpl_push(r, v.list, tess_tpl_string(self.s, (size_t)(at - self.s)));
            self.n -= (size_t)(at - self.s) + by.n;
            self.s = at + by.n;
        }
    }
    tess_tpl_push(r, v.list, self);
    for (size_t i = 0, j = v.list->count; from_right && i + 1 < j; i++) {
        const tess_tpl_value x = v.list->item[i];
        v.list->item[i] = v.list->item[--j];
        v.list->item[j] = x;
    }
    return v;
}

TPL_BODY(m_splitlines)
{
    const tess_tpl_value v = tess_tpl_list_new(r, TPL_SEQUENCE);
    for (size_t at = 0, end; at < self.n; at = end) {
        for (end = at; end < self.n && self.s[end] != '\n' && self.s[end] != '\r';) end++;
        tess_tpl_push(r, v.list, tess_tpl_string(self.s + at, end - at));
        if (end < self.n) end += 1 + (self.s[end] == '\r' && end + 1 < self.n && self.s[end + 1] == '\n');
    }
    return v;
}

/* Does it begin, or end, with the argument, or with one of them where that is a tuple? */
TPL_BODY(m_at_end)
{
    tess_tpl_value what = {0};
    tess_tpl_arg(a, 0, "", &what);
    tess_tpl_list one = {.item = &what, .count = 1};
    const tess_tpl_list *l = what.kind == TPL_FIXED ? what.list : &one;
    for (size_t i = 0; i < l->count; i++) {
        const tess_tpl_value *w = &l->item[i];
        if (w->kind != TPL_STRING) return tess_tpl_fail(r, "expected a string, found %s", tess_tpl_kind_name(*w));
        if (w->n <= self.n && memcmp(how == RIGHT ? self.s + self.n - w->n : self.s, w->s, w->n) == 0)
            return tess_tpl_bool(true);
    }
    return tess_tpl_bool(false);
}

TPL_BODY(m_lower)
{
    return tess_tpl_lower(r, self, how);
}

TPL_BODY(m_replace)
{
    tess_tpl_value from, to;
    if (!string_arg(r, a, 0, "old", &from) || !string_arg(r, a, 1, "new", &to))
        return tess_tpl_fail(r, "replace takes two strings");
    return tess_tpl_replace(r, self, from, to, int_arg(a, 2, "count", -1));
}

TPL_BODY(m_join)
{
    tess_tpl_value list = {0};
    tess_tpl_arg(a, 0, "", &list);
    return tess_tpl_join(r, list, self, NULL);
}

TPL_BODY(m_find)
{
    tess_tpl_value what;
    if (!string_arg(r, a, 0, "", &what)) return tess_tpl_fail(r, "find takes a string");
    const char *at = what.n ? memmem(self.s, self.n, what.s, what.n) : self.s;
    return tess_tpl_int(at ? (int64_t)tess_tpl_characters(self.s, (size_t)(at - self.s)) : -1);
}

TPL_BODY(m_count)
{
    tess_tpl_value what = {0};
    int64_t count = 0;
    if (!tess_tpl_arg(a, 0, "", &what)) return tess_tpl_fail(r, "count takes an argument");
    if (self.kind != TPL_STRING) {
        for (size_t i = 0; i < self.list->count; i++) count += tess_tpl_equal(r, self.list->item[i], what);
        return tess_tpl_int(count);
    }
    if (what.kind != TPL_STRING || !what.n) return tess_tpl_fail(r, "count takes a string");
    for (const char *at = self.s, *end = self.s + self.n; (at = memmem(at, (size_t)(end - at), what.s, what.n));
         at += what.n)
        count++;
    return tess_tpl_int(count);
}

TPL_BODY(m_isdigit)
{
    bool all = self.n > 0;
    for (size_t i = 0; i < self.n; i++) all &= self.s[i] >= '0' && self.s[i] <= '9';
    return tess_tpl_bool(all);
}

/* ---- methods of mappings and lists ---- */

/* The keys, the values or both. */
TPL_BODY(m_parts)
{
    const tess_tpl_value v = tess_tpl_list_new(r, TPL_SEQUENCE);
    for (size_t i = 0; i < self.list->count && r->status == TESS_OK; i += 2) {
        if (how < 2) {
            tess_tpl_push(r, v.list, self.list->item[i + (size_t)how]);
            continue;
        }
        const tess_tpl_value pair = tess_tpl_list_new(r, TPL_FIXED);
        tess_tpl_push(r, pair.list, self.list->item[i]);
        tess_tpl_push(r, pair.list, self.list->item[i + 1]);
        tess_tpl_push(r, v.list, pair);
    }
    return v;
}

TPL_BODY(m_get)
{
    tess_tpl_value key, v = {.kind = TPL_NONE};
    if (!tess_tpl_arg(a, 0, "key", &key)) return tess_tpl_fail(r, "get takes a key");
    tess_tpl_arg(a, 1, "default", &v);
    for (size_t i = 0; i < self.list->count; i += 2)
        if (tess_tpl_equal(r, self.list->item[i], key)) return self.list->item[i + 1];
    return v;
}

TPL_BODY(m_index)
{
    tess_tpl_value what = {0};
    tess_tpl_arg(a, 0, "", &what);
    for (size_t i = 0; i < self.list->count; i++)
        if (tess_tpl_equal(r, self.list->item[i], what)) return tess_tpl_int((int64_t)i);
    return tess_tpl_fail(r, "index: it is not in the list");
}

static const tess_tpl_built_in of_strings[] = {{"strip", m_strip, LEFT | RIGHT},
                                               {"lstrip", m_strip, LEFT},
                                               {"rstrip", m_strip, RIGHT},
                                               {"split", m_split, LEFT},
                                               {"rsplit", m_split, RIGHT},
                                               {"splitlines", m_splitlines, 0},
                                               {"startswith", m_at_end, LEFT},
                                               {"endswith", m_at_end, RIGHT},
                                               {"lower", m_lower, 0},
                                               {"upper", m_lower, 1},
                                               {"title", m_lower, 2},
                                               {"capitalize", m_lower, 3},
                                               {"replace", m_replace, 0},
                                               {"join", m_join, 0},
                                               {"find", m_find, 0},
                                               {"count", m_count, 0},
                                               {"isdigit", m_isdigit, 0},
                                               {NULL, NULL, 0}};
static const tess_tpl_built_in of_mappings[] = {
    {"get", m_get, 0}, {"items", m_parts, 2}, {"keys", m_parts, 0}, {"values", m_parts, 1}, {NULL, NULL, 0}};
static const tess_tpl_built_in of_lists[] = {{"index", m_index, 0}, {"count", m_count, 0}, {NULL, NULL, 0}};
static const tess_tpl_built_in *const methods[] = {[TPL_STRING] = of_strings,
                                                   [TPL_SEQUENCE] = of_lists,
                                                   [TPL_FIXED] = of_lists,
                                                   [TPL_MAPPING] = of_mappings,
                                                   [TPL_FUNCTION] = NULL};

const tess_tpl_built_in *tess_tpl_built_in_of(const tess_tpl_built_in *list, const char *name)
{
    for (; list && list->name; list++)
        if (!strcmp(name, list->name)) return list;
    return NULL;
}

static tess_tpl_value bound(tess_tpl_run *r, const tess_tpl_built_in *b, tess_tpl_value self)
{
    tess_tpl_function *f = tess_tpl_get(r, sizeof *f);
    if (!f) return (tess_tpl_value){0};
    *f = (tess_tpl_function){.built_in = b, .self = self};
    return (tess_tpl_value){.kind = TPL_FUNCTION, .function = f};
}

/* ---- members ---- */

static bool loop_member(const tess_tpl_loop *l, const char *name, tess_tpl_value *v)
{
    const int64_t at = (int64_t)l->at, n = (int64_t)l->items->count;
    const struct {
        const char *name;
        tess_tpl_value v;
    } members[] = {
        {"index", tess_tpl_int(at + 1)},        {"index0", tess_tpl_int(at)}, {"first", tess_tpl_bool(at == 0)},
        {"last", tess_tpl_bool(at + 1 == n)},   {"length", tess_tpl_int(n)},  {"revindex", tess_tpl_int(n - at)},
        {"revindex0", tess_tpl_int(n - at - 1)}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (!strcmp(name, members[i].name)) return *v = members[i].v, true;
    *v = (tess_tpl_value){.s = name, .n = strlen(name)};
    if (!strcmp(name, "previtem")) return *v = at ? l->items->item[at - 1] : *v, true;
    if (!strcmp(name, "nextitem")) return *v = at + 1 < n ? l->items->item[at + 1] : *v, true;
    return false;
}

tess_tpl_value tess_tpl_member(tess_tpl_run *r, tess_tpl_value of, const char *name, size_t n)
{
    tess_tpl_value v;
    if (r->status != TESS_OK) return (tess_tpl_value){0};
    if (of.kind == TPL_UNDEFINED)
        return tess_tpl_fail(r, "\"%.*s\" is undefined, and has no \"%.*s\"", (int)of.n, of.s ? of.s : "", (int)n,
                             name);
    const tess_tpl_built_in *method = tess_tpl_built_in_of(methods[of.kind], name);
    if (method) return bound(r, method, of);
    if (of.kind == TPL_LOOP) {
        if (loop_member(of.loop, name, &v)) return v;
        return tess_tpl_fail(r, "loop.%s is not supported", name);
    }
    if (tess_tpl_find(of, name, n, &v)) return v;
    if (of.kind == TPL_STRING || of.kind == TPL_SEQUENCE || of.kind == TPL_FIXED) {
        /* What Python's have and these do not would be taken for missing. */
        static const char others[] = " append extend insert pop remove reverse sort format encode isalpha isspace "
                                     "partition rpartition removeprefix zfill swapcase expandtabs translate center "
                                     "ljust rjust isalnum isupper islower rfind casefold removesuffix ";
        char word[32];
        snprintf(word, sizeof word, " %.29s ", name);
        if (strlen(name) < 29 && strstr(others, word))
            return tess_tpl_fail(r, "%s has no method %s here", tess_tpl_kind_name(of), name);
    }
    return (tess_tpl_value){.s = name, .n = n};
}

tess_tpl_value tess_tpl_item(tess_tpl_run *r, tess_tpl_value of, tess_tpl_value key)
{
    const bool place = key.kind == TPL_INT || key.kind == TPL_BOOL;
    tess_tpl_value v = {.s = "an item", .n = 7};
    if (r->status != TESS_OK) return v;
    if (of.kind == TPL_UNDEFINED)
        return tess_tpl_fail(r, "\"%.*s\" is undefined, and has no items", (int)of.n, of.s ? of.s : "");
    if (of.kind == TPL_MAPPING) {
        for (size_t i = 0; i < of.list->count; i += 2)
            if (tess_tpl_equal(r, of.list->item[i], key)) return of.list->item[i + 1];
    } else if (place && (of.kind == TPL_SEQUENCE || of.kind == TPL_FIXED || of.kind == TPL_STRING)) {
        const tess_tpl_list *l = tess_tpl_items(r, of);
        int64_t at = key.kind == TPL_BOOL ? key.b : key.i;
        if (at < 0) at += (int64_t)l->count;
        return at >= 0 && at < (int64_t)l->count ? l->item[at] : v;
    }
    return key.kind == TPL_STRING ? tess_tpl_member(r, of, tess_tpl_copy(r, key.s, key.n).s, key.n) : v;
}

tess_tpl_value tess_tpl_path(tess_tpl_run *r, tess_tpl_value v, tess_tpl_value path)
{
    if (path.kind == TPL_INT) return tess_tpl_item(r, v, path);
    if (path.kind != TPL_STRING) return tess_tpl_fail(r, "expected the name of an attribute");
    for (size_t at = 0, end; at <= path.n && r->status == TESS_OK; at = end + 1) {
        const char *dot = at < path.n ? memchr(path.s + at, '.', path.n - at) : NULL;
        end = dot ? (size_t)(dot - path.s) : path.n;
        tess_tpl_value key = tess_tpl_copy(r, path.s + at, end - at);
        if (r->status == TESS_OK && key.n && key.s[0] >= '0' && key.s[0] <= '9') key = tess_tpl_int(atoi(key.s));
        v = tess_tpl_item(r, v, key);
    }
    return v;
}

tess_tpl_value tess_tpl_join(tess_tpl_run *r, tess_tpl_value v, tess_tpl_value by, const tess_tpl_value *path)
{
    tess_bytes out = {0};
    by = tess_tpl_text(r, by);
    const tess_tpl_list *l = tess_tpl_items(r, v);
    for (size_t i = 0; i < l->count && tess_tpl_grows(r, &out); i++) {
        if (i) tess_bytes_add(&out, by.s, by.n);
        tess_tpl_write(r, path ? tess_tpl_path(r, l->item[i], *path) : l->item[i], &out);
    }
    return tess_tpl_made(r, &out);
}

/* ---- functions ---- */

TPL_BODY(f_namespace)
{
    tess_tpl_value v = tess_tpl_list_new(r, TPL_NAMESPACE), given;
    if (tess_tpl_arg(a, 0, "", &given) && given.kind == TPL_MAPPING)
        for (size_t i = 0; i < given.list->count; i++) tess_tpl_push(r, v.list, given.list->item[i]);
    for (size_t i = 0; i < a->count; i++)
        if (a->name && a->name[i])
            tess_tpl_put(r, v.list, tess_tpl_string(a->name[i], strlen(a->name[i])), a->value[i]);
    return v;
}

TPL_BODY(f_dict)
{
    tess_tpl_value v = f_namespace(r, self, a, how);
    v.kind = TPL_MAPPING;
    return v;
}

TPL_BODY(f_range)
{
    enum { MOST = 100000 };
    const tess_tpl_value v = tess_tpl_list_new(r, TPL_SEQUENCE);
    if (!a->count || a->count > 3) return tess_tpl_fail(r, "range takes one to three numbers");
    for (size_t i = 0; i < a->count; i++)
        if (a->value[i].kind != TPL_INT) return tess_tpl_fail(r, "range of %s", tess_tpl_kind_name(a->value[i]));
    const int64_t from = a->count > 1 ? a->value[0].i : 0, to = a->value[a->count > 1].i,
                  step = a->count > 2 ? a->value[2].i : 1;
    if (!step) return tess_tpl_fail(r, "range with a step of 0");
    for (int64_t i = from; (step > 0 ? i < to : i > to) && r->status == TESS_OK;) {
        if (v.list->count == MOST) return tess_tpl_fail(r, "a range of more than %d", MOST);
        tess_tpl_push(r, v.list, tess_tpl_int(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return v;
}

TPL_BODY(f_raise)
{
    tess_tpl_value what = {0};
    tess_tpl_arg(a, 0, "message", &what);
    what = tess_tpl_text(r, what);
    return tess_tpl_fail(r, "the template says: %.*s", (int)(what.n < 300 ? what.n : 300), what.s ? what.s : "");
}

TPL_BODY(f_strftime)
{
    tess_tpl_value format;
    char text[256], own[128];
    struct tm tm;
    const time_t now = time(NULL);
    if (!string_arg(r, a, 0, "format", &format) || format.n >= sizeof own)
        return tess_tpl_fail(r, "strftime_now takes a short string");
    memcpy(own, format.s, format.n);
    own[format.n] = 0;
    localtime_r(&now, &tm);
    return tess_tpl_copy(r, text, strftime(text, sizeof text, own, &tm));
}

bool tess_tpl_global(tess_tpl_run *r, const char *name, tess_tpl_value *v)
{
    static const tess_tpl_built_in functions[] = {
        {"namespace", f_namespace, 0},   {"range", f_range, 0},           {"dict", f_dict, 0},
        {"raise_exception", f_raise, 0}, {"strftime_now", f_strftime, 0}, {NULL, NULL, 0}};
    const tess_tpl_built_in *f = tess_tpl_built_in_of(functions, name);
    if (f) return *v = bound(r, f, (tess_tpl_value){0}), true;
    if (strcmp(name, "lipsum") && strcmp(name, "cycler") && strcmp(name, "joiner")) return false;
    return *v = tess_tpl_fail(r, "%s is not supported", name), true;
}

tess_tpl_value tess_tpl_call(tess_tpl_run *r, tess_tpl_value f, const tess_tpl_args *a)
{
    if (f.kind == TPL_UNDEFINED)
        return tess_tpl_fail(r, "\"%.*s\" is undefined, and is called", (int)f.n, f.s ? f.s : "");
    if (f.kind != TPL_FUNCTION) return tess_tpl_fail(r, "%s is called", tess_tpl_kind_name(f));
    if (f.function->macro) return r->macro(r, f.function->macro, a);
    return f.function->built_in->call(r, f.function->self, a, f.function->built_in->how);
}
