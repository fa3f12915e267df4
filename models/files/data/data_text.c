/* The text of a file: mapped as it lies, or, of a .gz, unpacked once into a file beside it, as an index is made
 * (data_index_impl.h), and mapped under the name of the .gz. Errors at a byte of it, which name the line. */
#include "models/files/data/data_lines_impl.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <zlib.h>

static const char unpacked[] = "unpacked";

static tess_status not_whole(const char *path, const char *why)
{
    return tess_error(TESS_INVALID, path, "cannot be unpacked: %s (gzip -t says whether it is whole)", why);
}

/* Appends what the file holds, and counts it. */
static tess_status unpack(const char *path, tess_index_writer *to, uint64_t *bytes)
{
    enum { STRETCH = 1 << 18 };
    gzFile from = gzopen(path, "rbe");
    TESS_FREED char *stretch = tess_alloc(STRETCH);
    int error = Z_OK, got;
    if (!from) return tess_error(tess_errno_status(errno), path, "cannot be opened: %s", strerror(errno));
    for (z_off_t seen = 0, at; (got = gzread(from, stretch, STRETCH)) > 0; seen = at) {
        tess_index_put(to, stretch, (size_t)got);
        *bytes += (uint64_t)got;
        tess_bar_step((double)((at = gzoffset(from)) - seen));
    }
    const bool plain = gzdirect(from);
    TESS_FREED char *why = tess_strdup(got < 0 ? gzerror(from, &error) : "it ends too early");
    if (gzclose_r(from) != Z_OK && !error) error = Z_BUF_ERROR;
    return plain    ? not_whole(path, "it is no gzip file")
           : error  ? not_whole(path, why)
           : *bytes ? TESS_OK
                    : not_whole(path, "there is nothing in it");
}

/* What follows the head of the file that is mapped. */
static tess_status take(const char *path, const tess_index_head *head, tess_map *file, tess_map *text)
{
    *text = (tess_map){tess_strdup(path), file->data + sizeof *head, (size_t)head->entries};
    free(file->path);
    return TESS_OK;
}

static tess_status make(const char *path, const char *output, tess_index_head *head, tess_map *file)
{
    tess_index_writer to;
    TESS_TRY(tess_index_begin(path, output, unpacked, &to));
    tess_note("%s: is unpacked once, %s%s", path, to.path ? "into " : "for this run", to.path ? to.path : "");
    tess_bar_begin("unpacking", (double)head->size);
    tess_status status = unpack(path, &to, &head->entries);
    tess_bar_end();
    if (status == TESS_OK) status = tess_index_finish(&to, head, file);
    tess_index_drop(&to);
    return status;
}

tess_status tess_text_open(const char *path, const char *output, tess_map *text)
{
    tess_index_head head;
    tess_map file;
    TESS_TRY(tess_map_open(path, text));
    if (!tess_ends(path, ".gz")) return TESS_OK;
    tess_status status = tess_index_of(text, &head);
    tess_map_close(text);
    if (status != TESS_OK) return status;
    head.entry = 1;
    if (tess_index_open(path, output, unpacked, &head, &file)) return take(path, &head, &file, text);
    const int lock = tess_index_lock(path); /* another process may have made it while we waited */
    if (!tess_index_open(path, output, unpacked, &head, &file)) status = make(path, output, &head, &file);
    tess_index_unlock(lock);
    return status == TESS_OK ? take(path, &head, &file, text) : status;
}

tess_status tess_text_look(const char *path, tess_map *text)
{
    enum { LOOK = 4 << 20 };
    if (!tess_ends(path, ".gz")) return tess_map_open(path, text);
    *text = (tess_map){0};
    gzFile from = gzopen(path, "rbe");
    void *data = mmap(NULL, LOOK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const int got = from && data != MAP_FAILED ? gzread(from, data, LOOK) : -1;
    if (from) gzclose_r(from);
    if (got > 0) *text = (tess_map){tess_strdup(path), mremap(data, LOOK, (size_t)got, 0), (size_t)got};
    if (got <= 0 && data != MAP_FAILED) munmap(data, LOOK);
    return got > 0 ? TESS_OK : not_whole(path, "its beginning cannot be read");
}

/* ---- errors ---- */

/* Lines are counted only here, where an error names one. */
static uint64_t count_lines(const tess_map *file, uint64_t before)
{
    enum { STRETCH = 4 << 20 };
    uint64_t lines = 0;
    for (uint64_t at = 0; at < before; at += STRETCH) {
        const uint8_t *begin = file->data + at, *p = begin;
        const size_t bytes = before - at < STRETCH ? (size_t)(before - at) : STRETCH;
        for (; (p = memchr(p, '\n', (size_t)(begin + bytes - p))); p++) lines++;
        if (bytes == STRETCH) tess_map_forget(begin, bytes);
    }
    return lines;
}

tess_status tess_line_error(const tess_rows *rows, uint64_t byte, char *what)
{
    const tess_map *file = &rows->file;
    const uint64_t line = 1 + count_lines(file, byte < file->bytes ? byte : file->bytes);
    char *where =
        tess_format("%s: line %llu, byte %llu", file->path, (unsigned long long)line, (unsigned long long)byte);
    tess_status status = tess_error(TESS_INVALID, where, "%s", what);
    free(where);
    free(what);
    return status;
}
