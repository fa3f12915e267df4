/* heads: where q, k and v lie in their buffers, for CPU and CUDA bodies alike. */
#ifndef TESS_HEADS_IMPL_H
#define TESS_HEADS_IMPL_H
#include "codelets/codelets.h"
#include "codelets/shared/scalar.h"

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
/* The same of gradients. Of spans those of packed q, k and v are two buffers, q's and that of k and v side by side:
 * then `buffer` is that of the two. */
TESS_INLINE tess_heads tess_gradient_of(const tess_attention_arg *a, int j, unsigned *buffer)
{
    tess_heads h = tess_heads_of(a->heads, a->groups, a->dim, a->packed, a->by_head, j);
    *buffer = a->packed ? 0 : (unsigned)j;
    if (!a->whole || !a->packed) return h;
    *buffer = j > 0;
    h = (tess_heads){0, a->heads * a->dim, a->dim};
    if (j == 0) return h;
    h.ld = 2 * a->groups * a->dim, h.apart = a->by_head ? 2 * a->dim : a->dim;
    if (j == 2) h.column = a->by_head ? a->dim : a->groups * a->dim;
    return h;
}
/* How many buffers they are. */
TESS_INLINE unsigned tess_gradients(const tess_attention_arg *a)
{
    return !a->packed ? 3 : a->whole ? 2 : 1;
}

#endif
