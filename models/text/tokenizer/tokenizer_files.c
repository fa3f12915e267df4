/* The tokenizer of a model's directory: tokenizer.json, or the same object made from older files. Those say less: which
 * tokens are added and special stands in tokenizer_config.json, special_tokens_map.json and added_tokens.json, and the
 * rest follows from the kind of tokenizer, which is known by its class or the model's type. A kind that is not known
 * here is an error: it might cut texts in another way. */
#include "models/text/base/directories.h"
#include "models/text/base/gguf.h"
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

/* Special tokens by their meaning, in transformers' order; ids of those that no file has follow it. */
enum { BOS, EOS, UNK, SEP, PAD, CLS, MASK, SPECIALS };
static const char *const meaning[SPECIALS] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                              "pad_token", "cls_token", "mask_token"};

static const struct kind {
    const char *classes, *types; /* tokenizer_class, without Fast, and model_type; each with blanks around */
    bool pairs, qwen2, extra;    /* of vocab.json; with Qwen2's words; with T5's sentinels */
    int before, behind;          /* what stands around a text; SPECIALS: nothing, unless the files ask for it */
    const char *special[SPECIALS];
} kinds[] = {
    {" LlamaTokenizer CodeLlamaTokenizer ", " llama mistral mixtral phi3 ", .before = BOS, .behind = SPECIALS,
     .special = {[BOS] = "<s>", [EOS] = "</s>", [UNK] = "<unk>"}},
    {" GemmaTokenizer ", " gemma gemma2 ", .before = BOS, .behind = SPECIALS,
     .special = {[BOS] = "<bos>", [EOS] = "<eos>", [UNK] = "<unk>", [PAD] = "<pad>"}},
    {" T5Tokenizer ", " t5 mt5 ", .extra = true, .before = SPECIALS, .behind = EOS,
     .special = {[EOS] = "</s>", [UNK] = "<unk>", [PAD] = "<pad>"}},
    {" GPT2Tokenizer ", " gpt2 ", .pairs = true, .before = SPECIALS, .behind = SPECIALS,
     .special = {[BOS] = "<|endoftext|>", [EOS] = "<|endoftext|>", [UNK] = "<|endoftext|>"}},
    {" RobertaTokenizer BartTokenizer ", " roberta bart ", .pairs = true, .before = CLS, .behind = SEP,
     .special = {"<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"}},
    {" Qwen2Tokenizer ", " qwen2 qwen3 qwen3_moe ", .pairs = true, .qwen2 = true, .before = SPECIALS,
     .behind = SPECIALS, .special = {[EOS] = "<|endoftext|>", [UNK] = "<|endoftext|>", [PAD] = "<|endoftext|>"}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- what is there ---- */

/* What a GGUF file says of its tokenizer, if it has one. */
static tess_status read_gguf(const tess_reader *r, const char *path, json_t **root)
{
    tess_map map;
    tess_gguf g = {0};
    TESS_TRY(tess_map_open(path, &map));
    tess_status status = tess_gguf_read(path, map.data, map.bytes, &g);
    if (status == TESS_OK)
        status = r                                                  ? tess_gguf_tokenizer_read(r, g.meta, root)
                 : json_object_get(g.meta, "tokenizer.ggml.tokens") ? TESS_OK
                                                                    : TESS_INVALID;
    tess_gguf_free(&g);
    tess_map_close(&map);
    return status;
}

const char *tess_tokenizer_in(const char *dir)
{
    if (tess_dirs_has(dir, "tokenizer.json")) return "tokenizer.json";
    if (tess_dirs_has(dir, "tokenizer.model")) return "tokenizer.model";
    if (tess_dirs_has(dir, "spiece.model")) return "spiece.model";
    if (tess_gguf_is(dir)) return read_gguf(NULL, dir, NULL) == TESS_OK ? "tokenizer.ggml" : (tess_error_clear(), NULL);
    return tess_dirs_has(dir, "vocab.json") && tess_dirs_has(dir, "merges.txt") ? "vocab.json" : NULL;
}

char *tess_tokenizer_lack(const char *dir)
{
    static const char *const others[] = {"vocab.json",  "merges.txt",    "vocab.txt", "sentencepiece.bpe.model",
                                         "tekken.json", "qwen.tiktoken", "vocab.bpe", "encoder.json"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (tess_dirs_has(dir, others[i]))
            return tess_format("has no tokenizer.json, but %s%s (transformers' AutoTokenizer.from_pretrained, "
                               "save_pretrained makes one)",
                               others[i],
                               i == 0   ? " without merges.txt"
                               : i == 1 ? " without vocab.json"
                                        : "");
    return tess_strdup("has no tokenizer.json, tokenizer.model or vocab.json");
}

/* ---- what the files beside it say ---- */

struct beside {
    const tess_reader *r;
    const char *dir;
    json_t *config, *map, *added_tokens, *model; /* files as objects; NULL: it has none */
    const struct kind *kind;
    json_t *ids;   /* by text, of the vocabulary and of what is added to it */
    json_t *added; /* the array that tokenizer.json has */
    int64_t next;  /* the id behind the largest that a token has */
    const char *spelt[SPECIALS];
};

static bool names(const char *list, const char *name)
{
    char word[80];
    const int n = snprintf(word, sizeof word, " %s ", name);
    return n < (int)sizeof word && strstr(list, word);
}

static tess_status find_kind(struct beside *b, bool pairs)
{
    const char *class = tess_json_text(b->config, "tokenizer_class"), *type = tess_json_text(b->model, "model_type");
    if (!class) class = tess_json_text(b->model, "tokenizer_class");
    char name[64] = "", known[300] = "";
    if (class) snprintf(name, sizeof name, "%s", class);
    const size_t n = strlen(name);
    if (n > 4 && !strcmp(name + n - 4, "Fast")) name[n - 4] = 0;
    for (size_t i = 0; i < KINDS; i++) {
        if (kinds[i].pairs != pairs) continue;
        if (class ? names(kinds[i].classes, name) : type && names(kinds[i].types, type)) b->kind = &kinds[i];
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s", kinds[i].classes);
    }
    if (b->kind) return TESS_OK;
    return tess_error(TESS_INVALID, b->r->path,
                      "is read of the classes%sand tokenizer_class is %s (transformers' AutoTokenizer.from_pretrained, "
                      "save_pretrained makes a tokenizer.json of any)",
                      known, class ? class : "missing");
}

/* ---- added tokens ---- */

static json_t *find_added(const struct beside *b, const char *text)
{
    size_t i;
    json_t *entry;
    json_array_foreach(b->added, i, entry)
    {
        const char *content = tess_json_text(entry, "content");
        if (content && !strcmp(content, text)) return entry;
    }
    return NULL;
}

static json_t *flags_of(const json_t *from)
{
    static const char *const flag[] = {"lstrip", "rstrip", "single_word", "normalized", "special"};
    json_t *flags = json_object();
    for (size_t i = 0; i < sizeof flag / sizeof *flag; i++)
        if (json_is_boolean(json_object_get(from, flag[i])))
            json_object_set(flags, flag[i], json_object_get(from, flag[i]));
    return flags;
}

/* Makes a token added, or changes one that is: `flags`, which it takes, go over what is said of it. id -1: that of the
 * vocabulary, or the next. */
static tess_status add(struct beside *b, const char *text, json_int_t id, json_t *flags)
{
    const json_t *known = json_object_get(b->ids, text);
    if (id < 0) id = known ? json_integer_value(known) : b->next;
    json_t *entry = *text ? find_added(b, text) : NULL;
    const bool wrong = !*text || id >= TESS_IDS || (known && json_integer_value(known) != id);
    if (!wrong && !entry) {
        entry = json_pack("{ss sI sb sb}", "content", text, "id", id, "special", 0, "normalized", 0);
        json_array_append_new(b->added, entry);
    }
    if (!wrong) json_object_update(entry, flags);
    json_decref(flags);
    if (wrong)
        return tess_error(TESS_INVALID, b->dir, "the added token \"%s\" has id %lld in one file, and another is its",
                          text, (long long)id);
    json_object_set_new(b->ids, text, json_integer(id));
    if (id >= b->next) b->next = id + 1;
    return TESS_OK;
}

/* {"32000": {"content": "<pad>", "special": true, ...}} */
static tess_status add_decoder(struct beside *b)
{
    json_t *all = json_object_get(b->config, "added_tokens_decoder"), *entry;
    const char *id;
    json_object_foreach(all, id, entry)
    {
        const char *text = tess_json_text(entry, "content");
        char *end;
        const long long n = strtoll(id, &end, 10);
        if (!text || *end || n < 0)
            return tess_error(TESS_INVALID, b->dir,
                              "tokenizer_config.json: added_tokens_decoder: %s: expected an id and a content", id);
        TESS_TRY(add(b, text, n, flags_of(entry)));
    }
    return TESS_OK;
}

/* {"<pad>": 32000} */
static tess_status add_listed(struct beside *b)
{
    const char *text;
    json_t *id;
    json_object_foreach(b->added_tokens, text, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return tess_error(TESS_INVALID, b->dir, "added_tokens.json: %s: expected an id", text);
        TESS_TRY(add(b, text, json_integer_value(id), json_object()));
    }
    return TESS_OK;
}

/* One that has a meaning: a text, or an object with its content. */
static tess_status add_special(struct beside *b, const json_t *token)
{
    const char *text = json_is_string(token) ? json_string_value(token) : tess_json_text(token, "content");
    if (!text || !*text) return TESS_OK;
    json_t *flags = flags_of(token);
    json_object_set_new(flags, "special", json_true());
    json_object_set_new(flags, "normalized", json_false());
    return add(b, text, -1, flags);
}

static tess_status add_specials(struct beside *b)
{
    for (int i = 0; i < SPECIALS; i++) {
        const json_t *token = json_object_get(b->config, meaning[i]);
        const char *usual = b->kind->special[i];
        if (!token) token = json_object_get(b->map, meaning[i]);
        if (token)
            b->spelt[i] = json_is_string(token) ? json_string_value(token) : tess_json_text(token, "content");
        else
            b->spelt[i] = usual;
        TESS_FREED_JSON json_t *entry = json_pack("{ss* sb}", "content", b->spelt[i], "lstrip", i == MASK);
        const tess_status status = add_special(b, json_is_object(token) ? token : entry);
        TESS_TRY(status);
    }
    const json_t *const from[] = {b->config, b->map};
    for (int k = 0; k < 2; k++) {
        const json_t *more = json_object_get(from[k], "additional_special_tokens");
        for (size_t i = 0; i < json_array_size(more); i++) TESS_TRY(add_special(b, json_array_get(more, i)));
    }
    return TESS_OK;
}

/* T5's sentinels lie behind its vocabulary, the last one first. */
static tess_status add_extra(struct beside *b)
{
    const json_t *given = json_object_get(b->config, "extra_ids");
    const json_int_t count = json_is_integer(given) ? json_integer_value(given) : 100, first = b->next;
    if (!b->kind->extra) return TESS_OK;
    if (count < 0 || count > TESS_IDS / 2)
        return tess_error(TESS_INVALID, b->dir, "tokenizer_config.json: extra_ids: %lld", (long long)count);
    for (json_int_t k = 0; k < count; k++) {
        char text[48];
        snprintf(text, sizeof text, "<extra_id_%lld>", (long long)k);
        if (!json_object_get(b->ids, text))
            TESS_TRY(add(b, text, first + count - 1 - k, json_pack("{sb}", "special", 1)));
    }
    return TESS_OK;
}

/* ---- what stands around a text ---- */

static int around(const struct beside *b, const char *flag, int usual, int asked)
{
    const json_t *given = json_object_get(b->config, flag);
    if (usual == CLS || usual == SEP || !json_is_boolean(given)) return usual;
    return json_is_true(given) ? asked : SPECIALS;
}

static json_t *make_template(const struct beside *b)
{
    const int side[] = {around(b, "add_bos_token", b->kind->before, BOS), SPECIALS,
                        around(b, "add_eos_token", b->kind->behind, EOS)};
    json_t *single = json_array(), *special = json_object();
    for (int i = 0; i < 3; i++) {
        const char *text = side[i] < SPECIALS ? b->spelt[side[i]] : NULL;
        if (i == 1)
            json_array_append_new(single, json_pack("{s{ss si}}", "Sequence", "id", "A", "type_id", 0));
        else if (text) {
            json_array_append_new(single, json_pack("{s{ss si}}", "SpecialToken", "id", text, "type_id", 0));
            json_object_set_new(special, text,
                                json_pack("{ss s[O]}", "id", text, "ids", json_object_get(b->ids, text)));
        }
    }
    return json_pack("{ss so so}", "type", "TemplateProcessing", "single", single, "special_tokens", special);
}

/* ---- the whole ---- */

static tess_status read_vocabulary(struct beside *b, bool pairs, json_t **root)
{
    if (pairs) {
        TESS_FREED char *merges = tess_format("%s/merges.txt", b->dir);
        return tess_pairs_read(b->r->path, merges, b->config, b->kind->qwen2, root);
    }
    tess_map map;
    TESS_TRY(tess_map_open(b->r->path, &map));
    const tess_status status = tess_sentencepiece_read(b->r, (const char *)map.data, map.bytes, b->config, root);
    tess_map_close(&map);
    return status;
}

/* Ids by text, whatever the vocabulary's form. */
static void list_ids(struct beside *b, const json_t *root)
{
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    const char *text;
    json_t *id;
    b->ids = json_object();
    json_object_foreach((json_t *)vocab, text, id)
    {
        json_object_set(b->ids, text, id);
        if (json_integer_value(id) >= b->next) b->next = json_integer_value(id) + 1;
    }
    for (size_t i = 0; i < json_array_size(vocab); i++) {
        json_object_set_new(b->ids, json_string_value(json_array_get(json_array_get(vocab, i), 0)),
                            json_integer((json_int_t)i));
        b->next = (int64_t)i + 1;
    }
}

static tess_status add_all(struct beside *b, json_t *root)
{
    list_ids(b, root);
    b->added = json_object_get(root, "added_tokens");
    if (!b->added) json_object_set_new(root, "added_tokens", b->added = json_array());
    TESS_TRY(add_decoder(b));
    TESS_TRY(add_listed(b));
    TESS_TRY(add_extra(b));
    TESS_TRY(add_specials(b));
    json_object_set_new(root, "post_processor", make_template(b));
    return TESS_OK;
}

static tess_status read_beside(struct beside *b, bool pairs, json_t **root)
{
    TESS_TRY(tess_json_beside(b->dir, "tokenizer_config.json", &b->config));
    TESS_TRY(tess_json_beside(b->dir, "special_tokens_map.json", &b->map));
    TESS_TRY(tess_json_beside(b->dir, "added_tokens.json", &b->added_tokens));
    TESS_TRY(tess_json_beside(b->dir, "config.json", &b->model));
    TESS_TRY(find_kind(b, pairs));
    TESS_TRY(read_vocabulary(b, pairs, root));
    return add_all(b, *root);
}

tess_status tess_tokenizer_files_read(const tess_reader *r, const char *dir, json_t **root)
{
    struct beside b = {.r = r, .dir = dir};
    if (tess_gguf_is(dir)) return read_gguf(r, dir, root);
    const size_t n = strlen(r->path);
    const tess_status status = read_beside(&b, n > 5 && !strcmp(r->path + n - 5, ".json"), root);
    json_decref(b.config);
    json_decref(b.map);
    json_decref(b.added_tokens);
    json_decref(b.model);
    json_decref(b.ids);
    return status;
}
