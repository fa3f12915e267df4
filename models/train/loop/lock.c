/* One run a directory, see lock_impl.h. A lock of the kernel's, not a file that says so: what was killed leaves none.
 */
#include "models/train/loop/lock_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Who has it: "process 71 on node3 since 2026-01-31 12:00:00", in the file for whoever does not get it. */
static void sign(int fd)
{
    char host[64] = "", text[160], when[32];
    const time_t now = time(NULL);
    struct tm local;
    gethostname(host, sizeof host - 1);
    strftime(when, sizeof when, "%F %T", localtime_r(&now, &local));
    const int n = snprintf(text, sizeof text, "process %lld on %s since %s\n", (long long)getpid(), host, when);
    if (ftruncate(fd, 0) == 0 && pwrite(fd, text, (size_t)n, 0) != n) errno = 0; /* the lock is what counts */
}

/* Who has just got it has yet to sign: what stands there may be of a run that was killed, or nothing. */
static tess_status refuse(const char *dir, int fd)
{
    enum { TRIES = 50 };
    char who[160] = "";
    for (int k = 0; k < TRIES && !strchr(who, '\n'); k++) {
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
        const ssize_t n = pread(fd, who, sizeof who - 1, 0);
        who[n > 0 ? n : 0] = 0;
    }
    who[strcspn(who, "\n")] = 0;
    return tess_error(TESS_INVALID, dir, "is in use by another run, %s (wait for it, or set another directory)",
                      *who ? who : "which has run.lock there");
}

/* Whether the open file is the one that the path names: whoever held it before may have removed it meanwhile. */
static bool is_named(const char *path, int fd)
{
    struct stat open, named;
    return !fstat(fd, &open) && !stat(path, &named) && open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

tess_status tess_lock_take(tess_lock *l, const char *dir)
{
    if (l->path || access(dir, F_OK)) return TESS_OK;
    char *path = tess_format("%s/run.lock", dir);
    tess_status status = TESS_OK;
    for (;;) {
        const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) break; /* who writes there says why it cannot */
        const int error = flock(fd, LOCK_EX | LOCK_NB) ? errno : 0;
        if (!error && !is_named(path, fd)) {
            close(fd);
            continue;
        }
        if (!error) {
            sign(fd);
            *l = (tess_lock){path, fd};
            return TESS_OK;
        }
        if (error == EWOULDBLOCK)
            status = refuse(dir, fd);
        else
            tess_note("%s: this drive has no locks (%s), so another run in it would not be noticed", dir,
                      strerror(error));
        close(fd);
        break;
    }
    free(path);
    return status;
}

void tess_lock_release(tess_lock *l)
{
    if (!l->path) return;
    unlink(l->path);
    close(l->fd);
    free(l->path);
    *l = (tess_lock){0};
}
