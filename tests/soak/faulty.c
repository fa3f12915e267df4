/* A disk that fails, for programs that know nothing of it: preloaded, it stands between a run and the kernel, and lets
 * operations on the files below the working directory fail, come short, come late, or come back with a bit turned.
 *
 *     FAULTS="operation place how which often error seed rank"      (struct plan; faults.c chooses them)
 *     FAULTS_COUNT=FILE   appends what there was to fail: lines "rank operation place count", with names behind them
 *     FAULTS_MET=FILE     appends a byte when the first operation fails, so that one knows that something did
 *
 * Calls of the C library are replaced by name. What goes to a ring of the kernel's is seen where it is submitted and
 * changed where its completion lies, before the program looks; where FAULTS_RING=0 there are no rings. StarPU's own
 * files and those of the launcher are left alone. */
#undef _FILE_OFFSET_BITS /* open and open64 are two names here */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum operation { OPEN, READ, WRITE, SYNC, RENAME, TRUNCATE, MAKE, REMOVE, CLOSE, OPERATIONS };
static const char *const operation_name[] = {"open",     "read", "write",  "sync", "rename",
                                             "truncate", "make", "remove", "close"};
enum place { NONE, SWAP, CHECKPOINT, OUTPUT, CACHE, DATA, PLACES };
static const char *const place_name[] = {"none", "swap", "checkpoint", "output", "cache", "data"};
enum how { FAIL, SHORT, LATE, FLIP };

static struct plan {
    int operation, place, how; /* operation or place -1: any */
    long which;                /* the first that is met, from 1 */
    int often;                 /* 0: that one; 1: all from there on; n: one in n of them */
    int error;
    unsigned long long seed;
    int rank; /* -1: any */
} plan;

static bool ready, mine, told;
static int tell = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long met, count[OPERATIONS][PLACES];
static char home[PATH_MAX];
static int rank;

static void write_counts(void)
{
    const char *path = getenv("FAULTS_COUNT");
    FILE *f = path ? fopen(path, "a") : NULL;
    for (int o = 0; f && o < OPERATIONS; o++)
        for (int p = 1; p < PLACES; p++)
            if (count[o][p])
                fprintf(f, "%d %d %d %ld %s %s\n", rank, o, p, count[o][p], operation_name[o], place_name[p]);
    if (f) fclose(f);
}

__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("FAULTS"), *r = getenv("OMPI_COMM_WORLD_RANK");
    rank = r ? atoi(r) : 0;
    if (!getcwd(home, sizeof home)) return;
    mine = text && sscanf(text, "%d %d %d %ld %d %d %llu %d", &plan.operation, &plan.place, &plan.how, &plan.which,
                          &plan.often, &plan.error, &plan.seed, &plan.rank) == 8;
    mine = mine && (plan.rank < 0 || plan.rank == rank);
    if (getenv("FAULTS_COUNT")) atexit(write_counts);
    if (mine && getenv("FAULTS_MET"))
        tell = openat(AT_FDCWD, getenv("FAULTS_MET"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ready = true;
}

static uint64_t draw(uint64_t below)
{
    uint64_t x = plan.seed += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % below;
}

/* ---- whose turn it is ---- */

static enum place place_of(const char *path)
{
    char full[2 * PATH_MAX];
    if (!path || !ready) return NONE;
    if (path[0] != '/')
        snprintf(full, sizeof full, "%s/%s", home, path);
    else
        snprintf(full, sizeof full, "%s", path);
    const size_t n = strlen(home);
    if (strncmp(full, home, n) || full[n] != '/') return NONE;
    const char *below = full + n + 1;
    static const struct {
        const char *dir;
        enum place place;
    } known[] = {{"swap", SWAP}, {"ck", CHECKPOINT}, {"out", OUTPUT}, {"cache/tessera", CACHE}, {"text.txt", DATA}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const size_t m = strlen(known[i].dir);
        if (!strncmp(below, known[i].dir, m) && (!below[m] || below[m] == '/')) return known[i].place;
    }
    return NONE;
}

static enum place place_of_file(int fd)
{
    char link[48], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = ready ? readlink(link, path, sizeof path - 1) : -1;
    if (n < 0) return NONE;
    path[n] = 0;
    return place_of(path);
}

/* Counts an operation; true when it is one to fail. */
static bool turn(enum operation o, enum place p)
{
    if (p == NONE || !ready) return false;
    pthread_mutex_lock(&lock);
    count[o][p]++;
    bool yes = mine && (plan.operation < 0 || plan.operation == (int)o) && (plan.place < 0 || plan.place == (int)p);
    if (yes) {
        met++;
        yes =
            plan.often == 0 ? met == plan.which : met >= plan.which && (plan.often == 1 || !draw((uint64_t)plan.often));
    }
    if (yes && !told) told = dprintf(tell, ".") > 0;
    pthread_mutex_unlock(&lock);
    if (yes && plan.how == LATE) {
        usleep((useconds_t)(1000 + draw(20000)));
        return false;
    }
    if (yes) errno = plan.error;
    return yes;
}

/* Those that can only fail. */
static bool fails(enum operation o, enum place p)
{
    return turn(o, p) && plan.how == FAIL;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* ---- opening, and names ---- */

static int mode_of(int flags, va_list ap)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, int) : 0;
}

int open64(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    const int mode = mode_of(flags, ap);
    va_end(ap);
    return fails(OPEN, place_of(path)) ? -1 : REAL(open64)(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    const int mode = mode_of(flags, ap);
    va_end(ap);
    return open64(path, flags, mode);
}

FILE *fopen64(const char *path, const char *mode)
{
    return fails(OPEN, place_of(path)) ? NULL : REAL(fopen64)(path, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    return fopen64(path, mode);
}

int mkostemp64(char *path, int flags)
{
    return fails(OPEN, place_of(path)) ? -1 : REAL(mkostemp64)(path, flags);
}

int mkstemp64(char *path)
{
    return fails(OPEN, place_of(path)) ? -1 : REAL(mkstemp64)(path);
}

int mkdir(const char *path, mode_t mode)
{
    return fails(MAKE, place_of(path)) ? -1 : REAL(mkdir)(path, mode);
}

int rename(const char *from, const char *to)
{
    return fails(RENAME, place_of(to)) ? -1 : REAL(rename)(from, to);
}

int unlink(const char *path)
{
    return fails(REMOVE, place_of(path)) ? -1 : REAL(unlink)(path);
}

int rmdir(const char *path)
{
    return fails(REMOVE, place_of(path)) ? -1 : REAL(rmdir)(path);
}

/* ---- bytes ---- */

/* How many of n are moved where it comes short: at least one, so that who goes on gets somewhere. */
static size_t part_of(size_t n)
{
    size_t part = n > 1 ? 1 + draw(n - 1) : n;
    return n > 4096 && draw(2) ? (part + 4095) / 4096 * 4096 % n + (part > n - 4096 ? 1 : 0) : part;
}

static void turn_bit(void *data, size_t n)
{
    if (n) ((uint8_t *)data)[draw(n)] ^= (uint8_t)(1 << draw(8));
}

ssize_t write(int fd, const void *data, size_t n)
{
    if (!turn(WRITE, place_of_file(fd))) return REAL(write)(fd, data, n);
    if (plan.how == SHORT) return REAL(write)(fd, data, part_of(n));
    if (plan.how == FLIP) return REAL(write)(fd, data, n);
    if (n > 1 && draw(2)) { /* some of it had room */
        const ssize_t part = REAL(write)(fd, data, part_of(n));
        if (plan.often == 1) return part;
        errno = plan.error;
    }
    return -1;
}

ssize_t pwrite64(int fd, const void *data, size_t n, off_t at)
{
    if (!turn(WRITE, place_of_file(fd))) return REAL(pwrite64)(fd, data, n, at);
    if (plan.how == SHORT) return REAL(pwrite64)(fd, data, part_of(n), at);
    if (plan.how == FLIP) return REAL(pwrite64)(fd, data, n, at);
    return -1;
}

ssize_t pread64(int fd, void *data, size_t n, off_t at)
{
    if (!turn(READ, place_of_file(fd))) return REAL(pread64)(fd, data, n, at);
    if (plan.how == FAIL) return -1;
    if (plan.how == SHORT) return REAL(pread64)(fd, data, part_of(n), at);
    const ssize_t got = REAL(pread64)(fd, data, n, at);
    if (plan.how == FLIP && got > 0) turn_bit(data, (size_t)got);
    return got;
}

int fsync(int fd)
{
    return fails(SYNC, place_of_file(fd)) ? -1 : REAL(fsync)(fd);
}

int ftruncate64(int fd, off_t bytes)
{
    return fails(TRUNCATE, place_of_file(fd)) ? -1 : REAL(ftruncate64)(fd, bytes);
}

int fallocate64(int fd, int mode, off_t at, off_t bytes)
{
    return fails(TRUNCATE, place_of_file(fd)) ? -1 : REAL(fallocate64)(fd, mode, at, bytes);
}

int posix_fallocate64(int fd, off_t at, off_t bytes)
{
    return fails(TRUNCATE, place_of_file(fd)) ? plan.error : REAL(posix_fallocate64)(fd, at, bytes);
}

/* The descriptor is closed even so, as the kernel does it. */
int close(int fd)
{
    const bool bad = fails(CLOSE, place_of_file(fd));
    const int rc = REAL(close)(fd);
    if (bad) errno = plan.error;
    return bad ? -1 : rc;
}

/* ---- streams: what they hold goes to the file here ---- */

static bool flush_fails(FILE *f)
{
    const size_t held = f && __fwriting(f) ? __fpending(f) : 0;
    if (!held || !turn(WRITE, place_of_file(fileno(f))) || plan.how != FAIL) return false;
    if (draw(2)) {
        const ssize_t part = REAL(write)(fileno(f), f->_IO_write_base, held / 2);
        (void)part;
    }
    __fpurge(f);
    errno = plan.error;
    return true;
}

int fflush(FILE *f)
{
    return flush_fails(f) ? EOF : REAL(fflush)(f);
}

int fclose(FILE *f)
{
    const enum place p = place_of_file(fileno(f));
    const bool bad = flush_fails(f) || fails(CLOSE, p);
    const int error = errno, rc = REAL(fclose)(f);
    if (bad) errno = error;
    return bad ? EOF : rc;
}

/* ---- rings: one thread of the program submits and reaps ---- */

enum { UNDER_WAY = 256 };
static struct {
    uint64_t data;
    void *memory;
    bool read, write;
} under_way[UNDER_WAY];

int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    const char *rings = getenv("FAULTS_RING");
    return rings && *rings == '0' ? -EPERM : REAL(io_uring_queue_init)(entries, ring, flags);
}

static void note_submitted(const struct io_uring *ring)
{
    for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
        const struct io_uring_sqe *e = &ring->sq.sqes[i & *ring->sq.kring_mask];
        if (!e->user_data) continue;
        const unsigned slot = (unsigned)(e->user_data / 16 % UNDER_WAY);
        under_way[slot].data = e->user_data;
        under_way[slot].memory = (void *)(uintptr_t)e->addr;
        under_way[slot].read = e->opcode == IORING_OP_READ;
        under_way[slot].write = e->opcode == IORING_OP_WRITE;
    }
}

/* The program takes all that lies there before it submits again: each is seen once. */
static void change_completed(struct io_uring *ring)
{
    const unsigned tail = __atomic_load_n(ring->cq.ktail, __ATOMIC_ACQUIRE);
    for (unsigned i = *ring->cq.khead; i != tail; i++) {
        struct io_uring_cqe *e = &ring->cq.cqes[i & *ring->cq.kring_mask];
        const unsigned slot = (unsigned)(e->user_data / 16 % UNDER_WAY);
        if (!e->user_data || under_way[slot].data != e->user_data || e->res <= 0) continue;
        const bool read = under_way[slot].read;
        if ((!read && !under_way[slot].write) || !turn(read ? READ : WRITE, SWAP)) continue;
        if (plan.how == FAIL) e->res = -plan.error;
        if (plan.how == SHORT && e->res > 4096)
            e->res = (int)(1 + draw((uint64_t)e->res / 4096 - 1 + 1)) * 4096 % e->res;
        if (plan.how == FLIP && read) turn_bit(under_way[slot].memory, (size_t)e->res);
    }
}

int io_uring_submit(struct io_uring *ring)
{
    note_submitted(ring);
    return REAL(io_uring_submit)(ring);
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait)
{
    note_submitted(ring);
    const int rc = REAL(io_uring_submit_and_wait)(ring, wait);
    change_completed(ring);
    return rc;
}
