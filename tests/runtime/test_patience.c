/* A run in which nothing moves ends in one line, wherever the main thread waits meanwhile; one that is stopped, or that
 * computes for long, goes on. */
#define CHECK_MAIN
#include "runtime/progress/progress.h"
#include "runtime/runtime.h"
#include "tests/runtime/child.h"
#include <sys/resource.h>
#include <time.h>

enum { KiB = 1 << 10 };
static double patience = 0.4;

/* For a child that goes on to its end: a busy machine takes the core away for tenths of a second. */
static void with_patience(void)
{
    patience = 2;
}

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != TESS_OK) CHECK_SAY("%s", tess_error_text());                                                     \
    } while (0)

/* ---- bodies ---- */

static int gate[2]; /* a body waits here until somebody writes */

static void wait_at_gate(const tess_work *w)
{
    char byte;
    (void)w;
    child_here();
    if (read(gate[0], &byte, 1) < 0) abort();
}
static tess_codelet waits = {.name = "waits", .dtype = TESS_F32, .cpu = wait_at_gate};

static void compute(const tess_work *w)
{
    (void)w;
    for (double start = tess_seconds(); tess_seconds() < start + 2 * patience;) continue;
}
static tess_codelet computes = {.name = "computes", .dtype = TESS_F32, .cpu = compute};

/* ---- runs ---- */

static tess_tile *tile;

static tess_tile *new_tile(const char *name)
{
    return tess_tile_new(64 * KiB, TESS_ROLE_ACTIVATION, name);
}

static void submit(tess_codelet *cl, tess_tile *t)
{
    static tess_use use[2000][1];
    static tess_task task[2000];
    static unsigned n;
    use[n][0] = (tess_use){t, TESS_W};
    task[n] = (tess_task){.cl = cl, .use = use[n], .nuse = 1, .order = n};
    MUST(tess_submit(&task[n++]));
}

static void begin(uint64_t room, tess_codelet *cl)
{
    MUST(tess_start_rooms(&(tess_machine){.workers = 1, .patience = patience}, &(tess_rooms){.cpu_tiles = room}));
    submit(cl, tile = new_tile("held"));
}

static void at_the_end(void)
{
    begin(0, &waits);
    MUST(tess_wait());
}
static void with_many_tasks(void)
{
    begin(0, &waits);
    for (int i = 0; i < 1500; i++) submit(&waits, tile);
}
static void for_room(void)
{
    static tess_use use[] = {{NULL, TESS_W | TESS_LAST}};
    static const tess_task last = {.cl = &waits, .use = use, .nuse = 1};
    begin(100 * KiB, &waits);
    use[0].tile = tile;
    MUST(tess_submit(&last));
    submit(&waits, new_tile("next"));
}
static void for_a_tile(void)
{
    void *data;
    begin(0, &waits);
    MUST(tess_tile_map(tile, TESS_R, &data));
}
static void to_free_a_tile(void)
{
    begin(0, &waits);
    tess_tile_free(tile);
}
static void to_stop(void)
{
    begin(0, &waits);
    tess_stop();
}

TEST(a_run_in_which_nothing_moves_ends_in_one_line)
{
    static const struct {
        void (*body)(void);
        const char *waits;
    } cases[] = {{at_the_end, "the main thread waits for the end of the list"},
                 {with_many_tasks, "the main thread waits for tasks that were submitted"},
                 {for_room, "waits waits for next"},
                 {for_a_tile, "the main thread waits for held"},
                 {to_free_a_tile, "the main thread waits for held"},
                 {to_stop, "the main thread waits for the end of the list"}};
    CHECK_EQ(pipe(gate), 0);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        child_run(cases[k].body);
        CHECK_EQ(child_end.status, TESS_FAILED);
        CHECK_HAS(child_end.err, "nothing moved and no task ended for 0 s");
        CHECK_HAS(child_end.err, cases[k].waits);
        const char *first = strchr(child_end.err, '\n');
        CHECK(first && !first[1] && !strncmp(child_end.err, "tessera: error: ", 16));
    }
}

/* ---- the file that says more ---- */

static char folder[] = "/tmp/tessera-standstill-XXXXXX";

static void start_in_folder(uint64_t room)
{
    MUST(tess_start_rooms(&(tess_machine){.workers = 1, .patience = patience, .folder = folder},
                          &(tess_rooms){.cpu_tiles = room}));
}
static void in_a_body(void)
{
    start_in_folder(0);
    submit(&waits, tile = new_tile("held"));
    submit(&computes, tile);
    MUST(tess_wait());
}
static void for_who_looks(void)
{
    void *data;
    start_in_folder(0);
    submit(&computes, tile = new_tile("seen"));
    MUST(tess_tile_map(tile, TESS_R, &data));
    submit(&computes, tile);
    MUST(tess_wait());
}
/* What StarPU takes for its limit: it asks for ever. */
static void for_memory_of_starpus(void)
{
    setenv("STARPU_LIMIT_CPU_MEM", "1", true);
    start_in_folder(0);
    submit(&computes, tess_tile_new(4096 * KiB, TESS_ROLE_ACTIVATION, "large"));
    MUST(tess_wait());
}
static void for_room_that_none_leaves(void)
{
    start_in_folder(100 * KiB);
    submit(&waits, tile = new_tile("held"));
    submit(&computes, new_tile("next"));
    MUST(tess_wait());
}
/* The kernel refuses: that is said at once. */
static inline void for_memory_of_the_kernels(void)
{
    start_in_folder(0);
    const struct rlimit none = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_AS, &none);
    submit(&computes, tess_tile_new((size_t)4096 << 20, TESS_ROLE_ACTIVATION, "huge"));
    MUST(tess_wait());
}

TEST(who_stands_still_says_why)
{
    static const struct {
        void (*body)(void);
        const char *says[4];
    } cases[] = {
        {in_a_body,
         {"2 tasks are submitted", "task 0, waits f32: runs", "in its body", "writes held (activation, 64.0 KiB)"}},
        {for_who_looks, {"1 tasks are submitted", "computes", "seen", "contents"}},
        {for_memory_of_starpus, {"brings its tiles", "writes large", "no room, asked for", "used of 1.0 MiB"}},
        {for_room_that_none_leaves, {"task 0, waits", "writes held", "tiles hold 64.0 KiB", "waits for"}},
    };
    char path[100], text[8000];
    CHECK_EQ(pipe(gate), 0);
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/standstill.txt", folder);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        child_run(cases[k].body);
        CHECK_EQ(child_end.status, TESS_FAILED);
        CHECK_HAS(child_end.err, "more is in ");
        FILE *f = fopen(path, "r");
        text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
        if (f) fclose(f);
        for (int i = 0; i < 4; i++) CHECK_HAS(text, cases[k].says[i]);
        unlink(path);
    }
#ifndef __SANITIZE_ADDRESS__ /* which has address space of its own */
    child_run(for_memory_of_the_kernels);
    CHECK_EQ(child_end.status, TESS_FAILED);
    CHECK_HAS(child_end.err, "RAM: no buffer of 4.0 GiB");
    CHECK_HAS(child_end.err, "Cannot allocate memory");
#endif
    rmdir(folder);
}

/* What the child looked at when it gave up tells more than that it did. */
static void went_on(void)
{
    char line[400];
    FILE *f = *child_end.err ? fopen("standstill.txt", "r") : NULL;
    while (f && fgets(line, sizeof line, f)) fputs(line, stderr);
    if (f) fclose(f);
    CHECK_STR(child_end.err, "");
    CHECK_EQ(child_end.status, 0);
}

static void at_the_end_with_patience(void)
{
    with_patience();
    at_the_end();
}

TEST(a_process_that_is_stopped_loses_no_patience)
{
    CHECK_EQ(pipe(gate), 0);
    const struct child c = child_start(at_the_end_with_patience);
    child_wait_for(&c);
    kill(c.pid, SIGSTOP);
    nanosleep(&(struct timespec){.tv_sec = 3}, NULL);
    CHECK_EQ(write(gate[1], "", 1), 1);
    kill(c.pid, SIGCONT);
    child_finish(&c);
    went_on();
}

static void compute_for_long(void)
{
    with_patience();
    begin(0, &computes);
    MUST(tess_wait());
    tess_tile_free(tile);
    tess_stop();
}

TEST(a_task_that_computes_for_long_is_no_standstill)
{
    child_run(compute_for_long);
    went_on();
}

static void sleep_on(const tess_work *w)
{
    (void)w;
    nanosleep(&(struct timespec){.tv_sec = 2, .tv_nsec = 500000000}, NULL);
}
static tess_codelet sleeps = {.name = "sleeps", .dtype = TESS_F32, .cpu = sleep_on};

static void fail(const tess_work *w)
{
    tess_work_fail(w, "fails: on purpose");
}
static tess_codelet fails = {.name = "fails", .dtype = TESS_F32, .cpu = fail};

/* The first run has a cap, little patience and a failure that nobody waits for; the second has none of them: there are
 * two tiles where the cap has room for one, and a task takes longer than the first one's patience. */
static void run_twice(void)
{
    static tess_use use[] = {{NULL, TESS_W | TESS_LAST}};
    static const tess_task last = {.cl = &sleeps, .use = use, .nuse = 1};
    tess_tile *left = new_tile("left");
    with_patience();
    begin(100 * KiB, &fails);
    tess_stop();
    MUST(tess_start(&(tess_machine){.workers = 1}));
    use[0].tile = left;
    MUST(tess_submit(&last));
    const double before = tess_seconds();
    submit(&sleeps, new_tile("next"));
    if (tess_seconds() - before > 1.5) CHECK_SAY("the cap of the first run held a task up in the second");
    MUST(tess_wait());
    if (tess_flow_waited() > 0) CHECK_SAY("the second run waits for RAM, of which it may have any");
    tess_stop();
}

TEST(nothing_of_a_run_is_left_for_the_next)
{
    child_run(run_twice);
    went_on();
}

/* The processor's seconds of this process. */
static double used(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void have_no_work(void)
{
    MUST(tess_start(&(tess_machine){.workers = 2}));
    const double before = used();
    for (int i = 0; i < 10; i++) nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    const double spent = used() - before;
    if (spent > 1) /* who looks for work all the time takes 2 */
        CHECK_SAY("two workers without work took %.2f s of the processor in a second", spent);
    tess_stop();
}

TEST(workers_without_work_sleep)
{
    child_run(have_no_work);
    CHECK_EQ(child_end.status, 0);
}

/* ---- what workers lose meanwhile ---- */

/* Of two tiers that are waited for at once each has half, so together they are no more than the time there was;
 * messages are counted beside them. */
TEST(two_tiers_share_a_wait)
{
    const double begin = tess_seconds();
    tess_starved_start(1, true);
    tess_progress_lock();
    tess_starved_more(TESS_FOR_RAM, 1);
    tess_starved_more(TESS_FOR_GPU, 1);
    tess_starved_more(TESS_FOR_MESSAGES, 1);
    tess_progress_unlock();
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    double under_way, exposed;
    tess_message_seconds(&under_way, &exposed);
    tess_progress_lock();
    tess_starved_more(TESS_FOR_RAM, -1);
    tess_starved_more(TESS_FOR_GPU, -1);
    tess_starved_more(TESS_FOR_MESSAGES, -1);
    tess_progress_unlock();
    const double ram = tess_flow_waited(), gpu = tess_gpu_waited();
    CHECK(ram >= .01 && gpu >= .01 && ram + gpu <= tess_seconds() - begin);
    CHECK(exposed >= .02 && exposed == under_way);
}
