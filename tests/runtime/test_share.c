/* How ranks divide a machine, on machines made up. */
#define CHECK_MAIN
#include "runtime/ranks/share.h"
#include "tests/check.h"
#include "tests/files.h"
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 16 };

static struct {
    hwloc_topology_t t;
    hwloc_bitmap_t mask[MOST], share[MOST];
    char text[400];
} made;

static void make(const char *machine)
{
    hwloc_topology_init(&made.t);
    CHECK(!hwloc_topology_set_synthetic(made.t, machine));
    CHECK(!hwloc_topology_load(made.t));
}

/* Divides it among ranks with these masks (lists, or NULL: all CPUs), and says how: "0-1 2-3". */
static const char *divided(const char *machine, int ranks, const char *const *mask, bool asked, int most, bool *enough)
{
    make(machine);
    for (int i = 0; i < ranks; i++) {
        made.mask[i] = hwloc_bitmap_alloc();
        if (mask)
            hwloc_bitmap_list_sscanf(made.mask[i], mask[i]);
        else
            hwloc_bitmap_copy(made.mask[i], hwloc_topology_get_topology_cpuset(made.t));
    }
    *enough = tess_share_divide(made.t, made.mask, asked, most, ranks, made.share);
    made.text[0] = 0;
    for (int i = 0; i < ranks; i++) {
        size_t n = strlen(made.text);
        if (i) made.text[n++] = ' ';
        hwloc_bitmap_list_snprintf(made.text + n, sizeof made.text - n, made.share[i]);
        hwloc_bitmap_free(made.mask[i]);
        hwloc_bitmap_free(made.share[i]);
    }
    hwloc_topology_destroy(made.t);
    return made.text;
}

static const char *evenly(const char *machine, int ranks)
{
    bool enough;
    const char *text = divided(machine, ranks, NULL, false, 0, &enough);
    CHECK(enough);
    return text;
}

TEST(a_machine_is_divided_evenly)
{
    CHECK_STR(evenly("core:4 pu:1", 1), "0-3");
    CHECK_STR(evenly("core:4 pu:1", 2), "0-1 2-3");
    CHECK_STR(evenly("core:4 pu:1", 4), "0 1 2 3");
    CHECK_STR(evenly("core:8 pu:1", 3), "0-1 2-4 5-7");
    CHECK_STR(evenly("core:2 pu:2", 2), "0-1 2-3"); /* both threads of a core stay together */
}

TEST(numa_nodes_stay_whole)
{
    CHECK_STR(evenly("package:2 [numa] core:4 pu:1", 2), "0-3 4-7");
    CHECK_STR(evenly("package:2 [numa] core:4 pu:1", 4), "0-1 2-3 4-5 6-7");
    CHECK_STR(evenly("package:2 group:2 [numa] core:6 pu:2", 4), "0-11 12-23 24-35 36-47");
    CHECK_STR(evenly("package:4 [numa] core:2 pu:1", 2), "0-3 4-7");
}

TEST(a_wish_is_respected)
{
    bool enough;
    const char *odd[] = {"0", "2-3"}, *same[] = {"4-7", "4-7"}, *overlap[] = {"0-4", "4-5"}, *one[] = {"1-2"};
    CHECK_STR(divided("core:8 pu:1", 2, odd, true, 0, &enough), "0 2-3");
    CHECK(enough);
    CHECK_STR(divided("core:8 pu:1", 2, odd, false, 0, &enough), "0-3 4-7"); /* a launcher's default is none */
    CHECK_STR(divided("core:8 pu:1", 2, same, true, 0, &enough), "4-5 6-7");
    CHECK_STR(divided("core:8 pu:1", 2, overlap, true, 0, &enough), "0-2 3-5");
    CHECK_STR(divided("core:8 pu:1", 1, one, true, 0, &enough), "1-2");
    CHECK_STR(divided("core:8 pu:1", 1, one, false, 0, &enough), "0-7");
}

TEST(a_mask_that_says_nothing)
{
    bool enough;
    const char *none[] = {"", ""}, *elsewhere[] = {"100", "101"};
    CHECK_STR(divided("core:4 pu:1", 2, none, true, 0, &enough), "0-1 2-3");
    CHECK(enough);
    CHECK_STR(divided("core:4 pu:1", 2, elsewhere, true, 0, &enough), "0-1 2-3");
}

TEST(a_limit_of_cpus_a_task)
{
    bool enough;
    const char *odd[] = {"0-3", "4-7"};
    CHECK_STR(divided("core:16 pu:1", 2, NULL, false, 3, &enough), "0-2 8-10");
    CHECK_STR(divided("core:16 pu:1", 2, NULL, false, 12, &enough), "0-7 8-15");
    CHECK_STR(divided("core:16 pu:1", 2, odd, true, 3, &enough), "0-3 4-7"); /* the masks are from who set the limit */
}

TEST(more_ranks_than_cores)
{
    bool enough;
    CHECK_STR(divided("core:2 pu:1", 3, NULL, false, 0, &enough), "0-1 0-1 0-1");
    CHECK(!enough);
    CHECK_STR(divided("core:2 pu:2", 3, NULL, false, 0, &enough), "0-3 0-3 0-3");
    CHECK(!enough);
}

TEST(every_core_has_one_rank)
{
    static const char *const machines[] = {"core:13 pu:1", "package:2 [numa] core:8 pu:2",
                                           "package:3 [numa] core:5 pu:1"};
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++)
        for (int ranks = 1; ranks <= 13; ranks++) {
            make(machines[m]);
            hwloc_bitmap_t none[MOST] = {0}, all = hwloc_bitmap_alloc();
            CHECK(tess_share_divide(made.t, none, false, 0, ranks, made.share));
            int cores = 0, least = 1000, most = 0;
            for (int i = 0; i < ranks; i++) {
                int n = tess_share_cores(made.t, made.share[i]);
                least = n < least ? n : least, most = n > most ? n : most;
                CHECK(n > 0 && !hwloc_bitmap_intersects(all, made.share[i]));
                hwloc_bitmap_or(all, all, made.share[i]);
                hwloc_bitmap_free(made.share[i]);
                cores += n;
            }
            CHECK_EQ(cores, hwloc_get_nbobjs_by_type(made.t, HWLOC_OBJ_CORE));
            CHECK(hwloc_bitmap_isequal(all, hwloc_topology_get_topology_cpuset(made.t)));
            CHECK(most <= 3 * least);
            hwloc_bitmap_free(all);
            hwloc_topology_destroy(made.t);
        }
}

/* Who has which: "0,1 2,3". */
static const char *matched(int gpus, int ranks, const int *near)
{
    static char text[400];
    bool *has = tess_alloc((size_t)(gpus * ranks) * sizeof *has);
    tess_share_match(gpus, ranks, near, has);
    text[0] = 0;
    for (int r = 0; r < ranks; r++) {
        if (r) strcat(text, " ");
        for (int g = 0, n = 0; g < gpus; g++)
            if (has[r * gpus + g]) snprintf(text + strlen(text), 8, n++ ? ",%d" : "%d", g);
    }
    free(has);
    return text;
}

TEST(gpus_that_are_all_as_near)
{
    CHECK_STR(matched(4, 2, NULL), "0,1 2,3");
    CHECK_STR(matched(4, 4, NULL), "0 1 2 3");
    CHECK_STR(matched(2, 4, NULL), "0 0 1 1");
    CHECK_STR(matched(5, 2, NULL), "0,1 2,3,4");
    CHECK_STR(matched(2, 5, NULL), "0 0 0 1 1");
    CHECK_STR(matched(0, 2, NULL), " ");
    CHECK_STR(matched(3, 1, NULL), "0,1,2");
}

/* The same on a machine made up, GPU g at the NUMA node at[g] (-1: unknown), whose ranks have even parts of the cores.
 */
static const char *placed(const char *machine, int ranks, int gpus, const int *at)
{
    int near[MOST * MOST];
    make(machine);
    hwloc_bitmap_t none[MOST] = {0};
    tess_share_divide(made.t, none, false, 0, ranks, made.share);
    for (int i = 0; i < ranks * gpus; i++) {
        hwloc_obj_t node =
            at[i % gpus] < 0 ? NULL : hwloc_get_obj_by_type(made.t, HWLOC_OBJ_NUMANODE, (unsigned)at[i % gpus]);
        near[i] = tess_share_nearness(made.t, made.share[i / gpus], node ? node->cpuset : NULL);
    }
    for (int r = 0; r < ranks; r++) hwloc_bitmap_free(made.share[r]);
    hwloc_topology_destroy(made.t);
    return matched(gpus, ranks, near);
}

#define TWO_OF_32      "package:2 [numa] core:32 pu:2"
#define FOUR_OF_16     "package:4 [numa] core:16 pu:1"
#define TWO_OF_4_OF_16 "package:2 group:4 [numa] core:16 pu:2" /* a DGX A100 */

TEST(ranks_on_large_machines)
{
    CHECK_STR(evenly(TWO_OF_32, 2), "0-63 64-127");
    CHECK_STR(evenly(TWO_OF_32, 4), "0-31 32-63 64-95 96-127");
    CHECK_STR(evenly(FOUR_OF_16, 2), "0-31 32-63");
    CHECK_STR(evenly(FOUR_OF_16, 4), "0-15 16-31 32-47 48-63");
    CHECK_STR(evenly(FOUR_OF_16, 8), "0-7 8-15 16-23 24-31 32-39 40-47 48-55 56-63");
}

TEST(gpus_go_to_the_ranks_that_are_near)
{
    static const int crossed[] = {1, 1, 0, 0}, dgx[] = {3, 3, 1, 1, 7, 7, 5, 5}, one[] = {2},
                     unknown[] = {-1, -1, -1, -1}, far[] = {3, 2, 1, 0};
    CHECK_STR(placed(TWO_OF_32, 4, 4, crossed), "2 3 0 1");
    CHECK_STR(placed(TWO_OF_32, 2, 4, crossed), "2,3 0,1");
    CHECK_STR(placed(TWO_OF_32, 8, 4, crossed), "2 2 3 3 0 0 1 1");
    CHECK_STR(placed(TWO_OF_32, 1, 4, crossed), "0,1,2,3");
    CHECK_STR(placed(TWO_OF_32, 4, 4, unknown), "0 1 2 3");
    CHECK_STR(placed(FOUR_OF_16, 4, 4, far), "3 2 1 0");
    CHECK_STR(placed(FOUR_OF_16, 4, 1, one), "0 0 0 0");
    /* Four of eight nodes have two each: a rank at such a node has one of them, its neighbour of the package the other.
     */
    CHECK_STR(placed(TWO_OF_4_OF_16, 8, 8, dgx), "1 2 3 0 5 6 7 4");
    CHECK_STR(placed(TWO_OF_4_OF_16, 2, 8, dgx), "0,1,2,3 4,5,6,7");
    CHECK_STR(placed(TWO_OF_4_OF_16, 4, 8, dgx), "2,3 0,1 6,7 4,5");
}

/* On this machine, of which hwloc is told that it had two nodes, or one: what the kernel was told of the pages. */
static int policy_of(const char *machine)
{
    unsetenv("HWLOC_COMPONENTS"); /* beside which it does not count */
    setenv("HWLOC_SYNTHETIC", machine, 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    hwloc_topology_t t;
    hwloc_topology_init(&t);
    CHECK(!hwloc_topology_load(t));
    tess_share_spread(t, hwloc_topology_get_topology_cpuset(t));
    hwloc_topology_destroy(t);
    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_THISSYSTEM");
    const size_t bytes = 8 << 20;
    char *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    tess_memory_spread(pages, bytes);
    memset(pages, 1, bytes);
    int policy = -1;
    if (syscall(SYS_get_mempolicy, &policy, NULL, 0, pages + bytes / 2, MPOL_F_ADDR)) policy = -1;
    munmap(pages, bytes);
    return policy;
}

TEST(pages_are_dealt_out_over_the_nodes_of_the_cores)
{
    const int one = policy_of("numa:1 core:2 pu:1");
    if (one < 0) SKIP("the kernel has no memory policies, or does not tell them");
    CHECK_EQ(one, MPOL_DEFAULT);
    CHECK_EQ(policy_of("numa:2 core:2 pu:1"), MPOL_INTERLEAVE);
    CHECK_EQ(policy_of("package:2 [numa] core:2 pu:1"), MPOL_INTERLEAVE);
    CHECK_EQ(policy_of("package:1 [numa] [numa] core:2 pu:1"), MPOL_DEFAULT); /* a second memory at the same cores */
    /* Somebody said where memory shall be, as numactl does. */
    const unsigned long first = 1;
    CHECK(!syscall(SYS_set_mempolicy, MPOL_BIND, &first, 8 * sizeof first));
    const int bound = policy_of("numa:2 core:2 pu:1");
    CHECK(!syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0));
    CHECK_EQ(bound, MPOL_DEFAULT); /* the pages have no policy of their own */
    CHECK_EQ(policy_of("numa:1 core:2 pu:1"), MPOL_DEFAULT);
}

/* What StarPU's own variables leave of a machine's. */
TEST(gpus_by_id)
{
    static const struct {
        int gpus;
        const char *ids, *count, *want;
    } cases[] = {{4, NULL, NULL, "0 1 2 3"}, {4, NULL, "2", "0 1"}, {4, "2 3", NULL, "2 3"},   {4, "2 3", "2", "2 3"},
                 {4, "2 3", "1", "2"},       {4, "3", "4", "3"},    {4, "1 1 2", NULL, "1 2"}, {2, "5 1", NULL, "1"},
                 {2, NULL, "8", "0 1"},      {0, "0", "1", ""},     {4, NULL, "0", ""},        {4, "", NULL, ""}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int id[8], n = tess_share_gpu_ids(cases[c].gpus, cases[c].ids, cases[c].count, id);
        char text[64] = "";
        for (int i = 0; i < n; i++) snprintf(text + strlen(text), 8, i ? " %d" : "%d", id[i]);
        CHECK_STR(text, cases[c].want);
    }
}

TEST(a_program_started_alone_has_what_it_may_use)
{
    const tess_share *s = tess_share_read();
    CHECK_EQ(s->ranks, 1);
    CHECK_EQ(s->rank, 0);
    CHECK(s->cores >= 1 && !s->crowded && s->host[0] && s->cpus[0] != '-');
    CHECK(tess_ram_free() > 0);
}

/* ---- RAM ---- */

static void put(const char *path, const char *text)
{
    char folder[300];
    for (const char *slash = path; (slash = strchr(slash, '/')); slash++) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
        mkdir(folder, 0777);
    }
    write_text(path, text);
}

static const char *ram(void)
{
    static char text[100];
    const tess_ram r = tess_ram_read(".");
    snprintf(text, sizeof text, "%llu of %llu MiB%s", (unsigned long long)(r.free >> 20),
             (unsigned long long)(r.bytes >> 20), r.limited ? ", limited" : "");
    return text;
}

static const char meminfo[] = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:   12582912 kB\n"
                              "Buffers:          102400 kB\nCached:         11534336 kB\n";

TEST(the_page_cache_is_free)
{
    fresh();
    put("proc/meminfo", meminfo);
    CHECK_STR(ram(), "12288 of 16384 MiB");
    put("proc/self/cgroup", "0::/user.slice\n");
    put("sys/fs/cgroup/user.slice/memory.max", "max\n");
    CHECK_STR(ram(), "12288 of 16384 MiB");
}

TEST(a_limit_of_cgroup_2)
{
    fresh();
    put("proc/meminfo", meminfo);
    put("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0\n");
    put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max", "8589934592\n"); /* of the job, not the step */
    put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.current", "5368709120\n");
    put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.stat", "anon 1073741824\ninactive_file 3221225472\n");
    put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.max", "max\n");
    CHECK_STR(ram(), "6144 of 8192 MiB, limited"); /* 8 GiB less 5, of which 3 are files' */
    put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.max", "1073741824\n");
    put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.current", "2147483648\n");
    CHECK_STR(ram(), "0 of 1024 MiB, limited");
    /* A container: its own group is the root. */
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/memory.max", "4294967296\n");
    put("sys/fs/cgroup/memory.current", "104857600\n");
    CHECK_STR(ram(), "3996 of 4096 MiB, limited");
}

TEST(a_limit_of_cgroup_1)
{
    fresh();
    put("proc/meminfo", meminfo);
    put("proc/self/cgroup", "5:cpu,cpuacct:/jobs/3\n4:memory:/jobs/3\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    CHECK_STR(ram(), "12288 of 16384 MiB");
    put("sys/fs/cgroup/memory/jobs/3/memory.limit_in_bytes", "2147483648\n");
    put("sys/fs/cgroup/memory/jobs/3/memory.usage_in_bytes", "1610612736\n");
    put("sys/fs/cgroup/memory/jobs/3/memory.stat", "cache 5\ninactive_file 7\ntotal_inactive_file 1073741824\n");
    CHECK_STR(ram(), "1536 of 2048 MiB, limited");
}
