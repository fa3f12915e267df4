/* The cache of keys and values, as the op and the plan see it. */
#ifndef TESS_CACHE_H
#define TESS_CACHE_H
#include "graph/graph.h"

/* What one attention of a network keeps. */
typedef struct tess_cache_layer {
    int64_t width;  /* of a row of keys, and of values */
    int64_t window; /* 0: all places are seen */
    int64_t ring;   /* tiles, which blocks take in turn; 0: each block has its own */
    int64_t tiles;
    size_t bytes[2];     /* of a tile */
    tess_tile **tile[2]; /* keys, values */
    bool *filled;
} tess_cache_layer;

/* Returns the number of the next layer of a graph that is described, across: of those of an encoder's rows. NULL
 * graphs and such are the op's to check. */
int tess_cache_take(tess_cache *c, tess_graph *g, bool across, int64_t width, int64_t window);
/* Returns the number of the next layer that keeps no keys: it has two tiles of such sizes, zeros at first. */
int tess_cache_take_states(tess_cache *c, tess_graph *g, size_t rows, size_t states);
/* Returns its tile: kind 0 rows, 1 states. */
tess_tile *tess_cache_state(tess_cache *c, int layer, int kind);
/* Sets the number of an encoder's rows, over which attention goes across. */
void tess_cache_across(tess_cache *c, int64_t places);
/* Returns a tile of a layer: kind 0 keys, 1 values. */
tess_tile *tess_cache_tile(tess_cache *c, int layer, bool across, int kind, int64_t block);
/* Returns how many blocks are there for all to see, across: of an encoder's rows. */
int64_t tess_cache_blocks(const tess_cache *c, bool across);
const tess_cache_conf *tess_cache_conf_of(const tess_cache *c);
/* Lists all its tiles that there are; room for as many as it returns with NULL. */
int64_t tess_cache_tiles(const tess_cache *c, tess_tile **tile);

#endif
