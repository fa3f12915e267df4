/* The index of a .jsonl as a file: its place, its head, and how it comes to be whole.
 *
 * A line's place is unknown before the lines ahead of it are read, and a shuffled run wants any sample at any time. So
 * a file is read once, in constant memory, and every error in it is met before the first step. The index holds the
 * byte of each example (8 bytes a line), or the tokens of all documents, since a sample may begin in the middle of a
 * document. It is stale if the file's size, its time or a sum of 64 KiB at both ends differ, or settings that the
 * verdict depends on. It lies beside the file, else in `output`, else in a nameless file in /tmp. Offsets in RAM would
 * take 8 GB for a billion lines; tokens of examples would make it as large as the file, and parsing 1024 tokens takes
 * only 0.3 ms. */
#include "models/files/data/data_index_impl.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char magic[8] = "TESSIDX2"; /* another one for another layout */

/* ---- what tells a file ---- */

tess_status tess_index_of(const tess_map *file, tess_index_head *head)
{
    struct stat st;
    if (stat(file->path, &st) != 0)
        return tess_error(tess_errno_status(errno), file->path, "cannot be looked at: %s", strerror(errno));
    *head = (tess_index_head){
        .size = file->bytes, .seconds = (uint64_t)st.st_mtim.tv_sec, .nanoseconds = (uint64_t)st.st_mtim.tv_nsec};
    memcpy(head->magic, magic, sizeof magic);
    head->ends = tess_sum_ends(TESS_SUM, file);
    return TESS_OK;
}

static uint64_t head_sum(const tess_index_head *head)
{
    return tess_sum_bytes(TESS_SUM, head, offsetof(tess_index_head, sum));
}

/* ---- its place ---- */

enum { PLACES = 2 };

/* A new string; NULL: there is no such place. Files of one name in two directories have two in the output. */
static char *place(const char *path, const char *output, const char *end, int which)
{
    if (which == 0) return tess_format("%s.%s", path, end);
    if (!output) return NULL;
    TESS_FREED char *whole = realpath(path, NULL);
    const char *name = strrchr(path, '/');
    const char *of = whole ? whole : path;
    const uint64_t sum = tess_sum_bytes(TESS_SUM, of, strlen(of));
    char *out = tess_format("%s/%s.%08x.%s", output, name ? name + 1 : path, (unsigned)(sum ^ sum >> 32), end);
    return out;
}

/* Through the file itself, not by its path: an exclusive lock needs no right to write there. */
int tess_index_lock(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    if (flock(fd, LOCK_EX) == 0) return fd;
    close(fd);
    return -1;
}

void tess_index_unlock(int lock)
{
    if (lock >= 0) close(lock);
}

/* ---- reading ---- */

static bool is_as(const tess_map *index, tess_index_head *head)
{
    tess_index_head met;
    if (index->bytes < sizeof met) return false;
    memcpy(&met, index->data, sizeof met);
    if (memcmp(&met, head, offsetof(tess_index_head, entry)) || met.sum != head_sum(&met)) return false;
    if (!met.entry || met.entries != (index->bytes - sizeof met) / met.entry ||
        met.entries * met.entry != index->bytes - sizeof met)
        return false;
    *head = met;
    return true;
}

bool tess_index_open(const char *path, const char *output, const char *end, tess_index_head *head, tess_map *index)
{
    for (int which = 0; which < PLACES; which++) {
        TESS_FREED char *at = place(path, output, end, which);
        bool found = false;
        if (at && access(at, R_OK) == 0) {
            found = tess_map_open(at, index) == TESS_OK && is_as(index, head);
            if (!found) tess_map_close(index);
            tess_error_clear();
        }
        if (found) return true;
    }
    *index = (tess_map){0};
    return false;
}

/* ---- writing ---- */

static FILE *create(const char *path, char **temporary)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *temporary = tess_format("%s.%lx-%lx", path, (unsigned long)getpid(), (unsigned long)now.tv_nsec);
    int fd = open(*temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *to = fd < 0 ? NULL : fdopen(fd, "w+b");
    if (!to) {
        if (fd >= 0) close(fd);
        free(*temporary);
        *temporary = NULL;
    }
    return to;
}

tess_status tess_index_begin(const char *path, const char *output, const char *end, tess_index_writer *w)
{
    const tess_index_head head = {0};
    *w = (tess_index_writer){0};
    for (int which = 0; which < PLACES && !w->to; which++) {
        w->path = place(path, output, end, which);
        if (w->path && (which == 0 || tess_dirs_make(output, NULL))) w->to = create(w->path, &w->temporary);
        if (w->to) break;
        free(w->path);
        w->path = NULL;
    }
    if (!w->to) w->to = tmpfile();
    if (!w->to)
        return tess_error(TESS_FAILED, path,
                          "there is no place for PATH.%s: not beside it, not in output, and not in /tmp: %s", end,
                          strerror(errno));
    tess_index_put(w, &head, sizeof head);
    return TESS_OK;
}

void tess_index_put(tess_index_writer *w, const void *data, size_t bytes)
{
    if (fwrite(data, 1, bytes, w->to) != bytes) return; /* ferror remembers it */
}

void tess_index_drop(tess_index_writer *w)
{
    if (w->to) fclose(w->to);
    if (w->temporary) unlink(w->temporary);
    free(w->temporary);
    free(w->path);
    *w = (tess_index_writer){0};
}

static bool write_head(tess_index_writer *w, tess_index_head *head)
{
    head->sum = head_sum(head);
    return fflush(w->to) == 0 && !ferror(w->to) && fseek(w->to, 0, SEEK_SET) == 0 &&
           fwrite(head, sizeof *head, 1, w->to) == 1 && fflush(w->to) == 0 &&
           (!w->temporary || fsync(fileno(w->to)) == 0);
}

/* What is opened is the file just written, whatever another process has put at its place meanwhile. */
tess_status tess_index_finish(tess_index_writer *w, tess_index_head *head, tess_map *index)
{
    tess_status status = TESS_OK;
    char open_file[64];
    snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", fileno(w->to));
    if (!write_head(w, head) || (w->temporary && rename(w->temporary, w->path) != 0))
        status = tess_error(TESS_FAILED, w->path ? w->path : "/tmp", "cannot be written: %s", strerror(errno));
    if (status == TESS_OK) {
        free(w->temporary);
        w->temporary = NULL;
        status = tess_map_open(open_file, index);
    }
    if (status == TESS_OK && w->path) {
        free(index->path);
        index->path = tess_strdup(w->path);
    }
    tess_index_drop(w);
    return status;
}
