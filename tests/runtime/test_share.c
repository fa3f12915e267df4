/* How ranks divide a machine, on machines made up. */
#define CHECK_MAIN
#include "check.h"
#include "share_impl.h"

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

TEST(gpus)
{
    static const struct {
        int gpus, ranks, first[4], count[4];
    } cases[] = {{4, 2, {0, 2}, {2, 2}},
                 {4, 4, {0, 1, 2, 3}, {1, 1, 1, 1}},
                 {2, 4, {0, 0, 1, 1}, {1, 1, 1, 1}},
                 {5, 2, {0, 2}, {2, 3}},
                 {0, 2, {0, 0}, {0, 0}},
                 {3, 1, {0}, {3}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int rank = 0; rank < cases[c].ranks; rank++) {
            int first, count;
            tess_share_gpus(cases[c].gpus, cases[c].ranks, rank, &first, &count);
            CHECK_EQ(first, cases[c].first[rank]);
            CHECK_EQ(count, cases[c].count[rank]);
        }
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
