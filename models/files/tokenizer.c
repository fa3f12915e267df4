/* The byte-level BPE tokenizer of a Hugging Face tokenizer.json.
 *
 * A text is cut three times: at the added tokens ("<|endoftext|>") into regions, in a region by the pre-tokenizer's
 * regular expressions into words, and a word by the merges (tokenizer_bpe.c) into tokens. Vocabulary and merges are
 * written in an alphabet of 256 printable characters that stand for the bytes; it is translated once, when the file is
 * read, and everything after that is bytes.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "map_impl.h"
#include "tokenizer_impl.h"
#include <jansson.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { SPLITS = 8, IDS = 1 << 22, WORD_BYTES = 16 << 20, LETTERS = 256 + 68 };

struct token {
    const char *bytes; /* NULL: no token has this id */
    size_t length;
};

struct tess_tokenizer {
    tess_arena *arena; /* of everything below but the array of tokens, the merges and the patterns */
    const char *path;
    uint64_t sum;             /* of the file */
    struct token *token;      /* by id */
    int32_t vocab;            /* of them */
    size_t room;              /* for them */
    int16_t byte_of[LETTERS]; /* the byte that a letter of the alphabet stands for; -1: none */
    tess_bpe *bpe;
    int32_t *added; /* ids of the added tokens by first byte, longer before shorter */
    size_t first_added[257];
    pcre2_code *split[SPLITS];
    int splits;
    bool add_prefix_space;
    const char *unsupported; /* why it can encode nothing; NULL: it can. Then only these are known of it: */
    struct token *named;     /* the added tokens, */
    int32_t *named_id;       /* and their ids */
    size_t names;
};

/* ---- UTF-8 ---- */

/* The bytes of the first character of n >= 1 bytes; 0: they are the beginning of one and no more; -k: k bytes that
 * begin no character. */
static int utf8_step(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) return 1;
    int want = p[0] >= 0xf5 ? 0 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc2 ? 2 : 0;
    if (!want) return -1;
    unsigned low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;  /* neither longer than needed */
    unsigned high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf; /* nor a surrogate nor beyond U+10FFFF */
    for (int i = 1; i < want; i++, low = 0x80, high = 0xbf) {
        if ((size_t)i == n) return 0;
        if (p[i] < low || p[i] > high) return -i;
    }
    return want;
}

/* The bytes of s before the first that is not UTF-8. */
static size_t utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    for (int step; i < n && (step = utf8_step(s + i, n - i)) > 0;) i += (size_t)step;
    return i;
}

size_t tess_utf8_unfinished(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++)
        if (utf8_step(s + n - back, back) == 0) return back;
    return 0;
}

/* ---- the alphabet of bytes ---- */

/* A byte's letter is the character of that number where it is printable; the other 68 bytes have 256 and up in their
 * order. */
static void read_alphabet(tess_tokenizer *t)
{
    memset(t->byte_of, -1, sizeof t->byte_of);
    for (int b = 0, next = 256; b < 256; b++) {
        bool printable = (b > ' ' && b < 0x7f) || (b > 0xa0 && b != 0xad);
        t->byte_of[printable ? b : next++] = (int16_t)b;
    }
}

/* A token, in UTF-8, to its bytes. False: not all of it is letters of the alphabet, and it stays as it is. */
static bool token_bytes(tess_tokenizer *t, const char *s, size_t n, struct token *token)
{
    char *out = tess_arena_get(t->arena, n + 1);
    size_t m = 0;
    for (size_t i = 0; i < n; m++) {
        unsigned c = (unsigned char)s[i++];
        if (c >= 0xe0)
            c = LETTERS; /* three bytes or four: beyond the alphabet */
        else if (c >= 0x80)
            c = (c & 0x1f) << 6 | ((unsigned char)s[i++] & 0x3f);
        if (c >= LETTERS || t->byte_of[c] < 0) {
            *token = (struct token){memcpy(out, s, n), n};
            return false;
        }
        out[m] = (char)t->byte_of[c];
    }
    *token = (struct token){out, m};
    return true;
}

/* ---- reading tokenizer.json: vocabulary and merges ---- */

static tess_status set_token(tess_tokenizer *t, const char *field, int64_t id, struct token token)
{
    if (id < 0 || id >= IDS)
        return tess_file_error(t->path, field, "id %lld, expected 0 to %d", (long long)id, IDS - 1);
    if ((size_t)id >= t->room) {
        size_t room = 3 * (size_t)id / 2 + 256;
        t->token = tess_realloc(t->token, room * sizeof *t->token);
        memset(t->token + t->room, 0, (room - t->room) * sizeof *t->token);
        t->room = room;
    }
    if (id >= t->vocab) t->vocab = (int32_t)id + 1;
    if (t->token[id].bytes) return tess_file_error(t->path, field, "id %lld is another token's already", (long long)id);
    t->token[id] = token;
    return TESS_OK;
}

static tess_status read_vocab(tess_tokenizer *t, json_t *vocab, bool whole_words)
{
    const char *key;
    json_t *value;
    bool set[256] = {false};
    if (!json_is_object(vocab))
        return tess_file_error(t->path, "model.vocab", "expected an object of tokens and their ids");
    json_object_foreach(vocab, key, value)
    {
        char field[128];
        struct token token;
        bool letters = token_bytes(t, key, strlen(key), &token);
        int32_t id = (int32_t)json_integer_value(value);
        snprintf(field, sizeof field, "model.vocab.%s", key);
        if (!json_is_integer(value)) return tess_file_error(t->path, field, "expected an integer id");
        TESS_TRY(set_token(t, field, json_integer_value(value), token));
        if (letters && whole_words) tess_bpe_add_word(t->bpe, token.bytes, token.length, id);
        if (letters && token.length == 1) {
            set[(unsigned char)token.bytes[0]] = true;
            tess_bpe_set_byte(t->bpe, (unsigned char)token.bytes[0], id);
        }
    }
    for (int b = 0; b < 256; b++)
        if (!set[b] && b != 0xc0 && b != 0xc1 && b < 0xf5) /* UTF-8 has the others only */
            return tess_file_error(t->path, "model.vocab", "no token for the byte 0x%02x: not a byte-level vocabulary",
                                   b);
    return TESS_OK;
}

/* One merge, "a b" or ["a", "b"], as the ids of a, b and ab. */
static tess_status read_merge(tess_tokenizer *t, const json_t *vocab, const json_t *merge, size_t index)
{
    char field[64];
    snprintf(field, sizeof field, "model.merges[%zu]", index);
    const char *text = json_string_value(merge), *space = text ? strchr(text, ' ') : NULL;
    const char *a = text, *b = space ? space + 1 : NULL;
    if (json_array_size(merge) == 2) {
        a = json_string_value(json_array_get(merge, 0));
        b = json_string_value(json_array_get(merge, 1));
    }
    if (!a || !b || (text && strchr(b, ' ')))
        return tess_file_error(t->path, field, "expected \"a b\" or [\"a\", \"b\"]");
    char *name[3] = {text ? tess_format("%.*s", (int)(space - text), a) : tess_strdup(a), tess_strdup(b), NULL};
    name[2] = tess_format("%s%s", name[0], name[1]);
    int32_t id[3];
    tess_status status = TESS_OK;
    for (int i = 0; i < 3 && status == TESS_OK; i++) {
        const json_t *found = json_object_get(vocab, name[i]);
        id[i] = (int32_t)json_integer_value(found);
        if (!found) status = tess_file_error(t->path, field, "\"%s\" is not in model.vocab", name[i]);
    }
    if (status == TESS_OK && !tess_bpe_add_merge(t->bpe, id[0], id[1], id[2]))
        status = tess_file_error(t->path, field, "\"%s %s\" is there twice", name[0], name[1]);
    for (int i = 0; i < 3; i++) free(name[i]);
    return status;
}

/* ---- reading tokenizer.json: the rest of the model ---- */

static tess_status read_model(tess_tokenizer *t, const json_t *model)
{
    static const char *const affix[] = {"model.continuing_subword_prefix", "model.end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type"), *merges = json_object_get(model, "merges");
    json_t *vocab = json_object_get(model, "vocab");
    if (!json_is_object(model)) return tess_file_error(t->path, "model", "expected an object");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE")))
        return tess_file_error(t->path, "model.type", "%s is not supported, only BPE",
                               json_is_string(type) ? json_string_value(type) : "?");
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, affix[i] + strlen("model."));
        if (v && !json_is_null(v) && (!json_is_string(v) || json_string_length(v)))
            return tess_file_error(t->path, affix[i], "not supported in a byte-level model, expected null");
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return tess_file_error(t->path, "model.dropout", "not supported, expected null");
    TESS_TRY(read_vocab(t, vocab, json_is_true(json_object_get(model, "ignore_merges"))));
    if (!json_is_array(merges)) return tess_file_error(t->path, "model.merges", "expected an array");
    for (size_t i = 0; i < json_array_size(merges); i++) TESS_TRY(read_merge(t, vocab, json_array_get(merges, i), i));
    return TESS_OK;
}

/* ---- reading tokenizer.json: added tokens ---- */

/* By first byte, and longer before shorter, so that the first match is the longest. */
static int compare_added(const void *a, const void *b, void *tokens)
{
    const struct token *x = (struct token *)tokens + *(const int32_t *)a,
                       *y = (struct token *)tokens + *(const int32_t *)b;
    int first = (unsigned char)x->bytes[0] - (unsigned char)y->bytes[0];
    return first ? first : (x->length < y->length) - (x->length > y->length);
}

static tess_status read_one_added(tess_tokenizer *t, const json_t *added, const json_t *vocab, size_t index)
{
    static const char *const flag[] = {"lstrip", "rstrip", "single_word"};
    const json_t *content = json_object_get(added, "content"), *id = json_object_get(added, "id");
    char field[64];
    snprintf(field, sizeof field, "added_tokens[%zu]", index);
    if (!json_is_string(content) || !json_string_length(content) || !json_is_integer(id))
        return tess_file_error(t->path, field, "expected an object with a content and an integer id");
    for (size_t f = 0; f < 3; f++)
        if (json_is_true(json_object_get(added, flag[f])))
            return tess_file_error(t->path, field, "%s is not supported", flag[f]);
    const json_t *known = json_object_get(vocab, json_string_value(content));
    if (known && !json_equal(known, id))
        return tess_file_error(t->path, field, "\"%s\" has id %lld here and %lld in model.vocab",
                               json_string_value(content), (long long)json_integer_value(id),
                               (long long)json_integer_value(known));
    struct token token = {tess_arena_format(t->arena, "%s", json_string_value(content)), json_string_length(content)};
    if (known)
        t->token[json_integer_value(id)] = token; /* its letters stand for themselves, not for bytes */
    else
        TESS_TRY(set_token(t, field, json_integer_value(id), token));
    t->added[index] = (int32_t)json_integer_value(id);
    return TESS_OK;
}

static tess_status read_added(tess_tokenizer *t, const json_t *added, const json_t *vocab)
{
    if (added && !json_is_null(added) && !json_is_array(added))
        return tess_file_error(t->path, "added_tokens", "expected an array");
    size_t count = json_array_size(added);
    t->added = tess_arena_get(t->arena, (count + 1) * sizeof *t->added);
    for (size_t i = 0; i < count; i++) TESS_TRY(read_one_added(t, json_array_get(added, i), vocab, i));
    qsort_r(t->added, count, sizeof *t->added, compare_added, t->token);
    size_t i = 0;
    for (int byte = 0; byte <= 256; byte++) {
        while (i < count && (unsigned char)t->token[t->added[i]].bytes[0] < byte) i++;
        t->first_added[byte] = i;
    }
    return TESS_OK;
}

/* ---- reading tokenizer.json: the pre-tokenizer ---- */

/* GPT-2's words. */
static const char gpt2_words[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* These files are written for Oniguruma. Where PCRE2 reads the same letters otherwise: \s, which PCRE2 lets match
 * U+180E, is written out; the rest is refused. */
static tess_status translate_pattern(const tess_tokenizer *t, const char *field, const char *in, char **out)
{
    static const char space[] = "\\p{Z}\\x09-\\x0d\\x85";
    char *o = *out = tess_arena_get(t->arena, strlen(in) * (sizeof space + 3) + 1);
    bool set = false, repeat = false; /* inside of [] and {n,m} */
    for (const char *p = in; *p; p++) {
        if (*p == '\\' && p[1]) {
            p++;
            if (*p == 'h' || *p == 'H' || (set && *p == 'S'))
                return tess_file_error(t->path, field, "\\%c is not supported here", *p);
            if (*p == 's' || *p == 'S')
                o += sprintf(o, set ? "%s%s" : *p == 's' ? "[%s%s]" : "[^%s%s]", space, "");
            else
                *o++ = '\\', *o++ = *p;
            continue;
        }
        if (set && ((*p == '[' && p[1] != ':') || (*p == '&' && p[1] == '&')))
            return tess_file_error(t->path, field, "sets inside of sets are not supported");
        if (!set && *p == '{') repeat = (p[1] >= '0' && p[1] <= '9') || p[1] == ',';
        if (!set && repeat && *p == '}' && p[1] == '+') return tess_file_error(t->path, field, "}+ is not supported");
        if (*p == '[' && set) /* [:name:] */
            for (; *p && *p != ']'; p++) *o++ = *p;
        else if (*p == '[' || *p == ']')
            set = *p == '[';
        *o++ = *p;
        if (!*p) break;
    }
    return TESS_OK;
}

static tess_status add_split(tess_tokenizer *t, const char *field, const char *pattern, bool literal)
{
    int error;
    uint32_t empty;
    PCRE2_SIZE at;
    char *own = (char *)pattern;
    if (t->splits == SPLITS) return tess_file_error(t->path, field, "more than %d patterns are not supported", SPLITS);
    if (!literal) TESS_TRY(translate_pattern(t, field, pattern, &own));
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)own, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE), &error, &at, NULL);
    if (!code) {
        char why[128];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        return tess_file_error(t->path, field, "\"%s\" is no regular expression: %s", pattern, why);
    }
    t->split[t->splits++] = code;
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it matching is slower, and the same */
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
    return empty ? tess_file_error(t->path, field, "\"%s\" matches nothing at all, which is not supported", pattern)
                 : TESS_OK;
}

static bool is_type(const json_t *object, const char *type)
{
    const char *s = json_string_value(json_object_get(object, "type"));
    return s && strcmp(s, type) == 0;
}

/* {"type": "Split", "pattern": {"Regex": "..."}, "behavior": "Isolated", "invert": ...}: with this behaviour what
 * matches and what lies between become pieces alike, so invert says nothing. */
static tess_status read_split(tess_tokenizer *t, const char *field, const json_t *split)
{
    const json_t *pattern = json_object_get(split, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *literal = json_string_value(json_object_get(pattern, "String"));
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (!regex && !literal) return tess_file_error(t->path, field, "expected a pattern with a Regex or a String");
    if (!behavior || strcmp(behavior, "Isolated"))
        return tess_file_error(t->path, field, "behavior %s is not supported, only Isolated",
                               behavior ? behavior : "(missing)");
    return add_split(t, field, regex ? regex : literal, !regex);
}

/* ByteLevel alone, or a Sequence of Splits with ByteLevel as the last. */
static tess_status read_pre_tokenizer(tess_tokenizer *t, const json_t *pre)
{
    const json_t *list = json_object_get(pre, "pretokenizers"), *last = pre;
    char field[64] = "pre_tokenizer";
    if (is_type(pre, "Sequence")) {
        size_t count = json_array_size(list);
        last = json_array_get(list, count - 1);
        for (size_t i = 0; i + 1 < count; i++) {
            const json_t *split = json_array_get(list, i);
            snprintf(field, sizeof field, "pre_tokenizer.pretokenizers[%zu]", i);
            if (!is_type(split, "Split"))
                return tess_file_error(t->path, field, "only Split is supported before ByteLevel");
            TESS_TRY(read_split(t, field, split));
        }
        snprintf(field, sizeof field, "pre_tokenizer.pretokenizers[%zu]", count ? count - 1 : 0);
    }
    if (!is_type(last, "ByteLevel"))
        return tess_file_error(t->path, field, "expected ByteLevel: other tokenizers are not supported");
    t->add_prefix_space = !json_is_false(json_object_get(last, "add_prefix_space"));
    if (t->add_prefix_space && t->splits)
        return tess_file_error(t->path, field, "add_prefix_space is not supported behind a Split");
    if (json_is_false(json_object_get(last, "use_regex"))) return TESS_OK;
    return add_split(t, field, gpt2_words, false);
}

/* ---- open ---- */

/* Truncation, padding and the post-processor shape batches; they are not part of what a text's tokens are. */
static tess_status read_all(tess_tokenizer *t, const json_t *root)
{
    const json_t *normalizer = json_object_get(root, "normalizer"), *decoder = json_object_get(root, "decoder");
    const json_t *model = json_object_get(root, "model");
    if (normalizer && !json_is_null(normalizer))
        return tess_file_error(t->path, "normalizer", "not supported, expected null");
    if (decoder && !json_is_null(decoder) && !is_type(decoder, "ByteLevel"))
        return tess_file_error(t->path, "decoder", "only ByteLevel is supported");
    TESS_TRY(read_model(t, model));
    TESS_TRY(read_added(t, json_object_get(root, "added_tokens"), json_object_get(model, "vocab")));
    return read_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"));
}

/* What is there to be known of one that is not supported: tokens by their names, and how many there are. */
static void read_names(tess_tokenizer *t, const json_t *root)
{
    const json_t *added = json_object_get(root, "added_tokens"), *entry;
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    const size_t n = json_array_size(added);
    size_t i;
    t->unsupported = tess_arena_format(t->arena, "%s", tess_error_text());
    tess_error_clear();
    t->named = tess_arena_get(t->arena, (n + 1) * sizeof *t->named);
    t->named_id = tess_arena_get(t->arena, (n + 1) * sizeof *t->named_id);
    t->vocab = (int32_t)(json_is_array(vocab) ? json_array_size(vocab) : json_object_size(vocab));
    json_array_foreach(added, i, entry)
    {
        const json_t *name = json_object_get(entry, "content"), *id = json_object_get(entry, "id");
        if (!json_is_string(name) || !json_is_integer(id)) continue;
        if (json_integer_value(id) < 0 || json_integer_value(id) >= INT32_MAX) continue;
        t->named[t->names] =
            (struct token){tess_arena_format(t->arena, "%s", json_string_value(name)), json_string_length(name)};
        t->named_id[t->names] = (int32_t)json_integer_value(id);
        if (t->named_id[t->names] >= t->vocab) t->vocab = t->named_id[t->names] + 1;
        t->names++;
    }
}

static tess_status open_tokenizer(const char *path, bool any, tess_tokenizer **tokenizer)
{
    tess_map map;
    TESS_TRY(tess_map_open(path, &map));
    json_error_t error;
    json_t *root = json_loadb((const char *)map.data, map.bytes, JSON_REJECT_DUPLICATES, &error);
    const uint64_t sum = tess_sum_bytes(TESS_SUM, map.data, map.bytes);
    tess_map_close(&map);
    if (!root) {
        char *where = tess_format("%s:%d:%d", path, error.line, error.column);
        tess_status status = tess_error(TESS_INVALID, where, "is no JSON: %s", error.text);
        free(where);
        return status;
    }
    tess_tokenizer *t = tess_alloc(sizeof *t);
    t->arena = tess_arena_new();
    t->path = tess_arena_format(t->arena, "%s", path);
    t->sum = sum;
    t->bpe = tess_bpe_new();
    read_alphabet(t);
    tess_status status = read_all(t, root);
    if (status == TESS_INVALID && any && json_is_object(root)) {
        read_names(t, root);
        status = TESS_OK;
    }
    json_decref(root);
    if (status == TESS_OK)
        *tokenizer = t;
    else
        tess_tokenizer_free(t);
    return status;
}

tess_status tess_tokenizer_open(const char *path, tess_tokenizer **tokenizer)
{
    return open_tokenizer(path, false, tokenizer);
}
tess_status tess_tokenizer_open_any(const char *path, tess_tokenizer **tokenizer)
{
    return open_tokenizer(path, true, tokenizer);
}
const char *tess_tokenizer_unsupported(const tess_tokenizer *t)
{
    return t ? t->unsupported : NULL;
}

void tess_tokenizer_free(tess_tokenizer *t)
{
    if (!t) return;
    for (int i = 0; i < t->splits; i++) pcre2_code_free(t->split[i]);
    tess_bpe_free(t->bpe);
    free(t->token);
    tess_arena_free(t->arena);
    free(t);
}

int32_t tess_tokenizer_vocab(const tess_tokenizer *t)
{
    return t ? t->vocab : 256;
}

uint64_t tess_tokenizer_sum(const tess_tokenizer *t)
{
    return t ? t->sum : 0;
}

int32_t tess_tokenizer_added(const tess_tokenizer *t, const char *name)
{
    for (size_t a = 0; t && t->unsupported && a < t->names; a++)
        if (!strcmp(t->named[a].bytes, name)) return t->named_id[a];
    for (size_t a = 0; t && !t->unsupported && a < t->first_added[256]; a++) {
        struct token k = t->token[t->added[a]];
        if (k.length == strlen(name) && memcmp(k.bytes, name, k.length) == 0) return t->added[a];
    }
    return -1;
}

int32_t tess_tokenizer_end_of_text(const tess_tokenizer *t)
{
    static const char *const name[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    int32_t id = -1;
    for (size_t i = 0; id < 0 && i < sizeof name / sizeof *name; i++) id = tess_tokenizer_added(t, name[i]);
    return id;
}

/* ---- encoding ---- */

struct tess_encoding_state {
    const tess_tokenizer *t;
    char *where;
    size_t begin, end; /* of the region that `at` is in */
    int32_t added;     /* the token that ends it; -1: the text does */
    bool prefix;       /* a space is still to come before the region's first character */
    pcre2_match_data *match;
    tess_bpe_scratch scratch;
    char *window; /* the beginning of a region behind a space */
};

static tess_status bad_text(const char *where, size_t at, const char *what)
{
    char *place = tess_format("%s: byte %zu", where, at);
    tess_status status = tess_error(TESS_INVALID, place, "%s", what);
    free(place);
    return status;
}

/* The id of the longest added token that the n >= 1 bytes begin with; -1: none. */
static int32_t added_at(const tess_tokenizer *t, const char *s, size_t n)
{
    unsigned char first = (unsigned char)s[0];
    for (size_t i = t->first_added[first]; i < t->first_added[first + 1]; i++) {
        struct token k = t->token[t->added[i]];
        if (k.length <= n && memcmp(s, k.bytes, k.length) == 0) return t->added[i];
    }
    return -1;
}

static void next_region(tess_encoding *e)
{
    struct tess_encoding_state *s = e->state;
    s->added = -1;
    for (s->begin = s->end = e->at; s->end < e->length; s->end++)
        if ((s->added = added_at(s->t, e->text + s->end, e->length - s->end)) >= 0) break;
    s->prefix = s->t->add_prefix_space && s->begin < s->end && e->text[s->begin] != ' ';
}

static tess_status push_word(tess_encoding *e, const char *word, size_t n, tess_ids *ids)
{
    if (n > WORD_BYTES) return bad_text(e->state->where, e->at, "one word of more than 16 MiB (is this a text?)");
    tess_bpe_encode(e->state->t->bpe, word, n, &e->state->scratch, ids);
    return TESS_OK;
}

/* Where the piece that begins at `from` ends, by the pattern of a level: behind a match, or before the next. */
static tess_status find_piece(tess_encoding *e, int level, const char *s, size_t n, size_t from, size_t *to)
{
    struct tess_encoding_state *state = e->state;
    *to = n;
    if (level == state->t->splits) return TESS_OK;
    int found = pcre2_match(state->t->split[level], (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, state->match, NULL);
    if (found == PCRE2_ERROR_NOMATCH) return TESS_OK;
    if (found < 0) return bad_text(state->where, e->at, "too long for the tokenizer's pattern (is this a text?)");
    const PCRE2_SIZE *match = pcre2_get_ovector_pointer(state->match);
    *to = match[0] > from ? match[0] : match[1];
    return TESS_OK;
}

/* Cuts a piece of one level by those below it. */
static tess_status encode_piece(tess_encoding *e, int level, const char *s, size_t n, tess_ids *ids)
{
    if (level >= e->state->t->splits) return push_word(e, s, n, ids);
    for (size_t at = 0, to; at < n; at = to) {
        TESS_TRY(find_piece(e, level, s, n, at, &to));
        TESS_TRY(encode_piece(e, level + 1, s + at, to - at, ids));
    }
    return TESS_OK;
}

/* The first piece of a region behind the space that add_prefix_space puts there, found in a copy of the region's
 * beginning: large enough when characters behind the piece are in it, which is as far as GPT-2's pattern looks. */
static tess_status prefixed_piece(tess_encoding *e, tess_ids *ids)
{
    struct tess_encoding_state *s = e->state;
    const char *region = e->text + s->begin;
    size_t all = s->end - s->begin, window, to;
    for (size_t want = 256;; want *= 4) {
        window = want < all ? want : all;
        while (window < all && (region[window] & 0xc0) == 0x80) window--; /* whole characters */
        s->window = tess_realloc(s->window, window + 1);
        s->window[0] = ' ';
        memcpy(s->window + 1, region, window);
        TESS_TRY(find_piece(e, 0, s->window, window + 1, 0, &to));
        if (window == all || to + 4 <= window) break;
    }
    TESS_TRY(encode_piece(e, 1, s->window, to, ids));
    e->at += to - 1; /* perhaps 0: the piece is the space alone */
    s->prefix = false;
    return TESS_OK;
}

tess_status tess_encoding_start(const tess_tokenizer *t, const char *where, const char *text, size_t length,
                                tess_encoding *e)
{
    *e = (tess_encoding){.text = text, .length = length};
    if (!t) return TESS_OK;
    if (t->unsupported)
        return tess_error(TESS_INVALID, where, "is a text, and the model's tokenizer is none that is known here: %s",
                          t->unsupported);
    size_t valid = utf8_valid(text, length);
    if (valid < length) return bad_text(where, valid, "is not UTF-8, which a tokenizer needs");
    e->state = tess_alloc(sizeof *e->state);
    e->state->t = t;
    e->state->where = tess_strdup(where);
    e->state->match = pcre2_match_data_create(1, NULL);
    TESS_ASSERT(e->state->match);
    next_region(e);
    return TESS_OK;
}

tess_status tess_encoding_next(tess_encoding *e, tess_ids *ids)
{
    struct tess_encoding_state *s = e->state;
    if (!s) { /* bytes */
        for (size_t n = 0; n < 1 << 16 && e->at < e->length; n++) tess_ids_push(ids, (unsigned char)e->text[e->at++]);
        return TESS_OK;
    }
    if (e->at == s->end) {
        if (s->added < 0) return TESS_OK; /* through */
        tess_ids_push(ids, s->added);
        e->at += s->t->token[s->added].length;
        next_region(e);
        return TESS_OK;
    }
    if (s->prefix) return prefixed_piece(e, ids);
    size_t to;
    TESS_TRY(find_piece(e, 0, e->text + s->begin, s->end - s->begin, e->at - s->begin, &to));
    TESS_TRY(encode_piece(e, 1, e->text + e->at, s->begin + to - e->at, ids));
    e->at = s->begin + to;
    return TESS_OK;
}

void tess_encoding_end(tess_encoding *e)
{
    if (e->state) {
        pcre2_match_data_free(e->state->match);
        tess_bpe_scratch_free(&e->state->scratch);
        free(e->state->window);
        free(e->state->where);
        free(e->state);
    }
    *e = (tess_encoding){0};
}

tess_status tess_tokenizer_encode(const tess_tokenizer *t, const char *where, const char *text, size_t length,
                                  tess_ids *ids)
{
    tess_encoding e;
    tess_status status = tess_encoding_start(t, where, text, length, &e);
    while (status == TESS_OK && e.at < e.length) status = tess_encoding_next(&e, ids);
    tess_encoding_end(&e);
    return status;
}

/* ---- decoding ---- */

const char *tess_tokenizer_bytes(const tess_tokenizer *t, int32_t id, size_t *length)
{
    static char byte[256];
    *length = 0;
    if (id < 0 || id >= tess_tokenizer_vocab(t) || (t && t->unsupported)) return "";
    if (!t) {
        *length = 1;
        byte[id] = (char)id; /* the same value each time */
        return &byte[id];
    }
    *length = t->token[id].length;
    return t->token[id].bytes ? t->token[id].bytes : "";
}

char *tess_tokenizer_decode(const tess_tokenizer *t, const int32_t *ids, size_t count, size_t *length)
{
    size_t n = 0, m = 0, one;
    for (size_t i = 0; i < count; i++) tess_tokenizer_bytes(t, ids[i], &one), n += one;
    char *raw = tess_alloc(n + 1), *out = tess_alloc(3 * n + 1);
    n = 0;
    for (size_t i = 0; i < count; i++, n += one) {
        const char *bytes = tess_tokenizer_bytes(t, ids[i], &one);
        memcpy(raw + n, bytes, one);
    }
    for (size_t i = 0; i < n;) {
        int step = utf8_step(raw + i, n - i);
        size_t bytes = step > 0 ? (size_t)step : step < 0 ? (size_t)-step : n - i;
        memcpy(out + m, step > 0 ? raw + i : "\xef\xbf\xbd", step > 0 ? bytes : 3);
        m += step > 0 ? bytes : 3;
        i += bytes;
    }
    free(raw);
    if (length) *length = m;
    return out;
}
