/* Starting and stopping StarPU. */
#include "disk_impl.h"
#include "starpu_impl.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const tess_machine tess_machine_default; /* all zeros; C has a literal for it */
static bool started;
static unsigned sessions;
int tess_disk_node = -1;
static tess_disk *disk;

/* StarPU keeps performance models below HOME and aborts where it cannot write: it then gets a folder of its own. These
 * variables are StarPU's, so a user's value wins. */
static void prepare_environment(void)
{
    const char *home = getenv("HOME");
    if (!home || access(home, W_OK)) {
        char dir[64];
        snprintf(dir, sizeof dir, "/tmp/tessera-%ld", (long)getuid());
        setenv("STARPU_HOME", dir, 0);
    }
    setenv("STARPU_SILENT", "1", 0);
    const tess_share *s = tess_share_read();
    bool said = getenv("STARPU_WORKERS_CPUID") || getenv("STARPU_WORKERS_COREID") || getenv("STARPU_WORKERS_GETBIND");
    if (s->crowded)
        setenv("STARPU_WORKERS_NOBIND", "1", 0);
    else if (!said)
        setenv("STARPU_WORKERS_GETBIND", "1", 0);
}

/* ---- the disk tier ---- */

/* A transfer failed, before any task that is submitted: what runs is to end. */
static void disk_failed(const char *text)
{
    tess_fault_set(0, text);
}

static tess_status open_disk(const tess_machine *m)
{
    const uint64_t needs = tess_tiles_on_disk(), room = needs + needs / 16 + (64 << 20);
    if (m->disk_bytes && m->disk_bytes < needs)
        return tess_error(TESS_INVALID, "disk tier", "%s of it, but %s are to rest there",
                          tess_human_bytes((double)m->disk_bytes), tess_human_bytes((double)needs));
    char *dirs = tess_strdup(m->disk);
    tess_disk_conf conf = {.bytes = m->disk_bytes ? m->disk_bytes : room,
                           .checksum = m->disk_checksum,
                           .chunk = m->disk_block,
                           .depth = m->disk_depth,
                           .failed = disk_failed,
                           .fail_read_at = m->fail_read_at,
                           .fail_write_at = m->fail_write_at,
                           .flip_bit_at = m->flip_bit_at,
                           .stall_read_at = m->stall_read_at};
    const char *dir[TESS_DISK_MAX_DIRS];
    conf.dirs = tess_disk_dirs(dirs, dir);
    if (!m->disk_bytes) conf.bytes += conf.dirs * (m->disk_block ? m->disk_block : TESS_DISK_CHUNK); /* whole ones */
    conf.dir = dir;
    tess_status status = tess_disk_open(&conf, &disk);
    free(dirs);
    return status;
}

static tess_status register_disk(void)
{
    unsigned node;
    TESS_TRY(tess_disk_register(disk, &node));
    tess_disk_node = (int)node;
    return TESS_OK;
}

static void close_disk(void)
{
    tess_disk_close(disk);
    disk = NULL;
    tess_disk_node = -1;
}

struct tess_disk_tile *tess_disk_place_new(size_t bytes)
{
    TESS_ASSERT(disk);
    return tess_disk_ops.alloc(disk, bytes);
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

/* ---- start and stop ---- */

/* flow.c keeps what StarPU holds below the cap. Beside a disk StarPU would take half of RAM for a limit of its own: it
 * gets one out of reach, since what it does there (it evicts what was just fetched, and may wait for ever) would only
 * be in the way; and so does its reclaiming ahead. Without a disk it gets none: below any limit it keeps freed buffers.
 */
static void set_limits(const tess_machine *m)
{
    char mib[32];
    if (tess_gpus() > 0 && !m->disk && !tess_gpu_planned()) { /* they hold the tiles together, and StarPU moves them */
        const uint64_t ram = tess_ram_free(), bytes = m->cpu_bytes ? m->cpu_bytes : ram - ram / 16;
        snprintf(mib, sizeof mib, "%llu", (unsigned long long)(bytes >> 20));
        setenv("STARPU_LIMIT_CPU_MEM", mib, 0);
        return;
    }
    if (!m->cpu_bytes || !m->disk) return;
    snprintf(mib, sizeof mib, "%llu", (unsigned long long)(m->cpu_bytes >> 20) * 16 + 65536);
    setenv("STARPU_LIMIT_CPU_MEM", mib, 1);
    setenv("STARPU_MINIMUM_AVAILABLE_MEM", "0", 1);
    setenv("STARPU_TARGET_AVAILABLE_MEM", "0", 1);
    setenv("STARPU_MINIMUM_CLEAN_BUFFERS", "0", 1);
    setenv("STARPU_TARGET_CLEAN_BUFFERS", "0", 1);
}

tess_status tess_start(const tess_machine *m)
{
    if (!m) m = &tess_machine_default;
    if (started) return tess_error(TESS_INVALID, "tess_start", "it runs already (tess_stop comes first)");
    prepare_environment();
    tess_perfmodels_check();
    struct starpu_conf conf;
    starpu_conf_init(&conf);
    conf.sched_policy_name = m->sched ? m->sched : tess_gpus() > 0 ? "dmdas" : "prio";
    conf.ncpus = m->workers > 0 ? m->workers : tess_cores();
    set_limits(m);
    tess_gpu_prepare(m->gpu_bytes);
    tess_slab_install(m->cpu_bytes);
    if (m->disk) TESS_TRY(open_disk(m));
    int rc = starpu_init(&conf);
    if (rc) {
        close_disk();
        return tess_error(TESS_FAILED, "starpu", "did not start (error %d; is any CPU left to this process?)", -rc);
    }
    started = true;
    sessions++;
    tess_status status = TESS_OK;
    if (starpu_cpu_worker_get_count() == 0)
        status = tess_error(TESS_INVALID, "STARPU_NCPU", "leaves no CPU worker, at least 1 is needed");
    if (status == TESS_OK) status = tess_gpu_start();
    if (status == TESS_OK) status = tess_gpu_flow_start();
    if (status == TESS_OK && disk) status = register_disk();
    if (status != TESS_OK) {
        tess_stop();
        return status;
    }
    if (!tess_flow_caps()) tess_flow_room(0);
    tess_messages_start(m->by_mpi);
    tess_profiling = m->profile;
    starpu_profiling_status_set(m->profile ? STARPU_PROFILING_ENABLE : STARPU_PROFILING_DISABLE);
    tess_profile_reset();
    return TESS_OK;
}

void tess_stop(void)
{
    if (!started) return;
    starpu_task_wait_for_all();
    tess_tiles_stop();
    tess_messages_stop();
    tess_gpu_flow_stop();
    tess_gpu_stop();
    starpu_shutdown();
    close_disk();
    tess_codelets_forget();
    tess_slab_release();
    unsetenv("STARPU_LIMIT_CPU_MEM");
    started = false;
}

unsigned tess_session(void)
{
    return started ? sessions : 0;
}

bool tess_disk_there(void)
{
    return started && disk;
}

int tess_workers(void)
{
    return started ? (int)starpu_cpu_worker_get_count() : 0;
}

int tess_cores(void)
{
    const char *ncpu = getenv("STARPU_NCPU"); /* StarPU's own, which wins */
    int cores = tess_share_read()->cores;
    if (cores > STARPU_MAXCPUS) cores = STARPU_MAXCPUS;
    return ncpu && atoi(ncpu) > 0 && atoi(ncpu) < cores ? atoi(ncpu) : cores;
}

const char *tess_starpu_version(void)
{
    static char text[32];
    int major, minor, release;
    starpu_get_version(&major, &minor, &release);
    snprintf(text, sizeof text, "%d.%d.%d", major, minor, release);
    return text;
}

const char *tess_starpu_limits(void)
{
    static char text[128];
    snprintf(text, sizeof text, "at most %d CPU workers, %d workers in all, %d memory nodes", STARPU_MAXCPUS,
             STARPU_NMAXWORKERS, STARPU_MAXNODES);
    return text;
}
