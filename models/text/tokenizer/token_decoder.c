/* Decoders: the tokens of ids to a text, each on the list that the one before it left. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

enum kind { BYTE_LEVEL, METASPACE, WORDPIECE, BYTE_FALLBACK, FUSE, STRIP, REPLACE, KINDS };
static const char *const NAME[KINDS] = {"ByteLevel", "Metaspace", "WordPiece", "ByteFallback",
                                        "Fuse",      "Strip",     "Replace"};
struct part {
    enum kind kind;
    tess_token mark;     /* Metaspace, Strip: a character */
    bool drops;          /* Metaspace: those of the first token go */
    int64_t start, stop; /* Strip */
    tess_pattern pattern;
    tess_token content; /* Replace; WordPiece: the prefix */
    bool cleans;        /* WordPiece */
};
enum { PARTS = 16 };
struct tess_token_decoder {
    struct part part[PARTS];
    int parts;
};

/* ---- the alphabet of bytes ---- */

enum { LETTERS = 256 + 68 };

/* The byte that a letter stands for; -1: none. A byte's letter is the character of that number where it is printable;
 * the other 68 bytes have 256 and up in their order. */
static int byte_of(uint32_t letter)
{
    if (letter < 256) {
        const bool printable = (letter > ' ' && letter < 0x7f) || (letter > 0xa0 && letter != 0xad);
        return printable ? (int)letter : -1;
    }
    if (letter >= LETTERS) return -1;
    const int k = (int)letter - 256; /* 33 from 0 on, 34 from 0x7f on, 0xad */
    return k < 33 ? k : k < 67 ? 0x7f + k - 33 : 0xad;
}

bool tess_alphabet_bytes(tess_arena *arena, tess_token *token)
{
    char *out = tess_arena_get(arena, token->length + 1);
    size_t n = 0, bytes;
    for (size_t at = 0; at < token->length; at += bytes) {
        const int byte = byte_of(tess_utf8_get(token->bytes + at, &bytes));
        if (byte < 0) return false;
        out[n++] = (char)byte;
    }
    *token = (tess_token){out, n};
    return true;
}

/* ---- reading ---- */

#define AT(member) offsetof(struct part, member)
static const tess_member members[] = {{METASPACE, "replacement", TESS_MEMBER_CHARACTER, AT(mark)},
                                      {WORDPIECE, "cleanup", TESS_MEMBER_FLAG, AT(cleans)},
                                      {WORDPIECE, "prefix", TESS_MEMBER_TEXT, AT(content)},
                                      {STRIP, "start", TESS_MEMBER_COUNT, AT(start)},
                                      {STRIP, "stop", TESS_MEMBER_COUNT, AT(stop)},
                                      {STRIP, "content", TESS_MEMBER_CHARACTER, AT(mark)},
                                      {REPLACE, "content", TESS_MEMBER_TEXT, AT(content)},
                                      {REPLACE, "pattern", TESS_MEMBER_PATTERN, AT(pattern)}};

static tess_status read_part(const tess_reader *r, const char *field, const json_t *json, int kind, void *all);
static const tess_part_reader reader = {
    "decoder", "decoders", NAME, KINDS, PARTS, members, sizeof members / sizeof *members, read_part, NULL};

static tess_status read_part(const tess_reader *r, const char *field, const json_t *json, int kind, void *all)
{
    tess_token_decoder *d = all;
    const char *scheme = tess_json_text(json, "prepend_scheme");
    TESS_TRY(tess_parts_more(r, &reader, field, PARTS, &d->parts));
    struct part *p = &d->part[d->parts - 1];
    p->kind = (enum kind)kind;
    p->drops = !json_is_false(json_object_get(json, "add_prefix_space")) && !(scheme && !strcmp(scheme, "never"));
    return tess_members_read(r, &reader, field, json, kind, p);
}

tess_status tess_token_decoder_read(const tess_reader *r, const char *field, const json_t *json, tess_token_decoder **d)
{
    *d = json && !json_is_null(json) ? tess_alloc(sizeof **d) : NULL;
    return tess_parts_read(r, &reader, field, json, *d);
}

void tess_token_decoder_free(tess_token_decoder *d)
{
    for (int i = 0; d && i < d->parts; i++) tess_pattern_free(&d->part[i].pattern);
    free(d);
}

bool tess_token_decoder_byte_level(const tess_token_decoder *d)
{
    return d && d->parts && d->part[0].kind == BYTE_LEVEL;
}

bool tess_token_decoder_blanks(const tess_token_decoder *d)
{
    for (int i = 0; d && i < d->parts; i++) {
        const struct part *p = &d->part[i];
        if (p->kind == METASPACE && !strcmp(p->mark.bytes, TESS_LINE)) return true;
        if (p->kind == REPLACE && p->pattern.length && !strcmp(p->pattern.text, TESS_LINE)) return true;
    }
    return false;
}

/* ---- acting ---- */

/* A list of texts, one behind the other. */
struct list {
    tess_bytes bytes;
    size_t *end, count, room;
};

static void end_text(struct list *l)
{
    if (l->count == l->room) {
        l->room = 2 * l->room + 64;
        l->end = tess_realloc(l->end, l->room * sizeof *l->end);
    }
    l->end[l->count++] = l->bytes.length;
}

static tess_token text_of(const struct list *l, size_t i)
{
    const size_t begin = i ? l->end[i - 1] : 0;
    return (tess_token){l->bytes.data ? l->bytes.data + begin : "", l->end[i] - begin};
}

static void fuse(const struct list *in, struct list *out, bool lossy)
{
    if (lossy)
        tess_bytes_add_lossy(&out->bytes, in->bytes.data, in->bytes.length);
    else
        tess_bytes_add(&out->bytes, in->bytes.data, in->bytes.length);
    end_text(out);
}

static void metaspace(const struct part *p, const struct list *in, struct list *out)
{
    for (size_t i = 0; i < in->count; i++) {
        const tess_token t = text_of(in, i);
        for (size_t at = 0, n; at < t.length; at += n) {
            tess_utf8_get(t.bytes + at, &n);
            if (n != p->mark.length || memcmp(t.bytes + at, p->mark.bytes, n))
                tess_bytes_add(&out->bytes, t.bytes + at, n);
            else if (i || !p->drops)
                tess_bytes_add(&out->bytes, " ", 1);
        }
        end_text(out);
    }
}

static void replace_all(tess_bytes *b, size_t begin, const char *from, const char *to)
{
    const size_t n = strlen(from), m = strlen(to); /* m <= n */
    size_t put = begin;
    for (size_t at = begin; at < b->length;) {
        const bool met = b->length - at >= n && !memcmp(b->data + at, from, n);
        if (met)
            memcpy(b->data + put, to, m), put += m, at += n;
        else
            b->data[put++] = b->data[at++];
    }
    b->length = put;
}

static void wordpiece(const struct part *p, const struct list *in, struct list *out)
{
    static const char *const tidy[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                          {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                          {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < in->count; i++) {
        tess_token t = text_of(in, i);
        const size_t begin = out->bytes.length;
        if (i && t.length >= p->content.length && !memcmp(t.bytes, p->content.bytes, p->content.length))
            t.bytes += p->content.length, t.length -= p->content.length;
        else if (i)
            tess_bytes_add(&out->bytes, " ", 1);
        tess_bytes_add(&out->bytes, t.bytes, t.length);
        for (size_t k = 0; p->cleans && k < sizeof tidy / sizeof *tidy; k++)
            replace_all(&out->bytes, begin, tidy[k][0], tidy[k][1]);
        end_text(out);
    }
}

/* The byte of "<0x41>"; -1: it is none. */
static int byte_token(tess_token t)
{
    int value = 0;
    if (t.length != 6 || memcmp(t.bytes, "<0x", 3) || t.bytes[5] != '>') return -1;
    if (t.bytes[3] == '+')
        return t.bytes[4] >= '0' && t.bytes[4] <= '9'                 ? t.bytes[4] - '0'
               : (t.bytes[4] | 32) >= 'a' && (t.bytes[4] | 32) <= 'f' ? (t.bytes[4] | 32) - 'a' + 10
                                                                      : -1;
    for (int i = 3; i < 5; i++) {
        const char c = t.bytes[i], l = (char)(c | 32);
        if (!(c >= '0' && c <= '9') && !(l >= 'a' && l <= 'f')) return -1;
        value = 16 * value + (c <= '9' ? c - '0' : l - 'a' + 10);
    }
    return value;
}

/* Byte tokens in a row are the text that they spell, or as many U+FFFD. */
static void byte_fallback(const struct list *in, struct list *out)
{
    tess_bytes held = {0};
    for (size_t i = 0; i <= in->count; i++) {
        const tess_token t = i < in->count ? text_of(in, i) : (tess_token){"", 0};
        const int byte = i < in->count ? byte_token(t) : -1;
        if (byte >= 0) {
            tess_bytes_add(&held, &(char){(char)byte}, 1);
            continue;
        }
        if (held.length && tess_utf8_valid(held.data, held.length) == held.length) {
            tess_bytes_add(&out->bytes, held.data, held.length);
            end_text(out);
        } else {
            for (size_t k = 0; k < held.length; k++) tess_bytes_add(&out->bytes, "\xef\xbf\xbd", 3), end_text(out);
        }
        held.length = 0;
        if (i == in->count) break;
        tess_bytes_add(&out->bytes, t.bytes, t.length);
        end_text(out);
    }
    free(held.data);
}

static void strip(const struct part *p, const struct list *in, struct list *out)
{
    for (size_t i = 0; i < in->count; i++) {
        tess_token t = text_of(in, i);
        for (int64_t k = 0;
             k < p->start && t.length >= p->mark.length && !memcmp(t.bytes, p->mark.bytes, p->mark.length); k++)
            t.bytes += p->mark.length, t.length -= p->mark.length;
        for (int64_t k = 0; k < p->stop && t.length >= p->mark.length; k++) {
            if (memcmp(t.bytes + t.length - p->mark.length, p->mark.bytes, p->mark.length)) break;
            t.length -= p->mark.length;
        }
        tess_bytes_add(&out->bytes, t.bytes, t.length);
        end_text(out);
    }
}

static void replace(const struct part *p, pcre2_match_data *match, const struct list *in, struct list *out)
{
    for (size_t i = 0; i < in->count; i++) {
        const tess_token t = text_of(in, i);
        size_t from = 0, begin, end;
        bool found;
        while (tess_pattern_find(&p->pattern, match, t.bytes, t.length, from, &begin, &end, &found) == TESS_OK &&
               found) {
            tess_bytes_add(&out->bytes, t.bytes + from, begin - from);
            tess_bytes_add(&out->bytes, p->content.bytes, p->content.length);
            from = end;
        }
        tess_bytes_add(&out->bytes, t.bytes + from, t.length - from);
        end_text(out);
    }
}

static void act(const struct part *p, pcre2_match_data *match, const struct list *in, struct list *out)
{
    const enum kind k = p->kind;
    if (k == BYTE_LEVEL || k == FUSE) fuse(in, out, k == BYTE_LEVEL); /* the tokens are bytes already */
    if (k == METASPACE) metaspace(p, in, out);
    if (k == WORDPIECE) wordpiece(p, in, out);
    if (k == BYTE_FALLBACK) byte_fallback(in, out);
    if (k == STRIP) strip(p, in, out);
    if (k == REPLACE) replace(p, match, in, out);
}

void tess_token_decoder_apply(const tess_token_decoder *d, const tess_token *token, size_t count, tess_bytes *out)
{
    struct list list[2] = {0};
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    int now = 0;
    for (size_t i = 0; i < count; i++) {
        if (!d && i) tess_bytes_add(&list[0].bytes, " ", 1);
        tess_bytes_add(&list[0].bytes, token[i].bytes, token[i].length);
        end_text(&list[0]);
    }
    for (int i = 0; d && i < d->parts; i++, now = !now) {
        list[!now].bytes.length = list[!now].count = 0;
        act(&d->part[i], match, &list[now], &list[!now]);
    }
    tess_bytes_add_lossy(out, list[now].bytes.data, list[now].bytes.length);
    for (int i = 0; i < 2; i++) free(list[i].bytes.data), free(list[i].end);
    pcre2_match_data_free(match);
}
