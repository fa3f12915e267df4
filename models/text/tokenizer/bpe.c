/* Byte-pair merging: a word to ids.
 *
 * A word is a linked list of symbols, which are bytes in an alphabet of theirs, or characters; a heap holds every pair
 * of neighbours that can merge, the earliest merge first and among equals the leftmost. A merge puts at most two new
 * pairs on the heap and leaves the pairs that it broke there: they are recognised when they come up, because the merge
 * of what is there now is another or none. So a word of n bytes costs O(n log n), and a megabyte without a space is no
 * trouble.
 */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

/* A slot of an open-addressed table; rank 0 is an empty one, so ranks count from 1. It has a power of 2 of slots, at
 * most half of them taken. */
struct merge {
    int32_t left, right, id;
    uint32_t rank;
};

struct tess_bpe {
    const tess_vocab *vocab;
    bool byte_level, whole_words, fuse_unknown;
    bool bytes;           /* characters that are no tokens are written in bytes */
    int32_t byte_id[256]; /* of a byte in its alphabet, or of <0x..>; -1: there is none */
    int32_t unknown;      /* -1: there is none, and what is unknown is left out */
    struct merge *merge;
    size_t merge_slots, merges;
};

void tess_bpe_free(tess_bpe *b)
{
    if (!b) return;
    free(b->merge);
    free(b);
}

/* The pair's slot, or the empty one where it belongs. */
static struct merge *find_merge(const tess_bpe *b, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    for (size_t i = h >> 32;; i++) {
        struct merge *m = &b->merge[i & (b->merge_slots - 1)];
        if (!m->rank || (m->left == left && m->right == right)) return m;
    }
}

/* Left and right become `id`; a merge that is added earlier goes first. False: the pair is there already. */
static bool add_merge(tess_bpe *b, int32_t left, int32_t right, int32_t id)
{
    if (2 * b->merges == b->merge_slots) {
        tess_bpe old = *b;
        b->merge_slots *= 2;
        b->merge = tess_alloc(b->merge_slots * sizeof *b->merge);
        for (const struct merge *m = old.merge; m < old.merge + old.merge_slots; m++)
            if (m->rank) *find_merge(b, m->left, m->right) = *m;
        free(old.merge);
    }
    struct merge *m = find_merge(b, left, right);
    if (m->rank) return false;
    *m = (struct merge){left, right, id, (uint32_t)++b->merges};
    return true;
}

/* ---- reading ---- */

/* One merge, "a b" or ["a", "b"], as the ids of a, b and ab; `names` knows tokens as they are written. */
static tess_status read_merge(const tess_reader *r, tess_bpe *b, const tess_vocab *names, const json_t *merge,
                              size_t index)
{
    char field[64];
    snprintf(field, sizeof field, "model.merges[%zu]", index);
    const char *text = json_string_value(merge), *space = text ? strchr(text, ' ') : NULL;
    const char *left = text, *right = space ? space + 1 : NULL;
    if (json_array_size(merge) == 2) {
        left = json_string_value(json_array_get(merge, 0));
        right = json_string_value(json_array_get(merge, 1));
    }
    if (!left || !right || (text && strchr(right, ' ')))
        return tess_file_error(r->path, field, "expected \"a b\" or [\"a\", \"b\"]");
    size_t n[3] = {text ? (size_t)(space - text) : strlen(left), strlen(right), 0};
    n[2] = n[0] + n[1];
    TESS_FREED char *both = tess_alloc(n[2] + 1);
    memcpy(memcpy(both, left, n[0]) + n[0], right, n[1]);
    const char *const part[3] = {both, both + n[0], both};
    int32_t id[3];
    tess_status status = TESS_OK;
    for (int i = 0; i < 3 && status == TESS_OK; i++)
        if ((id[i] = tess_vocab_get(names, part[i], n[i])) < 0)
            status = tess_file_error(r->path, field, "\"%.*s\" is not in model.vocab", (int)n[i], part[i]);
    if (status == TESS_OK && !add_merge(b, id[0], id[1], id[2]))
        status = tess_file_error(r->path, field, "\"%.*s %s\" is there twice", (int)n[0], both, right);
    return status;
}

/* Tokens are written in the alphabet of bytes: from here on they are those bytes. */
static tess_status read_alphabet(const tess_reader *r, tess_bpe *b, tess_tokens *tokens, tess_vocab *vocab)
{
    for (int c = 0; c < 256; c++) b->byte_id[c] = -1;
    for (int32_t id = 0; id < tokens->count; id++) {
        tess_token *t = &tokens->token[id];
        if (!t->bytes || !tess_alphabet_bytes(r->arena, t)) continue;
        tess_vocab_set(vocab, t->bytes, t->length, id);
        if (t->length == 1) b->byte_id[(unsigned char)t->bytes[0]] = id;
    }
    for (int c = 0; c < 256 && b->unknown < 0; c++)
        if (b->byte_id[c] < 0 && c != 0xc0 && c != 0xc1 && c < 0xf5) /* UTF-8 has the others only */
            return tess_file_error(r->path, "model.vocab", "no token for the byte 0x%02x: not a byte-level vocabulary",
                                   c);
    return TESS_OK;
}

static tess_status check_settings(const tess_reader *r, const json_t *model)
{
    static const char *const affix[] = {"model.continuing_subword_prefix", "model.end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, affix[i] + strlen("model."));
        if (v && !json_is_null(v) && (!json_is_string(v) || json_string_length(v)))
            return tess_file_error(r->path, affix[i], "not supported, expected null");
    }
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return tess_file_error(r->path, "model.dropout", "not supported, expected null");
    return TESS_OK;
}

tess_status tess_bpe_read(const tess_reader *r, const json_t *model, tess_tokens *tokens, tess_vocab *vocab,
                          tess_vocab *names, tess_bpe **out, bool *may_cut)
{
    const json_t *merges = json_object_get(model, "merges");
    const char *unknown = tess_json_text(model, "unk_token");
    const bool byte_level = names != vocab;
    tess_bpe *b = *out = tess_alloc(sizeof *b);
    b->vocab = vocab;
    b->byte_level = byte_level;
    b->merge_slots = 64;
    b->merge = tess_alloc(b->merge_slots * sizeof *b->merge);
    TESS_TRY(check_settings(r, model));
    TESS_TRY(tess_json_flag(r, "model", model, "ignore_merges", false, &b->whole_words));
    TESS_TRY(tess_json_flag(r, "model", model, "fuse_unk", false, &b->fuse_unknown));
    TESS_TRY(tess_json_flag(r, "model", model, "byte_fallback", false, &b->bytes));
    tess_status status = tess_vocab_read(r, json_object_get(model, "vocab"), tokens, names);
    b->unknown = status == TESS_OK && unknown ? tess_vocab_get(names, unknown, strlen(unknown)) : -1;
    if (status == TESS_OK && unknown && b->unknown < 0)
        status = tess_file_error(r->path, "model.unk_token", "\"%s\" is not in model.vocab", unknown);
    if (status == TESS_OK && byte_level && b->bytes)
        status = tess_file_error(r->path, "model.byte_fallback", "not supported in a byte-level model");
    if (status == TESS_OK && byte_level) status = read_alphabet(r, b, tokens, vocab);
    if (status == TESS_OK && !json_is_array(merges))
        status = tess_file_error(r->path, "model.merges", "expected an array");
    for (size_t i = 0; status == TESS_OK && i < json_array_size(merges); i++)
        status = read_merge(r, b, names, json_array_get(merges, i), i);
    if (status == TESS_OK && !byte_level) {
        tess_vocab_byte_tokens(vocab, b->byte_id);
        *may_cut = !b->whole_words && b->unknown >= 0 && tess_tokens_begin_words(tokens, vocab);
    }
    return status;
}

/* ---- merging ---- */

struct symbol {
    int32_t id;             /* -1: merged into the symbol before it */
    uint32_t before, after; /* neighbours; NONE at the ends */
};

#define NONE UINT32_MAX

struct pair {
    uint32_t rank, at; /* the left symbol */
    int32_t id;        /* what the pair becomes */
};

static bool earlier(struct pair a, struct pair b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

struct heap {
    struct pair *pair;
    size_t count;
};

static void heap_push(struct heap *h, struct pair p)
{
    size_t i = h->count++;
    for (; i > 0 && earlier(p, h->pair[(i - 1) / 2]); i = (i - 1) / 2) h->pair[i] = h->pair[(i - 1) / 2];
    h->pair[i] = p;
}

static struct pair heap_pop(struct heap *h)
{
    struct pair top = h->pair[0], last = h->pair[--h->count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->count; i = child) {
        if (child + 1 < h->count && earlier(h->pair[child + 1], h->pair[child])) child++;
        if (!earlier(h->pair[child], last)) break;
        h->pair[i] = h->pair[child];
    }
    h->pair[i] = last;
    return top;
}

/* Puts the pair of the symbol at `at` and the one after it on the heap if it can merge. */
static void offer(const tess_bpe *b, struct heap *h, const struct symbol *s, uint32_t at)
{
    if (at == NONE || s[at].after == NONE) return;
    const struct merge *m = find_merge(b, s[at].id, s[s[at].after].id);
    if (m->rank) heap_push(h, (struct pair){m->rank, at, m->id});
}

static void merge_pair(const tess_bpe *b, struct heap *h, struct symbol *s, struct pair p)
{
    if (s[p.at].id < 0 || s[p.at].after == NONE) return;
    struct symbol *left = &s[p.at], *right = &s[left->after];
    const struct merge *m = find_merge(b, left->id, right->id);
    if (!m->rank || m->id != p.id) return; /* of a pair that is no more */
    left->id = p.id;
    left->after = right->after;
    right->id = -1;
    if (left->after != NONE) s[left->after].before = p.at;
    offer(b, h, s, left->before);
    offer(b, h, s, p.at);
}

static void *room_for(void *p, size_t *have, size_t want, size_t size)
{
    if (want <= *have) return p;
    *have = want + want / 2;
    return tess_realloc(p, *have * size);
}

/* Merges the ids in place as far as they go; returns how many are left. */
static size_t merge_all(const tess_bpe *b, int32_t *ids, size_t count, tess_scratch *scratch)
{
    TESS_ASSERT(count < NONE);
    /* n-1 pairs at first, and two more for each of at most n-1 merges, which takes one off. */
    struct symbol *s = scratch->symbol = room_for(scratch->symbol, &scratch->symbols, count, sizeof *s);
    struct heap h = {scratch->heap = room_for(scratch->heap, &scratch->heaps, 2 * count, sizeof(struct pair)), 0};
    for (uint32_t i = 0; i < count; i++) s[i] = (struct symbol){ids[i], i ? i - 1 : NONE, i + 1 < count ? i + 1 : NONE};
    for (uint32_t i = 0; i + 1 < count; i++) offer(b, &h, s, i);
    while (h.count) merge_pair(b, &h, s, heap_pop(&h));
    size_t left = 0;
    for (uint32_t i = 0; i != NONE; i = s[i].after) ids[left++] = s[i].id;
    return left;
}

/* A word's characters as ids. What is unknown waits in *unknown for the next one that is not. */
static void push_characters(const tess_bpe *b, const char *word, size_t length, tess_ids *ids)
{
    bool waits = false;
    for (size_t at = 0, n; at < length; at += n) {
        if (b->byte_level)
            n = 1;
        else
            tess_utf8_get(word + at, &n);
        const int32_t id = b->byte_level ? b->byte_id[(unsigned char)word[at]] : tess_vocab_get(b->vocab, word + at, n);
        bool bytes = id < 0 && b->bytes;
        for (size_t i = 0; i < n && bytes; i++) bytes = b->byte_id[(unsigned char)word[at + i]] >= 0;
        for (size_t i = 0; i < n && bytes; i++) tess_ids_push(ids, b->byte_id[(unsigned char)word[at + i]]);
        if (bytes || (id < 0 && b->unknown < 0)) continue;
        if (waits && (id >= 0 || !b->fuse_unknown)) tess_ids_push(ids, b->unknown);
        waits = id < 0;
        if (id >= 0) tess_ids_push(ids, id);
    }
    if (waits) tess_ids_push(ids, b->unknown);
}

void tess_bpe_encode(const tess_bpe *b, const char *word, size_t length, tess_scratch *scratch, tess_ids *ids)
{
    const int32_t whole = b->whole_words ? tess_vocab_get(b->vocab, word, length) : -1;
    if (whole >= 0) {
        tess_ids_push(ids, whole);
        return;
    }
    const size_t before = ids->count;
    push_characters(b, word, length, ids);
    const size_t count = ids->count - before;
    if (count > 1) ids->count = before + merge_all(b, ids->id + before, count, scratch);
}

void tess_scratch_free(tess_scratch *scratch)
{
    free(scratch->symbol);
    free(scratch->heap);
    *scratch = (tess_scratch){0};
}
