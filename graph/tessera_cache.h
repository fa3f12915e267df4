/* tessera.h: generation. A KV cache holds the keys and values of B sequences from step to step, for each attention of a
 * network in tiles of `block` places:
 *
 *     tess_cache *c = tess_cache_new(&(tess_cache_conf){.dtype = TESS_BF16, .sequences = B, .block = 256});
 *     tess_cache_view(c, 1);                      // graphs described from here on see places 0 to 255
 *     ... the network for (B, T) tokens, whose tess_attention_conf has .cache and .bounds; tess_step_new ...
 *     TESS_TRY(tess_cache_ready(c, 1));           // after tess_start
 *     ... feed the tokens and their bounds; tess_step_run; the next tokens; and so on ...
 *     tess_cache_view(c, 2);                      // for the next block, another graph
 *
 * With a cache, `bounds` (B, 2T) of an attention are places: the first that each query sees, and the query's own plus
 * one. Rows of a step lie in the last block that its graph sees, at places that follow each other and are the same in
 * all sequences; a shorter sequence has padding in front, which no query sees. An attention with a window keeps no more
 * tiles than the window reaches back. */
#ifndef TESSERA_CACHE_H
#define TESSERA_CACHE_H
#include "graph/tessera_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tess_cache_conf {
    tess_dtype dtype;  /* of the graphs that use it */
    int64_t sequences; /* B */
    int64_t block;     /* places of a tile, a multiple of 16 */
    uint64_t at_once;  /* the most bytes of the cache's tiles that one task reads; 0: 8 MiB */
} tess_cache_conf;
/* Makes an empty cache. The caller frees it after the graphs that use it. */
tess_cache *tess_cache_new(const tess_cache_conf *conf);
/* Frees a cache; NULL is allowed. */
void tess_cache_free(tess_cache *c);
/* Sets how many blocks the graphs that are described from now on see. */
void tess_cache_view(tess_cache *c, int64_t blocks);
/* Fills those of the first `blocks` blocks with zeros that hold nothing yet. It comes after tess_start. */
tess_status tess_cache_ready(tess_cache *c, int64_t blocks) TESS_NODISCARD;
/* Puts k and v (B, K, groups*dim) into the cache, row i at place i, for an attention with k and v NULL: the n-th such
 * attention sees the keys and values of the n-th call. Returns (B, 1, 1), which depends on k, on v and on `behind`, the
 * result of the previous call (NULL in the first). The last result is the output of the step that fills the cache. */
tess_tensor *tess_cached(tess_cache *c, tess_tensor *k, tess_tensor *v, int64_t heads, tess_tensor *behind);

#ifdef __cplusplus
}
#endif

#endif
