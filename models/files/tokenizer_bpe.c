/* Byte-pair merging: the bytes of one word to ids.
 *
 * A word is a linked list of symbols; a heap holds every pair of neighbours that can merge, the earliest merge first
 * and among equals the leftmost. A merge puts at most two new pairs on the heap and leaves the pairs that it broke
 * there: they are recognised when they come up, because the merge of what is there now is another or none. So a word
 * of n bytes costs O(n log n), and a megabyte without a space is no trouble.
 */
#include "tokenizer_impl.h"
#include <stdlib.h>
#include <string.h>

/* A slot of an open-addressed table; rank 0 is an empty one, so ranks count from 1. */
struct merge {
    int32_t left, right, id;
    uint32_t rank;
};

/* A word that is one token; bytes NULL: an empty slot. */
struct word {
    const char *bytes;
    size_t length;
    int32_t id;
};

/* Both tables have a power of 2 of slots and are at most half full. */
struct tess_bpe {
    int32_t byte_id[256];
    struct merge *merge;
    size_t merge_slots, merges;
    struct word *word;
    size_t word_slots, words;
};

tess_bpe *tess_bpe_new(void)
{
    tess_bpe *b = tess_alloc(sizeof *b);
    b->merge_slots = b->word_slots = 64;
    b->merge = tess_alloc(b->merge_slots * sizeof *b->merge);
    b->word = tess_alloc(b->word_slots * sizeof *b->word);
    return b;
}

void tess_bpe_free(tess_bpe *b)
{
    if (!b) return;
    free(b->merge);
    free(b->word);
    free(b);
}

void tess_bpe_set_byte(tess_bpe *b, unsigned byte, int32_t id)
{
    b->byte_id[byte] = id;
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

bool tess_bpe_add_merge(tess_bpe *b, int32_t left, int32_t right, int32_t id)
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

/* The same for a word. */
static struct word *find_word(const tess_bpe *b, const char *bytes, size_t length)
{
    uint64_t h = length;
    for (size_t i = 0; i < length; i++) h = (h ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    for (size_t i = h ^ h >> 32;; i++) {
        struct word *w = &b->word[i & (b->word_slots - 1)];
        if (!w->bytes || (w->length == length && memcmp(w->bytes, bytes, length) == 0)) return w;
    }
}

void tess_bpe_add_word(tess_bpe *b, const char *bytes, size_t length, int32_t id)
{
    if (2 * b->words == b->word_slots) {
        tess_bpe old = *b;
        b->word_slots *= 2;
        b->word = tess_alloc(b->word_slots * sizeof *b->word);
        for (const struct word *w = old.word; w < old.word + old.word_slots; w++)
            if (w->bytes) *find_word(b, w->bytes, w->length) = *w;
        free(old.word);
    }
    struct word *w = find_word(b, bytes, length);
    if (!w->bytes) b->words++;
    *w = (struct word){bytes, length, id};
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
static size_t merge_all(const tess_bpe *b, int32_t *ids, size_t count, tess_bpe_scratch *scratch)
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

void tess_bpe_encode(const tess_bpe *b, const char *word, size_t length, tess_bpe_scratch *scratch, tess_ids *ids)
{
    const struct word *whole = b->words ? find_word(b, word, length) : NULL;
    if (whole && whole->bytes) {
        tess_ids_push(ids, whole->id);
        return;
    }
    size_t before = ids->count;
    for (size_t i = 0; i < length; i++) tess_ids_push(ids, b->byte_id[(unsigned char)word[i]]);
    if (length > 1) ids->count = before + merge_all(b, ids->id + before, length, scratch);
}

void tess_bpe_scratch_free(tess_bpe_scratch *scratch)
{
    free(scratch->symbol);
    free(scratch->heap);
    *scratch = (tess_bpe_scratch){0};
}

/* ---- ids ---- */

void tess_ids_push(tess_ids *ids, int32_t id)
{
    if (ids->count == ids->room) {
        ids->room = ids->room ? 2 * ids->room : 256;
        ids->id = tess_realloc(ids->id, ids->room * sizeof *ids->id);
    }
    ids->id[ids->count++] = id;
}

void tess_ids_free(tess_ids *ids)
{
    free(ids->id);
    *ids = (tess_ids){0};
}
