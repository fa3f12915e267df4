/* heads: where q, k and v lie in their buffers, for CPU and CUDA bodies alike. */
#ifndef TESS_HEADS_IMPL_H
#define TESS_HEADS_IMPL_H
#include "codelets.h"
#include "scalar.h"

/* Scratch is handed out piece by piece; from NULL this only counts. */
TESS_INLINE void *take(char **room, size_t bytes)
{
    void *p = *room;
    *room = (char *)((uintptr_t)*room + (bytes + 63) / 64 * 64);
    return p;
}

/* In elements: the column where one of them begins, the distance from row to row, and from head to head. */
typedef struct tess_heads {
    int64_t column, ld, apart;
} tess_heads;

/* Of q (j = 0), k (1) or v (2): packed they share a buffer, part by part or, by_head, head by head. */
TESS_INLINE tess_heads tess_heads_of(int64_t heads, int64_t groups, int64_t dim, bool packed, bool by_head, int j)
{
    const int64_t wide = heads * dim, narrow = groups * dim;
    tess_heads h = {0, j ? narrow : wide, dim};
    if (!packed) return h;
    h.ld = wide + 2 * narrow;
    h.column = by_head ? j * dim : j ? wide + (j - 1) * narrow : 0;
    if (by_head) h.apart = 3 * dim;
    return h;
}

#endif
