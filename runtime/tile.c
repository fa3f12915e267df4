/* Tiles: handles of StarPU that are made without StarPU and registered at their first use. One whose home is the disk
 * has its place there from then on; the others have no fixed home (-1), so that StarPU may hold them wherever a task
 * wants them. */
#include "starpu_impl.h"
#include <stdlib.h>
#include <string.h>

static const char *const tier_names[] = {"gpu", "cpu", "disk"};
static const char *const role_names[] = {"input",    "weight",     "master", "moment",
                                         "gradient", "activation", "scalar", "scratch"};
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
        tess_error(TESS_INVALID, label, "a tile of %zu bytes (1 to %llu can be)", bytes,
                   (unsigned long long)TESS_TILE_MOST);
        return NULL;
    }
    tess_tile *t = tess_alloc(sizeof *t);
    *t = (tess_tile){.bytes = bytes, .role = role, .home = TESS_TIER_CPU, .label = tess_strdup(label)};
    return t;
}

/* StarPU and the disk forget it. */
static void unregister(tess_tile *t)
{
    if (!t->knower) return;
    starpu_data_unregister_no_coherency(t->handle);
    if (t->place) tess_disk_place_free(t->place, t->bytes);
    *t->knower = t->known;
    if (t->known) t->known->knower = t->knower;
}

void tess_tile_free(tess_tile *t)
{
    if (!t) return;
    unregister(t);
    tess_flow_forget(t);
    if (t->home == TESS_TIER_DISK) on_disk -= blocks(t);
    free(t->label);
    free(t);
}

void tess_tiles_stop(void)
{
    for (tess_tile *t = known, *next; t; t = next) {
        next = t->known;
        unregister(t);
        tess_flow_forget(t);
        *t = (tess_tile){.bytes = t->bytes, .role = t->role, .home = t->home, .label = t->label};
    }
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

starpu_data_handle_t tess_tile_handle(tess_tile *t)
{
    if (t->handle) return t->handle;
    if (t->home == TESS_TIER_DISK) t->place = tess_disk_place_new((t->bytes + 3) / 4 * 4);
    starpu_vector_data_register(&t->handle, t->place ? tess_disk_node : -1, (uintptr_t)t->place,
                                (uint32_t)((t->bytes + 3) / 4), 4);
    starpu_data_set_name(t->handle, t->label);
    t->known = known;
    t->knower = &known;
    if (known) known->knower = &t->known;
    known = t;
    return t->handle;
}

tess_status tess_tile_map(tess_tile *t, int mode, void **data)
{
    static const enum starpu_data_access_mode modes[] = {
        [TESS_R] = STARPU_R, [TESS_W] = STARPU_W, [TESS_RW] = STARPU_RW};
    if (!t) return tess_error(TESS_INVALID, "tile", "is NULL");
    if (!tess_session()) return tess_error(TESS_INVALID, t->label, "is nowhere before tess_start and after tess_stop");
    tess_flow_map(t, mode);
    t->mapped = mode;
    if (starpu_data_acquire_on_node(tess_tile_handle(t), STARPU_MAIN_RAM, modes[mode & TESS_RW]))
        return tess_error(TESS_FAILED, t->label, "StarPU could not bring the tile to RAM");
    *data = (void *)starpu_vector_get_local_ptr(t->handle);
    return TESS_OK;
}

void tess_tile_unmap(tess_tile *t)
{
    starpu_data_release_on_node(t->handle, STARPU_MAIN_RAM);
    if (tess_gpu_flows()) tess_gpu_flow_unmap(t, t->mapped);
    if (tess_flow_caps()) tess_flow_unmap(t, t->mapped);
}

static tess_status check_part(const tess_tile *t, size_t offset, size_t bytes)
{
    if (!t || (bytes <= t->bytes && offset <= t->bytes - bytes)) return TESS_OK;
    return tess_error(TESS_INVALID, t->label, "bytes %zu to %zu of a tile of %zu", offset, offset + bytes, t->bytes);
}

tess_status tess_tile_write(tess_tile *t, size_t offset, const void *src, size_t bytes)
{
    TESS_TRY(check_part(t, offset, bytes));
    void *p = NULL;
    TESS_TRY(tess_tile_map(t, t && bytes == t->bytes ? TESS_W : TESS_RW, &p));
    memcpy((char *)p + offset, src, bytes);
    tess_tile_unmap(t);
    return TESS_OK;
}

tess_status tess_tile_read(tess_tile *t, size_t offset, void *dst, size_t bytes)
{
    TESS_TRY(check_part(t, offset, bytes));
    void *p = NULL;
    TESS_TRY(tess_tile_map(t, TESS_R, &p));
    memcpy(dst, (char *)p + offset, bytes);
    tess_tile_unmap(t);
    return TESS_OK;
}
