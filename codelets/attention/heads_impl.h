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
/* Dropout of probabilities. A head has a key of its own. Four places {q, q ^ 8} x {k, k ^ 8} of it share a random word,
 * that of (q, k) without their bits 3, and have a byte each: so one thread of a tensor core's product has all four, be
 * it q k^T or k q^T, and eight lanes of a vector. q and k count from the sequence's first; a span begins at a multiple
 * of 16, so its words follow one another as the sequence's do.
 *
 * The probability p is rounded to 256ths, but to none or all of them only where it is 0 or 1, and the scale is that of
 * the rounded one, so nothing is biased. `below` is compared with a word whose highest byte is the place's. */
TESS_INLINE tess_random_key tess_head_random(tess_random_key op, uint64_t head)
{
    const uint64_t z = tess_random_mix(((uint64_t)op.b << 32 | op.a) + head * 0x9e3779b97f4a7c15u);
    tess_random_key key = {(uint32_t)z, (uint32_t)(z >> 32)};
    return key;
}
TESS_INLINE tess_dropout_rule tess_head_dropout(float p)
{
    const float n = floorf(p * 256 + 0.5f), some = n < 1 ? 1 : n > 255 ? 255 : n;
    tess_dropout_rule rule = {(uint32_t)some << 24, p < 1 ? 256 / (256 - some) : 0};
    return rule;
}
TESS_INLINE uint32_t tess_quad_of(int64_t place)
{
    return (uint32_t)(place / 16 * 8 + (place & 7));
}
TESS_INLINE uint32_t tess_quad_bits(tess_random_key head, uint32_t q, uint32_t k)
{
    return tess_random_of(head, k, q);
}
/* Whether the place with these bits 3 is kept. */
TESS_INLINE bool tess_quad_keeps(uint32_t bits, int q, int k, tess_dropout_rule rule)
{
    return bits << (24 - 16 * q - 8 * k) >= rule.below;
}

/* How many buffers they are. */
TESS_INLINE unsigned tess_gradients(const tess_attention_arg *a)
{
    return !a->packed ? 3 : a->whole ? 2 : 1;
}

#endif
