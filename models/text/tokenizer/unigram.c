/* Unigram: of all ways to write a word in tokens, the one whose scores have the largest sum, by Viterbi's algorithm
 * over the word's bytes. A character that is no token costs more than any token does; unknown ones in a row are one. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

/* The trie of all tokens: a child by its parent and byte, in an open-addressed table; node 0 is the root. */
struct edge {
    uint64_t key; /* parent << 8 | byte, + 1; 0: empty */
    uint32_t child;
    int32_t id; /* of the token that ends there; -1: none does */
};
struct tess_unigram {
    struct edge *edge;
    size_t slots, edges;
    double *score; /* by id */
    double unknown_score;
    int32_t unknown; /* -1: none */
    bool bytes;
    int32_t byte_id[256];
    const tess_vocab *vocab;
};

static struct edge *find(const tess_unigram *u, uint32_t parent, char byte)
{
    const uint64_t key = ((uint64_t)parent << 8 | (unsigned char)byte) + 1;
    for (size_t i = (key * UINT64_C(0x9e3779b97f4a7c15)) >> 32;; i++) {
        struct edge *e = &u->edge[i & (u->slots - 1)];
        if (!e->key || e->key == key) return e;
    }
}

static void add_token(tess_unigram *u, const char *s, size_t n, int32_t id)
{
    uint32_t node = 0;
    struct edge *e = NULL;
    for (size_t i = 0; i < n; i++) {
        if (2 * u->edges >= u->slots) {
            const tess_unigram old = *u;
            u->slots *= 2;
            u->edge = tess_alloc(u->slots * sizeof *u->edge);
            for (const struct edge *o = old.edge; o < old.edge + old.slots; o++)
                if (o->key) *find(u, (uint32_t)((o->key - 1) >> 8), (char)((o->key - 1) & 0xff)) = *o;
            free(old.edge);
        }
        e = find(u, node, s[i]);
        if (!e->key) *e = (struct edge){((uint64_t)node << 8 | (unsigned char)s[i]) + 1, (uint32_t)++u->edges, -1};
        node = e->child;
    }
    if (e) e->id = id;
}

static tess_status read_pieces(const tess_reader *r, const json_t *list, tess_tokens *tokens, tess_vocab *vocab,
                               tess_unigram *u)
{
    const size_t count = json_array_size(list);
    double least = 1.0 / 0.0;
    if (!json_is_array(list)) return tess_file_error(r->path, "model.vocab", "expected an array of tokens and scores");
    u->score = tess_arena_get(r->arena, (count + 1) * sizeof *u->score);
    for (size_t i = 0; i < count; i++) {
        const json_t *pair = json_array_get(list, i), *text = json_array_get(pair, 0), *score = json_array_get(pair, 1);
        const char *field = "model.vocab";
        if (json_array_size(pair) != 2 || !json_is_string(text) || !json_is_number(score)) {
            field = tess_field_at(r, "model", "vocab", i);
            return tess_file_error(r->path, field, "expected [\"token\", score]");
        }
        const size_t n = json_string_length(text);
        const tess_token token = tess_token_copy(r, json_string_value(text), n);
        TESS_TRY(tess_tokens_set(r, tokens, field, (int64_t)i, token));
        tess_vocab_set(vocab, token.bytes, n, (int32_t)i);
        add_token(u, token.bytes, n, (int32_t)i);
        u->score[i] = json_number_value(score);
        if (u->score[i] < least) least = u->score[i];
    }
    u->unknown_score = least - 10;
    return TESS_OK;
}

tess_status tess_unigram_read(const tess_reader *r, const json_t *model, tess_tokens *tokens, tess_vocab *vocab,
                              tess_unigram **out, bool *may_cut)
{
    const json_t *unknown = json_object_get(model, "unk_id");
    tess_unigram *u = *out = tess_alloc(sizeof *u);
    u->slots = 1 << 10;
    u->edge = tess_alloc(u->slots * sizeof *u->edge);
    u->vocab = vocab;
    u->unknown = -1;
    TESS_TRY(tess_json_flag(r, "model", model, "byte_fallback", false, &u->bytes));
    TESS_TRY(read_pieces(r, json_object_get(model, "vocab"), tokens, vocab, u));
    if (unknown && !json_is_null(unknown)) {
        if (!json_is_integer(unknown) || json_integer_value(unknown) < 0 ||
            json_integer_value(unknown) >= tokens->count)
            return tess_file_error(r->path, "model.unk_id", "is none of the ids of model.vocab");
        u->unknown = (int32_t)json_integer_value(unknown);
    }
    tess_vocab_byte_tokens(vocab, u->byte_id);
    *may_cut = tess_tokens_begin_words(tokens, vocab) && u->unknown != tess_vocab_get(vocab, TESS_LINE, 3);
    return TESS_OK;
}

void tess_unigram_free(tess_unigram *u)
{
    if (!u) return;
    free(u->edge);
    free(u);
}

/* The best way to the byte where it stands. */
struct best {
    double score;
    uint32_t from; /* NONE: no way */
    int32_t id;
};
#define NONE UINT32_MAX

static void offer(struct best *b, double score, uint32_t from, int32_t id)
{
    if (b->from == NONE || score > b->score) *b = (struct best){score, from, id};
}

/* A stretch that is unknown, or a token: the ids of it, last one first. */
static tess_status push_back(const tess_unigram *u, const char *s, size_t n, int32_t id, tess_ids *ids)
{
    bool bytes = u->bytes;
    if (id != u->unknown) return tess_ids_push(ids, id), TESS_OK;
    const int32_t known = tess_vocab_get(u->vocab, s, n);
    if (known >= 0) return tess_ids_push(ids, known), TESS_OK;
    for (size_t i = 0; i < n && bytes; i++) bytes = u->byte_id[(unsigned char)s[i]] >= 0;
    if (!bytes) return tess_ids_push(ids, u->unknown), TESS_OK;
    for (size_t i = n; i-- > 0;) tess_ids_push(ids, u->byte_id[(unsigned char)s[i]]);
    return TESS_OK;
}

tess_status tess_unigram_encode(const tess_unigram *u, const char *s, size_t n, tess_scratch *scratch, tess_ids *ids)
{
    const size_t before = ids->count;
    size_t bytes;
    if (scratch->symbols < (n + 1) * sizeof(struct best)) {
        scratch->symbols = (n + 1) * sizeof(struct best) * 3 / 2;
        scratch->symbol = tess_realloc(scratch->symbol, scratch->symbols);
    }
    struct best *best = scratch->symbol;
    for (size_t i = 0; i <= n; i++) best[i].from = NONE;
    best[0] = (struct best){0};
    for (size_t at = 0; at < n; at += bytes) {
        const double till = best[at].score;
        bool single = false;
        uint32_t node = 0;
        tess_utf8_get(s + at, &bytes);
        if (bytes > n - at) bytes = n - at; /* a word that was cut within a character */
        for (size_t end = at; end < n;) {
            const struct edge *e = find(u, node, s[end++]);
            if (!e->key) break;
            node = e->child;
            if (e->id < 0) continue;
            offer(&best[end], u->score[e->id] + till, (uint32_t)at, e->id);
            single |= end - at == bytes;
        }
        if (single) continue;
        if (u->unknown < 0)
            return tess_error(TESS_INVALID, "text", "\"%.*s\" is in no token, and the tokenizer has no unk_id",
                              (int)bytes, s + at);
        offer(&best[at + bytes], u->unknown_score + till, (uint32_t)at, u->unknown);
    }
    for (size_t end = n, at; end > 0; end = at) {
        const int32_t id = best[end].id;
        at = best[end].from;
        while (id == u->unknown && at > 0 && best[at].id == u->unknown) at = best[at].from;
        TESS_TRY(push_back(u, s + at, end - at, id, ids));
    }
    for (size_t i = before, j = ids->count; i + 1 < j; i++) {
        const int32_t id = ids->id[--j];
        ids->id[j] = ids->id[i];
        ids->id[i] = id;
    }
    return TESS_OK;
}
