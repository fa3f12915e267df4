/* One run a directory: a run holds DIR/run.lock of its output, and of its directory of checkpoints, while it lives. The
 * kernel lets go of it when the process ends, however it ends.
 *
 *     tess_lock lock = {0};
 *     TESS_TRY(tess_lock_take(&lock, "runs/a"));      // TESS_INVALID: another process has it
 *     ...
 *     tess_lock_release(&lock);
 */
#ifndef TESS_LOCK_IMPL_H
#define TESS_LOCK_IMPL_H
#include "runtime/runtime.h"

typedef struct tess_lock {
    char *path; /* NULL: none is held */
    int fd;
} tess_lock;
/* Takes the lock of a directory, unless it is held already or the directory is not there. Where another process has it,
 * the error names that one. On a drive that knows no locks it is not taken, which a line says. */
tess_status tess_lock_take(tess_lock *l, const char *dir) TESS_NODISCARD;
/* Lets go of it. */
void tess_lock_release(tess_lock *l);

#endif
