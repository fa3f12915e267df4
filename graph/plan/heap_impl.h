/* Numbers by a key, the least first: tasks that are ready, and what ends next. */
#ifndef TESS_HEAP_IMPL_H
#define TESS_HEAP_IMPL_H
#include "runtime/runtime.h"
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct tess_heap {
    double *key;
    uint32_t *of;
    size_t n, room;
} tess_heap;

static inline void tess_heap_push(tess_heap *h, double key, uint32_t of)
{
    if (h->n == h->room) {
        h->room = h->room ? 2 * h->room : 256;
        h->key = tess_realloc(h->key, h->room * sizeof *h->key);
        h->of = tess_realloc(h->of, h->room * sizeof *h->of);
    }
    size_t i = h->n++;
    for (; i && h->key[(i - 1) / 2] > key; i = (i - 1) / 2) {
        h->key[i] = h->key[(i - 1) / 2];
        h->of[i] = h->of[(i - 1) / 2];
    }
    h->key[i] = key;
    h->of[i] = of;
}

static inline uint32_t tess_heap_pop(tess_heap *h, double *key)
{
    const uint32_t of = h->of[0], last = h->of[--h->n];
    const double least = h->key[0], of_last = h->key[h->n];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < h->n; i = c) {
        if (c + 1 < h->n && h->key[c + 1] < h->key[c]) c++;
        if (h->key[c] >= of_last) break;
        h->key[i] = h->key[c];
        h->of[i] = h->of[c];
    }
    h->key[i] = of_last;
    h->of[i] = last;
    *key = least;
    return of;
}

static inline void tess_heap_free(tess_heap *h)
{
    free(h->key);
    free(h->of);
}
#endif
