/* How long the thread that carries messages waits before it looks again whether one has come or gone. MPI cannot say so
 * by itself, and a look that finds nothing costs whoever computes the core and its caches. */
#include "messages_impl.h"
#include "progress_impl.h"
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_uint news;
static atomic_int resting;

/* While all workers have work looks become rare, and what comes is found late by a small part of what it was waited
 * for. A worker that has none sleeps, and it may be a message that it waits for: then looks go on for a while without a
 * pause. */
void tess_rest(unsigned seen, double idle)
{
    enum { SPIN_US = 500, LEAST_US = 50, MOST_US = 1000 };
    const double us = 1e6 * idle;
    if (us < SPIN_US && !tess_lost_busy()) return;
    const long rest = us / 8 > MOST_US ? MOST_US : us / 8 > LEAST_US ? (long)(us / 8) : LEAST_US;
    const struct timespec most = {.tv_nsec = 1000 * rest};
    atomic_fetch_add(&resting, 1);
    syscall(SYS_futex, &news, FUTEX_WAIT_PRIVATE, seen, &most, NULL, 0);
    atomic_fetch_sub(&resting, 1);
}

unsigned tess_rest_news(void)
{
    return atomic_load(&news);
}

void tess_rest_end(void)
{
    atomic_fetch_add(&news, 1);
    if (atomic_load(&resting) > 0) syscall(SYS_futex, &news, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
