/* Which examples share a sample: first fit, in an order that the seed gives, among the OPEN samples that were begun
 * last. It is settled once and for all epochs, which shuffle samples, so that a run goes on anywhere. */
#include "models/files/data/data_lines_impl.h"
#include <stdlib.h>

enum { OPEN = 64 };

/* A sample that still has room: its examples, in a list of their own. */
struct bin {
    int64_t room;
    uint32_t last; /* of its examples; each names the one before it */
    bool begun;
};
static const uint32_t NOBODY = UINT32_MAX;

struct packing {
    tess_packs *out;
    uint32_t *before; /* of each example, the one that lies before it in its sample */
    struct bin bin[OPEN];
    size_t next; /* the bin that is closed next */
    uint64_t put;
};

static void close_bin(struct packing *p, struct bin *b)
{
    tess_packs *o = p->out;
    if (!b->begun) return;
    uint64_t n = 0;
    for (uint32_t k = b->last; k != NOBODY; k = p->before[k]) n++;
    for (uint32_t k = b->last, at = 0; k != NOBODY; k = p->before[k]) o->example[p->put + n - ++at] = k;
    p->put += n;
    o->end[o->count++] = p->put;
    b->begun = false;
}

static struct bin *bin_for(struct packing *p, int64_t places, int64_t T)
{
    for (size_t i = 0; i < OPEN; i++) { /* the oldest first */
        struct bin *b = &p->bin[(p->next + i) % OPEN];
        if (b->begun && b->room >= places) return b;
    }
    struct bin *b = &p->bin[p->next];
    p->next = (p->next + 1) % OPEN;
    close_bin(p, b);
    *b = (struct bin){.room = T, .last = NOBODY, .begun = true};
    return b;
}

void tess_packs_make(uint64_t examples, int64_t T, const uint64_t *key, tess_places places, const void *of,
                     tess_packs *out)
{
    struct packing p = {.out = out, .before = tess_alloc((size_t)examples * sizeof *p.before)};
    TESS_ASSERT(examples < NOBODY);
    *out = (tess_packs){.example = tess_alloc((size_t)examples * sizeof *out->example),
                        .end = tess_alloc((size_t)examples * sizeof *out->end)};
    for (uint64_t i = 0; i < examples; i++) {
        const uint64_t k = key ? tess_data_permute(i, examples, *key) : i;
        const int64_t n = places(of, k);
        struct bin *b = bin_for(&p, n, T);
        p.before[k] = b->last;
        b->last = (uint32_t)k;
        b->room -= n;
    }
    for (size_t i = 0; i < OPEN; i++) close_bin(&p, &p.bin[(p.next + i) % OPEN]);
    out->end = tess_realloc(out->end, (size_t)out->count * sizeof *out->end);
    free(p.before);
}

void tess_packs_free(tess_packs *p)
{
    free(p->example);
    free(p->end);
    *p = (tess_packs){0};
}
