/* What the tiers below and above RAM have of the run that is started: the disk on which tiles have their places, and
 * what each tier holds. */
#include "runtime/disk/disk.h"
#include "runtime/gpu/gpu.h"
#include "runtime/progress/progress.h"
#include "runtime/tiles/tiles.h"
#include "runtime/trace/trace.h"
#include <starpu.h>
#include <stdlib.h>

int tess_disk_node = -1;
static tess_disk *disk;
static tess_fault_hooks hooks; /* of the next run */

void tess_fault_hooks_set(const tess_fault_hooks *next)
{
    hooks = *next;
}

/* A transfer failed, before any task that is submitted: what runs is to end. */
static void disk_failed(const char *text)
{
    tess_fault_set(0, text);
}

tess_status tess_tier_open(const tess_machine *m, uint64_t needs)
{
    const tess_fault_hooks faults = hooks;
    hooks = (tess_fault_hooks){0};
    if (!m->disk) return TESS_OK;
    if (m->disk_block % TESS_DISK_BLOCK || m->disk_block > 1u << 30)
        return tess_error(TESS_INVALID, "disk tier", "blocks of %llu bytes (expected a multiple of %d, at most 1 GiB)",
                          (unsigned long long)m->disk_block, TESS_DISK_BLOCK);
    const uint64_t room = needs + needs / 16 + (64 << 20);
    if (m->disk_bytes && m->disk_bytes < needs)
        return tess_error(TESS_INVALID, "disk tier", "%s of it, but %s are to rest there",
                          tess_human_bytes((double)m->disk_bytes), tess_human_bytes((double)needs));
    TESS_FREED char *dirs = tess_strdup(m->disk);
    tess_disk_conf conf = {.bytes = m->disk_bytes ? m->disk_bytes : room,
                           .checksum = m->disk_checksum,
                           .chunk = m->disk_block,
                           .depth = m->disk_depth,
                           .failed = disk_failed,
                           .faults = faults};
    const char *dir[TESS_DISK_MAX_DIRS];
    conf.dirs = tess_disk_dirs(dirs, dir);
    if (!m->disk_bytes) conf.bytes += conf.dirs * (m->disk_block ? m->disk_block : TESS_DISK_CHUNK); /* whole ones */
    conf.dir = dir;
    return tess_disk_open(&conf, &disk);
}

tess_status tess_tier_register(void)
{
    unsigned node;
    if (!disk) return TESS_OK;
    TESS_TRY(tess_disk_register(disk, &node));
    tess_disk_node = (int)node;
    return TESS_OK;
}

void tess_tier_close(void)
{
    tess_disk_close(disk);
    disk = NULL;
    tess_disk_node = -1;
    hooks = (tess_fault_hooks){0};
}

struct tess_disk_tile *tess_disk_place_new(size_t bytes, const char *label, const char *kind)
{
    TESS_ASSERT(disk);
    struct tess_disk_tile *t = tess_disk_ops.alloc(disk, bytes);
    t->label = label;
    t->kind = kind;
    return t;
}

void tess_disk_place_asked(struct tess_disk_tile *place, bool write)
{
    place->asked[write] = tess_traces() ? tess_seconds() : 0;
}

uint32_t tess_disk_place_arrival(const struct tess_disk_tile *place)
{
    return place->arrival;
}

void tess_disk_place_free(struct tess_disk_tile *place, size_t bytes)
{
    if (disk) tess_disk_ops.free(disk, place, bytes);
}

const char *tess_disk_fault(void)
{
    return disk ? tess_disk_failure(disk) : NULL;
}

void tess_disk_traffic(uint64_t *read_bytes, uint64_t *write_bytes, uint64_t *used, uint64_t *peak)
{
    tess_disk_use use = {0};
    if (disk) tess_disk_use_read(disk, &use);
    *read_bytes = use.read_bytes;
    *write_bytes = use.write_bytes;
    *used = use.used;
    *peak = use.peak;
}

double tess_disk_busy_seconds(void)
{
    tess_disk_use use = {0};
    if (disk) tess_disk_use_read(disk, &use);
    return use.busy_seconds;
}

bool tess_disk_there(void)
{
    return tess_session() && disk;
}

void tess_tier_use(tess_tier tier, uint64_t *now, uint64_t *peak)
{
    uint64_t unused;
    *now = *peak = 0;
    if (tier == TESS_TIER_GPU) tess_gpu_use(now, peak);
    if (tier == TESS_TIER_CPU) tess_slab_use(now, peak);
    if (tier == TESS_TIER_DISK) tess_disk_traffic(&unused, &unused, now, peak);
}
