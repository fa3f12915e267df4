/* A table in a file of a test's: a row a line, its columns parted by tabs, in which \n, \t, \r, \\ and \xHH are as in
 * C. Empty lines, and those that begin with "#", are no rows.
 *
 *     for (struct rows r = rows_of(TESS_TESTS "/models/lines.tsv"); rows_next(&r);)
 *         if (strcmp(made_of(r.column[0]), r.column[1])) CHECK_SAY("%s:%d: ...", r.path, r.line);
 */
#ifndef TESS_TESTS_ROWS_H
#define TESS_TESTS_ROWS_H
#include "tests/check.h"
#include <stdbool.h>

enum { ROWS_COLUMNS = 8 };
struct rows {
    const char *path;
    FILE *file;
    int line, columns;
    char *column[ROWS_COLUMNS]; /* "" behind the last; they lie in `text`, until the next row */
    char text[4000];
};

static inline struct rows rows_of(const char *path)
{
    struct rows r = {.path = path, .file = fopen(path, "r")};
    if (!r.file) CHECK_SAY("%s cannot be opened", path);
    return r;
}

/* Takes what stands for other characters back, in place. */
static inline void rows_unescape(char *text)
{
    char *out = text;
    for (const char *p = text; *p; p++) {
        const char *at = *p == '\\' ? strchr("n\nt\tr\r\\\\", p[1]) : NULL;
        if (*p == '\\' && p[1] == 'x') {
            *out++ = (char)strtol((char[]){p[2], p[3], 0}, NULL, 16), p += 3;
        } else if (at) {
            *out++ = at[1], p++;
        } else
            *out++ = *p;
    }
    *out = 0;
}

/* Reads the next row; false, and the file closed, behind the last. */
static inline bool rows_next(struct rows *r)
{
    while (r->file && fgets(r->text, sizeof r->text, r->file)) {
        char *at = r->text;
        r->line++;
        at[strcspn(at, "\n")] = 0;
        if (!*at || *at == '#') continue;
        for (r->columns = 0; at && r->columns < ROWS_COLUMNS; r->columns++) {
            r->column[r->columns] = at;
            if ((at = strchr(at, '\t'))) *at++ = 0;
        }
        for (int i = 0; i < ROWS_COLUMNS; i++)
            if (i < r->columns)
                rows_unescape(r->column[i]);
            else
                r->column[i] = "";
        return true;
    }
    if (r->file) fclose(r->file);
    return false;
}

/* What a row says is refused, with an error that holds this; for files that include a tessera header. */
#define CHECK_ROW(r, status, error)                                                                                    \
    do {                                                                                                               \
        const tess_status status_ = (status);                                                                          \
        if (status_ != TESS_INVALID || !strstr(tess_error_text(), error))                                              \
            CHECK_SAY("%s:%d: status %d, \"%s\", expected one with \"%s\"", (r).path, (r).line, (int)status_,          \
                      tess_error_text(), error);                                                                       \
        tess_error_clear();                                                                                            \
    } while (0)

#endif
