/* What runs and who waits for it: one lock, the tasks that did not end, and the one thing that the main thread waits
 * for, wherever that is. */
#include "runtime/progress/progress.h"
#include "runtime/trace/trace.h"
#include <pthread.h>

static struct {
    pthread_mutex_t lock;
    uint64_t running;         /* tasks submitted that did not end */
    bool (*so)(const void *); /* what the main thread waits for; NULL: it does not */
    const void *of;
    bool started;
    unsigned sessions;
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER};

void tess_progress_begin(void)
{
    progress.started = true;
    progress.sessions++;
}

void tess_progress_end(void)
{
    progress.started = false;
}

unsigned tess_session(void)
{
    return progress.started ? progress.sessions : 0;
}

void tess_progress_lock(void)
{
    pthread_mutex_lock(&progress.lock);
}

void tess_progress_unlock(void)
{
    pthread_mutex_unlock(&progress.lock);
}

/* Gives the lock back first: on the same core who is woken would take over at once, and wait for the lock. */
void tess_progress_moved(void)
{
    const bool wakes = progress.so && progress.so(progress.of);
    pthread_mutex_unlock(&progress.lock);
    if (wakes) tess_sleep_ends();
}

void tess_progress_until(bool (*so)(const void *), const void *of, const char *who, const char *what, const char *why)
{
    if (so(of)) return;
    const double since = tess_traces() ? tess_seconds() : 0;
    tess_wait_begin(who, what);
    progress.of = of;
    progress.so = so;
    while (!so(of)) tess_sleep(&progress.lock);
    progress.so = NULL;
    tess_wait_end();
    if (since > 0 && tess_traces())
        tess_trace_add(&(tess_trace_event){.kind = TESS_TRACE_WAIT,
                                           .begin = since,
                                           .end = tess_seconds(),
                                           .name = why,
                                           .of = what == why ? NULL : what});
}

static bool is_set(const void *flag)
{
    return *(const bool *)flag;
}

void tess_progress_set(bool *flag)
{
    tess_progress_lock();
    *flag = true;
    tess_progress_moved();
}

void tess_progress_until_set(const bool *flag, const char *what)
{
    tess_progress_lock();
    tess_progress_until(is_set, flag, "the main thread", what, "a tile");
    tess_progress_unlock();
}

/* ---- tasks ---- */

void tess_task_begins(uint64_t *of)
{
    tess_progress_lock();
    if (of) ++*of;
    tess_trace_set(TESS_TRACE_TASKS, ++progress.running);
    tess_progress_unlock();
}

void tess_task_ended(uint64_t *of)
{
    tess_progress_lock();
    if (of) --*of;
    tess_trace_set(TESS_TRACE_TASKS, --progress.running);
    tess_progress_moved();
}

uint64_t tess_tasks_running(void)
{
    tess_progress_lock();
    const uint64_t n = progress.running;
    tess_progress_unlock();
    return n;
}

static bool at_most(const void *n)
{
    return progress.running <= *(const uint64_t *)n;
}

void tess_tasks_wait(uint64_t most)
{
    tess_progress_lock();
    const char *what = most ? "tasks that were submitted" : "the end of the list";
    tess_progress_until(at_most, &most, "the main thread", what, what);
    tess_progress_unlock();
}
