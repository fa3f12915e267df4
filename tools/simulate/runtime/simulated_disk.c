/* The disk of a machine that is simulated: places, as on a drive, and no files. Its transfers are StarPU's and
 * SimGrid's, over links that are as fast as the drive; StarPU counts them. */
#include "runtime/disk/disk.h"
#include "runtime/tiles/tiles.h"
#include <starpu.h>

tess_status tess_disk_check(const char *dirs, const char *made)
{
    (void)dirs, (void)made;
    return TESS_OK;
}

tess_status tess_disk_files_open(tess_disk *d)
{
    tess_disk_space_open(d, d->conf.bytes / d->conf.chunk * d->conf.chunk);
    return TESS_OK;
}

void tess_disk_files_close(tess_disk *d)
{
    (void)d;
}

tess_status tess_disk_movers_start(tess_disk *d)
{
    (void)d;
    return TESS_OK;
}

void tess_disk_movers_stop(tess_disk *d)
{
    (void)d;
}

/* StarPU's counters begin again at 0 whenever they are read, so they are added up here. */
void tess_disk_use_read(tess_disk *d, tess_disk_use *out)
{
    for (int bus = 0; tess_session() && bus < starpu_bus_get_count(); bus++) {
        struct starpu_profiling_bus_info info;
        const int from = starpu_bus_get_src(bus), to = starpu_bus_get_dst(bus);
        if (from != tess_disk_node && to != tess_disk_node) continue;
        starpu_bus_get_profiling_info(bus, &info);
        *(from == tess_disk_node ? &d->use.read_bytes : &d->use.write_bytes) += info.transferred_bytes;
        *(from == tess_disk_node ? &d->use.reads : &d->use.writes) += (uint64_t)info.transfer_count;
    }
    *out = d->use;
    out->capacity = d->capacity;
    out->used = d->used;
    out->peak = d->peak;
}
