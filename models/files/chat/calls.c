/* Members, subscripts, functions and methods. */
#include "template_impl.h"
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

typedef tess_tpl_value method(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a);

static tess_tpl_value strip_sides(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a, bool left, bool right)
{
    tess_tpl_value set;
    const bool given = string_arg(r, a, 0, "chars", &set);
    return tess_tpl_strip(self.s, self.n, given ? set.s : NULL, given ? set.n : 0, left, right);
}
static tess_tpl_value m_strip(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return strip_sides(r, self, a, true, true);
}
static tess_tpl_value m_lstrip(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return strip_sides(r, self, a, true, false);
}
static tess_tpl_value m_rstrip(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return strip_sides(r, self, a, false, true);
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

static tess_tpl_value split(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a, bool from_right)
{
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
static tess_tpl_value m_split(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return split(r, self, a, false);
}
static tess_tpl_value m_rsplit(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return split(r, self, a, true);
}

static tess_tpl_value m_splitlines(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    const tess_tpl_value v = tess_tpl_list_new(r, TPL_SEQUENCE);
    (void)a;
    for (size_t at = 0, end; at < self.n; at = end) {
        for (end = at; end < self.n && self.s[end] != '\n' && self.s[end] != '\r';) end++;
        tess_tpl_push(r, v.list, tess_tpl_string(self.s + at, end - at));
        if (end < self.n) end += 1 + (self.s[end] == '\r' && end + 1 < self.n && self.s[end + 1] == '\n');
    }
    return v;
}

/* Does it begin, or end, with the argument, or with one of them where that is a tuple? */
static tess_tpl_value at_end(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a, bool end)
{
    tess_tpl_value what = {0};
    tess_tpl_arg(a, 0, "", &what);
    tess_tpl_list one = {.item = &what, .count = 1};
    const tess_tpl_list *l = what.kind == TPL_FIXED ? what.list : &one;
    for (size_t i = 0; i < l->count; i++) {
        const tess_tpl_value *w = &l->item[i];
        if (w->kind != TPL_STRING) return tess_tpl_fail(r, "expected a string, found %s", tess_tpl_kind_name(*w));
        if (w->n <= self.n && memcmp(end ? self.s + self.n - w->n : self.s, w->s, w->n) == 0)
            return tess_tpl_bool(true);
    }
    return tess_tpl_bool(false);
}
static tess_tpl_value m_startswith(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return at_end(r, self, a, false);
}
static tess_tpl_value m_endswith(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return at_end(r, self, a, true);
}

static tess_tpl_value m_lower(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return (void)a, tess_tpl_lower(r, self, 0);
}
static tess_tpl_value m_upper(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return (void)a, tess_tpl_lower(r, self, 1);
}
static tess_tpl_value m_title(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return (void)a, tess_tpl_lower(r, self, 2);
}
static tess_tpl_value m_capitalize(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return (void)a, tess_tpl_lower(r, self, 3);
}

static tess_tpl_value m_replace(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    tess_tpl_value from, to;
    if (!string_arg(r, a, 0, "old", &from) || !string_arg(r, a, 1, "new", &to))
        return tess_tpl_fail(r, "replace takes two strings");
    return tess_tpl_replace(r, self, from, to, int_arg(a, 2, "count", -1));
}

static tess_tpl_value m_join(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    tess_tpl_value list = {0};
    tess_tpl_arg(a, 0, "", &list);
    return tess_tpl_join(r, list, self, NULL);
}

static tess_tpl_value m_find(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    tess_tpl_value what;
    if (!string_arg(r, a, 0, "", &what)) return tess_tpl_fail(r, "find takes a string");
    const char *at = what.n ? memmem(self.s, self.n, what.s, what.n) : self.s;
    return tess_tpl_int(at ? (int64_t)tess_tpl_characters(self.s, (size_t)(at - self.s)) : -1);
}

static tess_tpl_value m_count(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    tess_tpl_value what = {0};
    int64_t count = 0;
    if (!tess_tpl_arg(a, 0, "", &what)) return tess_tpl_fail(r, "count takes an argument");
    if (self.kind != TPL_STRING) {
        for (size_t i = 0; i < self.list->count; i++) count += tess_tpl_equal(self.list->item[i], what);
        return tess_tpl_int(count);
    }
    if (what.kind != TPL_STRING || !what.n) return tess_tpl_fail(r, "count takes a string");
    for (const char *at = self.s, *end = self.s + self.n; (at = memmem(at, (size_t)(end - at), what.s, what.n));
         at += what.n)
        count++;
    return tess_tpl_int(count);
}

static tess_tpl_value m_isdigit(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    (void)r, (void)a;
    bool all = self.n > 0;
    for (size_t i = 0; i < self.n; i++) all &= self.s[i] >= '0' && self.s[i] <= '9';
    return tess_tpl_bool(all);
}

/* ---- methods of mappings and lists ---- */

static tess_tpl_value parts_of(tess_tpl_run *r, tess_tpl_value self, int which)
{
    const tess_tpl_value v = tess_tpl_list_new(r, TPL_SEQUENCE);
    for (size_t i = 0; i < self.list->count && r->status == TESS_OK; i += 2) {
        if (which < 2) {
            tess_tpl_push(r, v.list, self.list->item[i + (size_t)which]);
            continue;
        }
        const tess_tpl_value pair = tess_tpl_list_new(r, TPL_FIXED);
        tess_tpl_push(r, pair.list, self.list->item[i]);
        tess_tpl_push(r, pair.list, self.list->item[i + 1]);
        tess_tpl_push(r, v.list, pair);
    }
    return v;
}
static tess_tpl_value m_keys(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return (void)a, parts_of(r, self, 0);
}
static tess_tpl_value m_values(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return (void)a, parts_of(r, self, 1);
}
static tess_tpl_value m_items(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    return (void)a, parts_of(r, self, 2);
}

static tess_tpl_value m_get(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    tess_tpl_value key, v = {.kind = TPL_NONE};
    if (!tess_tpl_arg(a, 0, "key", &key)) return tess_tpl_fail(r, "get takes a key");
    tess_tpl_arg(a, 1, "default", &v);
    for (size_t i = 0; i < self.list->count; i += 2)
        if (tess_tpl_equal(self.list->item[i], key)) return self.list->item[i + 1];
    return v;
}

static tess_tpl_value m_index(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    tess_tpl_value what = {0};
    tess_tpl_arg(a, 0, "", &what);
    for (size_t i = 0; i < self.list->count; i++)
        if (tess_tpl_equal(self.list->item[i], what)) return tess_tpl_int((int64_t)i);
    return tess_tpl_fail(r, "index: it is not in the list");
}

static const struct {
    const char *name;
    method *call;
} of_strings[] = {{"strip", m_strip},           {"lstrip", m_lstrip},     {"rstrip", m_rstrip},
                  {"split", m_split},           {"rsplit", m_rsplit},     {"splitlines", m_splitlines},
                  {"startswith", m_startswith}, {"endswith", m_endswith}, {"lower", m_lower},
                  {"upper", m_upper},           {"title", m_title},       {"capitalize", m_capitalize},
                  {"replace", m_replace},       {"join", m_join},         {"find", m_find},
                  {"count", m_count},           {"isdigit", m_isdigit},   {NULL, NULL}},
  of_mappings[] = {{"get", m_get}, {"items", m_items}, {"keys", m_keys}, {"values", m_values}, {NULL, NULL}},
  of_lists[] = {{"index", m_index}, {"count", m_count}, {NULL, NULL}};

static tess_tpl_value bound(tess_tpl_run *r, const char *name, method *call, tess_tpl_value self)
{
    tess_tpl_function *f = tess_tpl_get(r, sizeof *f);
    if (!f) return (tess_tpl_value){0};
    *f = (tess_tpl_function){.name = name, .call = call, .self = self};
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
    for (size_t i = 0; of.kind == TPL_STRING && of_strings[i].name; i++)
        if (!strcmp(name, of_strings[i].name)) return bound(r, name, of_strings[i].call, of);
    for (size_t i = 0; of.kind == TPL_MAPPING && of_mappings[i].name; i++)
        if (!strcmp(name, of_mappings[i].name)) return bound(r, name, of_mappings[i].call, of);
    for (size_t i = 0; (of.kind == TPL_SEQUENCE || of.kind == TPL_FIXED) && of_lists[i].name; i++)
        if (!strcmp(name, of_lists[i].name)) return bound(r, name, of_lists[i].call, of);
    if (of.kind == TPL_LOOP) {
        if (loop_member(of.loop, name, &v)) return v;
        return tess_tpl_fail(r, "loop.%s is not supported", name);
    }
    if (tess_tpl_find(of, name, n, &v)) return v;
    if (of.kind == TPL_STRING || of.kind == TPL_SEQUENCE || of.kind == TPL_FIXED) {
        /* What Python's have and these do not would be taken for missing. */
        static const char *const others[] = {
            "append",  "extend",   "insert",     "pop",       "remove",    "reverse",     "sort",
            "format",  "encode",   "isalpha",    "isspace",   "partition", "rpartition",  "removeprefix",
            "zfill",   "swapcase", "expandtabs", "translate", "center",    "ljust",       "rjust",
            "isalnum", "isupper",  "islower",    "rfind",     "casefold",  "removesuffix"};
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            if (!strcmp(name, others[i]))
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
            if (tess_tpl_equal(of.list->item[i], key)) return of.list->item[i + 1];
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
    for (size_t i = 0; i < l->count && r->status == TESS_OK; i++) {
        if (i) tess_bytes_add(&out, by.s, by.n);
        tess_tpl_write(r, path ? tess_tpl_path(r, l->item[i], *path) : l->item[i], &out);
    }
    const tess_tpl_value text = r->status == TESS_OK ? tess_tpl_copy(r, out.data, out.length) : by;
    free(out.data);
    return text;
}

/* ---- functions ---- */

static tess_tpl_value f_namespace(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    tess_tpl_value v = tess_tpl_list_new(r, TPL_NAMESPACE), given;
    (void)self;
    if (tess_tpl_arg(a, 0, "", &given) && given.kind == TPL_MAPPING)
        for (size_t i = 0; i < given.list->count; i++) tess_tpl_push(r, v.list, given.list->item[i]);
    for (size_t i = 0; i < a->count; i++)
        if (a->name && a->name[i])
            tess_tpl_put(r, v.list, tess_tpl_string(a->name[i], strlen(a->name[i])), a->value[i]);
    return v;
}

static tess_tpl_value f_dict(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    tess_tpl_value v = f_namespace(r, self, a);
    v.kind = TPL_MAPPING;
    return v;
}

static tess_tpl_value f_range(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    enum { MOST = 100000 };
    const tess_tpl_value v = tess_tpl_list_new(r, TPL_SEQUENCE);
    (void)self;
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

static tess_tpl_value f_raise(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    tess_tpl_value what = {0};
    (void)self;
    tess_tpl_arg(a, 0, "message", &what);
    what = tess_tpl_text(r, what);
    return tess_tpl_fail(r, "the template says: %.*s", (int)(what.n < 300 ? what.n : 300), what.s ? what.s : "");
}

static tess_tpl_value f_strftime(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a)
{
    tess_tpl_value format;
    char text[256], own[128];
    struct tm tm;
    const time_t now = time(NULL);
    (void)self;
    if (!string_arg(r, a, 0, "format", &format) || format.n >= sizeof own)
        return tess_tpl_fail(r, "strftime_now takes a short string");
    memcpy(own, format.s, format.n);
    own[format.n] = 0;
    localtime_r(&now, &tm);
    return tess_tpl_copy(r, text, strftime(text, sizeof text, own, &tm));
}

bool tess_tpl_global(tess_tpl_run *r, const char *name, tess_tpl_value *v)
{
    static const struct {
        const char *name;
        method *call;
    } functions[] = {{"namespace", f_namespace},
                     {"range", f_range},
                     {"dict", f_dict},
                     {"raise_exception", f_raise},
                     {"strftime_now", f_strftime}};
    static const char *const others[] = {"lipsum", "cycler", "joiner"};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(name, functions[i].name)) return *v = bound(r, name, functions[i].call, (tess_tpl_value){0}), true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i])) return *v = tess_tpl_fail(r, "%s is not supported", name), true;
    return false;
}

tess_tpl_value tess_tpl_call(tess_tpl_run *r, tess_tpl_value f, const tess_tpl_args *a)
{
    if (f.kind == TPL_UNDEFINED)
        return tess_tpl_fail(r, "\"%.*s\" is undefined, and is called", (int)f.n, f.s ? f.s : "");
    if (f.kind != TPL_FUNCTION) return tess_tpl_fail(r, "%s is called", tess_tpl_kind_name(f));
    if (f.function->macro) return r->macro(r, f.function->macro, a);
    return f.function->call(r, f.function->self, a);
}
