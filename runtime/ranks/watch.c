/* Whether the other ranks of this machine live. One that is killed, by a person or by the kernel for want of memory,
 * says nothing: the others see its process end, and the first of them says so. The launcher then ends them all, or,
 * where it is one that does not, they do. */
#include "runtime/base/base.h"
#include "runtime/ranks/ranks.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GRACE_SECONDS = 3 }; /* for the launcher to end all ranks */

/* What the others need to know of a rank. */
struct life {
    int rank;
    pid_t pid;
    ino_t space; /* in which the pid means it */
};

static struct {
    MPI_Win window;
    atomic_int *said; /* the machine's word */
    atomic_bool forgives;
    bool runs;
    pthread_t thread;
    struct pollfd *poll; /* one a rank of this machine; behind them what stops the thread */
    struct life *life;
    int n;
} watch;
static void died(int rank)
{
    if (atomic_load(&watch.forgives)) return;
    if (tess_watch_speak())
        fprintf(stderr,
                "tessera: error: rank %d: died (killed, crashed, or out of memory? the launcher and the kernel's log "
                "say more)\n",
                rank);
    sleep(GRACE_SECONDS);
    if (!atomic_load(&watch.forgives)) tess_ranks_abort(TESS_FAILED);
}

static void *look(void *unused)
{
    const nfds_t n = (nfds_t)watch.n + 1;
    while (!watch.poll[watch.n].revents) {
        if (poll(watch.poll, n, -1) <= 0) continue;
        for (int i = 0; i < watch.n; i++) {
            if (!watch.poll[i].revents) continue;
            watch.poll[i].fd = -1; /* no longer looked at */
            died(watch.life[i].rank);
        }
    }
    return unused;
}

/* The thread gets no signals: whoever handles one may look at the main thread's state. */
static bool start_thread(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool runs = !pthread_create(&watch.thread, NULL, look, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return runs;
}

void tess_watch_start(MPI_Comm here, int rank)
{
    int local;
    MPI_Comm_rank(here, &local);
    MPI_Comm_size(here, &watch.n);
    watch.said = tess_window_open(here, sizeof *watch.said, &watch.window);
    if (watch.said && !local) atomic_store(watch.said, 0);
    tess_self_shares(watch.said); /* NULL: each rank says its own word */
    struct stat space = {0};
    struct life mine = {.rank = rank, .pid = getpid()};
    if (!stat("/proc/self/ns/pid", &space)) mine.space = space.st_ino;
    watch.life = tess_alloc((size_t)watch.n * sizeof *watch.life);
    tess_ranks_gather_here(&mine, sizeof mine, watch.life);
    watch.poll = tess_alloc(((size_t)watch.n + 1) * sizeof *watch.poll);
    for (int i = 0; i < watch.n; i++) {
        bool other = watch.life[i].rank != rank && watch.life[i].space == mine.space;
        watch.poll[i] = (struct pollfd){.fd = other ? pidfd_open(watch.life[i].pid, 0) : -1, .events = POLLIN};
    }
    watch.poll[watch.n] = (struct pollfd){.fd = eventfd(0, EFD_CLOEXEC), .events = POLLIN};
    watch.forgives = false;
    watch.runs = watch.poll[watch.n].fd >= 0 && start_thread();
    MPI_Barrier(here); /* the word is 0 before anybody speaks */
}

void tess_watch_forgive(void)
{
    atomic_store(&watch.forgives, true);
}

void tess_watch_stop(void)
{
    if (!watch.life) return;
    if (watch.runs) {
        eventfd_write(watch.poll[watch.n].fd, 1);
        pthread_join(watch.thread, NULL);
    }
    for (int i = 0; i <= watch.n; i++)
        if (watch.poll[i].fd >= 0) close(watch.poll[i].fd);
    tess_self_shares(NULL);
    watch.said = NULL;
    tess_window_close(&watch.window);
    free(watch.poll);
    free(watch.life);
    watch.poll = NULL;
    watch.life = NULL;
    watch.runs = false;
}
