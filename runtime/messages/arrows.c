/* Arrows of a trace between ranks: each rank writes its own ends, and they meet by name. A tag alone is no name, since
 * a step sends by the same one several times; so spans are counted, by peer, tag and direction. All ranks trace the
 * same steps and submit the spans of a tag in the same order, so they count alike. */
#include "messages.h"
#include <stdlib.h>

struct count {
    int peer, tag;
    bool sends, taken;
    uint32_t n;
};

static struct {
    struct count *of; /* open addressing; `room` is a power of two */
    size_t taken, room;
} counts;

static struct count *find(const struct count *key)
{
    size_t h = ((size_t)key->tag * 2 + key->sends) * 0x9e3779b97f4a7c15u ^ (size_t)key->peer * 0xc2b2ae3d27d4eb4fu;
    for (h ^= h >> 32;; h++) {
        struct count *c = &counts.of[h & (counts.room - 1)];
        if (!c->taken || (c->peer == key->peer && c->tag == key->tag && c->sends == key->sends)) return c;
    }
}

static void grow(void)
{
    struct count *old = counts.of;
    const size_t n = counts.room;
    counts.room = n ? 2 * n : 256;
    counts.of = tess_alloc(counts.room * sizeof *counts.of);
    for (size_t i = 0; i < n; i++)
        if (old[i].taken) *find(&old[i]) = old[i];
    free(old);
}

uint32_t *tess_arrows_number(const tess_message_arg *m)
{
    uint32_t *nth = tess_alloc((m->spans + 1) * sizeof *nth);
    for (unsigned i = 0; i < m->spans; i++) {
        if (2 * counts.taken >= counts.room) grow();
        struct count key = {m->span[i].peer, m->span[i].tag, m->span[i].sends, true, 0}, *c = find(&key);
        if (!c->taken) {
            *c = key;
            counts.taken++;
        }
        nth[i] = c->n++;
    }
    return nth;
}

void tess_arrows_forget(void)
{
    free(counts.of);
    counts.of = NULL;
    counts.taken = counts.room = 0;
}
