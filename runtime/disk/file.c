/* The disk tier's files, the space in them, and the checksums.
 *
 * A swap file has no name where the file system knows O_TMPFILE: whatever ends the run, nothing stays behind. Elsewhere
 * it is .tessera-swap-PID-XXXXXX, locked as long as it is in use, so that a later start can tell a crashed run's file
 * from a living one's and remove it. Its blocks are allocated at once: a run that starts does not meet a full disk. */
#include "disk_impl.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PREFIX ".tessera-swap-"

/* ---- files ---- */

/* Files of runs that are gone: nobody holds their lock. */
static void remove_stale(const char *dir)
{
    DIR *list = opendir(dir);
    if (!list) return;
    unsigned count = 0;
    uint64_t bytes = 0;
    for (struct dirent *e; (e = readdir(list));) {
        if (strncmp(e->d_name, PREFIX, sizeof PREFIX - 1)) continue;
        int fd = openat(dirfd(list), e->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0) continue;
        struct stat st;
        if (!flock(fd, LOCK_EX | LOCK_NB) && !fstat(fd, &st) && S_ISREG(st.st_mode) &&
            !unlinkat(dirfd(list), e->d_name, 0)) {
            count++;
            bytes += (uint64_t)st.st_blocks * 512;
        }
        close(fd);
    }
    closedir(list);
    if (count)
        tess_note("%s: removed %u swap file%s of runs that had crashed (%s)", dir, count, count > 1 ? "s" : "",
                  tess_human_bytes((double)bytes));
}

/* Another run that starts may find the file before it is locked, and remove it as stale: then it has no link left and
 * the next attempt makes another. The lock has an opening of its own, which ends with the process: the one that an
 * io_uring knows lives on until the kernel has taken the ring down. */
static int make_named(struct tess_disk_file *f)
{
    int error = EBUSY;
    for (int attempt = 0; attempt < 16; attempt++) {
        f->name = tess_format("%s/" PREFIX "%ld-XXXXXX", f->dir, (long)getpid());
        f->lock = mkostemp(f->name, O_CLOEXEC);
        struct stat st;
        if (f->lock < 0)
            error = errno;
        else if (!flock(f->lock, LOCK_EX | LOCK_NB) && !fstat(f->lock, &st) && st.st_nlink == 1) {
            f->fd = open(f->name, O_RDWR | O_CLOEXEC);
            return f->fd < 0 ? errno : 0;
        } else
            close(f->lock);
        f->lock = -1;
        free(f->name);
        f->name = NULL;
        if (error != EBUSY) break;
    }
    return error;
}

/* 0 or an errno. */
static int make_file(struct tess_disk_file *f, bool named)
{
    if (!named) f->fd = open(f->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (f->fd < 0) return make_named(f);
    f->name = tess_format("%s/(swap)", f->dir);
    return 0;
}

/* 0 or an errno; ENOSPC where there is too little room, which is asked first: taking all there is and giving it back
 * would fail whoever else writes meanwhile. */
static int reserve(int fd, uint64_t bytes)
{
    int error, attempts = 10;
    do {
        struct statvfs v;
        error = !fstatvfs(fd, &v) && (uint64_t)v.f_bavail * v.f_frsize < bytes ? ENOSPC : 0;
        if (!error && fallocate(fd, 0, 0, (off_t)bytes)) error = errno;
        /* The blocks of a run that was killed a moment ago come back a moment later. */
        if (error == ENOSPC && attempts-- > 0) usleep(50000), error = EINTR;
    } while (error == EINTR);
    if (error != EOPNOTSUPP && error != ENOSYS) return error;
    return ftruncate(fd, (off_t)bytes) ? errno : 0;
}

/* Past the page cache from here on. tmpfs and some others take the flag and then refuse to move, or refuse the flag. */
static bool set_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT)) return false;
    void *block = NULL;
    bool works = !posix_memalign(&block, TESS_DISK_BLOCK, TESS_DISK_BLOCK) &&
                 pread(fd, block, TESS_DISK_BLOCK, 0) == TESS_DISK_BLOCK;
    free(block);
    if (!works) fcntl(fd, F_SETFL, flags);
    return works;
}

static tess_status refuse_file(const char *dir, int error)
{
    return tess_error(tess_errno_status(error), dir, "no swap file can be made there: %s (name another directory)",
                      strerror(error));
}

static tess_status check_directory(const char *dir)
{
    struct stat st;
    if (stat(dir, &st))
        return tess_error(tess_errno_status(errno), dir,
                          "cannot hold the disk tier: %s (make the directory or name another)", strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return tess_error(TESS_INVALID, dir, "is not a directory, the disk tier needs one (name another)");
    return access(dir, W_OK | X_OK) ? refuse_file(dir, errno) : TESS_OK;
}

static tess_status check_count(unsigned dirs)
{
    if (dirs >= 1 && dirs <= TESS_DISK_MAX_DIRS) return TESS_OK;
    return tess_error(TESS_INVALID, "disk tier", "%u directories, 1 to %d can be used", dirs, TESS_DISK_MAX_DIRS);
}

static tess_status open_file(struct tess_disk_file *f, const char *dir, uint64_t bytes, bool named)
{
    TESS_TRY(check_directory(dir));
    remove_stale(dir);
    f->dir = tess_strdup(dir);
    int error = make_file(f, named);
    if (error) return refuse_file(dir, error);
    error = reserve(f->fd, bytes);
    if (!error) return TESS_OK;
    struct statvfs v = {0};
    fstatvfs(f->fd, &v);
    if (error == ENOSPC && (uint64_t)v.f_bavail * v.f_frsize < bytes) /* said before anything runs, as of a cap */
        return tess_error(TESS_INVALID, dir,
                          "the disk tier needs %s there, %s are free (lower memory.disk, or name another directory)",
                          tess_human_bytes((double)bytes), tess_human_bytes((double)v.f_bavail * (double)v.f_frsize));
    return tess_error(tess_errno_status(error), dir, "no swap file of %s can be made there: %s",
                      tess_human_bytes((double)bytes), strerror(error));
}

unsigned tess_disk_dirs(char *list, const char *dir[TESS_DISK_MAX_DIRS])
{
    unsigned dirs = 0;
    while (dirs < TESS_DISK_MAX_DIRS && (dir[dirs] = strsep(&list, ":")))
        if (*dir[dirs]) dirs++;
    return dirs;
}

/* What a path will be when all of it is made: what is there of it without links, the rest without what says nothing.
 * NULL: that cannot be told. */
static char *path_made(const char *dir)
{
    char *there = tess_strdup(dir), *rest = tess_strdup(dir), *from = rest, *path;
    size_t n = strlen(dir);
    while (!(path = realpath(n ? there : ".", NULL)) && errno == ENOENT && n > 0) {
        while (n > 0 && there[n - 1] == '/') n--;
        while (n > 0 && there[n - 1] != '/') n--;
        there[n] = 0;
    }
    from += n;
    for (char *name; path && (name = strsep(&from, "/"));) {
        if (!*name || !strcmp(name, ".")) continue;
        char *longer = tess_format("%s/%s", strcmp(path, "/") ? path : "", name);
        free(path);
        path = longer;
    }
    free(there);
    free(rest);
    return path;
}

/* Is `dir` made with `made`: the same, or on the way to it? */
static bool comes_with(const char *dir, const char *made)
{
    char *a = path_made(dir), *b = path_made(made);
    const size_t n = a ? strlen(a) : 0;
    const bool with = a && b && !strncmp(a, b, n) && (!b[n] || b[n] == '/');
    free(a);
    free(b);
    return with;
}

tess_status tess_disk_check(const char *dirs, const char *made)
{
    const char *dir[TESS_DISK_MAX_DIRS];
    char *list = tess_strdup(dirs);
    unsigned count = tess_disk_dirs(list, dir);
    tess_status status = check_count(count);
    for (unsigned i = 0; i < count && status == TESS_OK; i++)
        if (!made || !access(dir[i], F_OK) || !comes_with(dir[i], made)) status = check_directory(dir[i]);
    free(list);
    return status;
}

tess_status tess_disk_files_open(tess_disk *d)
{
    const tess_disk_conf *c = &d->conf;
    for (unsigned i = 0; i < TESS_DISK_MAX_DIRS; i++) d->file[i].fd = d->file[i].lock = -1;
    TESS_TRY(check_count(c->dirs));
    uint64_t share = c->bytes / c->dirs / c->chunk * c->chunk;
    if (!share)
        return tess_error(TESS_INVALID, "disk tier", "%s over %u directories, at least %s in each are needed",
                          tess_human_bytes((double)c->bytes), c->dirs, tess_human_bytes((double)c->chunk));
    d->direct = !c->buffered;
    for (unsigned i = 0; i < c->dirs; i++) {
        TESS_TRY(open_file(&d->file[i], c->dir[i], share, c->named));
        if (d->direct && !set_direct(d->file[i].fd)) {
            d->direct = false;
            tess_note(
                "%s: its file system refuses O_DIRECT; the disk tier goes through the page cache, outside any cap",
                c->dir[i]);
        }
    }
    d->capacity = share * c->dirs;
    d->range = tess_alloc(sizeof *d->range);
    d->range[0] = (struct tess_disk_range){0, d->capacity};
    d->ranges = d->room = 1;
    return TESS_OK;
}

void tess_disk_files_close(tess_disk *d)
{
    for (unsigned i = 0; i < TESS_DISK_MAX_DIRS; i++) {
        struct tess_disk_file *f = &d->file[i];
        if (f->lock >= 0) {
            unlink(f->name);
            close(f->lock);
        }
        if (f->fd >= 0) close(f->fd);
        free(f->dir);
        free(f->name);
    }
    free(d->range);
}

struct tess_disk_file *tess_disk_place(tess_disk *d, uint64_t at, uint64_t *offset)
{
    uint64_t chunk = at / d->conf.chunk;
    *offset = chunk / d->conf.dirs * d->conf.chunk + at % d->conf.chunk;
    return &d->file[chunk % d->conf.dirs];
}

/* ---- space ---- */

/* Cuts bytes off a range, at its end if `top`. */
static struct tess_disk_range cut(tess_disk *d, unsigned i, uint64_t bytes, bool top)
{
    struct tess_disk_range *r = &d->range[i], got = {top ? r->at + r->bytes - bytes : r->at, bytes};
    if (!top) r->at += bytes;
    r->bytes -= bytes;
    if (!r->bytes) memmove(r, r + 1, (--d->ranges - i) * sizeof *r);
    return got;
}

/* The whole from the smallest range that holds it, else what the largest has. Tiles below a chunk come from the far
 * end, so that large ones stay on the borders of chunks. */
static struct tess_disk_range take_range(tess_disk *d, uint64_t bytes)
{
    bool small = bytes < d->conf.chunk;
    unsigned best = 0;
    for (unsigned i = 1; i < d->ranges; i++) {
        uint64_t have = d->range[i].bytes, least = d->range[best].bytes;
        bool fits = have >= bytes, best_fits = least >= bytes;
        if (fits != best_fits ? fits : fits ? (small ? have <= least : have < least) : have > least) best = i;
    }
    return cut(d, best, bytes < d->range[best].bytes ? bytes : d->range[best].bytes, small);
}

static void give_range(tess_disk *d, uint64_t at, uint64_t bytes)
{
    unsigned low = 0, high = d->ranges; /* the first range behind `at` */
    while (low < high) {
        unsigned mid = (low + high) / 2;
        if (d->range[mid].at < at)
            low = mid + 1;
        else
            high = mid;
    }
    bool left = low > 0 && d->range[low - 1].at + d->range[low - 1].bytes == at;
    bool right = low < d->ranges && at + bytes == d->range[low].at;
    if (left) {
        d->range[low - 1].bytes += bytes;
        if (right) {
            d->range[low - 1].bytes += d->range[low].bytes;
            memmove(&d->range[low], &d->range[low + 1], (--d->ranges - low) * sizeof *d->range);
        }
    } else if (right) {
        d->range[low].at = at;
        d->range[low].bytes += bytes;
    } else {
        if (d->ranges == d->room) d->range = tess_realloc(d->range, (d->room *= 2) * sizeof *d->range);
        memmove(&d->range[low + 1], &d->range[low], (d->ranges++ - low) * sizeof *d->range);
        d->range[low] = (struct tess_disk_range){at, bytes};
    }
}

bool tess_disk_space_take(tess_disk *d, struct tess_disk_tile *t)
{
    uint64_t need = (t->bytes + TESS_DISK_BLOCK - 1) / TESS_DISK_BLOCK * TESS_DISK_BLOCK, offset = 0;
    if (need > d->capacity - d->used) return false;
    d->used += need;
    if (d->used > d->peak) d->peak = d->used;
    unsigned room = 0;
    while (offset < need) {
        struct tess_disk_range r = take_range(d, need - offset);
        while (r.bytes) {
            uint64_t bytes = d->conf.chunk - r.at % d->conf.chunk;
            if (bytes > r.bytes) bytes = r.bytes;
            if (t->pieces == room) t->piece = tess_realloc(t->piece, (room = room ? room * 2 : 8) * sizeof *t->piece);
            t->piece[t->pieces++] = (struct tess_disk_piece){.at = r.at, .offset = offset, .bytes = (uint32_t)bytes};
            offset += bytes;
            r.at += bytes;
            r.bytes -= bytes;
        }
    }
    return true;
}

void tess_disk_space_give(tess_disk *d, struct tess_disk_tile *t)
{
    for (unsigned i = 0; i < t->pieces; i++) {
        give_range(d, t->piece[i].at, t->piece[i].bytes);
        d->used -= t->piece[i].bytes;
    }
}

/* ---- checksums ---- */

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || !defined __x86_64__
#define CLONES
#else
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif

enum { LANES = 64 }; /* of 32 bits: four of the widest vectors, whose multiplications then overlap */

/* Each step turns a lane into another, one to one, whether the lane or the word is held fixed: a difference in a single
 * word always reaches the end. */
CLONES static void sum_rows(uint32_t *lane, const char *data, size_t rows)
{
    for (size_t r = 0; r < rows; r++) {
        uint32_t word[LANES];
        memcpy(word, data + r * sizeof word, sizeof word);
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
            uint32_t x = (lane[i] ^ word[i]) * 0x9e3779b1u;
            lane[i] = x << 15 | x >> 17;
        }
    }
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 29) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 29;
}

/* The seed is the place: a piece that lies where another belongs does not pass for it. */
uint64_t tess_disk_sum(const void *data, size_t bytes, uint64_t seed)
{
    uint32_t lane[LANES];
    for (uint32_t i = 0; i < LANES; i++) lane[i] = (uint32_t)mix(seed + i + 1);
    size_t row = sizeof lane, whole = bytes / row;
    sum_rows(lane, data, whole);
    char rest[sizeof lane] = {0};
    memcpy(rest, (const char *)data + whole * row, bytes - whole * row);
    sum_rows(lane, rest, 1);
    uint64_t sum = mix(seed ^ bytes);
    for (int i = 0; i < LANES; i += 2) sum = mix(sum ^ ((uint64_t)lane[i] << 32 | lane[i + 1]));
    return sum;
}
