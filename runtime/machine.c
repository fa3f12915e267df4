/* Starting and stopping StarPU, and what hwloc says of the machine. */
#include "starpu_impl.h"
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static bool started;

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
}

tess_status tess_start(const tess_machine *m)
{
    TESS_ASSERT(!started);
    prepare_environment();
    struct starpu_conf conf;
    starpu_conf_init(&conf);
    conf.sched_policy_name = m->sched ? m->sched : "prio";
    if (m->workers > 0) conf.ncpus = m->workers;
    if (m->cpu_bytes) {
        char mib[32];
        snprintf(mib, sizeof mib, "%llu", (unsigned long long)(m->cpu_bytes >> 20));
        setenv("STARPU_LIMIT_CPU_MEM", mib, 0);
    }
    tess_slab_install();
    int rc = starpu_init(&conf);
    if (rc) return tess_error(TESS_FAILED, "starpu", "did not start (error %d; is any CPU left to this process?)", -rc);
    if (starpu_cpu_worker_get_count() == 0) {
        starpu_shutdown();
        return tess_error(TESS_INVALID, "STARPU_NCPU", "leaves no CPU worker, at least 1 is needed");
    }
    started = true;
    tess_profiling = m->profile;
    if (m->profile) starpu_profiling_status_set(STARPU_PROFILING_ENABLE);
    tess_profile_reset();
    return TESS_OK;
}

void tess_stop(void)
{
    if (!started) return;
    starpu_task_wait_for_all();
    starpu_shutdown();
    tess_codelets_forget();
    tess_slab_release();
    started = false;
}

int tess_workers(void)
{
    return started ? (int)starpu_cpu_worker_get_count() : 0;
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

/* ---- the machine ---- */

static void read_isa(tess_hardware *h)
{
#if defined __x86_64__
    const char *vector = __builtin_cpu_supports("avx512f") ? "avx512"
                         : __builtin_cpu_supports("avx2")  ? "avx2"
                                                           : "sse2";
    const char *bf16 = __builtin_cpu_supports("avx512bf16") ? ", avx512_bf16" : "";
    snprintf(h->isa, sizeof h->isa, "%s%s", vector, bf16);
#else
    snprintf(h->isa, sizeof h->isa, "generic");
#endif
}

void tess_hardware_read(tess_hardware *h)
{
    *h = (tess_hardware){0};
    hwloc_topology_t topology;
    hwloc_topology_init(&topology);
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (!hwloc_topology_load(topology)) {
        h->cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
        h->numa_nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
        hwloc_obj_t o = NULL;
        while ((o = hwloc_get_next_osdev(topology, o)))
            if (o->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC || o->attr->osdev.type == HWLOC_OBJ_OSDEV_GPU) h->gpus++;
        o = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
        const char *name = o ? hwloc_obj_get_info_by_name(o, "CPUModel") : NULL;
        snprintf(h->cpu_name, sizeof h->cpu_name, "%s", name ? name : "unknown");
    }
    hwloc_topology_destroy(topology);
    struct sysinfo s;
    if (!sysinfo(&s)) {
        h->ram_bytes = (uint64_t)s.totalram * s.mem_unit;
        h->ram_free_bytes = (uint64_t)s.freeram * s.mem_unit + (uint64_t)s.bufferram * s.mem_unit;
    }
    read_isa(h);
}
