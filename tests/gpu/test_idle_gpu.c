/* What a GPU's task costs the threads that submit and launch it, and whom it wakes: a chain of tasks on an emulated GPU
 * whose bodies do nothing, beside CPU workers that have nothing to do. As a bench it prints microseconds a task; more
 * workers than there are cores are had on a machine made up:
 *
 *     HWLOC_SYNTHETIC="core:16 pu:1" build-emulated/tests/test_idle_gpu bench WORKERS
 */
#define main check_main
#define CHECK_MAIN
#include "tests/check.h"
#undef main
#include "runtime/runtime.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { TASKS = 4000 };

static void do_nothing(const tess_work *w)
{
    (void)w;
}
static tess_cost cost_nothing(const void *arg)
{
    (void)arg;
    return (tess_cost){.flops = 1, .bytes = 1};
}
static tess_codelet nothing = {
    .name = "nothing", .dtype = TESS_F32, .cost = cost_nothing, .cpu = do_nothing, .cuda = do_nothing};

/* How often the threads of CPU workers, which StarPU names so, gave up their cores by themselves so far. */
static long sleeps_of_workers(void)
{
    char path[300], line[200];
    long all = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));) {
        long n = 0;
        bool is = false;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *f = fopen(path, "r");
        while (f && fgets(line, sizeof line, f)) {
            is = is || !strncmp(line, "Name:\tCPU", 9);
            sscanf(line, "voluntary_ctxt_switches: %ld", &n);
        }
        if (f) fclose(f);
        all += is ? n : 0;
    }
    if (d) closedir(d);
    return all;
}

struct chain {
    double seconds;
    long sleeps;
    int workers;
};

static struct chain run_chain(int workers)
{
    struct chain c = {0};
    tess_tile *tile;
    tess_use use = {.mode = TESS_RW};
    tess_task *task = tess_alloc(TASKS * sizeof *task);
    void *data;
    if (tess_start(&(tess_machine){.workers = workers}) != TESS_OK) {
        CHECK_SAY("%s", tess_error_text());
        return c;
    }
    c.workers = tess_workers();
    tile = tess_tile_new(4096, TESS_ROLE_ACTIVATION, "x");
    CHECK_EQ(tess_tile_map(tile, TESS_W, &data), TESS_OK);
    memset(data, 0, 4096);
    tess_tile_unmap(tile);
    use.tile = tile;
    for (int k = 0; k < TASKS; k++) task[k] = (tess_task){.cl = &nothing, .use = &use, .nuse = 1, .order = (uint32_t)k};
    CHECK_EQ(tess_submit_all(task, 100), TESS_OK);
    CHECK_EQ(tess_wait(), TESS_OK);
    const long before = sleeps_of_workers();
    const double start = tess_seconds();
    CHECK_EQ(tess_submit_all(task, TASKS), TESS_OK);
    CHECK_EQ(tess_wait(), TESS_OK);
    c.seconds = tess_seconds() - start;
    c.sleeps = sleeps_of_workers() - before;
    tess_tile_free(tile);
    tess_stop();
    free(task);
    return c;
}

/* Workers that are left alone sleep for two milliseconds at a time, after some shorter ones. */
TEST(no_task_of_a_gpu_wakes_a_worker)
{
    const struct chain c = run_chain(0);
    CHECK(c.workers > 0);
    const double most = c.workers * (c.seconds / 1e-3 + 20);
    if (c.sleeps > most)
        CHECK_SAY("%d workers without a task slept %ld times in %.3f s of %d tasks, at most %.0f are expected",
                  c.workers, c.sleeps, c.seconds, TASKS, most);
}

/* A copy to RAM ends in the thread of the GPU's worker, whose memory is the GPU's: what is lent then is in RAM all the
 * same. */
TEST(what_is_lent_is_in_ram)
{
    void *data;
    CHECK_EQ(tess_start(&(tess_machine){.workers = 0}), TESS_OK);
    tess_tile *tile = tess_tile_new(4096, TESS_ROLE_ACTIVATION, "x");
    CHECK_EQ(tess_tile_map(tile, TESS_W, &data), TESS_OK);
    memset(data, 0, 4096);
    tess_tile_unmap(tile);
    char first;
    tess_reading r = {.of = {.tile = tile}, .to = &first, .bytes = 1};
    tess_use use = {.tile = tile, .mode = TESS_RW};
    CHECK_EQ(tess_tile_read_behind(&r), TESS_OK);
    CHECK_EQ(tess_submit_all(&(tess_task){.cl = &nothing, .use = &use, .nuse = 1}, 1), TESS_OK);
    CHECK(tess_reading_wait(&r));
    CHECK_EQ(tess_wait(), TESS_OK);
    CHECK_EQ(tess_tile_map(tile, TESS_R, &data), TESS_OK);
    CHECK(r.of.data == data);
    tess_tile_unmap(tile);
    tess_tile_free(tile);
    tess_stop();
}

int main(int argc, char **argv)
{
    if (tess_gpus() == 0) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", tess_gpu_support());
        return 77;
    }
    if (argc > 2 && !strcmp(argv[1], "bench")) {
        const struct chain c = run_chain(atoi(argv[2]));
        printf("%d workers: %.1f us a task, %.2f sleeps of a worker a task\n", c.workers, 1e6 * c.seconds / TASKS,
               (double)c.sleeps / TASKS / (c.workers ? c.workers : 1));
        return 0;
    }
    return check_main(argc, argv);
}
