/* Bells: a rank of this machine wakes the thread of another that carries messages, when it has sent it something. MPI's
 * shared memory wakes no thread: without bells a thread that has given up its core looks again when its rest is over,
 * and rests are what a message costs then, several for one that is announced and answered first.
 *
 * A bell is a count in memory that the ranks share. Who rests sleeps while it is as it was before the last look
 * (futex), so no ring is missed. Between machines there are none, and rests are as long as they are. */
#include "runtime/ranks/ranks.h"
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A cache line each. */
struct bell {
    _Alignas(64) atomic_uint rings;
    atomic_int resting;
};

static struct bell alone; /* of a process without others */
static struct {
    MPI_Win window;
    struct bell **of; /* by rank; NULL: on another machine */
    struct bell *mine;
} bells = {.mine = &alone};

void tess_bells_open(MPI_Comm here, int rank, int ranks)
{
    int n, local;
    MPI_Comm_size(here, &n);
    MPI_Comm_rank(here, &local);
    struct bell *base = tess_window_open(here, (size_t)n * sizeof *base + 64, &bells.window);
    if (!base) return;                                        /* rests are as long as between machines */
    base = (struct bell *)(((uintptr_t)base + 63) / 64 * 64); /* pages are shared as they lie */
    int *at = tess_alloc((size_t)n * sizeof *at);
    MPI_Allgather(&rank, 1, MPI_INT, at, 1, MPI_INT, here);
    bells.of = tess_alloc((size_t)ranks * sizeof(struct bell *));
    for (int i = 0; i < ranks; i++) bells.of[i] = NULL;
    for (int i = 0; i < n; i++) bells.of[at[i]] = &base[i];
    free(at);
    bells.mine = &base[local];
    atomic_store(&bells.mine->rings, 0);
    atomic_store(&bells.mine->resting, 0);
    MPI_Barrier(here); /* no rank rings before */
}

void tess_bells_close(void)
{
    if (!bells.of) return;
    bells.mine = &alone;
    free(bells.of);
    bells.of = NULL;
    tess_window_close(&bells.window);
}

static void ring(struct bell *b)
{
    atomic_fetch_add(&b->rings, 1);
    if (atomic_load(&b->resting) > 0) syscall(SYS_futex, &b->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void tess_bell_ring(int rank)
{
    if (rank == tess_rank())
        ring(bells.mine);
    else if (bells.of && bells.of[rank])
        ring(bells.of[rank]);
}

unsigned tess_bell_rings(void)
{
    return atomic_load(&bells.mine->rings);
}

void tess_bell_rest(unsigned rings, long us)
{
    const struct timespec most = {.tv_nsec = 1000 * us};
    atomic_fetch_add(&bells.mine->resting, 1);
    syscall(SYS_futex, &bells.mine->rings, FUTEX_WAIT, rings, &most, NULL, 0);
    atomic_fetch_sub(&bells.mine->resting, 1);
}
