/* Tiles: handles of StarPU that are made without StarPU and registered at their first use. One whose home is the disk
 * has its place there from then on; the others have no fixed home (-1), so that StarPU may hold them wherever a task
 * wants them. */
#include "runtime/progress/progress.h"
#include "runtime/tiles/tiles.h"
#include "runtime/trace/trace.h"
#include <stdlib.h>

static const char *const tier_names[] = {"gpu", "cpu", "disk"};
static const char *const role_names[] = {"input",      "weight", "master", "moment", "gradient",
                                         "activation", "cache",  "scalar", "scratch"};
const char *tess_tier_name(tess_tier t)
{
    return tier_names[t];
}
const char *tess_role_name(tess_role r)
{
    return role_names[r];
}

static tess_tile *known; /* to StarPU */
static uint64_t on_disk; /* bytes of all tiles whose home is the disk, in whole blocks of it */

static uint64_t blocks(const tess_tile *t)
{
    return (t->bytes + 4095) / 4096 * 4096;
}

tess_tile *tess_tile_new(size_t bytes, tess_role role, const char *label)
{
    if (bytes == 0 || bytes > TESS_TILE_MOST) {
        tess_error(TESS_INVALID, label, "a tile of %zu bytes (expected 1 to %llu)", bytes,
                   (unsigned long long)TESS_TILE_MOST);
        return NULL;
    }
    tess_tile *t = tess_alloc(sizeof *t);
    *t = (tess_tile){.bytes = bytes, .role = role, .home = TESS_TIER_CPU, .label = tess_strdup(label)};
    return t;
}

void tess_tile_unregister(tess_tile *t)
{
    if (!t->knower) return;
    tess_wait_begin("the main thread", t->label);
    starpu_data_unregister_no_coherency(t->handle);
    if (t->other) starpu_data_unregister_no_coherency(t->other);
    tess_wait_end();
    if (t->place) tess_disk_place_free(t->place, t->bytes);
    *t->knower = t->known;
    if (t->known) t->known->knower = t->knower;
}

void tess_tile_delete(tess_tile *t)
{
    if (t->home == TESS_TIER_DISK) on_disk -= blocks(t);
    tess_trace_settle(); /* before its name goes */
    free(t->label);
    free(t);
}

tess_tile *tess_tile_known(void)
{
    return known;
}

void tess_tile_reset(tess_tile *t)
{
    *t = (tess_tile){.bytes = t->bytes, .role = t->role, .home = t->home, .label = t->label};
}

const char *tess_tile_label(const tess_tile *t)
{
    return t->label;
}
size_t tess_tile_bytes(const tess_tile *t)
{
    return t->bytes;
}
tess_role tess_tile_role(const tess_tile *t)
{
    return t->role;
}
void tess_tile_set_home(tess_tile *t, tess_tier home)
{
    TESS_ASSERT(!t->handle || t->home == home); /* said before its first use */
    if (t->home == TESS_TIER_DISK) on_disk -= blocks(t);
    t->home = home;
    if (t->home == TESS_TIER_DISK) on_disk += blocks(t);
}
uint64_t tess_tiles_on_disk(void)
{
    return on_disk;
}
tess_tier tess_tile_home(const tess_tile *t)
{
    return t->home;
}
uint32_t *tess_tile_number(tess_tile *t)
{
    return &t->number;
}

void tess_tiles_ready(tess_tile *const *tile, size_t n)
{
    size_t *bytes = tess_alloc((n + 1) * sizeof *bytes), ready = 0;
    for (size_t k = 0; k < n; k++)
        if (tile[k] && tile[k]->home == TESS_TIER_CPU && !tile[k]->handle)
            bytes[ready++] = (tile[k]->bytes + 3) / 4 * 4;
    if (ready) tess_slab_ready(bytes, ready);
    free(bytes);
}

starpu_data_handle_t tess_tile_handle(tess_tile *t)
{
    if (t->handle) return t->handle;
    if (t->home == TESS_TIER_DISK)
        t->place = tess_disk_place_new((t->bytes + 3) / 4 * 4, t->label, tess_role_name(t->role));
    starpu_vector_data_register(&t->handle, t->place ? tess_disk_node : -1, (uintptr_t)t->place,
                                (uint32_t)((t->bytes + 3) / 4), 4);
    starpu_data_set_name(t->handle, t->label);
    if (t->knower) return t->handle; /* it is the second of the tile's */
    t->known = known;
    t->knower = &known;
    if (known) known->knower = &t->known;
    known = t;
    return t->handle;
}

void tess_tile_turn(tess_tile *t)
{
    TESS_ASSERT(t->role == TESS_ROLE_INPUT && !t->maps); /* no flow of tiles knows where these are */
    const starpu_data_handle_t before = tess_tile_handle(t);
    t->handle = t->other;
    t->other = before;
    t->filled = false;
    tess_tile_handle(t);
}

static void has_come(void *flag)
{
    tess_progress_set(flag);
}

int tess_tile_acquire(tess_tile *t, int node, int mode)
{
    static const enum starpu_data_access_mode modes[] = {
        [TESS_R] = STARPU_R, [TESS_W] = STARPU_W, [TESS_RW] = STARPU_RW};
    bool here = false;
    const int rc = starpu_data_acquire_on_node_cb(tess_tile_handle(t), node, modes[mode & TESS_RW], has_come, &here);
    tess_idle_wake();
    if (rc == 0) tess_progress_until_set(&here, t->label);
    return rc;
}
