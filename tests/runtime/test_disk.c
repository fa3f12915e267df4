/* The disk tier's engine: the same bits come back, whatever moves them, and every fault ends in one line and no hang.
 * The first cases call the engine as StarPU would; the last ones let StarPU evict to it. */
#define CHECK_MAIN
#include "runtime/disk/disk.h"
#include "tests/check.h"
#include "tests/dirs.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <starpu.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MiB = 1 << 20 };

static const char *fresh_dir(void)
{
    static char dir[64];
    static int count;
    snprintf(dir, sizeof dir, "test-disk-%ld-%d", (long)getpid(), count++);
    if (mkdir(dir, 0700)) perror(dir), exit(1);
    return dir;
}

static tess_disk *open_disk(tess_disk_conf conf)
{
    tess_disk *d = NULL;
    if (tess_disk_open(&conf, &d)) {
        CHECK_SAY("%s", tess_error_text());
        exit(1);
    }
    return d;
}

static void fill(uint32_t *x, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes / 4; i++) x[i] = (uint32_t)i * 2654435761u + seed * 40503u;
    memset((char *)x + bytes / 4 * 4, (int)seed + 1, bytes % 4);
}

static void run_request(void *r)
{
    tess_disk_ops.wait_request(r);
    CHECK_EQ(tess_disk_ops.test_request(r), 1);
    tess_disk_ops.free_request(r);
}

/* Tiles of all sorts of sizes and addresses, all under way at once, and twice: the second time in what the first left
 * free, in pieces. */
static void round_trips(tess_disk_conf conf)
{
    static const size_t sizes[] = {1,       4,           4095,        4096,         4097,     65536,    100000,     MiB,
                                   2 * MiB, 2 * MiB + 4, 5 * MiB - 4, 16 * MiB / 4, 3 * 4096, 12345678, 2 * MiB - 1};
    enum { N = sizeof sizes / sizeof *sizes };
    tess_disk *d = open_disk(conf);
    struct starpu_disk_ops *ops = &tess_disk_ops;
    void *tile[N] = {0}, *request[N];
    char *out[N], *in[N];
    uint64_t bytes = 0;
    for (int i = 0; i < N; i++) {
        CHECK(!posix_memalign((void **)&out[i], 4096, sizes[i] + 64) &&
              !posix_memalign((void **)&in[i], 4096, sizes[i] + 64));
        out[i] += i % 3 * 4; /* a third of them on the border of a page */
        in[i] += i % 3 * 4;
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            if (round && i % 2) {
                ops->free(d, tile[i], sizes[i]);
                tile[i] = NULL;
            }
        }
        for (int k = 0; k < N; k++) {
            int i = round & 1 ? N - 1 - k : k;
            if (!tile[i]) tile[i] = ops->alloc(d, sizes[i]);
            CHECK(tile[i] != NULL);
            fill((void *)out[i], sizes[i], (uint32_t)(i + 100 * round));
            request[i] = ops->async_write(d, tile[i], out[i], 0, sizes[i]);
            bytes += sizes[i];
        }
        for (int i = 0; i < N; i++) run_request(request[i]);
        for (int i = 0; i < N; i++) {
            memset(in[i] - i % 3 * 4, 0x5a, sizes[i] + 64);
            request[i] = ops->async_read(d, tile[i], in[i], 0, sizes[i]);
        }
        for (int i = 0; i < N; i++) {
            run_request(request[i]);
            if (memcmp(in[i], out[i], sizes[i])) CHECK_SAY("round %d: %zu bytes came back changed", round, sizes[i]);
            CHECK_EQ(in[i][sizes[i]], 0x5a); /* nothing behind it was touched */
        }
    }
    tess_disk_use use;
    tess_disk_use_read(d, &use);
    CHECK_EQ(use.write_bytes, bytes);
    CHECK_EQ(use.read_bytes, bytes);
    CHECK_EQ(use.reads, 3 * N);
    CHECK_EQ(use.writes, 3 * N);
    CHECK(use.used >= bytes / 3 && use.used < bytes / 3 + N * 4096 && use.peak >= use.used);
    CHECK(use.busy_seconds > 0 && use.busy_seconds <= use.read_seconds + use.write_seconds + 1e-3);
    for (int i = 0; i < N; i++) {
        ops->free(d, tile[i], sizes[i]);
        free(out[i] - i % 3 * 4);
        free(in[i] - i % 3 * 4);
    }
    tess_disk_use_read(d, &use);
    CHECK_EQ(use.used, 0);
    CHECK_EQ(d->ranges, 1); /* all of the space is one again */
    CHECK(!tess_disk_failure(d));
    tess_disk_close(d);
}

static void round_trips_in(const char *dir, bool twice, bool threads, bool buffered)
{
    const char *dirs[2] = {dir, dir};
    tess_disk_conf c = {.dir = dirs, .dirs = twice ? 2 : 1, .bytes = 64 * MiB, .checksum = true};
    c.threads = threads;
    c.buffered = buffered;
    round_trips(c);
    if (!strcmp(dir, "/dev/shm")) return; /* others' */
    CHECK_EQ(names_in(dir, "", NULL), 0);
    rmdir(dir);
}

TEST(bits_ring)
{
    round_trips_in(fresh_dir(), false, false, false);
}
TEST(bits_threads)
{
    round_trips_in(fresh_dir(), false, true, false);
}
TEST(bits_ring_page_cache)
{
    round_trips_in(fresh_dir(), false, false, true);
}
TEST(bits_threads_page_cache)
{
    round_trips_in(fresh_dir(), false, true, true);
}
TEST(bits_two_directories)
{
    round_trips_in(fresh_dir(), true, false, false);
}
TEST(bits_tmpfs)
{
    if (access("/dev/shm", W_OK)) SKIP("no /dev/shm to write to");
    round_trips_in("/dev/shm", false, false, false);
}

TEST(paths_are_what_was_asked_for)
{
    const char *dir = fresh_dir();
    tess_disk *d = open_disk((tess_disk_conf){.dir = &dir, .dirs = 1, .bytes = 4 * MiB, .threads = true});
    CHECK_HAS(tess_disk_how(d), "threads");
    tess_disk_close(d);
    d = open_disk((tess_disk_conf){.dir = &dir, .dirs = 1, .bytes = 4 * MiB, .depth = 3});
    CHECK_HAS(tess_disk_how(d), "3 in flight");
    if (!strstr(tess_disk_how(d), "io_uring"))
        printf("note: this kernel gives no io_uring: its cases ran on threads\n");
    tess_disk_close(d);
    rmdir(dir);
}

TEST(sum_sees_any_bit_and_place)
{
    size_t bytes = 100003;
    char *x = malloc(bytes);
    fill((void *)x, bytes, 3);
    uint64_t sum = tess_disk_sum(x, bytes, 4096);
    CHECK(tess_disk_sum(x, bytes, 8192) != sum);
    CHECK(tess_disk_sum(x, bytes - 1, 4096) != sum);
    for (size_t i = 0; i < bytes; i += 997)
        for (int bit = 0; bit < 8; bit++) {
            x[i] ^= (char)(1 << bit);
            CHECK(tess_disk_sum(x, bytes, 4096) != sum);
            x[i] ^= (char)(1 << bit);
        }
    x[bytes - 1] ^= 1;
    CHECK(tess_disk_sum(x, bytes, 4096) != sum);
    free(x);
    char zero[512] = {0};
    CHECK(tess_disk_sum(zero, 256, 0) != tess_disk_sum(zero, 512, 0));
}

/* ---- faults of the drive ---- */

static char told[512];
static int tellings;
static void tell(const char *text)
{
    snprintf(told, sizeof told, "%s", text);
    tellings++;
}

/* Six tiles out and in; returns how many came back whole. A tile that did not must be all ones. */
static int survivors(tess_disk_conf c, const char *expected, const char *expected_too)
{
    enum { N = 6, BYTES = 5 * MiB };
    c.failed = tell;
    told[0] = 0;
    tellings = 0;
    tess_disk *d = open_disk(c);
    struct starpu_disk_ops *ops = &tess_disk_ops;
    uint32_t *out[N], *in = NULL;
    void *tile[N];
    int whole = 0;
    CHECK(!posix_memalign((void **)&in, 4096, BYTES));
    for (int i = 0; i < N; i++) {
        CHECK(!posix_memalign((void **)&out[i], 4096, BYTES));
        fill(out[i], BYTES, (uint32_t)i);
        CHECK((tile[i] = ops->alloc(d, BYTES)) != NULL);
        CHECK_EQ(ops->write(d, tile[i], out[i], 0, BYTES), 0);
    }
    for (int i = 0; i < N; i++) {
        memset(in, 0, BYTES);
        CHECK_EQ(ops->read(d, tile[i], in, 0, BYTES), BYTES);
        bool same = !memcmp(in, out[i], BYTES), ones = true;
        for (size_t k = 0; k < BYTES / 4; k++) ones &= in[k] == UINT32_MAX;
        whole += same;
        if (!same && !ones) CHECK_SAY("tile %d is neither what was written nor poisoned", i);
        if (same && tellings) CHECK_SAY("tile %d passes for good after the failure", i);
    }
    if (expected) {
        CHECK_HAS(tess_disk_failure(d), expected);
        CHECK_HAS(tess_disk_failure(d), expected_too);
        CHECK_STR(told, tess_disk_failure(d));
        CHECK_EQ(tellings, 1);
    } else
        CHECK(!tess_disk_failure(d));
    for (int i = 0; i < N; i++) {
        ops->free(d, tile[i], BYTES);
        free(out[i]);
    }
    free(in);
    tess_disk_close(d);
    return whole;
}

TEST(drive_faults_are_named)
{
    const char *dir = fresh_dir();
    for (int threads = 0; threads < 2; threads++) {
        tess_disk_conf c = {.dir = &dir, .dirs = 1, .bytes = 64 * MiB, .threads = threads};
        CHECK_EQ(survivors(c, NULL, NULL), 6);
        c.faults.fail_read_at = 8; /* of three pieces a tile: in the third tile */
        CHECK_EQ(survivors(c, "reading", "Input/output error"), 2);
        c.faults.fail_read_at = 0;
        c.faults.fail_write_at = 17;
        CHECK_EQ(survivors(c, "writing", "Input/output error"), 0);
        CHECK_HAS(told, dir);
        CHECK_HAS(told, "byte");
        c.faults.fail_write_at = 0;
        c.checksum = true;
        CHECK_EQ(survivors(c, NULL, NULL), 6);
        c.faults.flip_bit_at = 11;
        CHECK_EQ(survivors(c, "checksum", "byte"), 3);
        CHECK_HAS(told, "piece ");
    }
    CHECK_EQ(names_in(dir, "", NULL), 0);
    rmdir(dir);
}

/* Not injected: the byte on the disk is another one. */
TEST(turned_byte_on_disk_is_named)
{
    const char *dir = fresh_dir();
    tess_disk *d = open_disk((tess_disk_conf){.dir = &dir, .dirs = 1, .bytes = 64 * MiB, .checksum = true});
    struct starpu_disk_ops *ops = &tess_disk_ops;
    size_t bytes = 7 * MiB;
    uint32_t *x = malloc(bytes);
    fill(x, bytes, 1);
    void *first = ops->alloc(d, bytes), *second = ops->alloc(d, bytes);
    ops->write(d, first, x, 0, bytes);
    ops->write(d, second, x, 0, bytes);
    struct tess_disk_piece *p = &((struct tess_disk_tile *)second)->piece[2];
    uint64_t at;
    int fd = tess_disk_place(d, p->at, &at)->fd;
    _Alignas(4096) static char block[4096];
    CHECK_EQ(pread(fd, block, 4096, (off_t)at + 8192), 4096);
    block[77] ^= 16;
    CHECK_EQ(pwrite(fd, block, 4096, (off_t)at + 8192), 4096);
    ops->read(d, first, x, 0, bytes);
    CHECK(!tess_disk_failure(d));
    ops->read(d, second, x, 0, bytes);
    char where[64];
    snprintf(where, sizeof where, "byte %llu: piece 2 of a tile of 7.0 MiB", (unsigned long long)at);
    CHECK_HAS(tess_disk_failure(d), where);
    CHECK_EQ(x[0], UINT32_MAX);
    ops->free(d, first, bytes);
    ops->free(d, second, bytes);
    tess_disk_close(d);
    free(x);
    rmdir(dir);
}

/* A file cut short under a run: a read that ends early. */
TEST(short_read)
{
    const char *dir = fresh_dir();
    for (int threads = 0; threads < 2; threads++) {
        tess_disk *d = open_disk((tess_disk_conf){.dir = &dir, .dirs = 1, .bytes = 8 * MiB, .threads = threads});
        size_t bytes = 4 * MiB;
        void *x = calloc(1, bytes), *tile = tess_disk_ops.alloc(d, bytes);
        tess_disk_ops.write(d, tile, x, 0, bytes);
        CHECK(!ftruncate(d->file[0].fd, 3 * MiB));
        tess_disk_ops.read(d, tile, x, 0, bytes);
        CHECK_HAS(tess_disk_failure(d), "the file ends there");
        tess_disk_ops.free(d, tile, bytes);
        tess_disk_close(d);
        free(x);
    }
    rmdir(dir);
}

/* ---- space ---- */

TEST(full_disk_is_a_failure)
{
    const char *dir = fresh_dir();
    tess_disk *d = open_disk((tess_disk_conf){.dir = &dir, .dirs = 1, .bytes = 8 * MiB + 1});
    struct starpu_disk_ops *ops = &tess_disk_ops;
    CHECK_EQ(d->capacity, 8 * MiB);
    void *a = ops->alloc(d, 3 * MiB), *b = ops->alloc(d, 2 * MiB), *c = ops->alloc(d, 3 * MiB);
    CHECK_EQ(d->used, 8 * MiB);
    ops->free(d, a, 3 * MiB);
    ops->free(d, c, 3 * MiB);
    void *e = ops->alloc(d, 6 * MiB); /* in two parts */
    CHECK_EQ(d->used, 8 * MiB);
    CHECK(!tess_disk_failure(d));
    void *hole = ops->alloc(d, 4000);
    CHECK(hole != NULL); /* StarPU goes on, to the end of its tasks */
    CHECK_HAS(tess_disk_failure(d),
              "the disk tier is full: a tile of 3.9 KiB is to leave RAM, 0 B of 8.0 MiB are free");
    uint32_t x[1000] = {0};
    CHECK_EQ(ops->write(d, hole, x, 0, 4000), 0);
    CHECK_EQ(ops->read(d, hole, x, 0, 4000), 4000);
    CHECK_EQ(x[999], UINT32_MAX);
    ops->free(d, hole, 4000);
    ops->free(d, b, 2 * MiB);
    ops->free(d, e, 6 * MiB);
    CHECK_EQ(d->used, 0);
    tess_disk_close(d);
    rmdir(dir);
}

static void refuse(const char *dir, uint64_t bytes, const char *what)
{
    tess_disk *d;
    tess_status s = tess_disk_open(&(tess_disk_conf){.dir = &dir, .dirs = 1, .bytes = bytes}, &d);
    CHECK_EQ(s, TESS_INVALID);
    CHECK(!d);
    CHECK_HAS(tess_error_text(), what);
    if (bytes >= TESS_DISK_CHUNK) CHECK_HAS(tess_error_text(), dir);
}

TEST(directories_that_will_not_do)
{
    const char *dir = fresh_dir();
    refuse("no/such/directory", 4 * MiB, "No such file or directory");
    refuse(dir, 1000, "at least 2.0 MiB in each");
    refuse(dir, 1ull << 43, "the disk tier needs 8.0 TiB there");
    refuse("/proc", 4 * MiB, "no swap file can be made there");
    char file[128];
    snprintf(file, sizeof file, "%s/file", dir);
    FILE *f = fopen(file, "w");
    fclose(f);
    refuse(file, 4 * MiB, "is not a directory");
    unlink(file);
    if (geteuid()) {
        chmod(dir, 0500);
        refuse(dir, 4 * MiB, "Permission denied");
    }
    CHECK_EQ(names_in(dir, "", NULL), 0); /* an open that fails leaves nothing */
    rmdir(dir);
}

TEST(too_small_filesystem)
{
    const char *dir = fresh_dir();
    if (mount("none", dir, "tmpfs", 0, "size=16m")) {
        rmdir(dir);
        SKIP("may not mount a tmpfs");
    }
    refuse(dir, 64 * MiB, "needs 64.0 MiB there, 16.0 MiB are free");
    tess_disk *d = open_disk((tess_disk_conf){.dir = &dir, .dirs = 1, .bytes = 12 * MiB});
    tess_disk_close(d);
    CHECK(!umount(dir));
    rmdir(dir);
}

/* ---- what stays behind ---- */

static void killed_run(const char *dir, bool named)
{
    static const char swap[] = ".tessera-swap-";
    int ready[2];
    CHECK(!pipe(ready));
    pid_t child = fork();
    if (!child) {
        tess_disk *d;
        tess_disk_conf c = {.dir = &dir, .dirs = 1, .bytes = 8 * MiB, .named = named};
        char ok = !tess_disk_open(&c, &d);
        static char x[4 * MiB];
        void *tile = tess_disk_ops.alloc(d, sizeof x);
        tess_disk_ops.write(d, tile, x, 0, sizeof x);
        if (write(ready[1], &ok, 1) == 1) pause();
        _exit(1);
    }
    char ok = 0, name[256];
    CHECK(read(ready[0], &ok, 1) == 1 && ok);
    CHECK_EQ(names_in(dir, swap, name), named);
    if (named) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, name);
        int fd = open(path, O_RDWR);
        CHECK(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK); /* the lock is the child's alone */
        close(fd);
        /* A second run beside it leaves it alone. */
        tess_disk *d = open_disk((tess_disk_conf){.dir = &dir, .dirs = 1, .bytes = 4 * MiB, .named = true});
        CHECK_EQ(names_in(dir, swap, name), 2);
        tess_disk_close(d);
        CHECK_EQ(names_in(dir, swap, name), 1);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK_EQ(names_in(dir, swap, name), named);
    tess_disk *d = open_disk((tess_disk_conf){.dir = &dir, .dirs = 1, .bytes = 4 * MiB});
    CHECK_EQ(names_in(dir, swap, name), d->file[0].lock >= 0);
    tess_disk_close(d);
    CHECK_EQ(names_in(dir, "", NULL), 0);
    close(ready[0]);
    close(ready[1]);
}

TEST(killed_run_leaves_nothing)
{
    const char *dir = fresh_dir();
    int fd = open(dir, O_TMPFILE | O_RDWR, 0600);
    if (fd < 0) SKIP("this file system has no files without a name");
    close(fd);
    killed_run(dir, false);
    rmdir(dir);
}

TEST(killed_run_is_cleaned_up)
{
    const char *dir = fresh_dir();
    killed_run(dir, true);
    rmdir(dir);
}

/* ---- StarPU evicts ---- */

static void fill_tile(void *buf[], void *seed)
{
    fill((void *)STARPU_VECTOR_GET_PTR(buf[0]), STARPU_VECTOR_GET_NX(buf[0]) * 4, (uint32_t)(uintptr_t)seed);
}

static void step_tile(void *buf[], void *seed)
{
    (void)seed;
    uint32_t *x = (uint32_t *)STARPU_VECTOR_GET_PTR(buf[0]);
    for (size_t i = 0; i < STARPU_VECTOR_GET_NX(buf[0]); i++) x[i] = x[i] * 1664525u + 1013904223u;
}

static atomic_long wrong;
static void check_tile(void *buf[], void *seed)
{
    const uint32_t *x = (uint32_t *)STARPU_VECTOR_GET_PTR(buf[0]);
    for (size_t i = 0; i < STARPU_VECTOR_GET_NX(buf[0]); i++) {
        uint32_t e = (uint32_t)i * 2654435761u + (uint32_t)(uintptr_t)seed * 40503u;
        for (int k = 0; k < 3; k++) e = e * 1664525u + 1013904223u;
        if (x[i] != e) {
            wrong++;
            return;
        }
    }
}

/* 40 tiles of sizes that are no multiples of a block, 27 MiB in all, under a RAM cap of 16 MiB: filled, stepped three
 * times, checked. Returns how many have wrong bits. */
static long sweep(tess_disk_conf c, char failure[512])
{
    static struct starpu_codelet cl[] = {
        {.cpu_funcs = {fill_tile}, .nbuffers = 1, .modes = {STARPU_W}},
        {.cpu_funcs = {step_tile}, .nbuffers = 1, .modes = {STARPU_RW}},
        {.cpu_funcs = {check_tile}, .nbuffers = 1, .modes = {STARPU_R}},
    };
    enum { N = 40 };
    starpu_data_handle_t tile[N];
    unsigned node = 0;
    wrong = 0;
    c.failed = tell;
    told[0] = 0;
    tess_disk *d = open_disk(c);
    setenv("STARPU_LIMIT_CPU_MEM", "16", 1); /* StarPU's own eviction, which is what the engine must bear */
    setenv("STARPU_MINIMUM_CLEAN_BUFFERS", "0", 1);
    setenv("STARPU_TARGET_CLEAN_BUFFERS", "0", 1);
    if (tess_start(&(tess_machine){.workers = 2}) || tess_disk_register(d, &node)) {
        CHECK_SAY("%s", tess_error_text());
        exit(1);
    }
    CHECK(node > 0);
    for (int i = 0; i < N; i++)
        starpu_vector_data_register(&tile[i], -1, 0, (uint32_t)(i % 3 ? MiB / 4 + i : 10000), 4);
    for (int pass = 0; pass < 5; pass++)
        for (int i = 0; i < N; i++) {
            int k = pass & 1 ? N - 1 - i : i;
            struct starpu_task *t = starpu_task_create();
            t->cl = &cl[pass == 0 ? 0 : pass < 4 ? 1 : 2];
            t->cl_arg = (void *)(uintptr_t)k;
            t->handles[0] = tile[k];
            CHECK(!starpu_task_submit(t));
            starpu_task_wait_for_n_submitted(4);
        }
    starpu_task_wait_for_all();
    const char *text = tess_disk_failure(d);
    snprintf(failure, 512, "%s", text ? text : "");
    CHECK_STR(told, failure);
    for (int i = 0; i < N; i++) starpu_data_unregister_no_coherency(tile[i]);
    tess_stop();
    tess_disk_use u;
    tess_disk_use_read(d, &u);
    CHECK(u.writes > 0 && (text || u.read_bytes > 20 * MiB));
    CHECK_EQ(u.used, 0);
    tess_disk_close(d);
    return wrong;
}

TEST(starpu_evicts_and_fetches)
{
    const char *dir = fresh_dir();
    char failure[512];
    for (int threads = 0; threads < 2; threads++) {
        CHECK_EQ(
            sweep((tess_disk_conf){.dir = &dir, .dirs = 1, .bytes = 64 * MiB, .checksum = true, .threads = threads},
                  failure),
            0);
        CHECK_STR(failure, "");
    }
    rmdir(dir);
}

TEST(starpu_drains_after_a_failure)
{
    const char *dir = fresh_dir();
    char failure[512];
    tess_disk_conf c = {.dir = &dir, .dirs = 1, .bytes = 64 * MiB, .checksum = true};
    alarm(60); /* a hang is a failure */
    c.faults.fail_write_at = 5;
    CHECK(sweep(c, failure) > 0);
    CHECK_HAS(failure, "Input/output error");
    c.faults.fail_write_at = 0;
    c.faults.fail_read_at = 20;
    CHECK(sweep(c, failure) > 0);
    CHECK_HAS(failure, "reading");
    c.faults.fail_read_at = 0;
    c.faults.flip_bit_at = 9;
    CHECK(sweep(c, failure) > 0);
    CHECK_HAS(failure, "checksum");
    c.faults.flip_bit_at = 0;
    c.bytes = 4 * MiB;
    sweep(c, failure);
    CHECK_HAS(failure, "full");
    alarm(0);
    rmdir(dir);
}
