/* Progress: the tasks and tiles under way, the main thread's waits for them, and the end of a run that stands still. It
 * lies below the flows of tiles (flow/) and the list of tasks (list/), which report to it what begins and ends, and
 * wait on conditions. It knows neither of them:
 *
 *     tess_progress_lock();
 *     held -= bytes;                     // the state of a condition changes with the lock held
 *     tess_progress_moved();             // releases the lock; wakes the main thread if its condition is true now
 *
 *     tess_progress_lock();              // the main thread
 *     tess_progress_until(has_room, &bytes, "adamw", "h.0.mlp.weight", "room in RAM");
 *     tess_progress_unlock();
 */
#ifndef TESS_PROGRESS_H
#define TESS_PROGRESS_H
#include "runtime/runtime.h"
#include <pthread.h>
#include <starpu_config.h>
#include <stdatomic.h>
#include <stdio.h>

/* ---- wait.c: a description of the main thread's wait, for messages ---- */

/* Records that the main thread begins a wait, for whom and for what. */
void tess_wait_begin(const char *who, const char *what);
/* Records that the wait has ended. */
void tess_wait_end(void);
/* Stores the description of the current wait; returns false if the main thread does not wait. */
bool tess_wait_for(const char **who, const char **what);
/* Returns how many waits have begun. */
unsigned tess_waits(void);

/* ---- sleep.c: the main thread's sleep ---- */

/* Sleeps, and drops the lock meanwhile; it may return for no reason. */
void tess_sleep(pthread_mutex_t *lock);
/* Wakes the sleeper, from any thread, without the lock. */
void tess_sleep_ends(void);
/* Spins for a moment, and returns whether other threads have increased a count to `to`. */
bool tess_count_is_soon(const _Atomic uint32_t *count, uint32_t to);
/* Sleeps while the count equals `is`; it may return for no reason. */
void tess_count_sleep(_Atomic uint32_t *count, uint32_t is);
/* Wakes sleepers on a count, from any thread, after the count was increased. */
void tess_count_wakes(_Atomic uint32_t *count);

/* ---- progress.c: the lock, and waits on conditions ---- */

/* Begins a session, which tess_session then counts. */
void tess_progress_begin(void);
/* Ends the session. */
void tess_progress_end(void);
/* Takes the lock. */
void tess_progress_lock(void);
/* Releases the lock without waking the main thread: no condition has changed. */
void tess_progress_unlock(void);
/* Releases the lock, and wakes the main thread if its condition has become true. */
void tess_progress_moved(void);
/* Makes the main thread wait, with the lock held, until so(of) is true. `who` and `what` describe the wait, and `why`
 * is the same for all waits of a kind: "room in RAM". */
void tess_progress_until(bool (*so)(const void *of), const void *of, const char *who, const char *what,
                         const char *why);
/* Sets a flag, from any thread, that the main thread waits for. */
void tess_progress_set(bool *flag);
/* Waits for that flag. */
void tess_progress_until_set(const bool *flag, const char *what);
/* Counts a task that is about to be submitted; in *of too, unless NULL. */
void tess_task_begins(uint64_t *of);
/* Counts the end of a task, from any thread. */
void tess_task_ended(uint64_t *of);
/* Returns how many tasks have begun and not ended. */
uint64_t tess_tasks_running(void);
/* Waits until no more than `most` tasks run; evictions of tiles may still be under way. */
void tess_tasks_wait(uint64_t most);

/* ---- starved_time.c: workers' seconds without a task, by possible cause; with the lock held ---- */

typedef enum tess_cause {
    TESS_FOR_RAM,
    TESS_FOR_GPU,
    TESS_FOR_MESSAGES, /* messages whose tiles are ready */
    TESS_FOR_BYTES,    /* messages whose peer has also arrived, if the carrier knows */
    TESS_FOR_ANYTHING, /* any cause, known or not */
    TESS_CAUSE_COUNT
} tess_cause;
/* Begins to count, taking the lock, the idle time of `workers` workers. Without `counts` tess_starved_works is not
 * called. */
void tess_starved_start(int workers, bool counts);
/* Returns that number of workers. */
int tess_starved_workers(void);
/* Adds `more` to the events of a cause under way: prefetches, a submission that stands still, messages. */
void tess_starved_more(tess_cause cause, int more);
/* Returns, taking the lock, the seconds starved by a cause since the last call for that cause. */
double tess_starved_take(tess_cause cause);
/* Records, taking the lock, that a worker begins (1) or ends (-1) a body. */
void tess_starved_works(int more);
/* Returns, at no cost, whether every worker has a body. */
bool tess_starved_busy(void);
/* Records, taking the lock, that a message is under way (1) or has ended (-1). */
void tess_starved_message(int more);

/* ---- journeys.c: prefetches and evictions under way; with the lock held ---- */

typedef enum tess_way { TESS_IN, TESS_OUT } tess_way;
typedef struct tess_journey {
    tess_tile *tile;
    const char *label, *kind; /* "weight" */
    uint64_t bytes;
    tess_way way;
    double since;
    struct tess_journey *after, **before;
} tess_journey;
/* Records that a tile begins to move; `of` has the first four fields. A tile may have several journeys at a time. */
tess_journey *tess_journey_begin(tess_way way, const tess_journey *of);
/* Records that the move has ended. */
void tess_journey_end(tess_journey *j);
/* Describes, taking the lock, the tile that has been under way for longest. */
void tess_journey_oldest(char *text, size_t room);

/* ---- idle.c: the sleep of workers without work ---- */

/* Allows workers to sleep from now on. */
void tess_idle_start(void);
/* Keeps workers awake from now on. */
void tess_idle_stop(void);
/* Wakes a worker, from any thread, after work was given to StarPU. */
void tess_idle_wake(void);
/* Sets whether tess_idle_wake is called for each task that a CPU may run when it becomes ready. */
void tess_idle_told(bool is);
/* Wakes a worker, from any thread, after a task was submitted or ended, unless tess_idle_told says that ready tasks
 * do. */
void tess_idle_task(void);
/* Returns a number that changes with each call of tess_idle_wake or tess_idle_task. */
unsigned tess_idle_moves(void);
/* Returns about how often workers were woken. */
unsigned tess_idle_events(void);
/* Returns whether this worker has looked for a task in vain since the last call. */
bool tess_idle_rested(void);
/* Sets a callback for a worker without a task, before it sleeps and outside of bodies; it returns whether it did some
 * work. NULL: there is none. */
void tess_idle_helper(bool (*with)(int worker));
/* Wakes up to `most` sleeping workers, from any thread, to help with parts. */
void tess_idle_help(int most);

enum { TESS_MAX_WORKERS = STARPU_NMAXWORKERS };

/* ---- parts.c: parts of bodies, shared with workers that have no task ---- */

/* A callback: a worker has helped with a task, which still exists, from `begin` to `end`. */
typedef void (*tess_parts_helped)(const void *task, int worker, double begin, double end);
/* A callback: scratch of workers takes this many bytes of RAM more, or fewer. */
typedef void (*tess_parts_holds)(int64_t bytes);
/* Begins a run of `workers` workers; with `counts` their idle time counts (starved_time.c). */
void tess_parts_start(int workers, bool counts, tess_parts_helped helped, tess_parts_holds holds);
/* Ends the run, after its workers have ended. */
void tess_parts_stop(void);
/* Records, from a worker, that it is about to enter a CPU body, of the task at this place in the program. */
void tess_parts_own(int worker, const void *task, uint32_t order);
/* The times of a body: the owner's seconds in parts, the sum of the longest part's seconds over its divisions, and the
 * owner's seconds of waiting for other workers. */
typedef struct tess_parts_times {
    double shared, longest, waited;
} tess_parts_times;
/* The state of a thread, one a thread, which bodies.c keeps. */
typedef struct tess_parts_me {
    struct tess_place *mine;
    bool inside; /* it runs a part */
    bool helps;
    int worker;
    int64_t said; /* for tests: the number of parts that the body is said to have; 0: none is; below 0: it had them */
    bool cut;     /* it had several parts */
    tess_parts_times times;
} tess_parts_me;
/* Returns the calling thread's state. */
tess_parts_me *tess_parts_self(void);
/* For tests in which owners leave parts to others: sets how many parts the codelet says that the body has. */
void tess_parts_said(int64_t parts);
/* Returns whether owners leave parts to others. */
bool tess_parts_shy(void);
/* Records that the worker has left the body, and stores its times. */
void tess_parts_disown(tess_parts_times *times);
/* Runs parts of another worker's body, from a worker in no body; returns false if there are none. */
bool tess_parts_help(int worker);
/* Returns a worker's scratch; its contents are lost. */
void *tess_parts_room(int worker, size_t bytes);

/* ---- bodies.c: the workers that compute ---- */

struct starpu_perfmodel;

/* Records, from a worker's thread, that it enters a CPU body. */
void tess_body_begins(int worker);
/* Runs the body of a codelet, from a worker's thread. */
void tess_body_run(const tess_codelet *cl, const tess_work *w);
/* Records that the worker has left the body. */
void tess_body_ends(int worker);
/* Returns the total CPU seconds of the workers that are in a CPU body now. */
double tess_bodies_seconds(void);
/* Sets the performance model by which StarPU learns the times of a codelet's bodies. */
void tess_body_model(struct starpu_perfmodel *m);

/* ---- patience.c: the end of a run in which nothing moves ---- */

/* Starts a watchdog: while the main thread waits, it ends a run that makes no progress for `seconds` (0: a minute).
 * Another call changes the seconds. */
void tess_patience_start(double seconds);
/* Stops the watchdog. */
void tess_patience_stop(void);
/* Sets the place and the hint of the error that ends such a run. */
void tess_patience_blames(const char *where, const char *hint);
/* Sets the folder of the file that describes such a run (if it does not exist, the working directory), and the callback
 * that writes it within a few seconds. */
void tess_patience_describes(const char *folder, void (*describe)(FILE *f));
/* Records, from any thread, progress that gives no worker work, such as RAM that was made ready for a tile. */
void tess_patience_moved(void);

/* ---- fault.c: the failure that sticks to what runs ---- */

enum { TESS_FAULT_TEXT = 512 };
/* Records a failure of the task of that order, from any thread; the failure of the earliest task is kept. */
void tess_fault_set(uint32_t order, const char *text);
/* Is true while a failure is recorded. */
extern volatile bool tess_fault_stands;
/* Returns the order of the recorded failure's task. */
uint32_t tess_fault_order(void);
/* Stores the text of the recorded failure, and removes the record. */
void tess_fault_take(char text[TESS_FAULT_TEXT]);
#endif
