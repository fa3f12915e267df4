/* Errors as values: one message a thread, assertions for our own bugs, and the nearest of a list of names. */
#include "runtime/runtime.h"
#include "runtime/runtime_base.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char text[1024];
static _Thread_local int64_t agreed; /* of the failure that `text` tells, see tess_error_agreed */

/* A text that has the last one in it, and more, is of the same failure. */
static bool says_more(const char *fresh)
{
    const char *at = text[0] ? strstr(fresh, text) : NULL;
    return at && at > fresh && at[-1] == ' ';
}

static void record(const char *fresh)
{
    if (!says_more(fresh)) agreed = 0;
    memmove(text, fresh, strnlen(fresh, sizeof text - 1) + 1);
    text[sizeof text - 1] = 0;
}

tess_status tess_error(tess_status status, const char *where, const char *format, ...)
{
    /* The arguments may point into the message that is being replaced. */
    char fresh[sizeof text];
    int n = snprintf(fresh, sizeof fresh, "%s: ", where);
    va_list ap;
    va_start(ap, format);
    if (n >= 0 && (size_t)n < sizeof fresh) vsnprintf(fresh + n, sizeof fresh - (size_t)n, format, ap);
    va_end(ap);
    record(fresh);
    return status;
}

const char *tess_error_text(void)
{
    return text;
}
void tess_error_restore(const char *kept)
{
    record(kept);
}

int64_t tess_error_agreed(void)
{
    return agreed;
}
void tess_error_agree(int64_t meeting)
{
    agreed = meeting;
}

tess_status tess_error_at(tess_status status, const char *from, const char *where)
{
    const size_t n = strlen(from);
    if (status == TESS_OK || strncmp(text, from, n) || strncmp(text + n, ": ", 2)) return status;
    const int64_t same = agreed;
    tess_error(status, where, "%s", text + n + 2);
    agreed = same;
    return status;
}

void tess_error_clear(void)
{
    text[0] = 0;
    agreed = 0;
}

const char *tess_errno_hint(int error)
{
    return error == ENOSPC || error == EDQUOT || error == EFBIG ? " (is the disk full?)" : "";
}

tess_status tess_errno_status(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EIO:
    case EFBIG:
    case ESTALE:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
        return TESS_FAILED;
    default:
        return TESS_INVALID;
    }
}

void tess_assert_failed(const char *cond, const char *file, int line)
{
    char rank[24] = "";
    if (tess_ranks() > 1) snprintf(rank, sizeof rank, "rank %d: ", tess_rank());
    tess_bar_drop();
    tess_watch_speak(); /* this is worth a line whatever else was said */
    fprintf(stderr, "tessera: bug: %s%s:%d: %s does not hold\n", rank, file, line, cond);
    abort(); /* which the launcher sees */
}

/* Returns how many letters two names of fewer than 64 differ in, swaps of neighbours being one; 64 for longer ones. */
static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), d[64][64];
    if (n > 63 || m > 63) return 64;
    for (size_t i = 0; i <= n; i++) d[i][0] = i;
    for (size_t j = 0; j <= m; j++) d[0][j] = j;
    for (size_t i = 1; i <= n; i++)
        for (size_t j = 1; j <= m; j++) {
            size_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}

const char *tess_nearest(const char *name, const char *const *names, size_t count)
{
    const char *best = NULL;
    const size_t n = strlen(name);
    size_t least = (n < 6 ? n > 2 : n / 3) + 1; /* farther than a third of it is another word */
    for (size_t i = 0; i < count; i++) {
        size_t d = distance(name, names[i]);
        if (d < least) least = d, best = names[i];
    }
    return best;
}
