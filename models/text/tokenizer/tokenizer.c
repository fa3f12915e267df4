/* Opening a Hugging Face tokenizer.json: which parts there are, and what they share.
 *
 * A model is useless with other ids than it was trained on, so each part of a tokenizer.json has the library's meaning
 * or is refused by name. Normal forms and classes come from utf8proc: 350 KB, no dependencies, and asked one character
 * at a time, so a text is normalized piece by piece; ICU has 30 MB and converts to UTF-16, and PCRE2 has no normal
 * forms. A tokenizer.model, or vocab.json and merges.txt, become the object that their tokenizer.json would be, so one
 * body encodes all. Long texts are cut after a mebibyte where every part is known not to look across the cut. Unicode
 * tables differ in age between libraries, so a character of the last years may be classed differently. */
#include "models/text/base/directories.h"
#include "models/text/base/gguf.h"
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static tess_status read_model(const tess_reader *r, tess_tokenizer *t, const json_t *model, bool *may_cut)
{
    const json_t *type = json_object_get(model, "type");
    if (!json_is_object(model)) return tess_file_error(r->path, "model", "expected an object");
    const char *name = json_is_string(type)                             ? json_string_value(type)
                       : type                                           ? "?"
                       : json_is_array(json_object_get(model, "vocab")) ? "Unigram"
                       : json_object_get(model, "continuing_subword_prefix") && !json_object_get(model, "merges")
                           ? "WordPiece"
                           : "BPE";
    if (strcmp(name, "BPE") && t->pretokenizer.byte_level)
        return tess_file_error(r->path, "model.type", "%.60s is not supported behind ByteLevel, only BPE", name);
    if (!strcmp(name, "BPE")) return tess_bpe_read(r, model, &t->tokens, t->vocab, t->names, &t->bpe, may_cut);
    if (!strcmp(name, "Unigram")) return tess_unigram_read(r, model, &t->tokens, t->vocab, &t->unigram, may_cut);
    if (!strcmp(name, "WordPiece")) return tess_wordpiece_read(r, model, &t->tokens, t->vocab, &t->wordpiece);
    return tess_file_error(r->path, "model.type", "%.60s is not supported, only BPE, Unigram and WordPiece", name);
}

static tess_status read_decoder(const tess_reader *r, tess_tokenizer *t, const json_t *json)
{
    TESS_TRY(tess_token_decoder_read(r, "decoder", json, &t->decoder));
    if (t->decoder && tess_token_decoder_byte_level(t->decoder) != t->pretokenizer.byte_level)
        return tess_file_error(r->path, "decoder",
                               t->pretokenizer.byte_level
                                   ? "only ByteLevel is supported behind a ByteLevel pre-tokenizer"
                                   : "ByteLevel is not supported without such a pre-tokenizer");
    return TESS_OK;
}

/* What each token adds to a text, as near as that can be said of one alone. */
static void show_tokens(tess_tokenizer *t)
{
    const bool blanks = tess_token_decoder_blanks(t->decoder);
    int32_t byte_id[256];
    tess_vocab_byte_tokens(t->vocab, byte_id);
    t->shown = tess_arena_get(t->arena, ((size_t)t->tokens.count + 1) * sizeof *t->shown);
    if (t->tokens.count) memcpy(t->shown, t->tokens.token, (size_t)t->tokens.count * sizeof *t->shown);
    for (int32_t i = 0; i < t->tokens.count && blanks; i++) {
        tess_token *s = &t->shown[i];
        if (!s->bytes || !memmem(s->bytes, s->length, TESS_LINE, 3)) continue;
        char *out = tess_arena_get(t->arena, s->length + 1);
        size_t n = 0;
        for (size_t at = 0; at < s->length;) {
            const bool line = s->length - at >= 3 && !memcmp(s->bytes + at, TESS_LINE, 3);
            out[n++] = line ? ' ' : s->bytes[at];
            at += line ? 3 : 1;
        }
        *s = (tess_token){out, n};
    }
    for (int b = 0; b < 256 && !t->pretokenizer.byte_level && blanks; b++) {
        char *out = byte_id[b] >= 0 ? tess_arena_get(t->arena, 1) : NULL;
        if (!out) continue;
        *out = (char)b;
        t->shown[byte_id[b]] = (tess_token){out, 1};
    }
}

/* Truncation and padding shape batches; they are not part of what a text's tokens are. */
static tess_status read_all(tess_tokenizer *t, const json_t *root)
{
    const tess_reader r = {t->arena, t->path};
    bool ends = false; /* words may end before U+2581 */
    TESS_TRY(tess_normalizer_read(&r, "normalizer", json_object_get(root, "normalizer"), &t->normalizer));
    TESS_TRY(tess_pretokenizer_read(&r, "pre_tokenizer", json_object_get(root, "pre_tokenizer"), &t->pretokenizer));
    TESS_TRY(read_decoder(&r, t, json_object_get(root, "decoder")));
    t->names = t->pretokenizer.byte_level ? tess_vocab_new() : t->vocab;
    TESS_TRY(read_model(&r, t, json_object_get(root, "model"), &ends));
    TESS_TRY(tess_added_read(&r, json_object_get(root, "added_tokens"), t->normalizer, t->names, &t->tokens, &t->added,
                             &t->added_count));
    for (size_t i = 0; i < t->added_count && t->pretokenizer.byte_level; i++)
        tess_alphabet_bytes(t->arena, &t->tokens.token[t->added[i].id]);
    tess_added_set_make(&r, t->added, t->added_count, false, &t->raw);
    tess_added_set_make(&r, t->added, t->added_count, true, &t->normal);
    TESS_TRY(tess_around_read(&r, "post_processor", json_object_get(root, "post_processor"), &t->around));
    show_tokens(t);
    const bool words = t->pretokenizer.splits > 0; /* that end before a blank, if those below say so */
    if (ends) tess_pretokenizer_end_words(&t->pretokenizer);
    t->may_cut = (words || ends) && tess_normalizer_may_cut(t->normalizer) &&
                 tess_pretokenizer_may_cut(&t->pretokenizer) && tess_added_may_cut(&t->normal);
    return TESS_OK;
}

/* What is there to be known of one that is not supported: tokens by their names, and how many there are. */
static void read_names(tess_tokenizer *t, const json_t *root)
{
    const json_t *added = json_object_get(root, "added_tokens"), *entry;
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    size_t i;
    t->unsupported =
        tess_arena_format(t->arena, "the model's tokenizer is none that is known here: %s", tess_error_text());
    tess_error_clear();
    t->added = tess_arena_get(t->arena, (json_array_size(added) + 1) * sizeof *t->added);
    t->added_count = 0;
    t->vocab_size = (int32_t)(json_is_array(vocab) ? json_array_size(vocab) : json_object_size(vocab));
    json_array_foreach(added, i, entry)
    {
        const json_t *name = json_object_get(entry, "content"), *id = json_object_get(entry, "id");
        if (!json_is_string(name) || !json_is_integer(id)) continue;
        if (json_integer_value(id) < 0 || json_integer_value(id) >= INT32_MAX) continue;
        tess_added *a = &t->added[t->added_count++];
        a->content = tess_token_copy(&(tess_reader){t->arena, t->path}, json_string_value(name),
                                     strlen(json_string_value(name)));
        a->id = (int32_t)json_integer_value(id);
        if (a->id >= t->vocab_size) t->vocab_size = a->id + 1;
    }
}

static tess_tokenizer *new_tokenizer(const char *path)
{
    tess_tokenizer *t = tess_alloc(sizeof *t);
    t->arena = tess_arena_new();
    t->path = tess_arena_format(t->arena, "%s", path);
    t->vocab = tess_vocab_new();
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

/* Other files than tokenizer.json, as the object that it would have. */
static tess_status make_root(tess_tokenizer *t, const char *dir, json_t **root)
{
    TESS_TRY(tess_tokenizer_files_read(&(tess_reader){t->arena, t->path}, dir, root));
    TESS_FREED char *text = json_dumps(*root, JSON_COMPACT);
    t->sum = tess_sum_bytes(TESS_SUM, text, strlen(text));
    return TESS_OK;
}

/* `path`: the file, or the directory where it is. *kept, unless NULL, becomes the object that it was read from. */
static tess_status open_tokenizer(const char *path, bool any, tess_tokenizer **tokenizer, json_t **kept)
{
    static const char json[] = "tokenizer.json";
    struct stat st;
    const bool within = tess_gguf_is(path) || (!stat(path, &st) && S_ISDIR(st.st_mode));
    const char *name = within ? tess_tokenizer_in(path) : NULL;
    char *file = name ? tess_format("%s/%s", path, name) : tess_strdup(path);
    tess_tokenizer *t = new_tokenizer(file);
    free(file);
    TESS_FREED_JSON json_t *root = NULL;
    tess_status status = name && strcmp(name, json) ? make_root(t, path, &root)
                                                    : tess_json_open(t->path, JSON_ALLOW_NUL, &root, &t->sum);
    if (status == TESS_OK) status = read_all(t, root);
    if (status == TESS_INVALID && any && (json_is_object(root) || (name && strcmp(name, json)))) {
        read_names(t, root);
        status = TESS_OK;
    }
    if (status == TESS_OK && kept) *kept = json_incref(root);
    if (status == TESS_OK)
        *tokenizer = t;
    else
        tess_tokenizer_free(t);
    return status;
}

tess_tokenizer *tess_tokenizer_none(const char *dir, const char *why)
{
    tess_tokenizer *t = new_tokenizer(dir);
    t->unsupported = tess_arena_format(t->arena, "%s %s", dir, why);
    return t;
}

tess_status tess_tokenizer_open(const char *path, tess_tokenizer **tokenizer)
{
    return open_tokenizer(path, false, tokenizer, NULL);
}
tess_status tess_tokenizer_open_any(const char *path, tess_tokenizer **tokenizer)
{
    return open_tokenizer(path, true, tokenizer, NULL);
}

tess_status tess_tokenizer_json(const char *path, tess_tokenizer **tokenizer, json_t **root)
{
    return open_tokenizer(path, false, tokenizer, root);
}
tess_status tess_tokenizer_save(const char *dir, const char *file)
{
    tess_tokenizer *t;
    json_t *root, *token;
    size_t i;
    TESS_TRY(tess_tokenizer_json(dir, &t, &root));
    json_t *flags =
        json_pack("{sb sb sb}", "single_word", 0, "lstrip", 0, "rstrip", 0); /* the library wants them said */
    json_array_foreach(json_object_get(root, "added_tokens"), i, token) json_object_update_missing(token, flags);
    json_decref(flags);
    TESS_FREED char *text = json_dumps(root, JSON_INDENT(1));
    const tess_status status = tess_write_text(file, text);
    json_decref(root);
    tess_tokenizer_free(t);
    return status;
}

void tess_tokenizer_free(tess_tokenizer *t)
{
    if (!t) return;
    tess_workspaces_free(t);
    tess_normalizer_free(t->normalizer);
    tess_pretokenizer_free(&t->pretokenizer);
    tess_token_decoder_free(t->decoder);
    tess_bpe_free(t->bpe);
    tess_unigram_free(t->unigram);
    if (t->names != t->vocab) tess_vocab_free(t->names);
    tess_vocab_free(t->vocab);
    tess_ids_free(&t->around.before);
    tess_ids_free(&t->around.behind);
    free(t->tokens.token);
    pthread_mutex_destroy(&t->lock);
    tess_arena_free(t->arena);
    free(t);
}

/* ---- what it knows ---- */

const char *tess_tokenizer_unsupported(const tess_tokenizer *t)
{
    return t ? t->unsupported : NULL;
}

int32_t tess_tokenizer_vocab(const tess_tokenizer *t)
{
    return !t ? 256 : t->unsupported ? t->vocab_size : t->tokens.count;
}

uint64_t tess_tokenizer_sum(const tess_tokenizer *t)
{
    return t ? t->sum : 0;
}

int32_t tess_tokenizer_added(const tess_tokenizer *t, const char *name)
{
    for (size_t a = 0; t && a < t->added_count; a++)
        if (t->added[a].content.length == strlen(name) && !memcmp(t->added[a].content.bytes, name, strlen(name)))
            return t->added[a].id;
    return -1;
}

int32_t tess_tokenizer_end_of_text(const tess_tokenizer *t)
{
    static const char *const name[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    int32_t id = -1;
    for (size_t i = 0; id < 0 && i < sizeof name / sizeof *name; i++) id = tess_tokenizer_added(t, name[i]);
    return id;
}
