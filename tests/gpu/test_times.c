/* When bodies ran on a GPU, by events on its stream: an emulated device whose clock each body moves by as much as is
 * known, and nothing else. The profile and StarPU's performance models have these times, whatever the host's clock
 * says; STARPU_CUDA_PIPELINE, up to 16, changes nothing of it. */
#define CHECK_MAIN
#include "codelets/codelets.h"
#include "tests/check.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TASKS = 300, CHAINS = 3, EACH = 1234 }; /* us */

static void add(const tess_work *w)
{
    *(int32_t *)w->buf[0].ptr += 1;
    usleep(50);
}
static tess_cost cost_of(const void *arg)
{
    (void)arg;
    return (tess_cost){.flops = 1000, .bytes = 4};
}
static tess_codelet timed = {.name = "timed", .dtype = TESS_F32, .cost = cost_of, .cpu = add, .cuda = add};

/* Several bodies a task, which from the second time on are a CUDA graph, between the same events. */
enum { PARTS = 6, ROUNDS = 5 };
static void add_all(const tess_work *w)
{
    for (int k = 0; k < PARTS; k++) add(w);
}
static tess_codelet bundle = {.name = "bundle", .dtype = TESS_F32, .cpu = add_all, .cuda = add_all};

static void run_graphs(void)
{
    static tess_task task[CHAINS];
    static tess_use use[CHAINS];
    static const uint16_t buf[] = {0};
    static tess_bundle_part part[PARTS];
    static const tess_bundle_arg arg = {PARTS, part};
    tess_profile p;
    CHECK_EQ(tess_start(&(tess_machine){.workers = 1, .gpu_graphs = true, .profile = true}), TESS_OK);
    for (int k = 0; k < PARTS; k++) part[k] = (tess_bundle_part){&timed, NULL, buf, 1};
    const int32_t zero = 0;
    int32_t is;
    for (int c = 0; c < CHAINS; c++) {
        use[c] = (tess_use){tess_tile_new(sizeof zero, TESS_ROLE_ACTIVATION, "t"), TESS_RW};
        task[c] = (tess_task){.cl = &bundle, .arg = &arg, .use = &use[c], .nuse = 1, .order = (uint32_t)c};
        CHECK_EQ(tess_tile_write(use[c].tile, 0, &zero, sizeof zero), TESS_OK);
    }
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_EQ(tess_submit_all(task, CHAINS), TESS_OK);
        CHECK_EQ(tess_wait(), TESS_OK);
        if (round < 2) continue; /* the third has other tiles, where what is captured has not been */
        tess_use last = use[0];
        for (int c = 0; c + 1 < CHAINS; c++) use[c] = use[c + 1];
        use[CHAINS - 1] = last;
    }
    tess_profile_read(&p);
    CHECK_EQ(p.row[0].tasks, CHAINS * ROUNDS);
    CHECK_NEAR(p.row[0].busy, CHAINS * ROUNDS * PARTS * EACH * 1e-6, 1e-6 * CHAINS * ROUNDS);
    for (int c = 0; c < CHAINS; c++) {
        CHECK_EQ(tess_tile_read(use[c].tile, 0, &is, sizeof is), TESS_OK);
        CHECK_EQ(is, ROUNDS * PARTS);
        tess_tile_free(use[c].tile);
    }
    tess_stop();
}

static void run(void)
{
    static tess_task task[TASKS];
    static tess_use use[TASKS];
    tess_tile *t[CHAINS];
    tess_profile p;
    CHECK_EQ(tess_start(&(tess_machine){.workers = 1, .profile = true}), TESS_OK);
    const int32_t zero = 0;
    for (int c = 0; c < CHAINS; c++) {
        t[c] = tess_tile_new(sizeof zero, TESS_ROLE_ACTIVATION, "t");
        CHECK_EQ(tess_tile_write(t[c], 0, &zero, sizeof zero), TESS_OK);
    }
    for (int k = 0; k < TASKS; k++) {
        use[k] = (tess_use){t[k % CHAINS], TESS_RW};
        task[k] = (tess_task){.cl = &timed, .use = &use[k], .nuse = 1, .order = (uint32_t)k};
    }
    CHECK_EQ(tess_submit_all(task, TASKS), TESS_OK);
    CHECK_EQ(tess_wait(), TESS_OK);
    tess_profile_read(&p);
    CHECK_EQ(p.rows, 1);
    CHECK_EQ(p.row[0].tasks, TASKS);
    CHECK_NEAR(p.row[0].busy, TASKS * EACH * 1e-6, 1e-6 * TASKS); /* a clock of ns, floats of ms */
    int32_t sum = 0, is;
    for (int c = 0; c < CHAINS; c++) {
        CHECK_EQ(tess_tile_read(t[c], 0, &is, sizeof is), TESS_OK);
        sum += is;
        tess_tile_free(t[c]);
    }
    CHECK_EQ(sum, TASKS);
    tess_stop();
}

/* The mean that StarPU wrote down, in us: the fourth of a line of eight numbers. */
static double mean_of(const char *dir)
{
    char path[600], line[400];
    double mean = 0;
    for (int version = 0; version < 100; version++) {
        snprintf(path, sizeof path, "%s/codelets/%d", dir, version);
        DIR *d = opendir(path);
        for (struct dirent *e; d && (e = readdir(d));) {
            char file[900];
            if (strncmp(e->d_name, "tess_timed_", 11)) continue;
            snprintf(file, sizeof file, "%s/%s", path, e->d_name);
            FILE *f = fopen(file, "r");
            while (f && fgets(line, sizeof line, f)) {
                unsigned print;
                unsigned long size, n;
                double flops, m, dev, all, squares;
                if (sscanf(line, "%x %lu %lf %lf %lf %lf %lf %lu", &print, &size, &flops, &m, &dev, &all, &squares,
                           &n) == 8)
                    mean = m;
            }
            if (f) fclose(f);
        }
        if (d) closedir(d);
    }
    return mean;
}

TEST(bodies_take_what_the_device_says)
{
    static const char *const lengths[] = {NULL, "0", "1", "4", "16"};
    char each[16];
    snprintf(each, sizeof each, "%d", EACH);
    setenv("TESS_EMULATED_CLOCK", each, 1);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        char dir[] = "/tmp/tessera-times-XXXXXX", *command;
        CHECK(mkdtemp(dir) != NULL);
        setenv("STARPU_PERF_MODEL_DIR", dir, 1);
        if (lengths[k]) setenv("STARPU_CUDA_PIPELINE", lengths[k], 1);
        run();
        CHECK_NEAR(mean_of(dir), EACH, 1);
        run_graphs();
        if (asprintf(&command, "rm -r %s", dir) < 0 || system(command)) CHECK_SAY("%s is left", dir);
        free(command);
    }
}
