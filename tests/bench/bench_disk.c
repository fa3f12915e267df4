/* The disk tier's speed: tiles of 16 MiB, four times what RAM may hold, are read, stepped and written in sweeps forward
 * and backward, through StarPU with our engine and with its own on O_DIRECT, beside what the drive does for the same
 * bytes without StarPU, all in one process. Every sweep is checked bit for bit. The four take turns, three times, and
 * medians are compared: the speed of a drive and of a busy machine wanders.
 *
 *     bench_disk [DIR [GiB of tiles [passes [checksum 0|1 [depth [threads 0|1 [chunk KiB]]]]]]]
 */
#include "runtime/disk/disk.h"
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TILE ((size_t)16 << 20)
enum { WINDOW = 4, AHEAD = 2, BUFFERS = 8 };

static const char *dir = ".";
static int tiles = 64, passes = 2;
static tess_disk_conf conf = {.dir = &dir, .dirs = 1};

/* Tile of the k-th access: forward, backward, forward, ... */
static int turn(int k)
{
    return k / tiles & 1 ? tiles - 1 - k % tiles : k % tiles;
}

enum { RAW, ENGINE, OURS, THEIRS, KINDS, ROUNDS = 3 };
static const char *const names[] = {"raw O_DIRECT, two threads", "our engine alone", "StarPU, our engine",
                                    "StarPU, its O_DIRECT engine"};
static double rate[KINDS][ROUNDS];
static int round_now;

static void report(int kind, double seconds, double bytes)
{
    rate[kind][round_now] = bytes / 1e9 / seconds;
    printf("%-28s %6.2f s  %6.2f GB  %5.2f GB/s\n", names[kind], seconds, bytes / 1e9, rate[kind][round_now]);
    fflush(stdout);
}

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static char *huge_buffer(void)
{
    void *p = NULL;
    if (posix_memalign(&p, 2 << 20, TILE)) exit(1);
    madvise(p, TILE, MADV_HUGEPAGE);
    memset(p, 1, TILE);
    return p;
}

/* ---- without StarPU ---- */

struct raw {
    int fd, first;
    char *buf;
};

static void *raw_sweep(void *arg)
{
    struct raw *r = arg;
    for (int k = r->first; k < tiles * passes; k += 2) {
        off_t at = (off_t)turn(k) * (off_t)TILE;
        if (pread(r->fd, r->buf, TILE, at) != (ssize_t)TILE || pwrite(r->fd, r->buf, TILE, at) != (ssize_t)TILE) {
            perror(dir);
            exit(1);
        }
    }
    return NULL;
}

/* Two threads, each reading a tile and writing it back. */
static void raw_rate(void)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_DIRECT, 0600);
    char *buf[2] = {huge_buffer(), huge_buffer()};
    if (fd < 0 || fallocate(fd, 0, 0, (off_t)((size_t)tiles * TILE))) {
        perror(dir);
        exit(1);
    }
    for (int t = 0; t < tiles; t++)
        if (pwrite(fd, buf[0], TILE, (off_t)t * (off_t)TILE) != (ssize_t)TILE) exit(1);
    double start = tess_seconds(), bytes = 2.0 * tiles * passes * (double)TILE;
    pthread_t thread[2];
    struct raw r[2] = {{fd, 0, buf[0]}, {fd, 1, buf[1]}};
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, raw_sweep, &r[i]);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    report(RAW, tess_seconds() - start, bytes);
    close(fd);
    for (int i = 0; i < 2; i++) free(buf[i]);
}

static tess_disk *open_disk(void)
{
    tess_disk *d;
    conf.bytes = (uint64_t)tiles * TILE;
    if (tess_disk_open(&conf, &d)) {
        fprintf(stderr, "%s\n", tess_error_text());
        exit(1);
    }
    return d;
}

/* Our engine with eight buffers that go round: read, and written when it has come. */
static void engine_alone(void)
{
    tess_disk *d = open_disk();
    struct starpu_disk_ops *ops = &tess_disk_ops;
    char *buf[BUFFERS];
    void *tile[tiles], *request[BUFFERS] = {0};
    for (int i = 0; i < BUFFERS; i++) buf[i] = huge_buffer();
    for (int t = 0; t < tiles; t++) {
        tile[t] = ops->alloc(d, TILE);
        ops->write(d, tile[t], buf[0], 0, TILE);
    }
    double start = tess_seconds();
    int n = tiles * passes;
    for (int k = 0; k < n + BUFFERS; k++) {
        int reading = k, writing = k - BUFFERS / 2, done = k - BUFFERS;
        if (done >= 0) {
            ops->wait_request(request[done % BUFFERS]);
            ops->free_request(request[done % BUFFERS]);
        }
        if (reading < n) request[k % BUFFERS] = ops->async_read(d, tile[turn(reading)], buf[k % BUFFERS], 0, TILE);
        if (writing >= 0 && writing < n) {
            void **r = &request[writing % BUFFERS];
            ops->wait_request(*r);
            ops->free_request(*r);
            *r = ops->async_write(d, tile[turn(writing)], buf[writing % BUFFERS], 0, TILE);
        }
    }
    report(ENGINE, tess_seconds() - start, 2.0 * n * (double)TILE);
    if (tess_disk_failure(d)) printf("FAILED: %s\n", tess_disk_failure(d)), exit(1);
    for (int t = 0; t < tiles; t++) ops->free(d, tile[t], TILE);
    for (int i = 0; i < BUFFERS; i++) free(buf[i]);
    tess_disk_close(d);
}

/* ---- through StarPU ---- */

static uint32_t first_word(size_t i, uint32_t tile)
{
    return (uint32_t)i * 2654435761u + tile * 40503u;
}

static void fill(void *buf[], void *arg)
{
    uint32_t *x = (uint32_t *)STARPU_VECTOR_GET_PTR(buf[0]);
    for (size_t i = 0; i < TILE / 4; i++) x[i] = first_word(i, (uint32_t)(uintptr_t)arg);
}

static void step(void *buf[], void *arg)
{
    (void)arg;
    uint32_t *x = (uint32_t *)STARPU_VECTOR_GET_PTR(buf[0]);
    for (size_t i = 0; i < TILE / 4; i++) x[i] = x[i] * 1664525u + 1013904223u;
}

static _Atomic long wrong;
static void check(void *buf[], void *arg)
{
    uint32_t *x = (uint32_t *)STARPU_VECTOR_GET_PTR(buf[0]), a = 1, b = 0;
    for (int k = 0; k < passes; k++) a *= 1664525u, b = b * 1664525u + 1013904223u;
    long bad = 0;
    for (size_t i = 0; i < TILE / 4; i++) bad += x[i] != first_word(i, (uint32_t)(uintptr_t)arg) * a + b;
    wrong += bad;
}

static struct starpu_codelet fill_cl = {.cpu_funcs = {fill}, .nbuffers = 1, .modes = {STARPU_W}},
                             step_cl = {.cpu_funcs = {step}, .nbuffers = 1, .modes = {STARPU_RW}},
                             check_cl = {.cpu_funcs = {check}, .nbuffers = 1, .modes = {STARPU_R}};
static sem_t window;
static void done(void *arg)
{
    (void)arg;
    sem_post(&window);
}

static void submit(struct starpu_codelet *cl, starpu_data_handle_t h, int tile)
{
    struct starpu_task *t = starpu_task_create();
    t->cl = cl;
    t->handles[0] = h;
    t->cl_arg = (void *)(intptr_t)tile;
    t->callback_func = done;
    if (starpu_task_submit(t)) exit(1);
}

/* What the kernel counts as read from and written to drives by this process. */
static double moved_bytes(void)
{
    double sum = 0;
    char line[128];
    unsigned long long v;
    FILE *f = fopen("/proc/self/io", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "read_bytes: %llu", &v) == 1 || sscanf(line, "write_bytes: %llu", &v) == 1) sum += (double)v;
    if (f) fclose(f);
    return sum;
}

static bool sweep(bool ours)
{
    tess_disk *d = ours ? open_disk() : NULL;
    unsigned node = 0;
    if (tess_start(&(tess_machine){.cpu_bytes = (uint64_t)tiles * TILE / 4, .sched = "eager"}) ||
        (ours && tess_disk_register(d, &node))) {
        fprintf(stderr, "%s\n", tess_error_text());
        exit(1);
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/bench-disk-%ld", dir, (long)getpid());
    if (!ours && starpu_disk_register(&starpu_disk_unistd_o_direct_ops, path, -1) < 0) exit(1);
    starpu_data_handle_t h[tiles];
    for (int t = 0; t < tiles; t++) starpu_vector_data_register(&h[t], -1, 0, TILE / 4, 4);
    sem_init(&window, 0, WINDOW);
    for (int t = 0; t < tiles; t++) {
        sem_wait(&window);
        submit(&fill_cl, h[t], t);
    }
    starpu_task_wait_for_all();
    tess_disk_use use = {0};
    if (d) tess_disk_use_read(d, &use);
    double before = moved_bytes(), start = tess_seconds(), busy = use.busy_seconds;
    for (int k = 0; k < tiles * passes; k++) {
        sem_wait(&window);
        if (k + AHEAD < tiles * passes) starpu_data_fetch_on_node(h[turn(k + AHEAD)], STARPU_MAIN_RAM, 1);
        submit(&step_cl, h[turn(k)], turn(k));
    }
    starpu_task_wait_for_all();
    report(ours ? OURS : THEIRS, tess_seconds() - start, moved_bytes() - before);
    if (d) {
        tess_disk_use_read(d, &use);
        printf("    (requests under way for %.2f s of it; %s)\n", use.busy_seconds - busy, tess_disk_how(d));
    }
    for (int t = 0; t < tiles; t++) {
        sem_wait(&window);
        submit(&check_cl, h[t], t);
    }
    starpu_task_wait_for_all();
    for (int t = 0; t < tiles; t++) starpu_data_unregister_no_coherency(h[t]);
    tess_stop();
    sem_destroy(&window);
    bool good = !wrong && !(d && tess_disk_failure(d));
    if (!good) printf("FAILED: %s\n", d && tess_disk_failure(d) ? tess_disk_failure(d) : "wrong bits");
    tess_disk_close(d);
    return good;
}

int main(int argc, char **argv)
{
    if (argc > 1) dir = argv[1];
    if (argc > 2) tiles = (int)(atof(argv[2]) * (double)(1 << 30) / (double)TILE);
    if (argc > 3) passes = atoi(argv[3]);
    if (argc > 4) conf.checksum = atoi(argv[4]);
    if (argc > 5) conf.depth = (unsigned)atoi(argv[5]);
    if (argc > 6) conf.threads = atoi(argv[6]);
    if (argc > 7) conf.chunk = (size_t)atoi(argv[7]) << 10;
    setenv("STARPU_MINIMUM_AVAILABLE_MEM", "10", 0);
    setenv("STARPU_TARGET_AVAILABLE_MEM", "20", 0);
    printf("%d tiles of 16 MiB, RAM for %d, %d passes%s\n", tiles, tiles / 4, passes,
           conf.checksum ? ", checksums" : "");
    bool good = true;
    for (round_now = 0; round_now < ROUNDS; round_now++) {
        raw_rate();
        engine_alone();
        good &= sweep(true);
        good &= sweep(false);
    }
    printf("medians\n");
    for (int k = 0; k < KINDS; k++) {
        qsort(rate[k], ROUNDS, sizeof *rate[k], ascending);
        double r = rate[k][ROUNDS / 2];
        printf("%-28s %5.2f GB/s  %4.0f%% of raw\n", names[k], r, 100 * r / rate[RAW][ROUNDS / 2]);
    }
    return !good;
}
