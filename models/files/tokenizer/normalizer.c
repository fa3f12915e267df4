/* Normalizers, in the order in which they act. Each makes another text of the one it is given, or leaves it where it
 * is. */
#include "tokenizer_parts_impl.h"
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
    const char *content;                 /* Replace, Prepend */
    size_t length;
    tess_charsmap *map;
};
enum { PARTS = 32 };
struct tess_normalizer {
    struct part part[PARTS];
    int parts;
};

/* ---- reading ---- */

static tess_status read_strip(const tess_reading *r, const char *field, const json_t *json, struct part *p)
{
    TESS_TRY(tess_json_flag(r, field, json, "strip_left", true, &p->left));
    return tess_json_flag(r, field, json, "strip_right", true, &p->right);
}

static tess_status read_bert(const tess_reading *r, const char *field, const json_t *json, struct part *p)
{
    TESS_TRY(tess_json_flag(r, field, json, "clean_text", true, &p->clean));
    TESS_TRY(tess_json_flag(r, field, json, "handle_chinese_chars", true, &p->chinese));
    TESS_TRY(tess_json_flag(r, field, json, "lowercase", true, &p->lower));
    if (json_is_null(json_object_get(json, "strip_accents"))) return p->accents = p->lower, TESS_OK;
    return tess_json_flag(r, field, json, "strip_accents", p->lower, &p->accents);
}

static tess_status read_content(const tess_reading *r, const char *field, const json_t *json, const char *name,
                                struct part *p)
{
    const json_t *content = json_object_get(json, name);
    if (!json_is_string(content)) return tess_file_error(r->path, field, "expected a string \"%s\"", name);
    p->length = json_string_length(content);
    p->content = memcpy(tess_arena_get(r->arena, p->length + 1), json_string_value(content), p->length);
    return TESS_OK;
}

static tess_status read_part(const tess_reading *r, const char *field, const json_t *json, tess_normalizer *n,
                             int depth);

static tess_status read_sequence(const tess_reading *r, const char *field, const json_t *json, tess_normalizer *n,
                                 int depth)
{
    const json_t *list = json_object_get(json, "normalizers");
    if (!json_is_array(list)) return tess_file_error(r->path, field, "expected an array \"normalizers\"");
    for (size_t i = 0; i < json_array_size(list); i++)
        TESS_TRY(read_part(r, tess_field_at(r, field, "normalizers", i), json_array_get(list, i), n, depth + 1));
    return TESS_OK;
}

static tess_status read_part(const tess_reading *r, const char *field, const json_t *json, tess_normalizer *n,
                             int depth)
{
    const char *type = tess_json_text(json, "type");
    if (!type) return tess_file_error(r->path, field, "expected an object with a \"type\"");
    if (!strcmp(type, "Sequence") && depth < PARTS) return read_sequence(r, field, json, n, depth);
    int kind = 0;
    while (kind < KINDS && strcmp(type, NAME[kind])) kind++;
    if (kind == KINDS) return tess_file_error(r->path, field, "normalizer %.60s is not supported", type);
    if (n->parts == PARTS) return tess_file_error(r->path, field, "more than %d normalizers are not supported", PARTS);
    struct part *p = &n->part[n->parts++];
    p->kind = (enum kind)kind;
    switch (p->kind) {
    case STRIP:
        return read_strip(r, field, json, p);
    case BERT:
        return read_bert(r, field, json, p);
    case PREPEND:
        TESS_TRY(read_content(r, field, json, "prepend", p));
        return p->length ? TESS_OK : tess_file_error(r->path, field, "an empty \"prepend\" is not supported");
    case REPLACE:
        TESS_TRY(read_content(r, field, json, "content", p));
        return tess_pattern_read(r, field, json_object_get(json, "pattern"), &p->pattern);
    case PRECOMPILED: {
        const char *map = tess_json_text(json, "precompiled_charsmap");
        if (!map) return tess_file_error(r->path, field, "expected a string \"precompiled_charsmap\"");
        return tess_charsmap_read(r, field, map, &p->map);
    }
    default:
        return TESS_OK;
    }
}

tess_status tess_normalizer_read(const tess_reading *r, const char *field, const json_t *json, tess_normalizer **n)
{
    *n = NULL;
    if (!json || json_is_null(json)) return TESS_OK;
    *n = tess_alloc(sizeof **n);
    return read_part(r, field, json, *n, 0);
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
        if (begin == 0 && (end > bytes || !p->length)) io->shifted = true;
        tess_bytes_add(out, io->text + done, begin - done);
        tess_bytes_add(out, p->content, p->length);
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
    tess_bytes_add(out, p->content, p->length);
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
    tess_charsmap_apply(p->map, io->text, io->length, out);
    take(io, out);
}

static tess_status act(const struct part *p, pcre2_match_data *match, tess_normal *io)
{
    switch (p->kind) {
    case NFC:
    case NFD:
    case NFKC:
    case NFKD:
        return normal_form(io, p->kind >= NFKC, p->kind == NFC || p->kind == NFKC), TESS_OK;
    case LOWERCASE:
        return lower(io), TESS_OK;
    case STRIP_ACCENTS:
        if (!ascii(io)) filter(io, tess_is_mark, NULL);
        return TESS_OK;
    case NMT:
        return filter(io, nmt_drops, nmt_blanks), TESS_OK;
    case STRIP:
        return strip(io, p->left, p->right), TESS_OK;
    case REPLACE:
        return replace(p, match, io);
    case PREPEND:
        return prepend(p, io), TESS_OK;
    case BERT:
        return bert(p, io), TESS_OK;
    case PRECOMPILED:
        return precompiled(p, io), TESS_OK;
    case KINDS:
        break;
    }
    TESS_ASSERT(!"a kind");
    return TESS_OK;
}

tess_status tess_normalize(const tess_normalizer *n, pcre2_match_data *match, tess_normal *io)
{
    for (int i = 0; n && i < n->parts; i++) TESS_TRY(act(&n->part[i], match, io));
    return TESS_OK;
}
