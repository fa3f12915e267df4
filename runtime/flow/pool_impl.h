/* Places within one piece of memory. */
#ifndef TESS_POOL_IMPL_H
#define TESS_POOL_IMPL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tess_pool tess_pool;

/* Makes a pool of `bytes`, all of them free. */
tess_pool *tess_pool_new(uint64_t bytes);
/* Frees it. */
void tess_pool_free(tess_pool *p);
/* Returns its bytes. */
uint64_t tess_pool_bytes(const tess_pool *p);
/* Takes a place of `bytes` for `owner` in the smallest free stretch that is large enough, at its end if `lasts`, else
 * at its beginning; returns false if there is no such stretch. */
bool tess_pool_take(tess_pool *p, uint64_t bytes, bool lasts, void *owner, uint64_t *at);
/* Takes a place back. */
void tess_pool_give(tess_pool *p, uint64_t at);
/* Finds the owners, with the fewest bytes, whose eviction would free a place of `bytes`: *owner is an array that the
 * caller frees, its length is returned. 0: there are none, since owners for which stays() is true are in the way. */
size_t tess_pool_in_the_way(const tess_pool *p, uint64_t bytes, bool (*stays)(const void *owner, const void *arg),
                            const void *arg, void ***owner);
#endif
