/* The disk tier's files.
 *
 * A swap file has no name where the file system knows O_TMPFILE: whatever ends the run, nothing stays behind. Elsewhere
 * it is .tessera-swap-PID-XXXXXX, locked as long as it is in use, so that a later start can tell a crashed run's file
 * from a living one's and remove it. Its blocks are allocated at once: a run that starts does not meet a full disk. */
#include "runtime/disk/disk.h"
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

/* Removes files of runs that have ended: no process holds their lock. */
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
    return tess_error(TESS_INVALID, "disk tier", "%u directories (expected 1 to %d)", dirs, TESS_DISK_MAX_DIRS);
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
                          "the disk tier needs %s there, %s are free (let RAM hold more, or name another directory)",
                          tess_human_bytes((double)bytes), tess_human_bytes((double)v.f_bavail * (double)v.f_frsize));
    return tess_error(tess_errno_status(error), dir, "no swap file of %s can be made there: %s",
                      tess_human_bytes((double)bytes), strerror(error));
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
    TESS_FREED char *a = path_made(dir), *b = path_made(made);
    const size_t n = a ? strlen(a) : 0;
    return a && b && !strncmp(a, b, n) && (!b[n] || b[n] == '/');
}

tess_status tess_disk_check(const char *dirs, const char *made)
{
    const char *dir[TESS_DISK_MAX_DIRS];
    TESS_FREED char *list = tess_strdup(dirs);
    unsigned count = tess_disk_dirs(list, dir);
    tess_status status = check_count(count);
    for (unsigned i = 0; i < count && status == TESS_OK; i++)
        if (!made || !access(dir[i], F_OK) || !comes_with(dir[i], made)) status = check_directory(dir[i]);
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
    tess_disk_space_open(d, share * c->dirs);
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
}
