/* Places within one piece of memory. */
#ifndef TESS_POOL_IMPL_H
#define TESS_POOL_IMPL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tess_pool tess_pool;

/* Makes a pool of so many bytes, all of them free. */
tess_pool *tess_pool_new(uint64_t bytes);
/* Frees it. */
void tess_pool_free(tess_pool *p);
/* Returns its bytes. */
uint64_t tess_pool_bytes(const tess_pool *p);
/* Takes a place for `owner`, of so many bytes in the smallest free stretch that has it, at its end if it is to last,
 * else at its beginning; false: no free stretch has it. */
bool tess_pool_take(tess_pool *p, uint64_t bytes, bool lasts, void *owner, uint64_t *at);
/* Takes a place back. */
void tess_pool_give(tess_pool *p, uint64_t at);
/* Finds who would have to go for a place of so many bytes, the fewest bytes of them: *owner is an array that the caller
 * frees, its length is returned. 0: nobody would do, since of those in the way some `stay`. */
size_t tess_pool_in_the_way(const tess_pool *p, uint64_t bytes, bool (*stays)(const void *owner, const void *arg),
                            const void *arg, void ***owner);
#endif
