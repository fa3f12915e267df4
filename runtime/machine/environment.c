/* StarPU's variables. They are the user's: they win over what is set here, and what is set here is taken back at the
 * end, so that a program has the environment that it was given. A value for which StarPU would abort, hang, or only
 * print a warning is refused in one line beforehand. */
#include "runtime/gpu/gpu.h"
#include "runtime/machine/machine_impl.h"
#include <errno.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

/* ---- what is set while StarPU runs ---- */

enum { MOST = 128 };

static struct {
    char *name, *before; /* NULL: it was not set */
} changed[MOST];
static int changes;

void tess_environment_set(const char *name, const char *value)
{
    const char *before = getenv(name);
    TESS_ASSERT(changes < MOST);
    changed[changes].name = tess_strdup(name);
    changed[changes++].before = before ? tess_strdup(before) : NULL;
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void set_default(const char *name, const char *value)
{
    if (!getenv(name)) tess_environment_set(name, value);
}

void tess_environment_leave(void)
{
    while (changes > 0) {
        const int k = --changes;
        if (changed[k].before)
            setenv(changed[k].name, changed[k].before, 1);
        else
            unsetenv(changed[k].name);
        free(changed[k].name);
        free(changed[k].before);
    }
}

/* ---- what it may say ---- */

static bool is_number(const char *s)
{
    char *end;
    errno = 0;
    const long x = strtol(s, &end, 10);
    return end != s && !*end && x >= 0 && x <= INT32_MAX && !errno;
}

/* "0 1", "0,2-3", "1-" */
static bool is_list(const char *s)
{
    int n = 0;
    for (char *end; *s; s = end, n++) {
        s += strspn(s, " ,");
        if (!*s) break;
        if (*s < '0' || *s > '9') return false;
        strtol(s, &end, 10);
        if (*end == '-') {
            s = end + 1;
            if (*s >= '0' && *s <= '9')
                strtol(s, &end, 10);
            else
                end++;
        }
        if (*end && *end != ' ' && *end != ',') return false;
    }
    return n > 0;
}

static const char prefix[] = "STARPU_";

/* Variables, without STARPU_, that take a whole number (#), or a list of numbers (@). */
static const char numbers[] =
    "BACKOFF_MAX# BACKOFF_MIN# BUS_CALIBRATE# BUS_STATS# CALIBRATE# CALIBRATE_MINIMUM# CATCH_SIGNALS# "
    "COMM_STATS# CUDA_PIPELINE# DISABLE_KERNELS# DISK_SWAP_SIZE# ENABLE_STATS# HISTORYMAXERROR# "
    "HISTORY_MAX_ERROR# LIMIT_BANDWIDTH# LIMIT_CPU_MEM# LIMIT_CPU_NUMA_MEM# LIMIT_CUDA_MEM# "
    "LIMIT_MAX_SUBMITTED_TASKS# LIMIT_MIN_SUBMITTED_TASKS# MAIN_THREAD_BIND# MAX_MEMORY_USE# MAX_PRIO# "
    "MEMORY_STATS# MINIMUM_AVAILABLE_MEM# MINIMUM_CLEAN_BUFFERS# MIN_PRIO# MPI_NDETACHED_SEND# MPI_NOBIND# "
    "MPI_NREADY_PROCESS# MPI_PRIORITIES# MPI_THREAD_COREID# MPI_THREAD_CPUID# NCPU# NCPUS# NCUDA# NOPENCL# "
    "NTASKS_THRESHOLD# NTHREADS_PER_CORE# NWORKER_PER_CUDA# PREFETCH# PROFILING# RESERVE_NCPU# SILENT# "
    "SINGLE_COMBINED_WORKER# STATS# TARGET_AVAILABLE_MEM# TARGET_CLEAN_BUFFERS# USE_NUMA# WATCHDOG_DELAY# "
    "WATCHDOG_TIMEOUT# WORKERS_COREID@ WORKERS_CPUID@ WORKERS_CUDAID@ WORKERS_GETBIND# WORKERS_NOBIND# "
    "WORKERS_OPENCLID@ WORKER_STATS# WORKER_TREE#";

/* Returns '#' or '@' for what a variable takes; 0: anything. */
static char takes(const char *rest)
{
    static const char numa[] = "LIMIT_CPU_NUMA_"; /* of each node */
    const size_t n = strlen(rest);
    for (const char *at = numbers; *at; at += strspn(at, " ")) {
        const size_t letters = strcspn(at, "#@");
        if (letters == n && !strncmp(at, rest, n)) return at[n];
        at += letters + 1;
    }
    return strncmp(rest, numa, sizeof numa - 1) ? 0 : '#';
}

/* Prints a line where a StarPU that was built without FxT is asked for a trace: it says nothing. */
static void say_no_trace(void)
{
#ifndef STARPU_USE_FXT
    static const char *const names[] = {"STARPU_FXT_TRACE", "STARPU_GENERATE_TRACE"};
    for (int i = 0; i < 2; i++) {
        const char *value = getenv(names[i]);
        if (!value || strtol(value, NULL, 10) <= 0) continue;
        tess_note("%s: this StarPU records no trace (tools/starpu builds one that does; train --trace needs none)",
                  names[i]);
        return;
    }
#endif
}

static tess_status check_values(void)
{
    for (char **e = environ; e && *e; e++) {
        char name[80];
        const char *equals = strchr(*e, '=');
        if (!equals || strncmp(*e, prefix, sizeof prefix - 1) || (size_t)(equals - *e) >= sizeof name) continue;
        snprintf(name, sizeof name, "%.*s", (int)(equals - *e), *e);
        const char *rest = name + sizeof prefix - 1, *value = equals + 1;
        const char kind = takes(rest);
        if (kind == '#' && *value && !is_number(value)) /* StarPU would abort */
            return tess_error(TESS_INVALID, name, "\"%s\", expected a whole number from 0", value);
        if (kind == '@' && !is_list(value))
            return tess_error(TESS_INVALID, name, "\"%s\", expected numbers and ranges (such as 0 2-3)", value);
    }
    return TESS_OK;
}

/* What is set to nothing is not set, for us and for most programs; StarPU would read a 0. */
static void unset_empty(void)
{
    for (char **e = environ; e && *e;) {
        char name[80];
        const char *equals = strchr(*e, '=');
        const bool empty =
            equals && !equals[1] && !strncmp(*e, prefix, sizeof prefix - 1) && (size_t)(equals - *e) < sizeof name;
        if (empty) snprintf(name, sizeof name, "%.*s", (int)(equals - *e), *e);
        if (!empty || takes(name + sizeof prefix - 1) != '#') {
            e++;
            continue;
        }
        tess_environment_set(name, NULL);
        e = environ;
    }
}

/* ---- messages ---- */

tess_status tess_environment_carrier(tess_carriers asked, tess_carriers *by)
{
    static const char *const names[] = {"auto", "starpu_mpi", "mpi", "nccl"};
    const char *name = getenv("TESSERA_PARALLEL_CARRIER");
    *by = (int)asked == TESS_CARRIER_ANY ? TESS_CARRIER_AUTO : asked;
    if (asked != TESS_CARRIER_AUTO || !name || !*name) return TESS_OK;
    for (int k = 0; k < (int)(sizeof names / sizeof *names); k++) {
        if (strcmp(name, names[k])) continue;
        *by = (tess_carriers)k;
        return TESS_OK;
    }
    return tess_error(TESS_INVALID, "TESSERA_PARALLEL_CARRIER", "\"%s\", expected auto, starpu_mpi, mpi or nccl", name);
}

/* With these StarPU-MPI would send nothing, and its ranks wait for ever. */
static tess_status check_messages(void)
{
    static const char *const off[] = {"STARPU_MPI_NDETACHED_SEND", "STARPU_MPI_NREADY_PROCESS"};
    for (int i = 0; i < 2; i++) {
        const char *value = getenv(off[i]);
        if (value && *value && atoi(value) == 0)
            return tess_error(TESS_INVALID, off[i], "%s, with which StarPU-MPI sends nothing (unset it)", value);
    }
    const char *fake = getenv("STARPU_MPI_FAKE_SIZE");
    if (fake && *fake)
        return tess_error(TESS_INVALID, "STARPU_MPI_FAKE_SIZE",
                          "%s, with which StarPU-MPI sends nothing (unset it; tessera estimate --ranks N does it)",
                          fake);
    return TESS_OK;
}

/* ---- memory ---- */

/* The least of StarPU's limits on RAM, in bytes; 0: there is none. */
uint64_t tess_cpu_limit(const char **name)
{
    static char found[80];
    uint64_t least = 0;
    for (char **e = environ; e && *e; e++) {
        const char *equals = strchr(*e, '=');
        if (!equals || strncmp(*e, "STARPU_LIMIT_CPU_", 17) || strncmp(equals - 4, "_MEM", 4)) continue;
        if (!is_number(equals + 1) || (size_t)(equals - *e) >= sizeof found) continue;
        const uint64_t bytes = (uint64_t)atoll(equals + 1) << 20;
        if (!bytes || (least && bytes >= least)) continue;
        least = bytes;
        snprintf(found, sizeof found, "%.*s", (int)(equals - *e), *e);
    }
    *name = least ? found : NULL;
    return least;
}

/* flow/ram_places.c keeps what StarPU holds below the cap. StarPU's own limits would only be in its way: what it does
 * there (it evicts what was just fetched, and may wait for ever) is what it is for. Beside a disk it would take half of
 * RAM for one where none is set: it gets one out of reach; beside a plan for a GPU too, since what StarPU takes for a
 * machine's RAM need not be what the plan goes by, and what it refuses there it asks for again for ever. Else it gets
 * none: below any limit it keeps freed buffers. */
static tess_status set_limits(const tess_machine *m, const tess_rooms *rooms)
{
    char mib[32];
    const char *name;
    const uint64_t limit = tess_cpu_limit(&name);
    if (tess_gpus() > 0 && !m->disk && !rooms->gpu_tiles) { /* they hold the tiles together, and StarPU moves them */
        const uint64_t ram = tess_ram_free(), bytes = m->cpu_bytes ? m->cpu_bytes : ram - ram / 16;
        snprintf(mib, sizeof mib, "%llu", (unsigned long long)(bytes >> 20));
        set_default("STARPU_LIMIT_CPU_MEM", mib);
        return TESS_OK;
    }
    if (!m->cpu_bytes && (!rooms->gpu_tiles || limit)) return TESS_OK;
    if (limit && limit < m->cpu_bytes)
        return tess_error(TESS_INVALID, name, "%s, but the tiles have a cap of %s (raise the one, or lower the other)",
                          tess_human_bytes((double)limit), tess_human_bytes((double)m->cpu_bytes));
    for (char **e = environ; limit && e && *e;) { /* the cap holds more */
        char theirs[80];
        const char *equals = strchr(*e, '=');
        if (equals && !strncmp(*e, "STARPU_LIMIT_CPU_", 17) && (size_t)(equals - *e) < sizeof theirs) {
            snprintf(theirs, sizeof theirs, "%.*s", (int)(equals - *e), *e);
            tess_environment_set(theirs, NULL);
            e = environ;
        } else
            e++;
    }
    if (!m->disk && !rooms->gpu_tiles) return TESS_OK;
    const uint64_t most = m->cpu_bytes ? m->cpu_bytes : tess_ram_free();
    snprintf(mib, sizeof mib, "%llu", (unsigned long long)(most >> 20) * 16 + 65536);
    tess_environment_set("STARPU_LIMIT_CPU_MEM", mib);
    /* It would reclaim ahead of need. */
    static const char *const ahead[] = {"STARPU_MINIMUM_AVAILABLE_MEM", "STARPU_TARGET_AVAILABLE_MEM",
                                        "STARPU_MINIMUM_CLEAN_BUFFERS", "STARPU_TARGET_CLEAN_BUFFERS"};
    for (int i = 0; i < 4; i++) {
        const char *value = getenv(ahead[i]);
        if (value && strcmp(value, "0"))
            tess_note("%s=%s has no effect with a disk tier: the plan decides the evictions from RAM", ahead[i], value);
        tess_environment_set(ahead[i], "0");
    }
    return TESS_OK;
}

/* A worker for each GPU (of a list of them StarPU makes as many workers as the machine has GPUs); kernels queue up to
 * twelve deep (four with a StarPU that tools/starpu did not build), so that the GPU never waits for a launch; memory is
 * kept below the cap. What follows in a micro-batch is
 * ready when what it reads has ended, so the queue holds kernels of as many micro-batches: in a pipeline, whose next
 * stage waits for the first of them, two deep. */
static void set_gpus(const tess_machine *m, const tess_rooms *rooms)
{
    const uint64_t cap = rooms->gpu_tiles ? tess_gpu_share(m->gpu_bytes) : m->gpu_bytes;
    char mib[32], count[16];
    if (tess_gpus() == 0) return;
    snprintf(count, sizeof count, "%d", tess_gpus());
    set_default("STARPU_NCUDA", count);
    set_default("STARPU_CUDA_PIPELINE", rooms->pipeline ? "2" : "12");
    if (!cap) return;
    snprintf(mib, sizeof mib, "%llu", (unsigned long long)(cap >> 20));
    set_default("STARPU_LIMIT_CUDA_MEM", mib);
}

/* ---- all of it ---- */

/* StarPU keeps performance models below the first of these that is set, and aborts where it cannot write. The folder
 * that it takes by default may be one of its own, what a user names is an order. */
static tess_status check_home(void)
{
    static const char *const homes[] = {"STARPU_PERF_MODEL_DIR", "XDG_CACHE_HOME", "STARPU_HOME", "HOME"};
    char own[64];
    const char *name = NULL, *dir = NULL;
    for (int i = 0; i < 4 && !dir; i++) dir = getenv(name = homes[i]);
    if (dir && !access(dir, W_OK)) return TESS_OK;
    if (dir && !mkdir(dir, 0777)) return TESS_OK;
    if (dir && !strncmp(name, "STARPU_", 7))
        return tess_error(TESS_INVALID, name, "%s: %s (StarPU keeps its performance models there)", dir,
                          strerror(errno == EEXIST ? EACCES : errno));
    snprintf(own, sizeof own, "/tmp/tessera-%ld", (long)getuid());
    mkdir(own, 0777);
    if (dir && !strcmp(name, "XDG_CACHE_HOME")) tess_environment_set(name, NULL);
    set_default("STARPU_HOME", own);
    return TESS_OK;
}

/* The value of a variable, NULL where it is not set, or to nothing. */
static const char *said(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* Said before any of StarPU's functions is called. */
tess_status tess_environment_check(void)
{
    TESS_TRY(check_values());
    say_no_trace();
    TESS_TRY(check_messages());
    const char *none = said("STARPU_NCPU") ? "STARPU_NCPU" : "STARPU_NCPUS", *cpus = said(none);
    if (cpus && atoi(cpus) == 0)
        return tess_error(TESS_INVALID, none, "%s leaves no CPU worker, at least 1 is needed", cpus);
    const char *kept = getenv("STARPU_RESERVE_NCPU");
    if (kept && atoi(kept) >= tess_cores())
        return tess_error(TESS_INVALID, "STARPU_RESERVE_NCPU", "%s leaves no CPU worker of %d, at least 1 is needed",
                          kept, tess_cores());
    const char *off = getenv("STARPU_DISABLE_KERNELS");
    if (off && atoi(off) > 0)
        return tess_error(TESS_INVALID, "STARPU_DISABLE_KERNELS", "%s, with which nothing is computed (unset it)", off);
    if (getenv("STARPU_DISK_SWAP"))
        return tess_error(TESS_INVALID, "STARPU_DISK_SWAP",
                          "%s, a disk of StarPU's own, which would move tiles against the plan (unset it; memory.path "
                          "is the disk tier)",
                          getenv("STARPU_DISK_SWAP"));
    const char *watchdog = said("STARPU_WATCHDOG_TIMEOUT");
    if (watchdog && atoi(watchdog) == 0)
        return tess_error(TESS_INVALID, "STARPU_WATCHDOG_TIMEOUT", "%s, which ends any run (microseconds; unset it)",
                          watchdog);
    const char *numa = getenv("STARPU_USE_NUMA"), *threads = said("STARPU_NTHREADS_PER_CORE");
    tess_hardware h;
    tess_hardware_read(&h);
    if (threads && (atoi(threads) < 1 || atoi(threads) > h.threads))
        return tess_error(TESS_INVALID, "STARPU_NTHREADS_PER_CORE",
                          "%s, expected a number from 1 to %d (a core has %d)", threads, h.threads, h.threads);
    if (numa && atoi(numa) > 0 && h.numa_nodes > 1)
        return tess_error(TESS_INVALID, "STARPU_USE_NUMA",
                          "%s, but a tile lies once in RAM, not once a node of %d (unset it; a rank a node does it)",
                          numa, h.numa_nodes);
    return TESS_OK;
}

tess_status tess_environment_enter(const tess_machine *m, const tess_rooms *rooms)
{
    TESS_TRY(check_home());
    unset_empty();
    set_default("STARPU_SILENT", "1");
    set_default("STARPU_FXT_TRACE", "0"); /* a StarPU that can trace would, into /tmp */
    const tess_share *s = tess_share_read();
    bool said = getenv("STARPU_WORKERS_CPUID") || getenv("STARPU_WORKERS_COREID") || getenv("STARPU_WORKERS_GETBIND");
    if (s->crowded)
        set_default("STARPU_WORKERS_NOBIND", "1");
    else if (!said)
        set_default("STARPU_WORKERS_GETBIND", "1");
    char *host = tess_perfmodels_host();
    set_default("STARPU_HOSTNAME", host);
    free(host);
    /* StarPU-MPI's thread goes where the rank's share has room, not to a core of a worker's. */
    if (!getenv("STARPU_MPI_THREAD_CPUID") && !getenv("STARPU_MPI_THREAD_COREID"))
        set_default("STARPU_MPI_NOBIND", "1");
    TESS_TRY(set_limits(m, rooms));
    set_gpus(m, rooms);
    return TESS_OK;
}
