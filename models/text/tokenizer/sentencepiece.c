/* Reads a tokenizer.model of sentencepiece, a message of Google's protobuf, and makes the object from it that a
 * tokenizer.json would hold. These fields of the message count:
 *
 *     1: a piece each      1: its text, 2: its score (a float), 3: its kind
 *     2: how it was trained    3: the model's kind, 24: blanks end words
 *     3: the normalizer    2: its table, 3: a blank is put before a text, 4: runs of blanks become one, 5: blanks
 *                          become U+2581
 *     5: what is undone when decoding    2: a table too
 */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

enum kind { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };
enum { UNIGRAM = 1, BPE = 2 };

struct piece {
    tess_token text;
    float score;
    enum kind kind;
};
struct model {
    const tess_reader *r;
    struct piece *piece;
    size_t count, room;
    int64_t kind, unknown;
    bool suffix, prefix, collapses, escapes, bytes;
    tess_token table, undo;
    tess_vocab *vocab; /* of pieces that a text may hold */
};

/* ---- protobuf ---- */

/* A field of a message; `text` of one with a length. */
struct field {
    uint64_t number, value;
    tess_token text;
};

static bool read_varint(tess_token *in, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && in->length; shift += 7) {
        const unsigned char byte = (unsigned char)*in->bytes++;
        in->length--;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

/* Takes one field off a message; false: what is there is none. */
static bool read_field(tess_token *in, struct field *f)
{
    uint64_t key, n = 0;
    *f = (struct field){0};
    if (!read_varint(in, &key)) return false;
    f->number = key >> 3;
    switch (key & 7) {
    case 0:
        return read_varint(in, &f->value);
    case 1:
        n = 8;
        break;
    case 2:
        if (!read_varint(in, &n)) return false;
        break;
    case 5:
        n = 4;
        break;
    default:
        return false;
    }
    if (n > in->length) return false;
    f->text = (tess_token){in->bytes, n};
    if ((key & 7) != 2) memcpy(&f->value, in->bytes, n);
    in->bytes += n;
    in->length -= n;
    return f->number > 0;
}

/* ---- the message ---- */

static bool read_piece(struct model *m, tess_token in)
{
    struct field f;
    if (m->count == m->room) {
        m->room = 2 * m->room + 1024;
        m->piece = tess_realloc(m->piece, m->room * sizeof *m->piece);
    }
    struct piece *p = &m->piece[m->count++];
    *p = (struct piece){.text = {"", 0}, .kind = NORMAL};
    while (in.length) {
        if (!read_field(&in, &f)) return false;
        if (f.number == 1) p->text = f.text;
        if (f.number == 2) memcpy(&p->score, &f.value, sizeof p->score);
        if (f.number == 3) p->kind = f.value > BYTE ? 0 : (enum kind)f.value;
    }
    return true;
}

static bool read_trainer(struct model *m, tess_token in)
{
    struct field f;
    while (in.length) {
        if (!read_field(&in, &f)) return false;
        if (f.number == 3) m->kind = f.value > INT32_MAX ? 0 : (int64_t)f.value;
        if (f.number == 24) m->suffix = f.value;
    }
    return true;
}

static bool read_normalizer(struct model *m, tess_token in, bool decodes)
{
    struct field f;
    while (in.length) {
        if (!read_field(&in, &f)) return false;
        if (f.number == 2) *(decodes ? &m->undo : &m->table) = f.text;
        if (decodes) continue;
        if (f.number == 3) m->prefix = f.value;
        if (f.number == 4) m->collapses = f.value;
        if (f.number == 5) m->escapes = f.value;
    }
    return true;
}

static bool read_message(struct model *m, tess_token in)
{
    struct field f;
    while (in.length) {
        if (!read_field(&in, &f)) return false;
        if (f.number == 1 && !read_piece(m, f.text)) return false;
        if (f.number == 2 && !read_trainer(m, f.text)) return false;
        if (f.number == 3 && !read_normalizer(m, f.text, false)) return false;
        if (f.number == 5 && !read_normalizer(m, f.text, true)) return false;
    }
    return m->count > 0;
}

static tess_status refuse(const struct model *m, size_t i, const char *what)
{
    char field[64];
    snprintf(field, sizeof field, "piece %zu", i);
    return tess_file_error(m->r->path, field, "%s", what);
}

static tess_status check_pieces(struct model *m)
{
    for (size_t i = 0; i < m->count; i++) {
        const struct piece *p = &m->piece[i];
        if (!p->text.length || tess_utf8_valid(p->text.bytes, p->text.length) < p->text.length ||
            memchr(p->text.bytes, 0, p->text.length))
            return refuse(m, i, "is empty, no UTF-8, or has a 0 in it");
        if (!(p->score >= -1e30f && p->score <= 1e30f)) return refuse(m, i, "has a score that is no number");
        if (!p->kind || p->kind == UNUSED) return refuse(m, i, "is of a kind that is not supported (unused)");
        if (p->kind == UNKNOWN && m->unknown >= 0) return refuse(m, i, "is a second piece for unknown characters");
        if (p->kind == UNKNOWN) m->unknown = (int64_t)i;
        m->bytes |= p->kind == BYTE;
        if (p->kind == NORMAL || p->kind == USER_DEFINED)
            tess_vocab_set(m->vocab, p->text.bytes, p->text.length, (int32_t)i);
    }
    return TESS_OK;
}

static tess_status check_model(const struct model *m)
{
    const char *path = m->r->path;
    if (m->count > TESS_IDS) return tess_error(TESS_INVALID, path, "%zu pieces, at most %d", m->count, TESS_IDS);
    if (m->kind != UNIGRAM && m->kind != BPE)
        return tess_error(TESS_INVALID, path, "is a model of words or characters, only unigram and BPE are supported");
    if (m->suffix) return tess_error(TESS_INVALID, path, "treat_whitespace_as_suffix is not supported");
    if (!m->escapes) return tess_error(TESS_INVALID, path, "escape_whitespaces false is not supported");
    if (m->undo.length) return tess_error(TESS_INVALID, path, "a table for decoding is not supported");
    if (m->unknown < 0) return tess_error(TESS_INVALID, path, "no piece stands for unknown characters");
    return TESS_OK;
}

/* ---- merges ---- */

/* Two pieces that become a third. Sentencepiece merges what has the best score; where several make one piece their
 * order is transformers'. */
struct pair {
    int32_t of, left, right;
    uint16_t characters[2];
    float score;
};

static int compare_pairs(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    for (int i = 0; i < 2; i++)
        if (x->characters[i] != y->characters[i]) return y->characters[i] - x->characters[i];
    if (x->of != y->of) return x->of < y->of ? -1 : 1;
    if (x->left != y->left) return x->left < y->left ? -1 : 1;
    return (x->right > y->right) - (x->right < y->right);
}

static uint16_t characters(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count > UINT16_MAX ? UINT16_MAX : (uint16_t)count;
}

static json_t *text_of(tess_token t)
{
    return json_stringn(t.bytes, t.length);
}

static json_t *make_merges(const struct model *m)
{
    TESS_FREED struct pair *pair = NULL;
    size_t count = 0, room = 0;
    for (size_t i = 0; i < m->count; i++) {
        const tess_token t = m->piece[i].text;
        for (size_t n = 1; n < t.length && m->piece[i].kind == NORMAL; n++) {
            const int32_t left = tess_vocab_get(m->vocab, t.bytes, n);
            const int32_t right = left < 0 ? -1 : tess_vocab_get(m->vocab, t.bytes + n, t.length - n);
            if (right < 0) continue;
            if (count == room) pair = tess_realloc(pair, (room = 2 * room + 1024) * sizeof *pair);
            pair[count++] = (struct pair){(int32_t)i,
                                          left,
                                          right,
                                          {characters(t.bytes, n), characters(t.bytes + n, t.length - n)},
                                          m->piece[i].score};
        }
    }
    if (count) qsort(pair, count, sizeof *pair, compare_pairs);
    json_t *merges = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(
            merges, json_pack("[oo]", text_of(m->piece[pair[i].left].text), text_of(m->piece[pair[i].right].text)));
    return merges;
}

/* ---- the object ---- */

static json_t *make_vocab(const struct model *m)
{
    json_t *vocab = m->kind == BPE ? json_object() : json_array();
    for (size_t i = 0; i < m->count; i++) {
        const struct piece *p = &m->piece[i];
        if (m->kind == BPE)
            json_object_setn_new(vocab, p->text.bytes, p->text.length, json_integer((json_int_t)i));
        else
            json_array_append_new(vocab, json_pack("[of]", text_of(p->text), (double)p->score));
    }
    return vocab;
}

static json_t *make_model(const struct model *m)
{
    json_t *model = json_pack("{sb so}", "byte_fallback", m->bytes, "vocab", make_vocab(m));
    if (m->kind == UNIGRAM) {
        json_object_set_new(model, "type", json_string("Unigram"));
        json_object_set_new(model, "unk_id", json_integer(m->unknown));
        return model;
    }
    json_object_set_new(model, "type", json_string("BPE"));
    json_object_set_new(model, "unk_token", text_of(m->piece[m->unknown].text));
    json_object_set_new(model, "fuse_unk", json_true());
    json_object_set_new(model, "merges", make_merges(m));
    return model;
}

static json_t *base64(tess_token t)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = tess_alloc(t.length / 3 * 4 + 5), *at = text;
    const unsigned char *s = (const unsigned char *)t.bytes;
    for (size_t i = 0; i < t.length; i += 3) {
        const size_t n = t.length - i < 3 ? t.length - i : 3;
        const uint32_t bits = (uint32_t)s[i] << 16 | (n > 1 ? (uint32_t)s[i + 1] << 8 : 0) | (n > 2 ? s[i + 2] : 0);
        for (size_t k = 0; k < 4; k++) *at++ = k <= n ? digit[bits >> (18 - 6 * k) & 63] : '=';
    }
    json_t *json = json_stringn(text, (size_t)(at - text));
    free(text);
    return json;
}

static json_t *replace(const char *kind, const char *pattern, const char *content)
{
    return json_pack("{ss s{ss} ss}", "type", "Replace", "pattern", kind, pattern, "content", content);
}

/* What sentencepiece does to a text before it is cut. `once`: the blank comes before the first word of a text alone,
 * and not before each that follows a special token. */
static json_t *make_normalizer(const struct model *m, bool once)
{
    json_t *list = json_array();
    if (m->table.length)
        json_array_append_new(list, json_pack("{ss so sb}", "type", "Precompiled", "precompiled_charsmap",
                                              base64(m->table), "clusters", 0));
    if (m->collapses) {
        json_array_append_new(list, replace("Regex", "(?<!.|\\n) +|[ \u2581]+(?!.|\\n)", ""));
        json_array_append_new(list, replace("Regex", " {2,}", " "));
    }
    if (m->prefix && !once) json_array_append_new(list, json_pack("{ss ss}", "type", "Prepend", "prepend", TESS_LINE));
    if (!m->prefix || !once) json_array_append_new(list, replace("String", " ", TESS_LINE));
    return json_pack("{ss so}", "type", "Sequence", "normalizers", list);
}

static json_t *make_decoder(const struct model *m)
{
    json_t *list = json_array();
    json_array_append_new(list, replace("String", TESS_LINE, " "));
    json_array_append_new(list, json_pack("{ss}", "type", "ByteFallback"));
    json_array_append_new(list, json_pack("{ss}", "type", "Fuse"));
    if (m->prefix || m->collapses)
        json_array_append_new(list, json_pack("{ss ss si si}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    return json_pack("{ss so}", "type", "Sequence", "decoders", list);
}

static json_t *make_added(const struct model *m)
{
    json_t *added = json_array();
    for (size_t i = 0; i < m->count; i++) {
        const struct piece *p = &m->piece[i];
        if (p->kind != CONTROL && p->kind != USER_DEFINED && p->kind != UNKNOWN) continue;
        const bool within = memmem(p->text.bytes, p->text.length, TESS_LINE, 3); /* what blanks have become */
        json_array_append_new(added, json_pack("{sI so sb sb}", "id", (json_int_t)i, "content", text_of(p->text),
                                               "special", p->kind != USER_DEFINED, "normalized", within));
    }
    return added;
}

static json_t *make_root(const struct model *m, bool once)
{
    json_t *root = json_pack("{so so so so}", "model", make_model(m), "normalizer", make_normalizer(m, once), "decoder",
                             make_decoder(m), "added_tokens", make_added(m));
    if (m->prefix && once)
        json_object_set_new(root, "pre_tokenizer",
                            json_pack("{ss ss ss sb}", "type", "Metaspace", "replacement", TESS_LINE, "prepend_scheme",
                                      "first", "split", 0));
    return root;
}

json_t *tess_sentencepiece_normalizer(bool prefix)
{
    return make_normalizer(&(struct model){.prefix = prefix}, false);
}

/* Pieces at the end that only fill the table up are left out. */
tess_status tess_sentencepiece_make(const tess_reader *r, const json_t *texts, const json_t *scores,
                                    const json_t *kinds, bool prefix, json_t **root)
{
    struct model m = {.r = r, .kind = BPE, .unknown = -1, .prefix = prefix, .escapes = true};
    m.vocab = tess_vocab_new();
    m.piece = tess_alloc((json_array_size(texts) + 1) * sizeof *m.piece);
    for (size_t i = 0, used = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        const json_int_t kind = json_integer_value(json_array_get(kinds, i));
        m.piece[i] = (struct piece){{json_string_value(text), json_string_length(text)},
                                    (float)json_number_value(json_array_get(scores, i)),
                                    kind < 0 || kind > BYTE ? 0 : (enum kind)kind};
        used = m.piece[i].kind == UNUSED ? used : i + 1;
        m.count = used;
    }
    tess_status status = check_pieces(&m);
    if (status == TESS_OK) status = check_model(&m);
    if (status == TESS_OK) *root = make_root(&m, false);
    tess_vocab_free(m.vocab);
    free(m.piece);
    return status;
}

tess_status tess_sentencepiece_read(const tess_reader *r, const char *bytes, size_t n, const json_t *config,
                                    json_t **root)
{
    struct model m = {.r = r, .kind = UNIGRAM, .unknown = -1, .prefix = true, .collapses = true, .escapes = true};
    m.vocab = tess_vocab_new();
    tess_status status = TESS_OK;
    if (!read_message(&m, (tess_token){bytes, n}))
        status =
            tess_error(TESS_INVALID, r->path,
                       "is no model of sentencepiece (one of tiktoken's is not read: the model's tokenizer.json is)");
    if (status == TESS_OK) status = check_pieces(&m);
    if (status == TESS_OK) status = check_model(&m);
    if (json_is_boolean(json_object_get(config, "add_prefix_space")))
        m.prefix = json_is_true(json_object_get(config, "add_prefix_space"));
    if (status == TESS_OK) *root = make_root(&m, json_is_false(json_object_get(config, "legacy")));
    tess_vocab_free(m.vocab);
    free(m.piece);
    return status;
}
