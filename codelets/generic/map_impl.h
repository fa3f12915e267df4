/* map: a program of scalar functions on a block of elements, for who stores what it makes and who sums it. */
#ifndef TESS_MAP_IMPL_H
#define TESS_MAP_IMPL_H
#include "codelets/generic.h"
#include "codelets/generic/walk.h"

enum { TESS_MAP_BLOCK = 256 };

typedef union map_block {
    float real[TESS_MAP_BLOCK];
    int32_t whole[TESS_MAP_BLOCK];
} map_block;

/* Operands that lie by one stride, and the buffers of all. */
typedef struct map_operands {
    const tess_any_map_arg *a;
    int64_t one[TESS_MAP_OPERANDS];      /* or -1 */
    const int32_t *x[TESS_MAP_OPERANDS]; /* NULL: an index */
} map_operands;
map_operands tess_map_operands(const tess_any_map_arg *a, const tess_work *w);

/* Returns what elements [first, first + n) of the index space are, at which `at` stands; of TESS_MAP_REGISTERS blocks
 * of room one has it. */
const map_block *tess_map_block(const map_operands *o, const walk *at, int64_t first, int64_t n, map_block *room);

#endif
