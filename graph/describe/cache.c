/* The cache of keys and values: tiles that outlast a step and are no parameters. See tessera_graph.h.
 *
 * Why tiles: without a cache each token is a forward pass over the whole text, and one growing buffer for each layer
 * would be copied as it grows and could not leave RAM in part. Tiles of 256 places outlast steps as weights do, so a
 * plan places them; a context of four times memory.cpu is a test. There is a graph for each number of blocks, so a
 * token costs what it sees; making one takes milliseconds. Texts of a batch have their rows at the same places, with
 * padding in front that no query sees, so one list serves all. A prompt that is read in other pieces is within 1e-5 of
 * the logits; caps and cores change no bit. */
#include "graph/describe/cache.h"
#include "graph/describe/describe.h"
#include <stdlib.h>
#include <string.h>

enum { OWN, ACROSS, STATES, KINDS }; /* of attention: over its own sequence, over an encoder's, linear */

struct tess_cache {
    tess_cache_conf conf;
    tess_cache_layer *layer[KINDS];
    int layers[KINDS];
    int64_t blocks, across; /* that are seen */
    const tess_graph *of;   /* which is described, and how far it is */
    int taken[KINDS];
};

tess_cache *tess_cache_new(const tess_cache_conf *conf)
{
    tess_cache *c = tess_alloc(sizeof *c);
    c->conf = *conf;
    if (!c->conf.at_once) c->conf.at_once = 8 << 20;
    TESS_ASSERT(c->conf.sequences > 0 && c->conf.block > 0 && c->conf.block % 16 == 0);
    c->blocks = 1;
    return c;
}

void tess_cache_free(tess_cache *c)
{
    if (!c) return;
    for (int kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < c->layers[kind]; i++) {
            tess_cache_layer *l = &c->layer[kind][i];
            for (int k = 0; k < 2; k++) {
                for (int64_t j = 0; j < l->tiles; j++) tess_tile_free(l->tile[k][j]);
                free(l->tile[k]);
            }
            free(l->filled);
        }
        free(c->layer[kind]);
    }
    free(c);
}

void tess_cache_view(tess_cache *c, int64_t blocks)
{
    c->blocks = blocks;
    c->of = NULL;
}

const tess_cache_conf *tess_cache_conf_of(const tess_cache *c)
{
    return &c->conf;
}

int64_t tess_cache_blocks(const tess_cache *c, bool across)
{
    return across ? c->across : c->blocks;
}

/* Blocks that some query of the last one may see. */
static int64_t ring_of(const tess_cache *c, int64_t window)
{
    return window ? (window - 1 + c->conf.block - 1) / c->conf.block + 1 : 0;
}

static void more_tiles(tess_cache_layer *l, int layer, int64_t tiles)
{
    if (tiles <= l->tiles) return;
    static const char *const names[] = {"keys", "values"};
    for (int k = 0; k < 2; k++) {
        l->tile[k] = tess_realloc(l->tile[k], (size_t)tiles * sizeof *l->tile[k]);
        for (int64_t j = l->tiles; j < tiles; j++) {
            char label[64];
            snprintf(label, sizeof label, "%s %d.%lld", names[k], layer, (long long)j);
            l->tile[k][j] = tess_tile_new(l->bytes[k], TESS_ROLE_CACHE, label);
        }
    }
    l->filled = tess_realloc(l->filled, (size_t)tiles * sizeof *l->filled);
    memset(l->filled + l->tiles, 0, (size_t)(tiles - l->tiles) * sizeof *l->filled);
    l->tiles = tiles;
}

/* The next layer of a kind, of a graph that is described; a new one has no sizes. */
static tess_cache_layer *next_layer(tess_cache *c, tess_graph *g, int kind, int *i)
{
    if (c->of != g) {
        c->of = g;
        memset(c->taken, 0, sizeof c->taken);
    }
    g->cache = c;
    *i = c->taken[kind]++;
    if (*i == c->layers[kind]) {
        c->layer[kind] = tess_realloc(c->layer[kind], (size_t)(*i + 1) * sizeof **c->layer);
        c->layer[kind][c->layers[kind]++] = (tess_cache_layer){0};
    }
    return &c->layer[kind][*i];
}

int tess_cache_take(tess_cache *c, tess_graph *g, bool across, int64_t width, int64_t window)
{
    int i;
    tess_cache_layer *l = next_layer(c, g, across, &i);
    const size_t bytes = (size_t)(c->conf.sequences * c->conf.block * width) * tess_dtype_size(c->conf.dtype);
    if (!l->width)
        *l = (tess_cache_layer){.width = width, .window = window, .ring = ring_of(c, window), .bytes = {bytes, bytes}};
    TESS_ASSERT(l->width == width && l->window == window); /* the same network */
    const int64_t blocks = across ? c->across : c->blocks;
    more_tiles(l, i, l->ring && l->ring < blocks ? l->ring : blocks);
    return i;
}

int tess_cache_take_states(tess_cache *c, tess_graph *g, size_t rows, size_t states)
{
    int i;
    tess_cache_layer *l = next_layer(c, g, STATES, &i);
    l->bytes[0] = (rows + 3) / 4 * 4, l->bytes[1] = states; /* they are filled as floats */
    more_tiles(l, i, 1);
    return i;
}

tess_tile *tess_cache_state(tess_cache *c, int layer, int kind)
{
    return c->layer[STATES][layer].tile[kind][0];
}

tess_tile *tess_cache_tile(tess_cache *c, int layer, bool across, int kind, int64_t block)
{
    const tess_cache_layer *l = &c->layer[across][layer];
    return l->tile[kind][l->ring ? block % l->ring : block];
}

void tess_cache_across(tess_cache *c, int64_t places)
{
    const int64_t blocks = (places + c->conf.block - 1) / c->conf.block;
    if (blocks > c->across) c->across = blocks;
}

int64_t tess_cache_tiles(const tess_cache *c, tess_tile **tile)
{
    int64_t n = 0;
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < c->layers[kind]; i++) {
            const tess_cache_layer *l = &c->layer[kind][i];
            for (int64_t j = 0; j < 2 * l->tiles; j++, n++)
                if (tile) tile[n] = l->tile[j % 2][j / 2];
        }
    return n;
}

struct filling { /* borrowed until it has run */
    tess_task task;
    tess_use use;
    tess_count_arg arg;
};

static tess_status fill(tess_tile *tile, struct filling *f)
{
    f->use = (tess_use){tile, TESS_W | TESS_LEAVES_RAM};
    f->arg = (tess_count_arg){.n = (int64_t)(tess_tile_bytes(tile) / sizeof(float))};
    f->task = (tess_task){.cl = &tess_fill[TESS_F32], .arg = &f->arg, .use = &f->use, .nuse = 1};
    return tess_submit(&f->task);
}

/* Places that no task wrote are multiplied by zero, so they must be finite. */
tess_status tess_cache_ready(tess_cache *c, int64_t blocks)
{
    TESS_FREED struct filling *filling = tess_alloc((size_t)tess_cache_tiles(c, NULL) * sizeof *filling);
    tess_status status = TESS_OK;
    size_t n = 0;
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < c->layers[kind]; i++) {
            tess_cache_layer *l = &c->layer[kind][i];
            for (int64_t j = 0; status == TESS_OK && j < l->tiles && (kind == ACROSS || j < blocks); j++) {
                if (l->filled[j]) continue;
                l->filled[j] = true;
                for (int k = 0; status == TESS_OK && k < 2; k++) status = fill(l->tile[k][j], &filling[n++]);
            }
        }
    if (n) {
        const tess_status ran = tess_wait();
        if (status == TESS_OK) status = ran;
    }
    return status;
}
