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

tess_tile *tess_tile_new(size_t bytes, tess_role role, const char *label)
{
    TESS_ASSERT(bytes > 0 && bytes / 4 < UINT32_MAX);
    tess_tile *t = tess_alloc(sizeof *t);
    *t = (tess_tile){.bytes = bytes, .role = role, .home = TESS_TIER_CPU, .label = tess_strdup(label)};
    return t;
}

void tess_tile_free(tess_tile *t)
{
    if (!t) return;
    if (t->handle) {
        tess_wait_begin("the main thread", t->label);
        starpu_data_unregister_no_coherency(t->handle);
        tess_wait_end();
    }
    tess_flow_forget(t);
    if (t->place) tess_disk_place_free(t->place, t->bytes);
    free(t->label);
    free(t);
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
    t->home = home;
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
    return t->handle;
}

static void has_come(void *flag)
{
    tess_flow_set(flag);
}

int tess_tile_acquire(tess_tile *t, int node, int mode)
{
    static const enum starpu_data_access_mode modes[] = {
        [TESS_R] = STARPU_R, [TESS_W] = STARPU_W, [TESS_RW] = STARPU_RW};
    bool here = false;
    const int rc = starpu_data_acquire_on_node_cb(tess_tile_handle(t), node, modes[mode & TESS_RW], has_come, &here);
    tess_idle_wake();
    if (rc == 0) tess_flow_until_set(&here, t->label);
    return rc;
}

tess_status tess_tile_map(tess_tile *t, int mode, void **data)
{
    tess_flow_map(t, mode);
    t->mapped = mode;
    if (tess_tile_acquire(t, STARPU_MAIN_RAM, mode))
        return tess_error(TESS_FAILED, t->label, "StarPU could not bring the tile to RAM");
    *data = (void *)starpu_vector_get_local_ptr(t->handle);
    return TESS_OK;
}

void tess_tile_unmap(tess_tile *t)
{
    starpu_data_release_on_node(t->handle, STARPU_MAIN_RAM);
    if (tess_gpu_flows()) tess_gpu_flow_unmap(t, t->mapped);
    if (tess_flow_caps()) tess_flow_unmap(t, t->mapped);
    tess_idle_wake();
}

tess_status tess_tile_write(tess_tile *t, size_t offset, const void *src, size_t bytes)
{
    TESS_ASSERT(offset + bytes <= t->bytes);
    void *p = NULL;
    TESS_TRY(tess_tile_map(t, bytes == t->bytes ? TESS_W : TESS_RW, &p));
    memcpy((char *)p + offset, src, bytes);
    tess_tile_unmap(t);
    return TESS_OK;
}

tess_status tess_tile_read(tess_tile *t, size_t offset, void *dst, size_t bytes)
{
    TESS_ASSERT(offset + bytes <= t->bytes);
    void *p = NULL;
    TESS_TRY(tess_tile_map(t, TESS_R, &p));
    memcpy(dst, (char *)p + offset, bytes);
    tess_tile_unmap(t);
    return TESS_OK;
}
