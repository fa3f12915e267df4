/* Words met lately and their ids, so that a word which comes again is not merged again. A word's hash gives it one
 * slot, and the next word with that slot replaces it. When the room for bytes and ids is full, all words go. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 1 << 15, ROOM = 4 << 20, LONGEST = 64, MOST = 64 };

struct slot {
    uint32_t hash, at; /* of its bytes in the room, rounded up to whole ids, which follow */
    uint8_t length, count;
};
struct tess_words {
    struct slot slot[SLOTS];
    uint32_t used;
    char room[ROOM];
};

static uint32_t rounded(size_t n)
{
    return ((uint32_t)n + 3) & ~3u;
}

tess_words *tess_words_new(void)
{
    return tess_alloc(sizeof(tess_words));
}

void tess_words_free(tess_words *w)
{
    free(w);
}

bool tess_words_find(const tess_words *w, const char *word, size_t length, uint64_t *hash, tess_ids *ids)
{
    if (length > LONGEST) return false;
    *hash = tess_hash(word, length);
    const struct slot *s = &w->slot[*hash & (SLOTS - 1)];
    if (s->length != length || s->hash != (uint32_t)(*hash >> 32) || memcmp(w->room + s->at, word, length))
        return false;
    tess_ids_add(ids, (const int32_t *)(const void *)(w->room + s->at + rounded(length)), s->count);
    return true;
}

void tess_words_keep(tess_words *w, uint64_t hash, const char *word, size_t length, const int32_t *id, size_t count)
{
    if (!length || length > LONGEST || count > MOST) return;
    const uint32_t bytes = rounded(length) + (uint32_t)(count * sizeof *id);
    if (w->used + bytes > ROOM) {
        memset(w->slot, 0, sizeof w->slot);
        w->used = 0;
    }
    w->slot[hash & (SLOTS - 1)] = (struct slot){(uint32_t)(hash >> 32), w->used, (uint8_t)length, (uint8_t)count};
    memcpy(w->room + w->used, word, length);
    if (count) memcpy(w->room + w->used + rounded(length), id, count * sizeof *id);
    w->used += bytes;
}
