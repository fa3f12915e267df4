/* How fast the drive under a directory is: a second of large transfers past the page cache, in a file without a name.
 */
#include "runtime.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { BLOCK = 16 << 20, BLOCKS_MOST = 128, HUGE = 2 << 20 };
static const double HALF = 0.5; /* seconds of writing, and of reading */

/* A file in the directory that has no name any more when this returns, so that nothing stays of it. */
static int open_nameless(const char *dir, bool *direct)
{
    char *name = tess_format("%s/tessera-drive-XXXXXX", dir);
    *direct = true;
    int fd = mkostemp(name, O_DIRECT);
    if (fd < 0 && errno == EINVAL) { /* tmpfs and its like have no direct access, and leave the file behind */
        unlink(name);
        memcpy(name + strlen(name) - 6, "XXXXXX", 6);
        *direct = false;
        fd = mkostemp(name, 0);
    }
    if (fd >= 0) unlink(name);
    free(name);
    return fd;
}

/* Bytes a second of writing or reading blocks for a while; *blocks: how many, at most its value. Negative: an error. */
static double rate(int fd, void *block, bool write, int *blocks)
{
    double start = tess_seconds(), now = start;
    int most = *blocks;
    for (*blocks = 0; *blocks < most && now - start < HALF; ++*blocks, now = tess_seconds()) {
        off_t offset = (off_t)*blocks * BLOCK;
        ssize_t n = write ? pwrite(fd, block, BLOCK, offset) : pread(fd, block, BLOCK, offset);
        if (n != BLOCK) return -1;
    }
    return now > start ? (double)*blocks * BLOCK / (now - start) : -1;
}

tess_status tess_drive_measure(const char *dir, tess_drive *d)
{
    struct statvfs fs;
    *d = (tess_drive){0};
    if (statvfs(dir, &fs)) return tess_error(TESS_INVALID, dir, "%s", strerror(errno));
    d->free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    int blocks = d->free_bytes / 2 / BLOCK < BLOCKS_MOST ? (int)(d->free_bytes / 2 / BLOCK) : BLOCKS_MOST;
    if (blocks == 0) return tess_error(TESS_INVALID, dir, "no space left on it");
    int fd = open_nameless(dir, &d->direct);
    char *block = mmap(NULL, 2 * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fd >= 0 && block != MAP_FAILED) {
        /* In huge pages a transfer has far fewer pieces; they begin at multiples of 2 MiB. */
        char *aligned = (char *)(((uintptr_t)block + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
        madvise(aligned, BLOCK, MADV_HUGEPAGE);
        memset(aligned, 0x5a, BLOCK);
        d->write_rate = rate(fd, aligned, true, &blocks);
        if (d->write_rate > 0) d->read_rate = rate(fd, aligned, false, &blocks);
    }
    int error = errno;
    if (block != MAP_FAILED) munmap(block, 2 * BLOCK);
    if (fd >= 0) close(fd);
    return d->read_rate > 0 ? TESS_OK : tess_error(TESS_INVALID, dir, "cannot be measured: %s", strerror(error));
}
