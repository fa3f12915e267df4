/* What stderr gets meanwhile:
 *
 *     notes_begin();
 *     tess_run_say_saved(&r);
 *     CHECK_HAS(notes_read(), "save_dtype: bf16");
 */
#ifndef TESS_TESTS_NOTES_H
#define TESS_TESTS_NOTES_H
#include <stdlib.h>
#include <unistd.h>

static int kept_stderr, notes_end;
static inline void notes_begin(void)
{
    int pipe_end[2];
    if ((kept_stderr = dup(2)) < 0 || pipe(pipe_end)) abort();
    dup2(pipe_end[1], 2);
    close(pipe_end[1]);
    notes_end = pipe_end[0];
}

/* Returns it, until the next call. */
static inline const char *notes_read(void)
{
    static char said[8192];
    dup2(kept_stderr, 2);
    close(kept_stderr);
    const ssize_t n = read(notes_end, said, sizeof said - 1); /* the last writer is gone: it ends */
    said[n > 0 ? n : 0] = 0;
    close(notes_end);
    return said;
}

#endif
