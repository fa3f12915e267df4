/* The piece is cut into blocks, free or owned, in the order of their addresses; neighbouring free blocks are joined.
 * There are a few thousand at most, so all is done by walking over them. */
#include "runtime/flow/pool_impl.h"
#include "runtime/runtime.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 512 };

struct block {
    uint64_t at, bytes;
    void *owner; /* NULL: free */
};
struct tess_pool {
    struct block *block;
    size_t blocks, room;
};

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

tess_pool *tess_pool_new(uint64_t bytes)
{
    tess_pool *p = tess_alloc(sizeof *p);
    p->room = 64;
    p->block = tess_alloc(p->room * sizeof *p->block);
    p->block[p->blocks++] = (struct block){0, bytes / ALIGN * ALIGN, NULL};
    return p;
}

void tess_pool_free(tess_pool *p)
{
    if (!p) return;
    free(p->block);
    free(p);
}

uint64_t tess_pool_bytes(const tess_pool *p)
{
    const struct block *last = &p->block[p->blocks - 1];
    return last->at + last->bytes;
}

/* Splits block i in two; the first has `bytes`. */
static void split(tess_pool *p, size_t i, uint64_t bytes)
{
    if (p->blocks == p->room) p->block = tess_realloc(p->block, (p->room *= 2) * sizeof *p->block);
    memmove(p->block + i + 1, p->block + i, (p->blocks++ - i) * sizeof *p->block);
    p->block[i].bytes = bytes;
    p->block[i + 1].at += bytes;
    p->block[i + 1].bytes -= bytes;
}

static void join(tess_pool *p, size_t i)
{
    p->block[i].bytes += p->block[i + 1].bytes;
    memmove(p->block + i + 1, p->block + i + 2, (--p->blocks - i - 1) * sizeof *p->block);
}

bool tess_pool_take(tess_pool *p, uint64_t bytes, bool lasts, void *owner, uint64_t *at)
{
    bytes = aligned(bytes);
    size_t best = p->blocks;
    for (size_t i = 0; i < p->blocks; i++)
        if (!p->block[i].owner && p->block[i].bytes >= bytes &&
            (best == p->blocks || p->block[i].bytes < p->block[best].bytes))
            best = i;
    if (best == p->blocks) return false;
    uint64_t over = p->block[best].bytes - bytes;
    if (over) split(p, best, lasts ? over : bytes);
    if (over && lasts) best++;
    p->block[best].owner = owner;
    *at = p->block[best].at;
    return true;
}

void tess_pool_give(tess_pool *p, uint64_t at)
{
    size_t low = 0, high = p->blocks - 1;
    while (low < high) {
        size_t middle = (low + high + 1) / 2;
        if (p->block[middle].at <= at)
            low = middle;
        else
            high = middle - 1;
    }
    TESS_ASSERT(p->block[low].at == at && p->block[low].owner);
    p->block[low].owner = NULL;
    if (low + 1 < p->blocks && !p->block[low + 1].owner) join(p, low);
    if (low > 0 && !p->block[low - 1].owner) join(p, low - 1);
}

size_t tess_pool_in_the_way(const tess_pool *p, uint64_t bytes, bool (*stays)(const void *owner, const void *arg),
                            const void *arg, void ***owner)
{
    uint64_t width = 0, owned = 0, least = UINT64_MAX;
    size_t first = 0, best = 0, end = 0, n = 0;
    for (size_t i = 0; i < p->blocks; i++) {
        const struct block *b = &p->block[i];
        if (b->owner && stays(b->owner, arg)) {
            width = owned = 0;
            first = i + 1;
            continue;
        }
        width += b->bytes;
        if (b->owner) owned += b->bytes;
        for (; width - p->block[first].bytes >= bytes; first++) {
            width -= p->block[first].bytes;
            if (p->block[first].owner) owned -= p->block[first].bytes;
        }
        if (width < bytes || owned >= least) continue;
        least = owned;
        best = first;
        end = i + 1;
    }
    *owner = tess_alloc((end - best + 1) * sizeof **owner);
    for (size_t i = best; i < end; i++)
        if (p->block[i].owner) (*owner)[n++] = p->block[i].owner;
    return n;
}
