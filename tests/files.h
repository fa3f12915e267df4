/* What tests do with files: an empty directory to work in, what is written, read and compared there, and names made of
 * parts.
 *
 *     fresh();                                  // an empty directory, from now on the working one
 *     write_text(fmt("part-%d", 3), "{}");
 *     CHECK(same_file("part-3", "other"));
 */
#ifndef TESS_TESTS_FILES_H
#define TESS_TESTS_FILES_H
#include "tests/check.h"
#include "tests/dirs.h"
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

/* A text made as printf makes it, which lasts until as many others were made. */
__attribute__((format(printf, 1, 2))) static inline const char *fmt(const char *format, ...)
{
    enum { LAST = 256 };
    static char *text[LAST];
    static size_t next;
    va_list args;
    free(text[next %= LAST]);
    va_start(args, format);
    if (vasprintf(&text[next], format, args) < 0) exit(99);
    va_end(args);
    return text[next++];
}

static char run_home[3000], run_dir[3100];

static inline int run_remove(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static inline void run_leave(void)
{
    if (run_dir[0] && chdir(run_home) == 0) nftw(run_dir, run_remove, 16, FTW_DEPTH | FTW_PHYS);
    run_dir[0] = 0;
}

/* Goes to an empty directory below the one the test was started in; the last one is removed. */
static inline void fresh(void)
{
    if (!run_home[0]) {
        if (!getcwd(run_home, sizeof run_home)) exit(99);
        atexit(run_leave);
    }
    run_leave();
    snprintf(run_dir, sizeof run_dir, "%s/test-XXXXXX", run_home);
    if (!mkdtemp(run_dir) || chdir(run_dir)) {
        perror(run_dir);
        exit(99);
    }
}

static inline bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static inline long file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (long)st.st_size : -1;
}

static inline void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f)) {
        perror(path);
        exit(99);
    }
}

static inline void write_text(const char *path, const char *text)
{
    write_file(path, text, strlen(text));
}

static inline void cut_file(const char *path, long bytes)
{
    if (truncate(path, bytes)) {
        perror(path);
        exit(99);
    }
}

/* From a descriptor's beginning to its end, with a 0 behind; the caller frees it. */
static inline char *read_descriptor(int fd, size_t *bytes)
{
    size_t n = 0, room = 1 << 16;
    char *text = malloc(room);
    for (ssize_t got; (got = pread(fd, text + n, room - n - 1, (off_t)n)) > 0; n += (size_t)got)
        if (n + (size_t)got == room - 1) text = realloc(text, room *= 2);
    text[n] = 0;
    if (bytes) *bytes = n;
    return text;
}

/* NULL: there is none. */
static inline char *read_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? read_descriptor(fileno(f), bytes) : NULL;
    if (f) fclose(f);
    return text;
}

/* Both are there, with the same bytes. */
static inline bool same_file(const char *a, const char *b)
{
    size_t m = 0, n = 0;
    char *x = read_file(a, &m), *y = read_file(b, &n);
    bool same = x && y && m == n && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

#endif
