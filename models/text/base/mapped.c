/* A file mapped for reading. */
#include "models/text/base/mapped.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

tess_status tess_map_open(const char *path, tess_map *map)
{
    *map = (tess_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return tess_error(tess_errno_status(errno), path, "cannot be opened: %s", strerror(errno));
    struct stat s;
    const void *data = "";
    tess_status status = TESS_OK;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
        status = tess_error(TESS_INVALID, path, "is not a regular file");
    else if (s.st_size > 0 && (data = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
        status = tess_error(TESS_FAILED, path, "cannot be mapped: %s", strerror(errno));
    close(fd);
    if (status == TESS_OK) *map = (tess_map){tess_strdup(path), data, (size_t)s.st_size};
    return status;
}

/* The beginning of the page that a byte is in. */
static uintptr_t page_of(const void *at)
{
    return (uintptr_t)at / (uintptr_t)sysconf(_SC_PAGESIZE) * (uintptr_t)sysconf(_SC_PAGESIZE);
}

void tess_map_close(tess_map *map)
{
    const uintptr_t begin = page_of(map->data);
    if (map->bytes) munmap((void *)begin, (uintptr_t)map->data + map->bytes - begin);
    free(map->path);
    *map = (tess_map){0};
}

void tess_map_forget(const void *at, size_t bytes)
{
    const uintptr_t begin = page_of(at);
    madvise((void *)begin, (uintptr_t)at + bytes - begin, MADV_DONTNEED);
}

tess_status tess_file_error(const char *file, const char *field, const char *format, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    TESS_FREED char *where = tess_format("%s: %s", file, field);
    return tess_error(TESS_INVALID, where, "%s", what);
}

uint64_t tess_sum_bytes(uint64_t sum, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ p[i]) * UINT64_C(0x100000001b3);
    return sum;
}

uint64_t tess_sum_ends(uint64_t sum, const tess_map *map)
{
    enum { ENDS = 64 << 10 };
    const size_t end = map->bytes < ENDS ? map->bytes : ENDS;
    return tess_sum_bytes(tess_sum_bytes(sum, map->data, end), map->data + map->bytes - end, end);
}
