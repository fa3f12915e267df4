/* How fast the drives of a disk tier are, measured with the tier's own engine: tiles past the page cache, as many under
 * way at a time as in a run, in files without a name. Reads and writes alone, and then side by side: what two streams
 * take from each other cannot be told from either. */
#include "runtime/disk/disk.h"
#include <errno.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum {
    TILE = 8 << 20,
    TILES = 128,   /* at most, for each directory */
    FLIGHT = 4,    /* tiles under way for each directory, both in reading and in writing: its queue stays full */
    FLIGHTS = 16,  /* at most */
    HUGE = 2 << 20 /* pages, in which a transfer has few pieces */
};
static const double SECONDS = 0.4; /* of each measurement, at least */

/* As tess_disk_dirs, but a directory that is yet to be made stands for the nearest above it. */
static unsigned cut_dirs(char *list, const char *dir[TESS_DISK_MAX_DIRS])
{
    unsigned dirs = tess_disk_dirs(list, dir);
    for (unsigned i = 0; i < dirs; i++) {
        char *path = (char *)dir[i], *slash; /* a part of `list` */
        while (access(dir[i], F_OK) && errno == ENOENT && (slash = strrchr(path, '/')) && slash > path) *slash = 0;
        if (access(dir[i], F_OK) && errno == ENOENT) dir[i] = *path == '/' ? "/" : ".";
    }
    return dirs;
}

/* What is being measured. */
struct probe {
    tess_disk *disk;
    void **tile;
    int tiles, flight; /* flight: how many are under way, of each kind */
    char *data;        /* (2, flight, TILE): what is read, what is written */
};

/* Tile after tile of the first `of`, round and round from `first`: SECONDS long and at least twice the queue, but no
 * more than `most`. */
struct sweep {
    const struct probe *p;
    bool write;
    int first, of, most;
    int moved; /* tiles */
    double rate;
};

static void finish(void *request)
{
    tess_disk_ops.wait_request(request);
    tess_disk_ops.free_request(request);
}

static void *run_sweep(void *arg)
{
    struct sweep *s = arg;
    const struct probe *p = s->p;
    void *(*move)(void *, void *, void *, off_t, size_t) =
        s->write ? tess_disk_ops.async_write : tess_disk_ops.async_read;
    void *request[FLIGHTS] = {0};
    char *data = p->data + (s->write ? (size_t)p->flight * TILE : 0);
    const double began = tess_seconds();
    int k = 0;
    for (; k < s->most && (k < 2 * p->flight || tess_seconds() - began < SECONDS); k++) {
        const int slot = k % p->flight;
        if (request[slot]) finish(request[slot]);
        request[slot] = move(p->disk, p->tile[(s->first + k) % s->of], data + (size_t)slot * TILE, 0, TILE);
    }
    for (int i = 0; i < p->flight; i++)
        if (request[i]) finish(request[i]);
    s->moved = k;
    s->rate = k * (double)TILE / (tess_seconds() - began);
    return NULL;
}

static void measure(const struct probe *p, tess_drive *d)
{
    /* A file system is slower where it has yet to note that a block is in use: the first round does not count. What it
     * did not get to is not used, it would be read from nowhere. */
    struct sweep fill = {.p = p, .write = true, .of = p->tiles, .most = p->tiles};
    run_sweep(&fill);
    struct sweep write = {.p = p, .write = true, .of = fill.moved, .most = INT32_MAX}, read = write;
    read.write = false;
    run_sweep(&write);
    run_sweep(&read);
    d->write_rate = write.rate, d->read_rate = read.rate;
    pthread_t thread;
    write.first = fill.moved / 2;
    TESS_ASSERT(!pthread_create(&thread, NULL, run_sweep, &write));
    run_sweep(&read);
    pthread_join(thread, NULL);
    d->mixed_write_rate = write.rate, d->mixed_read_rate = read.rate;
}

/* The tiles that half of what is free holds in the fullest directory. */
static tess_status find_room(const char *const *dir, unsigned dirs, int *tiles)
{
    *tiles = TILES * (int)dirs;
    for (unsigned i = 0; i < dirs; i++) {
        uint64_t half = tess_drive_free(dir[i]) / 2 / TILE;
        if (half < (uint64_t)*tiles) *tiles = (int)half;
        if (!*tiles) return tess_error(TESS_INVALID, dir[i], "no space left on it (name another directory)");
    }
    return TESS_OK;
}

tess_status tess_drive_measure(const char *dirs, tess_drive *d)
{
    const char *dir[TESS_DISK_MAX_DIRS];
    char *list = tess_strdup(dirs), *data = MAP_FAILED;
    tess_disk_conf conf = {.dir = dir, .dirs = cut_dirs(list, dir)};
    struct probe p = {.flight = FLIGHT * (int)conf.dirs < FLIGHTS ? FLIGHT * (int)conf.dirs : FLIGHTS};
    const size_t bytes = 2u * (size_t)p.flight * TILE + HUGE;
    tess_status status;
    *d = (tess_drive){0};
    TESS_TRY_DONE(find_room(dir, conf.dirs, &p.tiles));
    conf.bytes = (uint64_t)p.tiles * TILE + (uint64_t)conf.dirs * TESS_DISK_CHUNK;
    TESS_TRY_DONE(tess_disk_open(&conf, &p.disk));
    data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        TESS_TRY_DONE(
            tess_error(TESS_FAILED, dirs, "cannot be measured: %s (name another directory)", strerror(errno)));
    madvise(data, bytes, MADV_HUGEPAGE);
    memset(data, 0x5a, bytes);
    p.data = (char *)(((uintptr_t)data + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    p.tile = tess_alloc((size_t)p.tiles * sizeof *p.tile);
    for (int i = 0; i < p.tiles; i++) p.tile[i] = tess_disk_ops.alloc(p.disk, TILE);
    measure(&p, d);
    d->direct = p.disk->direct;
    for (int i = 0; i < p.tiles; i++) tess_disk_ops.free(p.disk, p.tile[i], TILE);
    if (tess_disk_failure(p.disk)) status = tess_error(TESS_FAILED, dirs, "%s", tess_disk_failure(p.disk));
done:
    if (data != MAP_FAILED) munmap(data, bytes);
    tess_disk_close(p.disk);
    free(p.tile);
    free(list);
    if (status != TESS_OK) *d = (tess_drive){0};
    return status;
}

uint64_t tess_drive_free(const char *dir)
{
    struct statvfs fs;
    return statvfs(dir, &fs) ? 0 : (uint64_t)fs.f_bavail * fs.f_frsize;
}

tess_status tess_drive_name(const char *dirs, char **name)
{
    const char *dir[TESS_DISK_MAX_DIRS];
    TESS_FREED char *list = tess_strdup(dirs);
    unsigned count = cut_dirs(list, dir);
    tess_status status = TESS_OK;
    *name = tess_strdup("");
    for (unsigned i = 0; i < count && status == TESS_OK; i++) {
        struct stat st;
        struct statvfs fs;
        if (stat(dir[i], &st) || statvfs(dir[i], &fs)) {
            status = tess_error(TESS_INVALID, dir[i], "%s (name a directory that is there)", strerror(errno));
            break;
        }
        char *longer = tess_format("%s%s%u:%u of %llu", *name, i ? ", " : "", major(st.st_dev), minor(st.st_dev),
                                   (unsigned long long)fs.f_blocks * fs.f_frsize);
        free(*name);
        *name = longer;
    }
    return status;
}
