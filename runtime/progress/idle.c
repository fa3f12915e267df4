/* Workers without work sleep. StarPU's own look for some over and over, each on a core that it is bound to and keeps
 * for a time slice, however long the thread has been woken that has work for it: the main thread, the one that carries
 * messages, the one that moves the disk's bytes. So StarPU calls `rest` here (an idle hook) after a look that found
 * nothing.
 *
 * Before it sleeps it helps with parts of others' bodies (parts.c).
 *
 * Nothing is slept through. Whoever has something for workers counts `events` up after it: a task or an access was
 * submitted, a tile released, a transfer ended, a task ended. A worker sleeps when the count did not move since before
 * its last look, and the kernel compares it once more (futex). What StarPU hands from one worker to another by itself
 * is not counted, so no sleep is long; it gets longer while nothing comes.
 *
 * Where there are GPUs most tasks are theirs, and one thread submits and another launches: neither shall call the
 * kernel for each of them, to wake workers who find nothing. There the policy says what became ready for a CPU
 * (machine/policy.c), and that a task was submitted or ended says nothing.
 *
 * Why not leave it to StarPU: Debian's is configured without blocking drivers, and a rank of one worker has five
 * threads on its core. With spinning workers at nice 10 beside other load a run of 0.8 s took 3 to 325 s; a worker
 * worked for 0.7 of 5 seconds and waited 4.3 for the core. A sleep lasts 50 us at first and 2 ms at most. With the
 * policy's push on a GPU a worker sleeps 0.07 to 0.34 times a task in place of 2 to 3, and an empty task takes 142 and
 * 725 us in place of 458 and 1148 (16 cores made up on 2; one worker: 439 and 408 in place of 666 and 988). Longer
 * pauses by STARPU_BACKOFF_MAX are instructions, not sleep; short time slices and unbound threads were no faster
 * beside load. */
#include "runtime/progress/progress.h"
#include <limits.h>
#include <linux/futex.h>
#include <starpu.h>
#include <starpu_expert.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LEAST_US = 50, MOST_US = 2000, LOOKS = 2 };
enum { EVENT = 256 }; /* a step of the count; parts are steps of 1, and rarely look like an event */

static atomic_uint events, quiet;
static atomic_bool told; /* the policy says what is ready */
static atomic_int asleep;
static int hook = -1;
static bool (*help)(int worker);

static _Thread_local struct {
    unsigned seen;
    int looks, us;
    bool rested;
} mine;

static void sleep_while(unsigned seen, int us)
{
    const struct timespec most = {.tv_nsec = 1000L * us};
    atomic_fetch_add(&asleep, 1);
    syscall(SYS_futex, &events, FUTEX_WAIT_PRIVATE, seen, &most, NULL, 0);
    atomic_fetch_sub(&asleep, 1);
}

static unsigned rest(void *unused)
{
    (void)unused;
    const unsigned now = atomic_load(&events);
    mine.rested = true;
    if (help && help(starpu_worker_get_id())) {
        mine.looks = 0;
        mine.us = LEAST_US;
        return 1;
    }
    if (now != mine.seen) {
        mine.seen = now;
        mine.looks = 0;
        mine.us = LEAST_US;
        return 1;
    }
    if (++mine.looks < LOOKS) return 1;
    sleep_while(now, mine.us);
    mine.us = 2 * mine.us < MOST_US ? 2 * mine.us : MOST_US;
    return 1;
}

void tess_idle_wake(void)
{
    atomic_fetch_add(&events, EVENT);
    if (atomic_load(&asleep) > 0) syscall(SYS_futex, &events, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void tess_idle_told(bool is)
{
    told = is;
}

void tess_idle_task(void)
{
    if (told)
        atomic_fetch_add_explicit(&quiet, 1, memory_order_relaxed);
    else
        tess_idle_wake();
}

unsigned tess_idle_moves(void)
{
    return atomic_load(&quiet) + atomic_load(&events) / EVENT;
}

void tess_idle_help(int most)
{
    atomic_fetch_add(&events, 1);
    if (atomic_load(&asleep) > 0) syscall(SYS_futex, &events, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

unsigned tess_idle_events(void)
{
    return atomic_load(&events) / EVENT;
}

bool tess_idle_rested(void)
{
    const bool rested = mine.rested;
    mine.rested = false;
    return rested;
}

void tess_idle_helper(bool (*with)(int worker))
{
    help = with;
}

void tess_idle_start(void)
{
    hook = starpu_idle_hook_register(rest, NULL);
}

void tess_idle_stop(void)
{
    if (hook >= 0) starpu_idle_hook_deregister(hook);
    hook = -1;
    tess_idle_wake();
}
