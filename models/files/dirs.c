/* Directories that a run makes. */
#include "dirs_impl.h"
#include "runtime.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Does the path end there, or one of a directory on its way? */
static bool ends_at(const char *dir, size_t n)
{
    return n > 0 && (dir[n] == '/' || !dir[n]);
}

bool tess_dirs_make(const char *dir, size_t *made)
{
    char *path = tess_strdup(dir);
    const size_t length = strlen(dir);
    size_t first = 0;
    int error = 0;
    for (size_t n = 0; n <= length && !error; n++) {
        if (!ends_at(dir, n)) continue;
        path[n] = 0;
        if (mkdir(path, 0777) == 0)
            first = first ? first : n;
        else if (errno != EEXIST)
            error = errno;
        path[n] = dir[n];
    }
    free(path);
    if (made) *made = first;
    struct stat st;
    if (stat(dir, &st) == 0) {
        errno = ENOTDIR;
        return S_ISDIR(st.st_mode);
    }
    if (error) errno = error;
    return false;
}

void tess_dirs_remove(const char *dir, size_t made)
{
    char *path = tess_strdup(dir);
    for (size_t n = strlen(dir); made > 0 && n >= made; n--)
        if (ends_at(dir, n)) {
            path[n] = 0;
            rmdir(path);
        }
    free(path);
}
