/* A run in which nothing moves any more is ended, in one line that says what waits for what: neither StarPU nor MPI can
 * be told to give up. The main thread says when it waits, wherever that is: for room, for the end of a list, for a tile
 * in RAM, for StarPU's start and stop. A thread here looks some times a second whether anything moves meanwhile.
 *
 * A file beside the run says more: which tasks are not done, where their tiles are, who has them (list/standstill.c).
 *
 * What moves is counted by idle.c: tasks and transfers that end, what is submitted and released; and here, RAM that is
 * made ready. A long task is no
 * standstill either while the process computes; a worker that waits in one is. Time is counted in looks, so a process
 * that was stopped (SIGSTOP, a suspended machine) loses none of its patience. */
#include "runtime/progress/progress.h"
#include <pthread.h>
#include <signal.h>
#include <time.h>

enum { LOOKS = 40 }; /* until patience ends */

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ends;
    bool runs, stops;
    _Atomic double patience;
    const char *_Atomic where, *_Atomic hint;
    char folder[512];
    void (*describe)(FILE *f);
    atomic_uint moved;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

void tess_patience_blames(const char *where, const char *hint)
{
    watch.where = where;
    watch.hint = hint;
}

void tess_patience_describes(const char *folder, void (*describe)(FILE *f))
{
    snprintf(watch.folder, sizeof watch.folder, "%s", folder ? folder : "");
    watch.describe = describe;
}

void tess_patience_moved(void)
{
    watch.moved++;
}

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A rank may wait long for its turn in a pipeline; one that died is seen otherwise. */
static double patience(void)
{
    return watch.patience * (tess_ranks() > 1 ? 30 : 1);
}

static void *describe(void *f)
{
    watch.describe(f);
    fclose(f);
    return NULL;
}

/* By a thread, since what it asks may stand still too. */
static void write_file(const char *line, char *path, size_t room)
{
    pthread_t thread;
    char rank[16] = "";
    if (tess_ranks() > 1) snprintf(rank, sizeof rank, "-%d", tess_rank());
    FILE *f = NULL;
    for (int here = !*watch.folder; here < 2 && watch.describe && !f; here++) {
        snprintf(path, room, "%s%sstandstill%s.txt", here ? "" : watch.folder, here ? "" : "/", rank);
        f = fopen(path, "w");
    }
    if (!f) {
        *path = 0;
        return;
    }
    fprintf(f, "%s)\n", line);
    fflush(f);
    const double until = now(CLOCK_MONOTONIC) + 5;
    const struct timespec t = {.tv_sec = (time_t)until};
    if (!pthread_create(&thread, NULL, describe, f)) pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &t);
}

static void give_up(void)
{
    char tile[300], text[1400], path[600];
    const char *who, *what;
    if (!tess_wait_for(&who, &what)) return; /* it ended just now */
    tess_journey_oldest(tile, sizeof tile);
    int n = snprintf(text, sizeof text, "%s: nothing moved and no task ended for %.0f s; %s; %s waits for %s (%s",
                     watch.where, patience(), tile, who, what, watch.hint);
    write_file(text, path, sizeof path);
    snprintf(text + n, sizeof text - (size_t)n, "%s%s)", *path ? "; more is in " : "", path);
    tess_die(text);
}

/* Sleeps; false when the thread is to end. */
static bool pause_for(double seconds)
{
    const double until = now(CLOCK_MONOTONIC) + seconds;
    const struct timespec t = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - (double)(time_t)until) * 1e9)};
    pthread_mutex_lock(&watch.lock);
    while (!watch.stops && !pthread_cond_clockwait(&watch.ends, &watch.lock, CLOCK_MONOTONIC, &t)) continue;
    const bool goes_on = !watch.stops;
    pthread_mutex_unlock(&watch.lock);
    return goes_on;
}

static void *look(void *unused)
{
    const char *who, *what;
    unsigned waits = 0, events = 0;
    double computed = 0;
    for (double stands = 0, between;
         between = patience() / LOOKS < 0.5 ? patience() / LOOKS : 0.5, pause_for(between);) {
        const unsigned waits_before = waits, events_before = events;
        const double computed_before = computed;
        waits = tess_waits();
        events = tess_idle_moves() + watch.moved;
        computed = tess_bodies_seconds();
        const bool computes = computed - computed_before > between / 100;
        if (!tess_wait_for(&who, &what) || waits != waits_before || events != events_before || computes)
            stands = 0;
        else if ((stands += between) >= patience())
            give_up();
    }
    return unused;
}

void tess_patience_start(double seconds)
{
    watch.patience = seconds > 0 ? seconds : 60;
    if (watch.runs) return;
    sigset_t all, before; /* signals are the main thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watch.stops = false;
    watch.runs = !pthread_create(&watch.thread, NULL, look, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void tess_patience_stop(void)
{
    if (!watch.runs) return;
    pthread_mutex_lock(&watch.lock);
    watch.stops = true;
    pthread_cond_signal(&watch.ends);
    pthread_mutex_unlock(&watch.lock);
    pthread_join(watch.thread, NULL);
    watch.runs = false;
}
