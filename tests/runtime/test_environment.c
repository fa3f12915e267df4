/* StarPU's variables: a wrong value is one line, the policies that are not refused give the same result, and the
 * environment is afterwards as it was. */
#define CHECK_MAIN
#include "runtime/runtime.h"
#include "tests/runtime/child.h"
#include <starpu.h>
#include <sys/stat.h>

enum { MiB = 1 << 20, TASKS = 60, COUNT = 256 };

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != TESS_OK) CHECK_SAY("%s", tess_error_text());                                                     \
    } while (0)

static const char *name, *value;
static tess_machine machine;

static void start_alone(void)
{
    setenv(name, value, 1);
    const tess_status status = tess_start(&machine);
    fprintf(stderr, "%s\n", status ? tess_error_text() : "started");
    tess_stop();
    if (strcmp(getenv(name), value)) CHECK_SAY("%s is \"%s\" afterwards", name, getenv(name));
    if (status) _exit((int)status);
}

/* What tess_start says of it. */
static void check_refused(const char *variable, const char *set, const char *part)
{
    name = variable;
    value = set;
    child_run(start_alone);
    if (child_end.status != TESS_INVALID || strncmp(child_end.err, name, strlen(name)) ||
        !strstr(child_end.err, part) || strchr(child_end.err, '\n')[1])
        CHECK_SAY("%s=%s: exit status %d, %s", name, value, child_end.status, child_end.err);
}

static void check_taken(const char *variable, const char *set)
{
    name = variable;
    value = set;
    child_run(start_alone);
    if (child_end.status || strcmp(child_end.err, "started\n"))
        CHECK_SAY("%s=%s: exit status %d, %s", name, value, child_end.status, child_end.err);
}

static void start_of_several(void)
{
    setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
    setenv("OMPI_COMM_WORLD_RANK", value, 1);
    for (int k = 0; k < 2; k++) {
        MUST(tess_start(&machine));
        tess_stop();
    }
}

TEST(a_program_that_did_not_join_is_told_once)
{
    static const char *const rank[] = {"0", "2"};
    for (size_t k = 0; k < 2; k++) {
        value = rank[k];
        child_run(start_of_several);
        const char *said = strstr(child_end.err, "started 3 of this program, but it did not call tess_ranks_join");
        CHECK(child_end.status == 0);
        CHECK(!said == (k > 0));
        CHECK(!said || !strstr(said + 1, "started 3 of"));
    }
}

/* Of a StarPU that was built without FxT. */
TEST(a_trace_that_is_not_recorded_is_one_line)
{
    static const char *const sets[][2] = {
        {"STARPU_FXT_TRACE", "1"}, {"STARPU_GENERATE_TRACE", "1"}, {"STARPU_FXT_TRACE", "0"}};
    for (size_t k = 0; k < 3; k++) {
        name = sets[k][0];
        value = sets[k][1];
        child_run(start_alone);
#ifdef STARPU_USE_FXT
        const bool says = false;
#else
        const bool says = k < 2;
#endif
        if (says != (strstr(child_end.err, ": this StarPU records no trace (tools/starpu builds") != NULL))
            CHECK_SAY("%s=%s: %s", name, value, child_end.err);
        CHECK_EQ(child_end.status, 0);
    }
}

TEST(a_wrong_value_is_one_line)
{
    tess_cpu_kind kind;
    const char *cap;
    CHECK(tess_cpu_cap(&kind, &cap) == TESS_OK && !cap);
    check_refused("TESSERA_PARALLEL_CARRIER", "pigeon", "\"pigeon\", expected auto, starpu_mpi, mpi or nccl");
#ifdef __aarch64__
    CHECK_EQ(kind, TESS_CPU_ASIMD);
    check_refused("TESSERA_MAX_CPU_ISA", "AVX2", "\"AVX2\", expected one of ASIMD");
    check_taken("TESSERA_MAX_CPU_ISA", "ASIMD");
#else
    check_refused("TESSERA_MAX_CPU_ISA", "AVX3", "\"AVX3\", expected one of SSE41, AVX, AVX2, AVX512_CORE");
    if (kind < TESS_CPU_AVX512_AMX) check_refused("TESSERA_MAX_CPU_ISA", "AVX512_CORE_AMX", "but this CPU has ");
    if (kind > TESS_CPU_AVX2) check_taken("TESSERA_MAX_CPU_ISA", "AVX2");
#endif
    check_refused("STARPU_MPI_NDETACHED_SEND", "0", "0, with which StarPU-MPI sends nothing");
    check_refused("STARPU_MPI_FAKE_SIZE", "4", "4, with which StarPU-MPI sends nothing");
    check_refused("STARPU_COMM_STATS", "yes", "\"yes\", expected a whole number from 0");
    machine = TESS_MACHINE_DEFAULT;
    check_refused("STARPU_SCHED", "nonsense", "\"nonsense\" is no scheduling policy");
    check_refused("STARPU_SCHED", "heteroprio", "dmda, ");
    check_refused("STARPU_SCHED", "graph_test", "lws, ");
    check_refused("STARPU_SCHED", "modular-heteroprio-heft", "modular-ws, ");
    check_refused("STARPU_SCHED_LIB", "no/such.so", "no/such.so: cannot open");
    check_refused("STARPU_SCHED_LIB", "libm.so.6", "libm.so.6 has no starpu_get_sched_lib_policy");
    check_refused("STARPU_NCPU", "0", "no CPU worker");
    check_refused("STARPU_NCPU", "two", "\"two\", expected a whole number from 0");
    check_refused("STARPU_NCPU", "-1", "\"-1\"");
    check_refused("STARPU_RESERVE_NCPU", "999", "no CPU worker");
    check_refused("STARPU_NTHREADS_PER_CORE", "0", "0, expected a number from 1");
    check_refused("STARPU_NTHREADS_PER_CORE", "99", "99, expected a number from 1");
    check_refused("STARPU_WATCHDOG_TIMEOUT", "0", "0, which ends any run");
    check_refused("STARPU_MIN_PRIO", "-5", "\"-5\"");
    check_refused("STARPU_LIMIT_CPU_MEM", "8G", "\"8G\"");
    check_refused("STARPU_LIMIT_CPU_NUMA_0_MEM", "x", "\"x\"");
    check_refused("STARPU_WORKERS_CPUID", "abc", "\"abc\", expected numbers");
    check_refused("STARPU_WORKERS_CPUID", "0 a", "\"0 a\"");
    check_refused("STARPU_WORKERS_COREID", "", "\"\"");
    check_refused("STARPU_DISK_SWAP", "/nowhere", "/nowhere");
    check_refused("STARPU_DISABLE_KERNELS", "1", "nothing is computed");
    check_refused("STARPU_PERF_MODEL_DIR", "/proc/none", "/proc/none: ");
}

TEST(a_value_that_means_something_is_taken)
{
    machine = TESS_MACHINE_DEFAULT;
    static const char *const good[][2] = {{"STARPU_NCPU", "99"},
                                          {"STARPU_WORKERS_CPUID", "0-"},
                                          {"STARPU_WORKERS_CPUID", "0,0"},
                                          {"STARPU_PREFETCH", "0"},
                                          {"STARPU_CALIBRATE", "2"},
                                          {"STARPU_USE_NUMA", "0"},
                                          {"STARPU_MAX_MEMORY_USE", "0"},
                                          {"STARPU_SCHED", "heft"},
                                          {"STARPU_SCHED", ""},
                                          {"STARPU_SILENT", "1"},
                                          {"XDG_CACHE_HOME", "/proc/none"},
                                          {"STARPU_NCPU", ""},
                                          {"STARPU_NCPUS", ""},
                                          {"STARPU_NTHREADS_PER_CORE", ""},
                                          {"STARPU_WATCHDOG_TIMEOUT", ""},
                                          {"STARPU_LIMIT_CPU_NUMA_0_MEM", ""}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) check_taken(good[i][0], good[i][1]);
}

TEST(a_limit_below_the_cap_is_refused_with_both)
{
    machine = (tess_machine){.cpu_bytes = 64 * MiB};
    check_refused("STARPU_LIMIT_CPU_MEM", "32", "32.0 MiB, but the tiles have a cap of 64.0 MiB");
    check_refused("STARPU_LIMIT_CPU_NUMA_MEM", "1", "1.0 MiB");
    check_refused("STARPU_LIMIT_CPU_NUMA_0_MEM", "2", "2.0 MiB");
    check_taken("STARPU_LIMIT_CPU_MEM", "64");
    check_taken("STARPU_SCHED_LIB", TESS_OWN_POLICY);
}

/* ---- what is set is taken back ---- */

static char *environment(void)
{
    extern char **environ;
    char *all = tess_strdup("");
    for (char **e = environ; *e; e++) {
        if (strncmp(*e, "STARPU_", 7) && strncmp(*e, "XDG_", 4)) continue;
        char *more = tess_format("%s%s\n", all, *e);
        free(all);
        all = more;
    }
    return all;
}

static void start_and_stop(void)
{
    setenv("STARPU_TARGET_AVAILABLE_MEM", "20", 1);
    setenv("STARPU_LIMIT_CPU_MEM", "100", 1);
    mkdir("environment-disk", 0777);
    for (int turn = 0; turn < 3; turn++) {
        char *before = environment();
        machine = (tess_machine){.cpu_bytes = turn ? 64 * MiB : 0};
        if (turn > 1) machine.disk = "environment-disk", machine.disk_bytes = 64 * MiB;
        MUST(tess_start(&machine));
        tess_stop();
        char *after = environment();
        CHECK_STR(after, before);
        free(before);
        free(after);
    }
    rmdir("environment-disk");
}

TEST(the_environment_is_as_it_was)
{
    child_run(start_and_stop);
    CHECK_EQ(child_end.status, 0);
    CHECK_HAS(child_end.err, "STARPU_TARGET_AVAILABLE_MEM=20 has no effect with a disk tier");
}

/* ---- policies ---- */

static void add(const tess_work *w)
{
    float *x = w->buf[0].ptr;
    const float *y = w->buf[1].ptr;
    for (int i = 0; i < COUNT; i++) x[i] = x[i] * 1.5f + y[i];
}
static tess_codelet add_cl = {.name = "add", .dtype = TESS_F32, .cpu = add};

static void run_chains(void)
{
    enum { TILES = 5 };
    static tess_use use[TASKS][2];
    static tess_task task[TASKS];
    tess_tile *t[TILES];
    float x[COUNT], want[TILES][COUNT];
    setenv("STARPU_SCHED", value, 1);
    MUST(tess_start(&(tess_machine){.patience = 20}));
    for (int k = 0; k < TILES; k++) {
        for (int i = 0; i < COUNT; i++) want[k][i] = (float)(k + 1) / (float)(i + 3);
        t[k] = tess_tile_new(sizeof x, TESS_ROLE_ACTIVATION, "x");
        MUST(tess_tile_write(t[k], 0, want[k], sizeof x));
    }
    for (int n = 0; n < TASKS; n++) {
        const int a = n % TILES, b = (n * 3 + 1) % TILES == a ? (a + 1) % TILES : (n * 3 + 1) % TILES;
        use[n][0] = (tess_use){t[a], TESS_RW};
        use[n][1] = (tess_use){t[b], TESS_R};
        task[n] = (tess_task){.cl = &add_cl, .use = use[n], .nuse = 2, .order = (uint32_t)n};
        for (int i = 0; i < COUNT; i++) want[a][i] = want[a][i] * 1.5f + want[b][i];
    }
    MUST(tess_submit_all(task, TASKS));
    MUST(tess_wait());
    for (int k = 0; k < TILES; k++) {
        MUST(tess_tile_read(t[k], 0, x, sizeof x));
        if (memcmp(x, want[k], sizeof x)) CHECK_SAY("%s: tile %d differs", value, k);
        tess_tile_free(t[k]);
    }
    tess_stop();
}

TEST(all_other_policies_give_the_same)
{
    int n = 0;
    for (struct starpu_sched_policy **p = starpu_sched_get_predefined_policies(); *p; p++) {
        value = (*p)->policy_name;
        if (!strcmp(value, "heteroprio") || !strcmp(value, "modular-heteroprio-heft") || !strcmp(value, "graph_test"))
            continue;
        child_run(run_chains);
        if (child_end.status) CHECK_SAY("%s: exit status %d, %s", value, child_end.status, child_end.err);
        n++;
    }
    CHECK(n > 10);
}
