/* Digests of tiles, as tasks find them and as they leave them: what tells where two runs part. */
#include "runtime/disk/disk.h"
#include "runtime/tiles/tiles.h"
#include <string.h>

static const tess_digests *kept; /* set while no task runs */

void tess_digests_keep(const tess_digests *d)
{
    kept = d;
}

bool tess_digests_kept(const tess_task *t)
{
    return kept && t >= kept->task && t < kept->task + kept->tasks;
}

static uint64_t *place_of(const tess_task *t, unsigned use, bool written)
{
    return &kept->of[2 * (kept->first[t - kept->task] + use) + written];
}

/* 0 says that there is none. */
static uint64_t sum(const void *data, size_t bytes)
{
    const uint64_t s = tess_disk_sum(data, bytes, 0);
    return s ? s : 1;
}

void tess_digest_found(const tess_task *t, unsigned use, void *data)
{
    const tess_use *u = &t->use[use];
    if (!data || (u->mode & TESS_SCRATCH)) return;
    if (u->mode & TESS_R)
        *place_of(t, use, false) = sum(data, u->tile->bytes);
    else
        memset(data, 0, u->tile->bytes);
}

void tess_digest_left(const tess_task *t, unsigned use, const void *data)
{
    const tess_use *u = &t->use[use];
    if (data && !(u->mode & TESS_SCRATCH) && (u->mode & TESS_W)) *place_of(t, use, true) = sum(data, u->tile->bytes);
}
