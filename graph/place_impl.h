/* What placement is made of: gaps between uses, what they are worth, and what no placement can beat. Shared by place.c
 * and gaps.c. */
#ifndef TESS_PLACE_IMPL_H
#define TESS_PLACE_IMPL_H
#include "graph_impl.h"

/* One use of a tile that flows. */
typedef struct tess_use_of {
    tess_tile *tile;
    size_t task;
    unsigned index;
} tess_use_of;

/* Between two uses of a tile that follow each other in the cycle. */
typedef struct tess_gap {
    tess_tile *tile;
    size_t id;           /* its place in the list when that was made */
    tess_use *use;       /* after which it is */
    size_t first, count; /* the moments of it */
    uint64_t moved;      /* bytes, when the tile leaves */
    double order;        /* which gap is tried first: the larger */
    bool kept;
    bool spared; /* it need not go away with its role; from a GPU, though staying may save nothing */
} tess_gap;

typedef struct tess_gaps {
    tess_use_of *use; /* tile by tile */
    tess_gap *gap;
    size_t uses, gaps, moments;
} tess_gaps;

/* Of all tiles of the program that flow. */
void tess_gaps_list(const tess_program *p, tess_gaps *g);
void tess_gaps_free(tess_gaps *g);
/* Uses from g->use[i] on that are of the same tile. */
size_t tess_gaps_same_tile(const tess_gaps *g, size_t i);
/* What the program moves in a step as its uses are marked, from and to the disk. */
void tess_gaps_traffic(const tess_program *p, const tess_gaps *g, uint64_t *read, uint64_t *written);
/* A number of bytes that no placement with that room at each moment moves less than; and each gap's order by the prices
 * that prove it. `reached` is what some placement moves. */
uint64_t tess_gaps_bound(tess_gaps *g, const int64_t *room, uint64_t reached, int rounds);
#endif
