/* What a GGUF file says of a tokenizer, from the object that its tokenizer.json has or would have (gguf_read.c). */
#include "models/text/base/directories.h"
#include "models/text/base/gguf.h"
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <string.h>

static const double NO_MERGE = -1e6; /* the score of what no merge makes */

struct written {
    const tess_reader *r;
    json_t *text, *kind, *score, *id; /* of each token, and by text its id */
};

static void put_token(struct written *w, const char *text, json_int_t id, int kind)
{
    while ((json_int_t)json_array_size(w->text) <= id) {
        char unused[32];
        snprintf(unused, sizeof unused, "[PAD%zu]", json_array_size(w->text));
        json_array_append_new(w->text, json_string(unused));
        json_array_append_new(w->kind, json_integer(TESS_PIECE_UNUSED));
        json_array_append_new(w->score, json_real(NO_MERGE));
    }
    if (!text) return;
    json_array_set_new(w->text, (size_t)id, json_string(text));
    json_array_set_new(w->kind, (size_t)id, json_integer(kind));
    json_object_set_new(w->id, text, json_integer(id));
}

static bool is_byte(const char *text)
{
    unsigned byte;
    char end;
    return strlen(text) == 6 && sscanf(text, "<0x%2X%c", &byte, &end) == 2 && end == '>';
}

static tess_status put_tokens(struct written *w, const json_t *root, bool pieces, int64_t count)
{
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    const char *text, *unknown = tess_json_text(model, "unk_token");
    json_t *id, *entry;
    size_t i;
    json_object_foreach(json_object_get(model, "vocab"), text, id)
        put_token(w, text, json_integer_value(id),
                  pieces && is_byte(text)                       ? TESS_PIECE_BYTE
                  : pieces && unknown && !strcmp(text, unknown) ? TESS_PIECE_UNKNOWN
                                                                : TESS_PIECE_NORMAL);
    json_array_foreach(added, i, entry)
    {
        text = tess_json_text(entry, "content");
        if (!pieces || !unknown || strcmp(text, unknown))
            put_token(w, text, json_integer_value(json_object_get(entry, "id")),
                      json_is_true(json_object_get(entry, "special")) ? TESS_PIECE_CONTROL : TESS_PIECE_USER_DEFINED);
    }
    if ((int64_t)json_array_size(w->text) > count)
        return tess_error(TESS_INVALID, w->r->path, "has %zu tokens, the model %lld", json_array_size(w->text),
                          (long long)count);
    put_token(w, NULL, count - 1, TESS_PIECE_UNUSED);
    return TESS_OK;
}

/* "a b" of each; sentencepiece's have a score for what they make, which is to say when. */
static tess_status put_merges(struct written *w, const json_t *list, bool pieces, json_t *merges)
{
    size_t i;
    json_t *merge;
    json_int_t last = -1, made = 0;
    json_array_foreach(list, i, merge)
    {
        const char *a = json_string_value(json_array_get(merge, 0)), *b = json_string_value(json_array_get(merge, 1));
        const char *text = json_string_value(merge), *space = text ? strchr(text, ' ') : NULL;
        TESS_FREED char *one = text ? tess_strdup(text) : tess_format("%s %s", a, b);
        TESS_FREED char *both =
            text ? tess_format("%.*s%s", (int)(space - text), text, space + 1) : tess_format("%s%s", a, b);
        const json_int_t id = json_integer_value(json_object_get(w->id, both));
        const bool split = pieces && id != last && json_real_value(json_array_get(w->score, (size_t)id)) > NO_MERGE;
        if (pieces && id != last) json_array_set_new(w->score, (size_t)id, json_real((double)-++made));
        last = id;
        if (!pieces) json_array_append_new(merges, json_string(one));
        if (split) return tess_file_error(w->r->path, "model.merges", "are in an order that no scores of tokens give");
    }
    return TESS_OK;
}

static bool is_type(const json_t *part, const char *type)
{
    return part && !json_is_null(part)
               ? type && tess_json_text(part, "type") && !strcmp(tess_json_text(part, "type"), type)
               : !type;
}

/* How words of bytes are cut, by its name there; NULL: it has none that is known here. */
static const char *words_of(const json_t *root)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer"), *list = json_object_get(pre, "pretokenizers");
    const json_t *last = list ? json_array_get(list, 1) : pre;
    const char *regex = tess_json_text(json_object_get(json_array_get(list, 0), "pattern"), "Regex");
    const bool whole = json_is_true(json_object_get(json_object_get(root, "model"), "ignore_merges"));
    size_t w = 0;
    for (w = list ? 1 : 0; w < TESS_GGUF_WORDS && list && !(regex && !strcmp(regex, tess_gguf_words[w][1]));) w++;
    const bool good = w < TESS_GGUF_WORDS && is_type(last, "ByteLevel") && json_array_size(list) <= 2 &&
                      !json_is_true(json_object_get(last, "add_prefix_space")) &&
                      json_is_false(json_object_get(last, "use_regex")) == (w > 0) && (!whole || w == 1) &&
                      is_type(json_object_get(root, "normalizer"), w == TESS_GGUF_QWEN2 ? "NFC" : NULL);
    return good ? tess_gguf_words[w][0] : NULL;
}

/* Whether pieces are as sentencepiece's, which become those of a text with, or without, a blank before it. */
static bool are_pieces(const json_t *root, bool *prefix)
{
    const json_t *normalizer = json_object_get(root, "normalizer"), *pre = json_object_get(root, "pre_tokenizer");
    const char *scheme = tess_json_text(pre, "prepend_scheme");
    *prefix = scheme ? strcmp(scheme, "never") : json_is_true(json_object_get(pre, "add_prefix_space"));
    bool same = is_type(pre, "Metaspace") && is_type(normalizer, NULL);
    for (int with = 0; with < 2 && is_type(pre, NULL) && !same; with++) {
        TESS_FREED_JSON json_t *usual = tess_sentencepiece_normalizer(with);
        same = json_equal(normalizer, usual);
        *prefix = with;
    }
    return same && json_is_true(json_object_get(json_object_get(root, "model"), "byte_fallback"));
}

static void set(json_t *meta, const char *name, json_t *value)
{
    char key[80];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    json_object_set_new(meta, key, value);
}

/* The tokens that begin and end texts, by what lies beside the tokenizer; and the template of conversations. */
static tess_status put_beside(struct written *w, const char *dir, json_t *meta)
{
    static const char *const name[] = {"bos_token", "eos_token", "pad_token"};
    TESS_FREED_JSON json_t *config = NULL, *model = NULL;
    tess_status status = tess_json_beside(dir, "tokenizer_config.json", &config);
    if (status == TESS_OK) status = tess_json_beside(dir, "config.json", &model);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char key[24];
        snprintf(key, sizeof key, "%s_id", name[i]);
        const json_t *token = json_object_get(config, name[i]);
        const char *text = json_is_object(token) ? tess_json_text(token, "content") : json_string_value(token);
        const json_t *id = text ? json_object_get(w->id, text) : NULL;
        if (!id) id = json_object_get(model, key);
        if (json_is_array(id)) id = json_array_get(id, 0);
        if (json_is_integer(id)) set(meta, key, json_integer(json_integer_value(id)));
    }
    json_t *template = json_object_get(config, "chat_template");
    TESS_FREED char *path = tess_format("%s/chat_template.jinja", dir);
    tess_map map = {0};
    if (json_is_string(template)) json_object_set(meta, "tokenizer.chat_template", template);
    if (tess_dirs_has(dir, "chat_template.jinja") && status == TESS_OK) status = tess_map_open(path, &map);
    if (map.bytes)
        json_object_set_new(meta, "tokenizer.chat_template", json_stringn((const char *)map.data, map.bytes));
    tess_map_close(&map);
    return status;
}

static tess_status put_all(struct written *w, const tess_tokenizer *t, const json_t *root, const char *dir,
                           int64_t count, json_t *meta)
{
    const json_t *model = json_object_get(root, "model");
    const char *pre = words_of(root);
    bool prefix;
    const bool pieces = are_pieces(root, &prefix);
    if (!t->bpe || (!pieces && !pre) || t->around.before.count > 1 || t->around.behind.count > 1)
        return tess_error(
            TESS_INVALID, t->path,
            "is of no kind that has a name in GGUF (expected BPE of bytes as gpt-2's, llama 3's or qwen2's, "
            "or sentencepiece's with byte_fallback, and at most a token before and behind a text)");
    TESS_FREED_JSON json_t *merges = json_array();
    set(meta, "model", json_string(pieces ? "llama" : "gpt2"));
    if (!pieces) set(meta, "pre", json_string(pre));
    if (pieces) set(meta, "add_space_prefix", json_boolean(prefix));
    tess_status status = put_tokens(w, root, pieces, count);
    if (status == TESS_OK) status = put_merges(w, json_object_get(model, "merges"), pieces, merges);
    set(meta, "tokens", json_incref(w->text));
    set(meta, "token_type", json_incref(w->kind));
    set(meta, pieces ? "scores" : "merges", json_incref(pieces ? w->score : merges));
    set(meta, "add_bos_token", json_boolean(t->around.before.count));
    set(meta, "add_eos_token", json_boolean(t->around.behind.count));
    if (status == TESS_OK) status = put_beside(w, dir, meta);
    if (t->around.before.count) set(meta, "bos_token_id", json_integer(t->around.before.id[0]));
    if (t->around.behind.count) set(meta, "eos_token_id", json_integer(t->around.behind.id[0]));
    return status;
}

tess_status tess_tokenizer_gguf(const char *dir, int64_t count, json_t *meta)
{
    tess_tokenizer *t;
    json_t *root;
    TESS_TRY(tess_tokenizer_json(dir, &t, &root));
    struct written w = {&(tess_reader){t->arena, t->path}, json_array(), json_array(), json_array(), json_object()};
    const tess_status status = put_all(&w, t, root, dir, count, meta);
    json_decref(w.text);
    json_decref(w.kind);
    json_decref(w.score);
    json_decref(w.id);
    json_decref(root);
    tess_tokenizer_free(t);
    return status;
}
