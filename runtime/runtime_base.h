/* What every room needs, a section of runtime.h: errors as values, notes, a clock, memory for bookkeeping, dtypes. */
#ifndef TESS_RUNTIME_BASE_H
#define TESS_RUNTIME_BASE_H
#include "runtime/tessera_runtime.h"
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- base/status.c: errors as values ----------------------------------------------------------------------------- */

#define TESS_NORETURN __attribute__((noreturn))

/* Forgets the last error of this thread. */
void tess_error_clear(void);
/* Records one that was kept. */
void tess_error_restore(const char *text);
/* Returns the meeting of the ranks in which they agreed on the failure that the last error of this thread tells, as
 * tess_error_agree set it; 0: they did not. An error whose text has that of the last in it, and more, is the same
 * failure; any other is a new one. */
int64_t tess_error_agreed(void);
void tess_error_agree(int64_t meeting);
/* Renames where an error is, for a caller who knows better, such as a key: an error at `from` is one at `where`.
 * Returns the status. */
tess_status tess_error_at(tess_status status, const char *from, const char *where);

/* Judges an errno that a path gave: TESS_FAILED where the system lacks or broke something (a disk is full or fails),
 * TESS_INVALID where the path is wrong or not for this user. */
tess_status tess_errno_status(int error);
/* Returns a question for the end of a line, where the errno is one of a full disk, else "". */
const char *tess_errno_hint(int error);

/* TESS_TRY with a `goto done` behind it for a function that has something to clean up and a variable `status`. */
#define TESS_TRY_DONE(expr)                                                                                            \
    do {                                                                                                               \
        if ((status = (expr)) != TESS_OK) goto done;                                                                   \
    } while (0)

/* Aborts where our own code is wrong, and says where: always on, never for a user's mistake. */
#define TESS_ASSERT(cond)                                                                                              \
    do {                                                                                                               \
        if (!(cond)) tess_assert_failed(#cond, __FILE__, __LINE__);                                                    \
    } while (0)
TESS_NORETURN void tess_assert_failed(const char *cond, const char *file, int line);

/* Finds of `count` names the one nearest to `name` by edit distance; NULL when none is near enough to be meant. */
const char *tess_nearest(const char *name, const char *const *names, size_t count);

/* ---- base/log.c -------------------------------------------------------------------------------------------------- */

/* Prints one line on stderr, prefixed "tessera: "; from any thread. */
void tess_note(const char *format, ...) TESS_PRINTF(1, 2);
/* Reads a monotonic clock. */
double tess_seconds(void);
/* Writes "1.5 GiB", "640 KiB" into one of a few static buffers per thread, in turns. */
const char *tess_human_bytes(double bytes);
/* Writes "0:45", "1:02:05"; "0:00" of what is no time. Returns `out`. */
const char *tess_human_time(double seconds, char out[32]);

/* ---- base/bar.c: a bar on the terminal --------------------------------------------------------------------------- */

/* What takes more than a moment shows a bar with the time left on stderr, where that is a terminal and one process
 * runs; elsewhere these do nothing. It appears after a second and is gone at its end; of one within another only the
 * outer shows. Of the main thread, but for tess_bar_step, which any thread may call. */

/* Begins "what  [####    ]  50%  left 0:12". With a `total` of 0, for unknown, it shows the time so far. The text must
 * live until the end. */
void tess_bar_begin(const char *what, double total);
/* Adds so much to what is done of the total. */
void tess_bar_step(double more);
/* Ends it. */
void tess_bar_end(void);
/* Takes it off the terminal for as long as something else is printed there, and lets it come back. */
void tess_bar_aside(void);
void tess_bar_back(void);
/* In a process that was forked while it may stand there: it stays with the parent. */
void tess_bar_leave(void);
/* Writes its line: as much as fits `width` columns. share 0: unknown. */
void tess_bar_line(const char *what, double share, double seconds, int width, char *out, size_t size);

/* The live line of a run shares its row of the terminal with bars and notes. Whatever comes after a live line leaves
 * it where it is and goes below. */

/* Puts a line on a terminal in the place of the live one there, if there is one; unless it stays, the next takes its
 * place, until a bar or a note ends it. */
void tess_live_line(FILE *out, const char *line, bool stays);
/* Ends the live line, if one stands there. */
void tess_live_end(void);
/* Makes room for the last words of a process on stderr: takes the bar away and waits for no lock. */
void tess_bar_drop(void);

/* ---- base/memory.c: host memory that cannot fail quietly --------------------------------------------------------- */

/* None of these returns NULL: running out of host memory for our own bookkeeping ends the program with one line. */

/* Allocates zeroed memory. */
void *tess_alloc(size_t bytes);
/* Makes it larger or smaller. */
void *tess_realloc(void *p, size_t bytes);
/* Copies a string. */
char *tess_strdup(const char *s);
/* Makes a new string, which the caller frees. */
char *tess_format(const char *format, ...) TESS_PRINTF(1, 2);
/* Before a pointer to memory of its own: it is given back where its scope ends, whichever way that is left. No goto may
 * pass over the declaration.
 *
 *     TESS_FREED char *path = tess_format("%s/config.json", dir);
 *     return read(path); */
#define TESS_FREED __attribute__((cleanup(tess_freed)))
static inline void tess_freed(void *pointer)
{
    void *p;
    __builtin_memcpy(&p, pointer, sizeof p);
    free(p);
}
/* Returns whether a string ends in another. */
bool tess_ends(const char *s, const char *end);

/* A region that grows and is freed at once. */
typedef struct tess_arena tess_arena;
/* Makes an empty one. */
tess_arena *tess_arena_new(void);
/* Allocates memory in it, zeroed and aligned to 16 bytes. */
void *tess_arena_get(tess_arena *a, size_t bytes);
/* Makes a string in it. */
char *tess_arena_format(tess_arena *a, const char *format, ...) TESS_PRINTF(2, 3);
/* Frees all that is in it. */
void tess_arena_free(tess_arena *a);

/* ---- base/dtype.c ------------------------------------------------------------------------------------------------ */

/* Returns an element's bytes; 0: it has no bytes of its own, but its block has. */
size_t tess_dtype_size(tess_dtype t);
/* Returns the bytes of n elements, whole blocks of those that are quantized. */
size_t tess_dtype_bytes(tess_dtype t, int64_t n);
/* Returns "f32", "bf16", "f16", "i32", "nf4", "int8". */
const char *tess_dtype_name(tess_dtype t);

#ifdef __cplusplus
}
#endif

#endif
