/* What moves the disk tier's bytes: one thread that feeds an io_uring and reaps it, or, where the kernel refuses one
 * (seccomp, old kernels), as many threads as pieces may be under way, each with pread and pwrite.
 *
 * A thread of our own, not StarPU's workers: these sit in tasks for long, and a drive with nothing queued idles. It
 * also keeps checksums and bounce copies out of the calls that StarPU makes under its locks. Memory is not registered
 * with the ring: tiles come and go anywhere in RAM, a normal user may lock 8 MiB, and with huge pages a piece is pinned
 * by a single reference. */
#include "runtime/disk/disk.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Through the page cache: what was moved shall not stay there for long. */
static void drop_cached(const tess_disk *d, const struct tess_disk_slot *s)
{
    if (d->direct) return;
    if (s->request->write) sync_file_range(s->file->fd, (off_t)s->at, (off_t)s->bytes, SYNC_FILE_RANGE_WRITE);
    posix_fadvise(s->file->fd, (off_t)s->at, (off_t)s->bytes, POSIX_FADV_DONTNEED);
}

/* ---- threads ---- */

struct mover {
    tess_disk *disk;
    struct tess_disk_slot *slot;
};

static void *move_pieces(void *arg)
{
    struct mover m = *(struct mover *)arg;
    struct tess_disk_slot *s = m.slot;
    free(arg);
    while (tess_disk_take(m.disk, s, true)) {
        ssize_t n;
        do {
            off_t at = (off_t)(s->at + s->moved);
            n = s->error            ? 0
                : s->request->write ? pwrite(s->file->fd, s->data + s->moved, s->bytes - s->moved, at)
                                    : pread(s->file->fd, s->data + s->moved, s->bytes - s->moved, at);
            if (n < 0) n = -errno;
            if (n + (ssize_t)s->moved == (ssize_t)s->bytes) drop_cached(m.disk, s);
        } while (!tess_disk_finish(m.disk, s, (int)n));
    }
    return NULL;
}

/* ---- io_uring ---- */

/* There are entries for all slots and the wake-up: the queue is never full. */
static struct io_uring_sqe *entry(tess_disk *d)
{
    struct io_uring_sqe *e = io_uring_get_sqe(&d->ring);
    TESS_ASSERT(e);
    return e;
}

static void push(tess_disk *d, struct tess_disk_slot *s)
{
    struct io_uring_sqe *e = entry(d);
    int file = (int)(s->file - d->file);
    unsigned rest = (unsigned)(s->bytes - s->moved);
    if (s->error)
        io_uring_prep_nop(e);
    else if (s->request->write)
        io_uring_prep_write(e, file, s->data + s->moved, rest, s->at + s->moved);
    else
        io_uring_prep_read(e, file, s->data + s->moved, rest, s->at + s->moved);
    if (!s->error) e->flags |= IOSQE_FIXED_FILE;
    e->user_data = (uintptr_t)s;
}

static void *run_ring(void *arg)
{
    tess_disk *d = arg;
    struct tess_disk_slot *spare[d->slots];
    unsigned nspare = 0;
    while (nspare < d->slots) spare[nspare] = &d->slot[nspare], nspare++;
    bool listening = false;
    for (;;) {
        /* Handed over one by one: the first moves while the next is summed. */
        while (nspare && tess_disk_take(d, spare[nspare - 1], false)) {
            push(d, spare[--nspare]);
            io_uring_submit(&d->ring);
        }
        pthread_mutex_lock(&d->lock);
        bool over = d->stop && nspare == d->slots;
        pthread_mutex_unlock(&d->lock);
        if (over) return NULL;
        if (!listening) {
            struct io_uring_sqe *e = entry(d);
            io_uring_prep_read(e, d->wake_fd, &d->woken, sizeof d->woken, 0);
            e->user_data = 0; /* of no slot */
            listening = true;
        }
        io_uring_submit_and_wait(&d->ring, 1);
        struct io_uring_cqe *c;
        while (!io_uring_peek_cqe(&d->ring, &c)) {
            struct tess_disk_slot *s = (struct tess_disk_slot *)(uintptr_t)c->user_data;
            int result = c->res;
            io_uring_cqe_seen(&d->ring, c);
            if (!s)
                listening = false;
            else {
                if (result > 0 && (size_t)result + s->moved == s->bytes) drop_cached(d, s);
                if (tess_disk_finish(d, s, result))
                    spare[nspare++] = s;
                else
                    push(d, s);
            }
        }
    }
}

/* 0 or an errno. */
static int open_ring(tess_disk *d)
{
    int rc = io_uring_queue_init(d->slots + 8, &d->ring, 0);
    if (rc) return -rc;
    int fd[TESS_DISK_MAX_DIRS];
    for (unsigned i = 0; i < d->conf.dirs; i++) fd[i] = d->file[i].fd;
    rc = io_uring_register_files(&d->ring, fd, d->conf.dirs);
    d->wake_fd = rc ? -1 : eventfd(0, EFD_CLOEXEC);
    if (d->wake_fd < 0) {
        rc = rc ? -rc : errno;
        io_uring_queue_exit(&d->ring);
        return rc;
    }
    d->ring_ready = true;
    return 0;
}

/* ---- both ---- */

tess_status tess_disk_movers_start(tess_disk *d)
{
    d->slots = d->conf.depth * d->conf.dirs;
    int rc = d->conf.threads ? 0 : open_ring(d);
    if (rc) tess_note("disk tier: the kernel gives no io_uring (%s); threads move its data", strerror(rc));
    unsigned most = sizeof d->thread / sizeof d->thread[0];
    if (!d->ring_ready && d->slots > most) d->slots = most;
    d->slot = tess_alloc(d->slots * sizeof *d->slot);
    /* Signals are the main thread's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    unsigned count = d->ring_ready ? 1 : d->slots;
    for (rc = 0; d->threads < count && !rc; d->threads += !rc) {
        if (d->ring_ready) {
            rc = pthread_create(&d->thread[0], NULL, run_ring, d);
            continue;
        }
        struct mover *m = tess_alloc(sizeof *m);
        *m = (struct mover){d, &d->slot[d->threads]};
        rc = pthread_create(&d->thread[d->threads], NULL, move_pieces, m);
        if (rc) free(m);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) return tess_error(TESS_FAILED, "disk tier", "its threads cannot be started: %s", strerror(rc));
    return TESS_OK;
}

void tess_disk_movers_stop(tess_disk *d)
{
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    tess_disk_wake(d);
    pthread_mutex_unlock(&d->lock);
    for (unsigned i = 0; i < d->threads; i++) pthread_join(d->thread[i], NULL);
    if (d->ring_ready) {
        io_uring_unregister_files(&d->ring); /* at once; the kernel takes the rest down when it finds time */
        io_uring_queue_exit(&d->ring);
    }
    if (d->wake_fd >= 0) close(d->wake_fd);
    for (unsigned i = 0; d->slot && i < d->slots; i++) free(d->slot[i].bounce);
    free(d->slot);
}
