/* Files for parsers that want a path. */
#include "tests/fuzz/fuzz.h"
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Notes of what a configuration leaves without effect would be most of what a fuzzer prints. */
void __wrap_tess_note(const char *format, ...);
void __wrap_tess_note(const char *format, ...)
{
    (void)format;
}

static void put(int fd, const void *data, size_t bytes)
{
    TESS_ASSERT(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
}

const char *fuzz_file(const void *data, size_t bytes)
{
    static int fd = -1;
    static char path[32];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    put(fd, data, bytes);
    return path;
}

static char dir[64];
static pid_t owner;

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void remove_dir(void)
{
    if (getpid() == owner) nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *fuzz_dir(void)
{
    if (dir[0]) return dir;
    snprintf(dir, sizeof dir, "/dev/shm/tessera-fuzz-XXXXXX");
    if (!mkdtemp(dir)) {
        snprintf(dir, sizeof dir, "fuzz-XXXXXX");
        TESS_ASSERT(mkdtemp(dir));
    }
    owner = getpid();
    atexit(remove_dir);
    return dir;
}

const char *fuzz_file_in_dir(const char *name, const void *data, size_t bytes)
{
    static char path[4][256];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", fuzz_dir(), name);
    int fd = open(out, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    put(fd, data, bytes);
    close(fd);
    return out;
}

void *fuzz_copy(const void *data, size_t bytes)
{
    void *copy = tess_alloc(bytes);
    return bytes ? memcpy(copy, data, bytes) : copy;
}

char *fuzz_fill(const void *data, size_t bytes, const char *instead, size_t *length)
{
    const char *mark = bytes ? memchr(data, 1, bytes) : NULL;
    const size_t before = mark ? (size_t)(mark - (const char *)data) : bytes, n = mark ? strlen(instead) : 0;
    char *text = tess_alloc(bytes + n + 1);
    if (before) memcpy(text, data, before);
    memcpy(text + before, instead, n);
    if (mark) memcpy(text + before + n, mark + 1, bytes - before - 1);
    *length = mark ? bytes - 1 + n : bytes;
    return text;
}
