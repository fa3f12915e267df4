/* The tokenizer in a GGUF file, as the object that its tokenizer.json would be. There are two kinds: "gpt2", tokens in
 * an alphabet of bytes with their merges, and "llama", sentencepiece's, whose merges follow from scores. How the first
 * cuts words has a name there. */
#include "models/text/base/gguf.h"
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <string.h>

const char *const tess_gguf_words[TESS_GGUF_WORDS][2] = {
    {"gpt-2", NULL}, /* ByteLevel's own */
    {"llama-bpe",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
     "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"qwen2", TESS_QWEN2_WORDS},
};

static const json_t *meta_of(const json_t *meta, const char *name)
{
    char key[80];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    return json_object_get(meta, key);
}

/* Bytes' tokens and merges; tokens that stand for no text are added, and those that fill the table up are left out. */
static tess_status read_pairs(const tess_reader *r, const json_t *meta, const json_t *tokens, const json_t *kinds,
                              json_t **root)
{
    const char *name = json_string_value(meta_of(meta, "pre"));
    size_t w = 0, i;
    json_t *vocab = json_object(), *merges = json_incref((json_t *)meta_of(meta, "merges")), *added = json_array(),
           *token;
    while (w < TESS_GGUF_WORDS && (!name || strcmp(name, tess_gguf_words[w][0]))) w++;
    json_array_foreach(tokens, i, token)
    {
        const json_int_t kind = json_integer_value(json_array_get(kinds, i));
        if (kind == TESS_PIECE_CONTROL || kind == TESS_PIECE_USER_DEFINED)
            json_array_append_new(added, json_pack("{sI sO sb sb}", "id", (json_int_t)i, "content", token, "special",
                                                   kind == TESS_PIECE_CONTROL, "normalized", 0));
        else if (kind != TESS_PIECE_UNUSED)
            json_object_setn_new(vocab, json_string_value(token), json_string_length(token),
                                 json_integer((json_int_t)i));
    }
    json_t *model =
        json_pack("{ss so so* sb}", "type", "BPE", "vocab", vocab, "merges", merges, "ignore_merges", w == 1);
    *root = json_pack("{so so so}", "model", model, "added_tokens", added, "decoder", tess_pairs_words(NULL, false));
    if (w == TESS_GGUF_WORDS)
        return tess_file_error(r->path, "tokenizer.ggml.pre", "%.60s is not read (known: gpt-2, llama-bpe, qwen2)",
                               name ? name : "(none)");
    if (w == TESS_GGUF_QWEN2) json_object_set_new(*root, "normalizer", json_pack("{ss}", "type", "NFC"));
    json_object_set_new(*root, "pre_tokenizer", tess_pairs_words(tess_gguf_words[w][1], false));
    return TESS_OK;
}

static void add_around(const json_t *meta, const json_t *tokens, json_t *root)
{
    static const char *const end[] = {"bos", "eos"};
    json_t *single = json_array(), *special = json_object();
    for (int i = 0; i < 2; i++) {
        char flag[24], name[24];
        snprintf(flag, sizeof flag, "add_%s_token", end[i]);
        snprintf(name, sizeof name, "%s_token_id", end[i]);
        const json_t *adds = meta_of(meta, flag), *id = meta_of(meta, name);
        const bool usual = i == 0 && !strcmp(json_string_value(meta_of(meta, "model")), "llama");
        const char *text = json_string_value(json_array_get(tokens, (size_t)json_integer_value(id)));
        if ((adds ? json_is_true(adds) : usual) && id && text) {
            json_array_append_new(single, json_pack("{s{ss si}}", "SpecialToken", "id", text, "type_id", 0));
            json_object_set_new(special, text, json_pack("{ss s[O] s[s]}", "id", text, "ids", id, "tokens", text));
        }
        if (i == 0) json_array_append_new(single, json_pack("{s{ss si}}", "Sequence", "id", "A", "type_id", 0));
    }
    json_t *pair = json_copy(single);
    json_array_append_new(pair, json_pack("{s{ss si}}", "Sequence", "id", "B", "type_id", 1));
    json_object_set_new(root, "post_processor",
                        json_pack("{ss so so so}", "type", "TemplateProcessing", "single", single, "pair", pair,
                                  "special_tokens", special));
}

tess_status tess_gguf_tokenizer_read(const tess_reader *r, const json_t *meta, json_t **root)
{
    const char *model = json_string_value(meta_of(meta, "model"));
    const json_t *tokens = meta_of(meta, "tokens"), *kinds = meta_of(meta, "token_type"), *token;
    const bool pieces = model && !strcmp(model, "llama");
    size_t i;
    json_array_foreach(tokens, i, token)
    {
        if (!json_is_string(token)) return tess_file_error(r->path, "tokenizer.ggml.tokens", "are no texts");
    }
    if (!model || (!pieces && strcmp(model, "gpt2")))
        return tess_file_error(r->path, "tokenizer.ggml.model", "%.60s is not read (known: gpt2, llama)",
                               model ? model : "(none)");
    if (pieces)
        TESS_TRY(tess_sentencepiece_make(r, tokens, meta_of(meta, "scores"), kinds,
                                         !json_is_false(meta_of(meta, "add_space_prefix")), root));
    else
        TESS_TRY(read_pairs(r, meta, tokens, kinds, root));
    add_around(meta, tokens, *root);
    return TESS_OK;
}
