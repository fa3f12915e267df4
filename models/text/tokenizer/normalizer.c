/* Normalizers, in the order in which they act. Each makes another text of the one it is given, or leaves it where it
 * is. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

enum kind { NFC, NFD, NFKC, NFKD, LOWERCASE, STRIP_ACCENTS, NMT, STRIP, REPLACE, PREPEND, BERT, PRECOMPILED, KINDS };
static const char *const NAME[KINDS] = {"NFC", "NFD",   "NFKC",    "NFKD",    "Lowercase",      "StripAccents",
                                        "Nmt", "Strip", "Replace", "Prepend", "BertNormalizer", "Precompiled"};

struct part {
    enum kind kind;
    bool left, right;                    /* Strip */
    bool clean, chinese, accents, lower; /* BertNormalizer */
    tess_pattern pattern;                /* Replace */
    tess_token content;                  /* Replace, Prepend */
    tess_charsmap *map;
    bool clusters; /* are what it is looked up for; else the longest that it has, which sentencepiece.c asks for */
};
enum { PARTS = 32 };
struct tess_normalizer {
    struct part part[PARTS];
    int parts;
};

/* ---- reading ---- */

#define AT(member) offsetof(struct part, member)
static const tess_member members[] = {{STRIP, "strip_left", TESS_MEMBER_FLAG, AT(left)},
                                      {STRIP, "strip_right", TESS_MEMBER_FLAG, AT(right)},
                                      {REPLACE, "content", TESS_MEMBER_TEXT, AT(content)},
                                      {REPLACE, "pattern", TESS_MEMBER_PATTERN, AT(pattern)},
                                      {PREPEND, "prepend", TESS_MEMBER_TEXT, AT(content)},
                                      {BERT, "clean_text", TESS_MEMBER_FLAG, AT(clean)},
                                      {BERT, "handle_chinese_chars", TESS_MEMBER_FLAG, AT(chinese)},
                                      {BERT, "lowercase", TESS_MEMBER_FLAG, AT(lower)},
                                      {PRECOMPILED, "precompiled_charsmap", TESS_MEMBER_TEXT, AT(content)},
                                      {PRECOMPILED, "clusters", TESS_MEMBER_FLAG, AT(clusters)}};

static tess_status read_part(const tess_reader *r, const char *field, const json_t *json, int kind, void *all);
static const tess_part_reader reader = {
    "normalizer", "normalizers", NAME, KINDS, PARTS, members, sizeof members / sizeof *members, read_part, NULL};

static tess_status read_part(const tess_reader *r, const char *field, const json_t *json, int kind, void *all)
{
    tess_normalizer *n = all;
    TESS_TRY(tess_parts_more(r, &reader, field, PARTS, &n->parts));
    struct part *p = &n->part[n->parts - 1];
    p->kind = (enum kind)kind;
    TESS_TRY(tess_members_read(r, &reader, field, json, kind, p));
    p->accents = p->lower;
    if (kind == PREPEND && !p->content.length)
        return tess_file_error(r->path, field, "an empty \"prepend\" is not supported");
    if (kind == PRECOMPILED) return tess_charsmap_read(r, field, p->content.bytes, &p->map);
    if (kind != BERT || json_is_null(json_object_get(json, "strip_accents"))) return TESS_OK;
    return tess_json_flag(r, field, json, "strip_accents", p->lower, &p->accents);
}

tess_status tess_normalizer_read(const tess_reader *r, const char *field, const json_t *json, tess_normalizer **n)
{
    *n = json && !json_is_null(json) ? tess_alloc(sizeof **n) : NULL;
    return tess_parts_read(r, &reader, field, json, *n);
}

void tess_normalizer_free(tess_normalizer *n)
{
    for (int i = 0; n && i < n->parts; i++) tess_pattern_free(&n->part[i].pattern);
    free(n);
}

bool tess_normalizer_may_cut(const tess_normalizer *n)
{
    for (int i = 0; n && i < n->parts; i++)
        if (n->part[i].kind == REPLACE && tess_pattern_spans_blank(&n->part[i].pattern)) return false;
    return true;
}

/* ---- acting ---- */

/* The buffer that the text does not lie in, empty. */
static tess_bytes *other(tess_normal *io)
{
    const tess_bytes *zero = &io->own[0];
    tess_bytes *b = &io->own[zero->data && io->text >= zero->data && io->text < zero->data + zero->room];
    b->length = 0;
    tess_bytes_need(b, io->length + 8);
    return b;
}

static void take(tess_normal *io, const tess_bytes *b)
{
    io->text = b->data;
    io->length = b->length;
}

/* Makes each character none, itself, or a blank. */
static void filter(tess_normal *io, bool (*drop)(uint32_t), bool (*blank)(uint32_t))
{
    tess_bytes *out = NULL;
    for (size_t at = 0, bytes; at < io->length; at += bytes) {
        const uint32_t c = tess_utf8_get(io->text + at, &bytes);
        const bool drops = drop(c), blanks = !drops && blank && c != ' ' && blank(c);
        if (!drops && !blanks && !out) continue;
        if (!out) tess_bytes_add(out = other(io), io->text, at);
        if (drops && !out->length) io->shifted = true;
        if (!drops) tess_bytes_add(out, blanks ? " " : io->text + at, blanks ? 1 : bytes);
    }
    if (out) take(io, out);
}

static bool ascii(const tess_normal *io)
{
    return tess_ascii_end(io->text, io->length, 0) == io->length;
}

static void normal_form(tess_normal *io, bool compatible, bool compose)
{
    if (ascii(io)) return;
    tess_bytes *out = other(io);
    tess_bytes_add_normal(out, io->text, io->length, compatible, compose);
    if (out->length != io->length || memcmp(out->data, io->text, io->length)) take(io, out);
}

static void lower(tess_normal *io)
{
    tess_bytes *out = other(io);
    for (size_t at = 0, bytes; at < io->length; at += bytes)
        tess_bytes_put_lower(out, tess_utf8_get(io->text + at, &bytes));
    take(io, out);
}

static void strip(tess_normal *io, bool left, bool right)
{
    size_t bytes;
    if (!io->length) return;
    while (left && io->first && io->length && tess_is_space(tess_utf8_get(io->text, &bytes)))
        io->text += bytes, io->length -= bytes, io->shifted = true;
    while (right && io->last && io->length && tess_is_space(tess_utf8_last(io->text, io->length, &bytes)))
        io->length -= bytes;
}

static tess_status replace(const struct part *p, pcre2_match_data *match, tess_normal *io)
{
    tess_bytes *out = NULL;
    size_t done = 0, begin, end, bytes;
    bool found;
    for (size_t from = 0;; from = end) {
        TESS_TRY(tess_pattern_find(&p->pattern, match, io->text, io->length, from, &begin, &end, &found));
        if (!found) break;
        if (!out) out = other(io);
        if (begin == 0) tess_utf8_get(io->text, &bytes);
        if (begin == 0 && (end > bytes || !p->content.length)) io->shifted = true;
        tess_bytes_add(out, io->text + done, begin - done);
        tess_bytes_add(out, p->content.bytes, p->content.length);
        done = end;
    }
    if (!out) return TESS_OK;
    tess_bytes_add(out, io->text + done, io->length - done);
    take(io, out);
    return TESS_OK;
}

static void prepend(const struct part *p, tess_normal *io)
{
    if (!io->length || !io->first) return;
    tess_bytes *out = other(io);
    tess_bytes_add(out, p->content.bytes, p->content.length);
    tess_bytes_add(out, io->text, io->length);
    take(io, out);
}

static bool bert_drops(uint32_t c)
{
    return c == 0 || c == 0xfffd || (c != '\t' && c != '\n' && c != '\r' && tess_is_other(c));
}

static void bert(const struct part *p, tess_normal *io)
{
    if (p->clean) filter(io, bert_drops, tess_is_space);
    if (p->chinese && !ascii(io)) {
        tess_bytes *out = other(io);
        for (size_t at = 0, bytes; at < io->length; at += bytes) {
            const bool chinese = tess_is_chinese(tess_utf8_get(io->text + at, &bytes));
            if (chinese) tess_bytes_add(out, " ", 1);
            tess_bytes_add(out, io->text + at, bytes);
            if (chinese) tess_bytes_add(out, " ", 1);
        }
        take(io, out);
    }
    if (p->accents && !ascii(io)) {
        normal_form(io, false, false);
        filter(io, tess_is_nonspacing, NULL);
    }
    if (p->lower) lower(io);
}

static bool nmt_drops(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 11 || (c >= 14 && c <= 31) || c == 0x7f || c == 0x8f || c == 0x9f;
}

static bool nmt_blanks(uint32_t c)
{
    return c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200b && c <= 0x200f) || c == 0x2028 ||
           c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
}

static void precompiled(const struct part *p, tess_normal *io)
{
    tess_bytes *out = other(io);
    (p->clusters ? tess_charsmap_apply : tess_charsmap_apply_longest)(p->map, io->text, io->length, out);
    take(io, out);
}

static tess_status act(const struct part *p, pcre2_match_data *match, tess_normal *io)
{
    const enum kind k = p->kind;
    if (k <= NFKD) normal_form(io, k >= NFKC, k == NFC || k == NFKC);
    if (k == LOWERCASE) lower(io);
    if (k == STRIP_ACCENTS && !ascii(io)) filter(io, tess_is_mark, NULL);
    if (k == NMT) filter(io, nmt_drops, nmt_blanks);
    if (k == STRIP) strip(io, p->left, p->right);
    if (k == PREPEND) prepend(p, io);
    if (k == BERT) bert(p, io);
    if (k == PRECOMPILED) precompiled(p, io);
    return k == REPLACE ? replace(p, match, io) : TESS_OK;
}

tess_status tess_normalize(const tess_normalizer *n, pcre2_match_data *match, tess_normal *io)
{
    for (int i = 0; n && i < n->parts; i++) TESS_TRY(act(&n->part[i], match, io));
    return TESS_OK;
}
