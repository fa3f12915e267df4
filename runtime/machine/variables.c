/* The names of StarPU's variables, which it reads without a word about those that it does not know: one that is
 * misspelt would have no effect, and no message. They are those of its versions 1.3 and 1.4, with GPUs and
 * without, so that what another build than this one knows is not called a mistake. */
#include "runtime/machine/machine_impl.h"
#include <starpu_config.h>
#include <stdlib.h>
#include <string.h>

/* Without STARPU_. Those with a # take a whole number, those with an @ a list of numbers. */
static char words[] =
    "BACKOFF_MAX# BACKOFF_MIN# BUS_CALIBRATE# BUS_STATS# BUS_STATS_FILE CALIBRATE# CALIBRATE_MINIMUM# "
    "CATCH_SIGNALS# CODELET_PROFILING COMBINED_WORKERS_LEVEL COMM_STATS# CUDA_ASYNC "
    "CUDA_ONLY_FAST_ALLOC_OTHER_MEMNODES CUDA_PIPELINE# CUDA_THREAD_PER_DEV CUDA_THREAD_PER_WORKER "
    "DATAWIZARD_ONLY_FAST_ALLOC DATA_LOCALITY_ENFORCE DATA_NEED_DUMP DEFAULT_PRIO DISABLE_ASYNCHRONOUS_COPY "
    "DISABLE_ASYNCHRONOUS_CUDA_COPY DISABLE_ASYNCHRONOUS_HIP_COPY DISABLE_ASYNCHRONOUS_MAX_FPGA_COPY "
    "DISABLE_ASYNCHRONOUS_MIC_COPY DISABLE_ASYNCHRONOUS_MPI_MS_COPY DISABLE_ASYNCHRONOUS_MPI_SC_COPY "
    "DISABLE_ASYNCHRONOUS_OPENCL_COPY DISABLE_ASYNCHRONOUS_SYCL_COPY DISABLE_ASYNCHRONOUS_TCPIP_SC_COPY "
    "DISABLE_KERNELS# DISABLE_PINNING DISK_SWAP DISK_SWAP_BACKEND DISK_SWAP_SIZE# DISPLAY_BINDINGS "
    "ENABLE_CUDA_GPU_GPU_DIRECT ENABLE_HIP_GPU_GPU_DIRECT ENABLE_MAP ENABLE_STATS# ENERGY_PROFILING "
    "EXPECTED_TRANSFER_TIME_WRITEBACK EXP_LEN_THRESHOLD FXT_EVENTS FXT_PREFIX FXT_SUFFIX FXT_TRACE "
    "GENERATE_TRACE GENERATE_TRACE_OPTIONS GLOBAL_ARBITER HIP_ASYNC HIP_THREAD_PER_DEV HIP_THREAD_PER_WORKER "
    "HISTORYMAXERROR# HISTORY_MAX_ERROR# HOME HOSTNAME HWLOC_INPUT IDLE_FILE IDLE_POWER LIMIT_BANDWIDTH# "
    "LIMIT_CPU_MEM# LIMIT_CPU_NUMA_MEM# LIMIT_CUDA_MEM# LIMIT_HIP_MEM LIMIT_MAX_FPGA_MEM "
    "LIMIT_MAX_SUBMITTED_TASKS# LIMIT_MIN_SUBMITTED_TASKS# LIMIT_OPENCL_MEM MAIN_RAM MAIN_THREAD_BIND# "
    "MAIN_THREAD_COREID MAIN_THREAD_CPUID MAX_MEMORY_USE# MAX_PRIO# MAX_WORKERSIZE MEMORY_STATS# "
    "MIC_PROGRAM_PATH MINIMUM_AVAILABLE_MEM# MINIMUM_CLEAN_BUFFERS# MIN_PRIO# MIN_WORKERSIZE MPI_CACHE "
    "MPI_CACHE_STATS MPI_COMM MPI_COOP_SENDS MPI_DEBUG_LEVEL_MAX MPI_DEBUG_LEVEL_MIN MPI_DRIVER_CALL_FREQUENCY "
    "MPI_DRIVER_TASK_FREQUENCY MPI_EARLYDATA_ALLOCATE MPI_FAKE_RANK MPI_FAKE_SIZE MPI_GPUDIRECT MPI_HOSTNAMES "
    "MPI_LB MPI_MEM_LATE MPI_MEM_THROTTLE MPI_MS_WORKER MPI_NDETACHED_SEND# MPI_NMAD_IDLE_HOOKS "
    "MPI_NMAD_PROG_HOOKS MPI_NOBIND# MPI_NREADY_PROCESS# MPI_PRIORITIES# MPI_PSM2 MPI_RECV_WAIT_FINALIZE "
    "MPI_REDUX_ARITY_THRESHOLD MPI_SC_MULTIPLE_THREAD MPI_SC_NTHREADS MPI_SERVER_NODE MPI_STATS "
    "MPI_THREAD_COREID# MPI_THREAD_CPUID# MPI_THREAD_MULTIPLE_SEND MPI_TRACE_SYNC_CLOCKS NCPU# NCPUS# NCPU_SLOW "
    "NCUDA# NHIP NMAX_FPGA NMIC NMPI_MS NMPI_SC NOPENCL# NSYCL NTASKS_THRESHOLD# NTCPIP_SC NTHREADS_PER_CORE# "
    "NUM_LEVELS_OF_TASKS NWORKER_PER_CUDA# NWORKER_PER_HIP OPENCL_ONLY_ON_CPUS OPENCL_ON_CPUS OPENCL_PIPELINE "
    "OPENCL_PROGRAM_DIR PARALLEL_WORKER_LEVEL PCI_FLAT PERF_MODEL_DIR PERF_MODEL_HOMOGENEOUS_CPU "
    "PERF_MODEL_HOMOGENEOUS_CUDA PERF_MODEL_HOMOGENEOUS_MIC PERF_MODEL_HOMOGENEOUS_MPI_MS "
    "PERF_MODEL_HOMOGENEOUS_MPI_SC PERF_MODEL_HOMOGENEOUS_OPENCL PERF_MODEL_PATH PREFETCH# PROFILING# "
    "PROFILING_TASK PROF_PAPI_EVENTS RAND_SEED RESERVE_NCPU# SCHED SCHED_ALPHA SCHED_BETA "
    "SCHED_FIFO_READY_FIRST SCHED_GAMMA SCHED_GRAPH_TEST_DESCENDANTS SCHED_LIB SCHED_OUTPUT SCHED_READY "
    "SCHED_SORTED_ABOVE SCHED_SORTED_BELOW SILENT# SINGLE_COMBINED_WORKER# STATS# SUBALLOCATOR "
    "SYNTHESIZE_ARITY_COMBINED_WORKER TARGET_AVAILABLE_MEM# TARGET_CLEAN_BUFFERS# TASK_BREAK_ON_EXEC "
    "TASK_BREAK_ON_POP TASK_BREAK_ON_PUSH TASK_BREAK_ON_SCHED TASK_PROGRESS TRACE_BUFFER_SIZE USE_NUMA# "
    "WATCHDOG_CRASH WATCHDOG_DELAY# WATCHDOG_TIMEOUT# WINDOW_TIME_SIZE WORKERS_COREID@ WORKERS_CPUID@ "
    "WORKERS_CUDAID@ WORKERS_GETBIND# WORKERS_HIPID WORKERS_MAX_FPGAID WORKERS_NOBIND# WORKERS_OPENCLID@ "
    "WORKER_STATS# WORKER_STATS_FILE WORKER_TREE#";
enum { MOST = 256, MISTYPED = 2 /* letters */ };
static const char *names[MOST];
static char kinds[MOST];
static int count;

static void read_words(void)
{
    if (count) return;
    for (char *at = words, *word; (word = strtok_r(at, " ", &at));) {
        char *end = word + strcspn(word, "#@");
        TESS_ASSERT(count < MOST);
        names[count] = word;
        kinds[count++] = *end;
        *end = 0;
    }
}

char tess_variable_takes(const char *rest)
{
    static const char numa[] = "LIMIT_CPU_NUMA_"; /* of each node */
    read_words();
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], rest)) return kinds[i];
    return strncmp(rest, numa, sizeof numa - 1) ? 0 : '#';
}

/* Of these there is one for each of something: LIMIT_CPU_NUMA_0_MEM, SCHED_HETEROPRIO_..., MAX_PRIO_1. */
static const char *const families[] = {"LIMIT_",   "MAX_PRIO_",       "MIN_PRIO_",      "HETEROPRIO_", "LAHETEROPRIO_",
                                       "SIMGRID_", "AUTOHETEROPRIO_", "RECURSIVE_TASK", "TCPIP_"};

static bool of_family(const char *rest)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strncmp(rest, families[i], strlen(families[i])) && strpbrk(rest, "0123456789")) return true;
    return false;
}

/* The one that was meant; NULL: it is one of them, or some other program's. */
static const char *meant(const char *rest)
{
    read_words();
    const char *near = tess_nearest(rest, names, (size_t)count);
    return near && strcmp(near, rest) && !of_family(rest) && tess_distance(near, rest) <= MISTYPED ? near : NULL;
}

/* StarPU that was built without FxT takes the wish for a trace and says nothing. */
static bool asks_for_trace(const char *entry)
{
    static const char *const names[] = {"STARPU_FXT_TRACE=", "STARPU_GENERATE_TRACE="};
    bool asks = false;
#ifndef STARPU_USE_FXT
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        asks |= !strncmp(entry, names[i], strlen(names[i])) && strtol(entry + strlen(names[i]), NULL, 10) > 0;
#else
    (void)names, (void)entry;
#endif
    return asks;
}

void tess_variables_check(char *const *environment)
{
    static const char prefix[] = "STARPU_";
    bool said = false;
    for (; environment && *environment; environment++) {
        char name[80];
        const size_t n = strcspn(*environment, "=");
        if (!said && asks_for_trace(*environment)) {
            tess_note(
                "%.*s: this StarPU records no trace (tools/starpu builds one that does; train --trace needs none)",
                (int)n, *environment);
            said = true;
        }
        if (n >= sizeof name || strncmp(*environment, prefix, sizeof prefix - 1)) continue;
        snprintf(name, sizeof name, "%.*s", (int)n, *environment);
        const char *near = meant(name + sizeof prefix - 1);
        if (near) tess_note("%s is not a variable of StarPU (did you mean %s%s?)", name, prefix, near);
    }
}
