/* Finds the next line of a .jsonl, and counts up to a line that an error is about. */
#include "models/files/data/data_lines_impl.h"
#include <stdlib.h>
#include <string.h>

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

tess_status tess_line_error(const tess_map *file, uint64_t byte, char *what)
{
    const uint64_t line = 1 + count_lines(file, byte < file->bytes ? byte : file->bytes);
    char *where =
        tess_format("%s: line %llu, byte %llu", file->path, (unsigned long long)line, (unsigned long long)byte);
    tess_status status = tess_error(TESS_INVALID, where, "%s", what);
    free(where);
    free(what);
    return status;
}

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

bool tess_line_next(const tess_map *file, uint64_t at, tess_line *line)
{
    static const uint8_t mark[] = {0xef, 0xbb, 0xbf}; /* of UTF-8, which some editors put first */
    if (at == 0 && file->bytes >= sizeof mark && !memcmp(file->data, mark, sizeof mark)) at = sizeof mark;
    while (at < file->bytes) {
        const uint8_t *begin = file->data + at, *end = memchr(begin, '\n', file->bytes - at);
        uint64_t next = end ? (uint64_t)(end - file->data) + 1 : file->bytes;
        size_t length = (size_t)(next - at) - (end != NULL), first = 0;
        while (length && is_blank(begin[length - 1])) length--;
        while (first < length && is_blank(begin[first])) first++;
        *line = (tess_line){file, at + first, length - first};
        if (line->length) return true;
        at = next;
    }
    return false;
}
