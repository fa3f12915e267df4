/* Patterns on the names of parameters, see networks.h. */
#include "models/networks/model/model.h"
#include "models/text/base/text.h"
#include <stdlib.h>
#include <string.h>

/* ---- parts of a pattern ---- */

typedef enum part_kind { LETTER, ANY, RUN, RANGE } part_kind;
struct part {
    part_kind kind;
    char letter;
    int64_t least, most; /* of a range */
};

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A number of at most 18 digits, and how many they are; 0: there is none. */
static size_t number(const char *text, int64_t *value)
{
    size_t n = 0;
    for (*value = 0; digit(text[n]) && n < 18; n++) *value = *value * 10 + (text[n] - '0');
    return digit(text[n]) ? 0 : n;
}

/* The part that `at` begins with; returns its letters. A range is two numbers: the first begins where digits do. */
static size_t part_at(const char *pattern, const char *at, struct part *p)
{
    *p = (struct part){.kind = *at == '*' ? RUN : *at == '?' ? ANY : LETTER, .letter = *at};
    if (at > pattern && digit(at[-1])) return 1;
    const size_t first = number(at, &p->least);
    const size_t second = first && at[first] == '-' ? number(at + first + 1, &p->most) : 0;
    if (!second) return 1;
    p->kind = RANGE;
    return first + 1 + second;
}

/* How much of `at` in a name the part takes, which is no run; 0: it does not match. A number is whole: no digit is
 * before it. */
static size_t takes(const struct part *p, const char *name, const char *at)
{
    int64_t value;
    if (p->kind == ANY) return *at ? 1 : 0;
    if (p->kind == LETTER) return *at == p->letter ? 1 : 0;
    const size_t n = at > name && digit(at[-1]) ? 0 : number(at, &value);
    return n && value >= p->least && value <= p->most ? n : 0;
}

/* What comes before the last run that was met matches for good: only that one is tried longer. */
bool tess_pattern_matches(const char *pattern, const char *name)
{
    const char *p = pattern, *s = name, *again = NULL, *from = NULL;
    for (;;) {
        struct part part;
        size_t n = 0, taken = 0;
        if (*p) n = part_at(pattern, p, &part);
        if (n && part.kind == RUN) {
            again = p += n;
            from = s;
            continue;
        }
        if (n) taken = takes(&part, name, s);
        if (!n && !*s) return true;
        if (taken) {
            p += n;
            s += taken;
        } else if (again && *from) {
            p = again;
            s = ++from;
        } else
            return false;
    }
}

bool tess_names_have(const char *list, const char *name)
{
    for (const char *word = list ? list : ""; *word;) {
        char pattern[128];
        word += *word == ' ';
        const size_t n = strcspn(word, " ");
        snprintf(pattern, sizeof pattern, "%.*s", (int)n, word);
        if (tess_pattern_matches(pattern, name)) return true;
        word += n;
    }
    return false;
}

bool tess_pattern_is(const char *text)
{
    struct part p;
    for (const char *at = text; *at;) {
        at += part_at(text, at, &p);
        if (p.kind != LETTER) return true;
    }
    return false;
}

char *tess_pattern_expression(const char *pattern)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    struct part p;
    for (const char *at = pattern; *at;) {
        at += part_at(pattern, at, &p);
        if (p.kind == RUN) fputs(".*", to);
        if (p.kind == ANY) fputc('.', to);
        if (p.kind == LETTER) fprintf(to, strchr(".+()[]{}^$|\\", p.letter) ? "\\%c" : "%c", p.letter);
        if (p.kind != RANGE) continue;
        fputc('(', to);
        for (int64_t k = p.least; k <= p.most && k - p.least < 10000; k++)
            fprintf(to, k > p.least ? "|%lld" : "%lld", (long long)k);
        fputc(')', to);
    }
    fclose(to);
    return text;
}

/* ---- what was meant ---- */

static size_t less(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* By rows of the table that edit distances are found in, a part of the pattern each. Numbers of a name are letters
 * here, but where a range takes them. */
size_t tess_pattern_distance(const char *pattern, const char *name)
{
    const size_t n = strlen(name);
    size_t *before = tess_alloc(2 * (n + 1) * sizeof *before), *row = before + n + 1, *const room = before;
    for (size_t j = 0; j <= n; j++) before[j] = j;
    for (const char *at = pattern; *at;) {
        struct part p;
        const size_t length = part_at(pattern, at, &p), dropped = p.kind == RUN ? 0 : length;
        for (size_t j = 0; j <= n; j++) {
            row[j] = before[j] + dropped;
            if (j > 0) row[j] = less(row[j], row[j - 1] + (p.kind == RUN ? 0 : 1));
            if (j > 0 && p.kind != RUN) row[j] = less(row[j], before[j - 1] + length);
            for (size_t k = 0; k < j && p.kind != RUN; k++)
                if (takes(&p, name, name + k) == j - k) row[j] = less(row[j], before[k]);
        }
        at += length;
        size_t *const swap = before;
        before = row;
        row = swap;
    }
    const size_t d = before[n];
    free(room);
    return d;
}

/* A name as files have it, in `full`; returns how much of it is the family's prefix. */
static size_t name_in_files(const tess_model *m, const tess_tensor *p, char full[static 512])
{
    const char *name = tess_tensor_name(p), *prefix = tess_names_have(m->family->bare, name) ? "" : m->family->prefix;
    snprintf(full, 512, "%s%s", prefix, name);
    return strlen(prefix);
}

/* Two letters of three of a pattern's must be right for a name to be what it means. */
static tess_status no_match(const tess_model *m, const tess_graph *g, const char *where, const char *pattern)
{
    char near[512] = "", full[512];
    size_t letters = 0;
    for (const char *at = pattern; *at; at++) letters += *at != '*';
    size_t least = letters / 3 + 2;
    for (int k = 0; k < tess_graph_params(g); k++) {
        const size_t prefix = name_in_files(m, tess_graph_param(g, k), full);
        const size_t d = less(tess_pattern_distance(pattern, full), tess_pattern_distance(pattern, full + prefix));
        if (d >= least) continue;
        least = d;
        snprintf(near, sizeof near, "%s", full);
    }
    return tess_error(TESS_INVALID, where, "\"%.200s\" matches no parameter of this %s%s%.200s%s", pattern,
                      m->family->type, near[0] ? " (the nearest is " : "", near, near[0] ? ")" : "");
}

tess_status tess_patterns_mark(const tess_model *m, const tess_graph *g, const char *where, const char *pattern,
                               bool *marked)
{
    bool any = false;
    for (int k = 0; k < tess_graph_params(g); k++) {
        char full[512];
        const size_t prefix = name_in_files(m, tess_graph_param(g, k), full);
        const bool hit = tess_pattern_matches(pattern, full) || tess_pattern_matches(pattern, full + prefix);
        marked[k] |= hit;
        any |= hit;
    }
    return any ? TESS_OK : no_match(m, g, where, pattern);
}

tess_status tess_patterns_mark_all(const tess_model *m, const tess_graph *g, const char *where, const char *list,
                                   bool *marked)
{
    if (!list) return TESS_OK;
    TESS_FREED_JSON json_t *all = list[0] == '[' ? json_loads(list, 0, NULL) : NULL;
    if (!all) return tess_patterns_mark(m, g, where, list, marked);
    tess_status status = TESS_OK;
    for (size_t i = 0; i < json_array_size(all) && status == TESS_OK; i++)
        status = tess_patterns_mark(m, g, where, json_string_value(json_array_get(all, i)), marked);
    return status;
}
