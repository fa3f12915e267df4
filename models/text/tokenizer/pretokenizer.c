/* Pre-tokenizers cut a part of a text into words. They act one behind the other, each on the pieces that the one before
 * it left: a piece is searched for what matches, and what becomes of matches and of what lies between them is the
 * "behavior". Two of them change the piece before: Metaspace, and ByteLevel with add_prefix_space. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

enum kind {
    SPLIT,
    BYTE_LEVEL,
    METASPACE,
    WHITESPACE,
    WHITESPACE_SPLIT,
    BERT,
    PUNCTUATION,
    DIGITS,
    DELIMITER,
    OLD_DELIMITER,
    KINDS
};
static const char *const NAME[KINDS] = {
    "Split",       "ByteLevel", "Metaspace",          "Whitespace", "WhitespaceSplit", "BertPreTokenizer",
    "Punctuation", "Digits",    "CharDelimiterSplit", "Delimiter"};
enum behavior { REMOVED, ISOLATED, PREVIOUS, NEXT, CONTIGUOUS, BEHAVIORS, WHOLE /* is not cut */ };
static const char *const BEHAVIOR[BEHAVIORS] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                "Contiguous"};
enum scheme { ALWAYS, FIRST, NEVER };

struct tess_split {
    enum behavior behavior;
    bool invert;
    tess_pattern pattern;       /* what matches, */
    bool (*is)(uint32_t c);     /* or which characters do by themselves, */
    bool (*run)(uint32_t c);    /* or, in runs, which do, */
    bool (*or_run)(uint32_t c); /* and which others, */
    bool ends;                  /* or U+2581 behind another character, */
    tess_token mark;            /* or this one, */
    tess_token space;           /* that stands for a blank; empty: a blank does */
    enum scheme prefix;         /* when one is put before a piece */
};

/* ---- reading ---- */

static tess_status read_part(const tess_reader *r, const char *field, const json_t *json, int kind, void *all);
static tess_status enter(const tess_reader *r, const char *field, void *all)
{
    if (!((tess_pretokenizer *)all)->byte_level) return TESS_OK;
    return tess_file_error(r->path, field, "is not supported behind ByteLevel, which is to be the last");
}

#define AT(member) offsetof(struct tess_split, member)
static const tess_member members[] = {{METASPACE, "replacement", TESS_MEMBER_CHARACTER, AT(mark)},
                                      {DELIMITER, "delimiter", TESS_MEMBER_CHARACTER, AT(mark)},
                                      {OLD_DELIMITER, "delimiter", TESS_MEMBER_CHARACTER, AT(mark)}};
static const tess_part_reader reader = {"pre-tokenizer",
                                        "pretokenizers",
                                        NAME,
                                        KINDS,
                                        TESS_SPLITS,
                                        members,
                                        sizeof members / sizeof *members,
                                        read_part,
                                        enter};

static tess_status add_split(const tess_reader *r, const char *field, tess_pretokenizer *p, struct tess_split **s)
{
    TESS_TRY(tess_parts_more(r, &reader, field, TESS_SPLITS, &p->splits));
    *s = &p->split[p->splits - 1];
    **s = (struct tess_split){.behavior = ISOLATED, .prefix = NEVER};
    return TESS_OK;
}

static tess_status read_behavior(const tess_reader *r, const char *field, const json_t *json, struct tess_split *s)
{
    const char *name = tess_json_text(json, "behavior");
    int b = 0;
    while (name && b < BEHAVIORS && strcmp(name, BEHAVIOR[b])) b++;
    if (!name || b == BEHAVIORS)
        return tess_file_error(r->path, field, "behavior %.60s is not supported", name ? name : "(missing)");
    s->behavior = (enum behavior)b;
    return TESS_OK;
}

static tess_status read_metaspace(const tess_reader *r, const char *field, const json_t *json, struct tess_split *s)
{
    static const char *const scheme[] = {"always", "first", "never"};
    const json_t *name = json_object_get(json, "prepend_scheme"), *add = json_object_get(json, "add_prefix_space");
    bool split;
    int k = ALWAYS;
    TESS_TRY(tess_json_flag(r, field, json, "split", true, &split));
    TESS_TRY(tess_members_read(r, &reader, field, json, METASPACE, s));
    s->space = s->mark;
    if (json_is_string(name))
        while (k <= NEVER && strcmp(json_string_value(name), scheme[k])) k++;
    if (k > NEVER || (name && !json_is_string(name)))
        return tess_file_error(r->path, field, "prepend_scheme is none of always, first and never");
    if (json_is_false(add) && name && k != NEVER)
        return tess_file_error(r->path, field, "add_prefix_space is false, prepend_scheme %s", scheme[k]);
    s->prefix = json_is_false(add) ? NEVER : (enum scheme)k;
    s->behavior = split ? NEXT : WHOLE;
    return TESS_OK;
}

/* GPT-2's words. */
static const char GPT2_WORDS[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static tess_status read_byte_level(const tess_reader *r, const char *field, const json_t *json, tess_pretokenizer *p,
                                   struct tess_split *s)
{
    bool prefix, regex;
    TESS_TRY(tess_json_flag(r, field, json, "add_prefix_space", true, &prefix));
    TESS_TRY(tess_json_flag(r, field, json, "use_regex", true, &regex));
    p->byte_level = true;
    s->behavior = regex ? ISOLATED : WHOLE;
    if (prefix) {
        s->prefix = ALWAYS;
        s->space = (tess_token){" ", 1};
    }
    if (regex) return tess_pattern_make(r, field, GPT2_WORDS, &s->pattern);
    if (!prefix) p->splits--; /* there is nothing to do */
    return TESS_OK;
}

static bool is_word(uint32_t c)
{
    return tess_is_word(c);
}
static bool is_sign(uint32_t c)
{
    return !tess_is_word(c) && !tess_is_space(c);
}

static tess_status read_part(const tess_reader *r, const char *field, const json_t *json, int kind, void *all)
{
    tess_pretokenizer *p = all;
    struct tess_split *s;
    TESS_TRY(add_split(r, field, p, &s));
    bool single;
    switch (kind) {
    case SPLIT:
        TESS_TRY(tess_json_flag(r, field, json, "invert", false, &s->invert));
        TESS_TRY(read_behavior(r, field, json, s));
        return tess_pattern_read(r, field, json_object_get(json, "pattern"), &s->pattern);
    case BYTE_LEVEL:
        return read_byte_level(r, field, json, p, s);
    case METASPACE:
        return read_metaspace(r, field, json, s);
    case WHITESPACE:
        s->behavior = REMOVED;
        s->invert = true;
        s->run = is_word;
        s->or_run = is_sign;
        return TESS_OK;
    case BERT:
        s->behavior = REMOVED;
        s->is = tess_is_space;
        TESS_TRY(add_split(r, field, p, &s));
        s->is = tess_is_punctuation;
        return TESS_OK;
    case WHITESPACE_SPLIT:
        s->behavior = REMOVED;
        s->is = tess_is_space;
        return TESS_OK;
    case PUNCTUATION:
        s->is = tess_is_punctuation;
        return json_object_get(json, "behavior") ? read_behavior(r, field, json, s) : TESS_OK;
    case DIGITS:
        TESS_TRY(tess_json_flag(r, field, json, "individual_digits", false, &single));
        s->behavior = single ? ISOLATED : CONTIGUOUS;
        s->is = tess_is_number;
        return TESS_OK;
    default:
        s->behavior = REMOVED;
        return tess_members_read(r, &reader, field, json, kind, s);
    }
}

tess_status tess_pretokenizer_read(const tess_reader *r, const char *field, const json_t *json, tess_pretokenizer *p)
{
    *p = (tess_pretokenizer){.split = tess_arena_get(r->arena, (TESS_SPLITS + 1) * sizeof *p->split)};
    return tess_parts_read(r, &reader, field, json, p);
}

void tess_pretokenizer_end_words(tess_pretokenizer *p)
{
    if (p->splits == TESS_SPLITS) return;
    p->split[p->splits++] = (struct tess_split){.behavior = NEXT, .ends = true, .prefix = NEVER};
}

void tess_pretokenizer_free(tess_pretokenizer *p)
{
    for (int i = 0; i < p->splits; i++) tess_pattern_free(&p->split[i].pattern);
}

bool tess_pretokenizer_may_cut(const tess_pretokenizer *p)
{
    for (int i = 0; i < p->splits; i++) {
        const struct tess_split *s = &p->split[i];
        if (s->behavior == WHOLE) continue;
        if ((s->pattern.code || s->pattern.length) && tess_pattern_spans_blank(&s->pattern)) return false;
        /* A blank that goes to the piece before it, or stays with what is around. */
        if ((s->pattern.code || s->pattern.length || s->mark.length) && s->behavior != NEXT &&
            s->behavior != ISOLATED && s->behavior != REMOVED)
            return false;
    }
    return true;
}

/* ---- searching ---- */

struct segment {
    size_t begin, end;
    bool match;
};

/* A piece that is searched; the segment that comes next is looked for before it is asked for. */
struct search {
    const struct tess_split *split;
    pcre2_match_data *match;
    const char *s;
    size_t n, at;
    struct segment peek;           /* begin == end: not there yet */
    size_t found_begin, found_end; /* the match behind the gap that was returned */
    bool found;
};

static tess_status find_run(const struct search *q, size_t from, size_t *begin, size_t *end, bool *found)
{
    size_t bytes;
    *found = false;
    for (size_t at = from; at < q->n; at += bytes) {
        const uint32_t c = tess_utf8_get(q->s + at, &bytes);
        bool (*run)(uint32_t) = q->split->run(c) ? q->split->run : q->split->or_run(c) ? q->split->or_run : NULL;
        if (!run) continue;
        *found = true;
        *begin = at;
        for (at += bytes; at < q->n && run(tess_utf8_get(q->s + at, &bytes));) at += bytes;
        *end = at;
        break;
    }
    return TESS_OK;
}

static tess_status find_match(const struct search *q, size_t from, size_t *begin, size_t *end, bool *found)
{
    const struct tess_split *s = q->split;
    size_t bytes;
    if (s->pattern.code || s->pattern.length)
        return tess_pattern_find(&s->pattern, q->match, q->s, q->n, from, begin, end, found);
    if (s->run) return find_run(q, from, begin, end, found);
    *found = false;
    if (s->mark.length || s->ends) {
        const char *what = s->ends ? TESS_LINE : s->mark.bytes, *at = q->s + from;
        bytes = s->ends ? 3 : s->mark.length;
        while ((at = memmem(at, (size_t)(q->s + q->n - at), what, bytes))) {
            if (!s->ends || (at - q->s >= 3 && memcmp(at - 3, TESS_LINE, 3)) || (at > q->s && at - q->s < 3)) break;
            at += bytes;
        }
        if (!at) return TESS_OK;
        *found = true;
        *begin = (size_t)(at - q->s);
        *end = *begin + bytes;
        return TESS_OK;
    }
    for (size_t at = from; at < q->n; at += bytes)
        if (s->is(tess_utf8_get(q->s + at, &bytes))) return *found = true, *begin = at, *end = at + bytes, TESS_OK;
    return TESS_OK;
}

/* The next stretch that matches, or does not: begin == end at the end. */
static tess_status next_segment(struct search *q, struct segment *g)
{
    if (!q->found && q->at < q->n) {
        TESS_TRY(find_match(q, q->at, &q->found_begin, &q->found_end, &q->found));
        if (!q->found) q->found_begin = q->n;
    }
    if (q->at < q->found_begin) {
        *g = (struct segment){q->at, q->found_begin, q->split->invert};
        q->at = q->found_begin;
    } else if (q->found) {
        *g = (struct segment){q->found_begin, q->found_end, !q->split->invert};
        q->at = q->found_end;
        q->found = false;
        q->found_begin = 0;
    } else {
        *g = (struct segment){q->n, q->n, false};
    }
    return TESS_OK;
}

static tess_status peek_segment(struct search *q)
{
    return q->peek.begin == q->peek.end ? next_segment(q, &q->peek) : TESS_OK;
}

/* The next piece: begin == end at the end. */
static tess_status next_piece(struct search *q, struct segment *g)
{
    const enum behavior b = q->split->behavior;
    for (;;) {
        TESS_TRY(peek_segment(q));
        *g = q->peek;
        q->peek = (struct segment){0};
        if (b != REMOVED || !g->match || g->begin == g->end) break;
    }
    if (g->begin == g->end || b == REMOVED || b == ISOLATED) return TESS_OK;
    for (;;) {
        TESS_TRY(peek_segment(q));
        const struct segment *p = &q->peek;
        const bool joins = b == CONTIGUOUS ? p->match == g->match : p->match != g->match && g->match == (b == NEXT);
        if (p->begin == p->end || !joins) return TESS_OK;
        g->end = p->end;
        q->peek = (struct segment){0};
        if (b != CONTIGUOUS) return TESS_OK;
    }
}

/* ---- the levels ---- */

/* What a split makes of a piece before it searches it. */
static void change(tess_cutting *c, int level, bool first, const char **s, size_t *n)
{
    const struct tess_split *split = &c->p->split[level];
    const size_t k = split->space.length;
    if (!k) return;
    const bool blank = *split->space.bytes == ' ';
    const bool has = **s == ' ' || (*n >= k && memcmp(*s, split->space.bytes, k) == 0);
    const bool prefix = !has && (split->prefix == ALWAYS || (split->prefix == FIRST && first));
    if (!prefix && (blank || !memchr(*s, ' ', *n))) return;
    tess_bytes *out = &c->own[level];
    out->length = 0;
    if (prefix) tess_bytes_add(out, split->space.bytes, k);
    for (size_t at = 0, end; at < *n; at = end + 1) {
        const char *next = blank ? NULL : memchr(*s + at, ' ', *n - at);
        end = next ? (size_t)(next - *s) : *n;
        tess_bytes_add(out, *s + at, end - at);
        if (next) tess_bytes_add(out, split->space.bytes, k);
    }
    *s = out->data;
    *n = out->length;
}

static tess_status cut(tess_cutting *c, int level, bool first, const char *s, size_t n)
{
    if (!n) return TESS_OK;
    if (level == c->p->splits) return c->word(c->user, s, n);
    const struct tess_split *split = &c->p->split[level];
    change(c, level, first, &s, &n);
    if (split->behavior == WHOLE) return cut(c, level + 1, first, s, n);
    struct search q = {.split = split, .match = c->match, .s = s, .n = n};
    for (struct segment g;;) {
        TESS_TRY(next_piece(&q, &g));
        if (g.begin == g.end) return TESS_OK;
        TESS_TRY(cut(c, level + 1, first && !g.begin, s + g.begin, g.end - g.begin));
    }
}

void tess_cutting_start(tess_cutting *c, const char *text, size_t length, bool first)
{
    c->text = text;
    c->length = length;
    c->at = 0;
    c->first = first;
    c->held = false;
}

/* The first split of a part goes on from call to call, since the part may be a whole file. A search that begins again
 * behind a piece finds the same pieces as one that never stopped: no piece is joined to the one before it. */
tess_status tess_cutting_next(tess_cutting *c, size_t bytes)
{
    const struct tess_split *split = c->p->split;
    if (!c->length) return TESS_OK;
    if (!c->p->splits) {
        c->at = c->length;
        return c->word(c->user, c->text, c->length);
    }
    if (!c->held) {
        change(c, 0, c->first, &c->text, &c->length);
        c->held = true;
    }
    if (split->behavior == WHOLE) {
        c->at = c->length;
        return cut(c, 1, c->first, c->text, c->length);
    }
    struct search q = {.split = split, .match = c->match, .s = c->text, .n = c->length, .at = c->at};
    for (struct segment g;;) {
        TESS_TRY(next_piece(&q, &g));
        if (g.begin == g.end) return c->at = c->length, TESS_OK;
        TESS_TRY(cut(c, 1, c->first && !g.begin, c->text + g.begin, g.end - g.begin));
        if (g.end - c->at < bytes) continue;
        c->at = g.end;
        return TESS_OK;
    }
}

void tess_cutting_free(tess_cutting *c)
{
    for (int i = 0; i < TESS_SPLITS; i++) free(c->own[i].data);
    *c = (tess_cutting){0};
}
