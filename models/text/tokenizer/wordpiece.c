/* WordPiece: a word is the longest token that it begins with, then the longest one of what goes on within a word, and
 * so on; where there is none, or the word is too long, it is the unknown token as a whole. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <string.h>

struct tess_wordpiece {
    const tess_vocab *vocab;
    int32_t unknown;
    int64_t longest; /* characters */
    const char *prefix;
    size_t prefix_bytes, token_bytes; /* of the longest token */
};

tess_status tess_wordpiece_read(const tess_reader *r, const json_t *model, tess_tokens *tokens, tess_vocab *vocab,
                                tess_wordpiece **out)
{
    tess_wordpiece *w = *out = tess_arena_get(r->arena, sizeof *w);
    const char *unknown = tess_json_text(model, "unk_token");
    const char *prefix = tess_json_text(model, "continuing_subword_prefix");
    const json_t *longest = json_object_get(model, "max_input_chars_per_word");
    TESS_TRY(tess_vocab_read(r, json_object_get(model, "vocab"), tokens, vocab));
    w->vocab = vocab;
    w->unknown = tess_vocab_get(vocab, unknown ? unknown : "[UNK]", unknown ? strlen(unknown) : 5);
    if (w->unknown < 0) return tess_file_error(r->path, "model.unk_token", "is not in model.vocab");
    if (longest && (!json_is_integer(longest) || json_integer_value(longest) < 0))
        return tess_file_error(r->path, "model.max_input_chars_per_word", "expected a whole number");
    w->longest = longest ? json_integer_value(longest) : 100;
    w->prefix = tess_arena_format(r->arena, "%s", prefix ? prefix : "##");
    w->prefix_bytes = strlen(w->prefix);
    for (int32_t i = 0; i < tokens->count; i++)
        if (tokens->token[i].length > w->token_bytes) w->token_bytes = tokens->token[i].length;
    return TESS_OK;
}

static bool too_long(const tess_wordpiece *w, const char *word, size_t n)
{
    int64_t characters = 0;
    if ((int64_t)n <= w->longest) return false;
    for (size_t i = 0; i < n; i++) characters += (word[i] & 0xc0) != 0x80;
    return characters > w->longest;
}

void tess_wordpiece_encode(const tess_wordpiece *w, const char *word, size_t n, tess_bytes *room, tess_ids *ids)
{
    const size_t before = ids->count;
    bool unknown = too_long(w, word, n);
    for (size_t at = 0, end; at < n && !unknown; at = end) {
        const size_t prefix = at ? w->prefix_bytes : 0;
        int32_t id = -1;
        end = n - at + prefix > w->token_bytes
                  ? at + w->token_bytes - (prefix < w->token_bytes ? prefix : w->token_bytes)
                  : n;
        room->length = 0;
        tess_bytes_add(room, w->prefix, prefix);
        tess_bytes_add(room, word + at, end - at);
        for (; end > at; end--) {
            if (end < n && (word[end] & 0xc0) == 0x80) continue; /* within a character */
            if ((id = tess_vocab_get(w->vocab, room->data, prefix + end - at)) >= 0) break;
        }
        unknown = id < 0;
        tess_ids_push(ids, id);
    }
    if (!unknown) return;
    ids->count = before;
    tess_ids_push(ids, w->unknown);
}
