/* Directories that a run makes, and small files in them. */
#include "models/text/base/directories.h"
#include "models/text/base/gguf.h"
#include <errno.h>
#include <stdio.h>
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
    TESS_FREED char *path = tess_strdup(dir);
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
    TESS_FREED char *path = tess_strdup(dir);
    for (size_t n = strlen(dir); made > 0 && n >= made; n--)
        if (ends_at(dir, n)) {
            path[n] = 0;
            rmdir(path);
        }
}

bool tess_dirs_hub(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    const size_t n = strspn(name, letters);
    struct stat st;
    if (n == 0 || *name == '.' || !stat(name, &st)) return false;
    if (!name[n]) return true;
    if (name[n] != '/' || !name[n + 1] || name[n + 1 + strspn(name + n + 1, letters)]) return false;
    TESS_FREED char *owner = tess_format("%.*s", (int)n, name);
    const bool there = !stat(owner, &st); /* then a directory in it was meant */
    return !there;
}

bool tess_dirs_has(const char *dir, const char *name)
{
    TESS_FREED char *path = tess_format("%s/%s", dir, name);
    return access(path, F_OK) == 0 || tess_gguf_has(path);
}

tess_status tess_file_end(FILE *f, const char *fresh, const char *path, bool written)
{
    written = f && written && !ferror(f) && fflush(f) == 0 && (fsync(fileno(f)) == 0 || errno == EINVAL);
    int error = errno;
    if (f && fclose(f) != 0 && written) written = false, error = errno;
    if (written && rename(fresh, path) == 0) return TESS_OK;
    if (written) error = errno;
    unlink(fresh);
    return tess_error(f ? TESS_FAILED : tess_errno_status(error), path, "cannot be written: %s%s", strerror(error),
                      tess_errno_hint(error));
}

tess_status tess_write_text(const char *path, const char *text)
{
    TESS_FREED char *fresh = tess_format("%s.tmp", path);
    FILE *f = fopen(fresh, "w");
    return tess_file_end(f, fresh, path, f && fprintf(f, "%s\n", text) >= 0);
}

tess_status tess_copy_file(const char *from, const char *to)
{
    char *fresh = tess_format("%s.tmp", to), buffer[1 << 14];
    struct stat a, b;
    bool itself = !stat(from, &a) && !stat(to, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    FILE *in = itself ? NULL : fopen(from, "rb"), *out = in ? fopen(fresh, "wb") : NULL;
    bool good = true;
    if (tess_gguf_has(from)) {
        json_t *root;
        free(fresh);
        TESS_TRY(tess_gguf_beside(from, &root));
        TESS_FREED char *text = json_dumps(root, JSON_INDENT(2));
        const tess_status status = tess_write_text(to, text);
        json_decref(root);
        return status;
    }
    for (size_t n; out && good && (n = fread(buffer, 1, sizeof buffer, in)) > 0;) good = fwrite(buffer, 1, n, out) == n;
    tess_status status = in ? tess_file_end(out, fresh, to, good && !ferror(in)) : TESS_OK;
    if (!in && !itself) unlink(to); /* another model's, which was here before */
    if (in) fclose(in);
    free(fresh);
    return status;
}
