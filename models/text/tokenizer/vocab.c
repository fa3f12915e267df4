/* Tokens by their bytes, and by their ids. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

/* bytes NULL: an empty slot. There is a power of 2 of them, at most half of them taken. */
struct slot {
    const char *bytes;
    uint32_t length;
    int32_t id;
};
struct tess_vocab {
    struct slot *slot;
    size_t slots, taken;
};

tess_vocab *tess_vocab_new(void)
{
    tess_vocab *v = tess_alloc(sizeof *v);
    v->slots = 64;
    v->slot = tess_alloc(v->slots * sizeof *v->slot);
    return v;
}

void tess_vocab_free(tess_vocab *v)
{
    if (!v) return;
    free(v->slot);
    free(v);
}

/* Its slot, or the empty one where it belongs. */
static struct slot *find(const tess_vocab *v, const char *s, size_t n)
{
    for (size_t i = tess_hash(s, n);; i++) {
        struct slot *at = &v->slot[i & (v->slots - 1)];
        if (!at->bytes || (at->length == n && memcmp(at->bytes, s, n) == 0)) return at;
    }
}

void tess_vocab_set(tess_vocab *v, const char *s, size_t n, int32_t id)
{
    TESS_ASSERT(n < UINT32_MAX);
    if (2 * v->taken == v->slots) {
        const tess_vocab old = *v;
        v->slots *= 2;
        v->slot = tess_alloc(v->slots * sizeof *v->slot);
        for (const struct slot *at = old.slot; at < old.slot + old.slots; at++)
            if (at->bytes) *find(v, at->bytes, at->length) = *at;
        free(old.slot);
    }
    struct slot *at = find(v, s, n);
    if (!at->bytes) v->taken++;
    *at = (struct slot){s, (uint32_t)n, id};
}

int32_t tess_vocab_get(const tess_vocab *v, const char *s, size_t n)
{
    const struct slot *at = find(v, s, n);
    return at->bytes ? at->id : -1;
}

tess_status tess_tokens_set(const tess_reader *r, tess_tokens *t, const char *field, int64_t id, tess_token token)
{
    if (id < 0 || id >= TESS_IDS)
        return tess_file_error(r->path, field, "id %lld, expected 0 to %d", (long long)id, TESS_IDS - 1);
    if ((size_t)id >= t->room) {
        const size_t room = 3 * (size_t)id / 2 + 256;
        t->token = tess_realloc(t->token, room * sizeof *t->token);
        memset(t->token + t->room, 0, (room - t->room) * sizeof *t->token);
        t->room = room;
    }
    if (id >= t->count) t->count = (int32_t)id + 1;
    if (t->token[id].bytes) return tess_file_error(r->path, field, "id %lld is another token's already", (long long)id);
    t->token[id] = token;
    return TESS_OK;
}

tess_status tess_vocab_read(const tess_reader *r, const json_t *json, tess_tokens *tokens, tess_vocab *vocab)
{
    const char *key;
    json_t *value;
    if (!json_is_object(json))
        return tess_file_error(r->path, "model.vocab", "expected an object of tokens and their ids");
    json_object_foreach((json_t *)json, key, value)
    {
        char field[128];
        const tess_token token = tess_token_copy(r, key, strlen(key));
        snprintf(field, sizeof field, "model.vocab.%s", key);
        if (!json_is_integer(value)) return tess_file_error(r->path, field, "expected an integer id");
        TESS_TRY(tess_tokens_set(r, tokens, field, json_integer_value(value), token));
        tess_vocab_set(vocab, token.bytes, token.length, (int32_t)json_integer_value(value));
    }
    return TESS_OK;
}

bool tess_tokens_begin_words(const tess_tokens *tokens, const tess_vocab *vocab)
{
    if (tess_vocab_get(vocab, TESS_LINE, 3) < 0) return false;
    for (int32_t i = 0; i < tokens->count; i++) {
        const tess_token *t = &tokens->token[i];
        for (size_t at = 1; t->length >= 3 && at + 3 <= t->length; at++)
            if (!memcmp(t->bytes + at, TESS_LINE, 3) && !(at >= 3 && !memcmp(t->bytes + at - 3, TESS_LINE, 3)))
                return false;
    }
    return true;
}

void tess_vocab_byte_tokens(const tess_vocab *vocab, int32_t id[256])
{
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        id[b] = tess_vocab_get(vocab, name, 6);
    }
}
