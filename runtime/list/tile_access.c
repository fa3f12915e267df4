/* The main thread's own looks at tiles, in order with the tasks submitted before, and the end of tiles. */
#include "runtime/flow/flow.h"
#include "runtime/list/list.h"
#include "runtime/progress/progress.h"
#include "runtime/tiles/tiles.h"
#include <string.h>

/* StarPU's question for a local pointer goes by the thread that asks, which may be a GPU's worker. */
static void *in_ram(const tess_tile *t)
{
    return starpu_data_handle_to_pointer(t->handle, STARPU_MAIN_RAM);
}

tess_status tess_tile_map(tess_tile *t, int mode, void **data)
{
    if (!t) return tess_error(TESS_INVALID, "tile", "is NULL");
    if (!tess_session()) return tess_error(TESS_INVALID, t->label, "is nowhere before tess_start and after tess_stop");
    if (t->maps && ((t->mapped | mode) & TESS_W)) /* the second would wait for the first, which never comes back */
        return tess_error(TESS_INVALID, t->label, "is mapped already (unmap it first; only readers may share it)");
    if (!t->maps) {
        if (tess_ram_flows()) tess_ram_flow_map(t);
        t->mapped = mode;
        if (tess_tile_acquire(t, STARPU_MAIN_RAM, mode))
            return tess_error(TESS_FAILED, t->label, "StarPU could not bring the tile to RAM");
    }
    t->maps++;
    *data = in_ram(t);
    return TESS_OK;
}

bool tess_tile_mapped(const tess_tile *t)
{
    return t && t->maps;
}

void tess_tile_unmap(tess_tile *t)
{
    if (!tess_tile_mapped(t) || --t->maps) return;
    starpu_data_release_on_node(t->handle, STARPU_MAIN_RAM);
    if (t->mapped & TESS_W) t->filled = true;
    if (tess_gpu_flows()) tess_gpu_flow_unmap(t);
    if (tess_ram_flows()) tess_ram_flow_unmap(t, t->mapped);
    tess_idle_wake();
}

/* ---- beside tasks ---- */

static void ready(void *lending)
{
    tess_lending *l = lending;
    l->data = tess_fault_stands ? NULL : in_ram(l->tile);
    l->ready(l);
}

static tess_status lend(tess_lending *l)
{
    const int rc = starpu_data_acquire_on_node_cb(tess_tile_handle(l->tile), STARPU_MAIN_RAM, STARPU_R, ready, l);
    l->lent = rc == 0;
    tess_idle_wake();
    return rc ? tess_error(TESS_FAILED, l->tile->label, "StarPU could not bring the tile to RAM") : TESS_OK;
}

tess_status tess_tile_lend(tess_lending *l)
{
    TESS_ASSERT(tess_session());
    if (l->when == TESS_LENT_NOW) {
        if (tess_ram_flows()) tess_ram_flow_map(l->tile);
        return lend(l);
    }
    l->next = l->tile->lending;
    l->tile->lending = l;
    return TESS_OK;
}

tess_status tess_tiles_lend(const tess_task *t, int when)
{
    for (unsigned i = 0; i < t->nuse; i++)
        for (tess_lending **at = &t->use[i].tile->lending, *l; (t->use[i].mode & TESS_W) && (l = *at);) {
            if ((int)l->when == when) {
                *at = l->next;
                TESS_TRY(lend(l));
            } else
                at = &l->next;
        }
    return TESS_OK;
}

void tess_tile_return(const tess_lending *l)
{
    starpu_data_release_on_node(l->tile->handle, STARPU_MAIN_RAM);
    tess_idle_wake();
}

void tess_tile_lend_not(tess_lending *l)
{
    for (tess_lending **at = &l->tile->lending; *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            return;
        }
}

static void read_now(tess_lending *l)
{
    tess_reading *r = (tess_reading *)l; /* which it comes first in */
    r->there = l->data != NULL;
    if (r->there) memcpy(r->to, l->data, r->bytes);
    tess_tile_return(l);
    if (r->there && r->came) r->came(r);
    tess_progress_set(&r->ended);
}

tess_status tess_tile_read_behind(tess_reading *r)
{
    r->of.when = TESS_LENT_BEHIND;
    r->of.ready = read_now;
    r->of.lent = r->there = r->ended = false;
    return tess_tile_lend(&r->of);
}

static bool has_ended(const void *reading)
{
    return ((const tess_reading *)reading)->ended;
}

bool tess_reading_wait(tess_reading *r)
{
    static const char what[] = "the end of the list"; /* which writes it */
    if (!r->of.lent) tess_tile_lend_not(&r->of);
    if (!r->of.lent) return false;
    tess_progress_lock();
    tess_progress_until(has_ended, r, "the main thread", what, what);
    tess_progress_unlock();
    return r->there;
}

/* ---- by copies ---- */

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

/* ---- the end ---- */

/* What is mapped still is unmapped by it. */
static void forget(tess_tile *t)
{
    while (tess_tile_mapped(t)) tess_tile_unmap(t);
    tess_tile_unregister(t);
    tess_places_forget(&tess_gpu_places, t);
    tess_places_forget(&tess_ram_places, t);
}

void tess_tile_free(tess_tile *t)
{
    if (!t) return;
    forget(t);
    tess_tile_delete(t);
}

void tess_tiles_stop(void)
{
    for (tess_tile *t; (t = tess_tile_known());) {
        forget(t);
        tess_tile_reset(t);
    }
}
