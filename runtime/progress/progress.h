/* Progress: what runs, what is on its way, who waits for it, and what is done where nothing moves. It lies below the
 * flows of tiles (flow/) and the list of tasks (list/), which tell it what begins and what ends and wait for what they
 * want to be so. It knows neither of them:
 *
 *     tess_progress_lock();
 *     held -= bytes;                     // what somebody may wait for changes with the lock held
 *     tess_progress_moved();             // gives the lock back; wakes the main thread if what it waits for is so now
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

/* ---- wait.c: what the main thread waits for, in words ---- */

/* Begins a wait for what others do. */
void tess_wait_begin(const char *who, const char *what);
/* Ends it. */
void tess_wait_end(void);
/* Returns who waits for what; false: it does not wait. */
bool tess_wait_for(const char **who, const char **what);
/* Returns how often it ever began. */
unsigned tess_waits(void);

/* ---- sleep.c: the main thread's ---- */

/* Sleeps, with the lock, which others may have meanwhile; it may end for no reason. */
void tess_sleep(pthread_mutex_t *lock);
/* Ends it, from any thread, without the lock. */
void tess_sleep_ends(void);
/* Returns whether a count that others move on comes to `to` while one spins. */
bool tess_count_is_soon(const _Atomic uint32_t *count, uint32_t to);
/* Sleeps while the count is this; it may end for no reason. */
void tess_count_sleep(_Atomic uint32_t *count, uint32_t is);
/* Ends it, from any thread, after the count was moved on. */
void tess_count_wakes(_Atomic uint32_t *count);

/* ---- progress.c: the lock, and who waits for what ---- */

/* Begins a session, which tess_session then counts. */
void tess_progress_begin(void);
/* Ends the session. */
void tess_progress_end(void);
/* Takes the lock. */
void tess_progress_lock(void);
/* Releases the lock where nothing changed that anybody waits for. */
void tess_progress_unlock(void);
/* Releases the lock, and wakes the main thread if what it waits for has become so. */
void tess_progress_moved(void);
/* Lets the main thread wait, with the lock held, until so(of); it sleeps through all that does not make it so. `why` is
 * the same for all waits of a kind: "room in RAM". */
void tess_progress_until(bool (*so)(const void *of), const void *of, const char *who, const char *what,
                         const char *why);
/* Sets a flag, from any thread, that the main thread waits for. */
void tess_progress_set(bool *flag);
/* Waits for that flag. */
void tess_progress_until_set(const bool *flag, const char *what);
/* Counts a task that is about to be submitted. */
void tess_task_begins(void);
/* Counts its end, from any thread. */
void tess_task_ended(void);
/* Returns how many tasks did not end. */
uint64_t tess_tasks_running(void);
/* Waits until no more than `most` tasks run; tiles may be on their way out still. */
void tess_tasks_wait(uint64_t most);

/* ---- lost.c: workers' seconds without a task, by what they may have waited for; with the lock held ---- */

typedef enum tess_cause {
    TESS_FOR_RAM,
    TESS_FOR_GPU,
    TESS_FOR_MESSAGES, /* from the moment that their tiles are there */
    TESS_FOR_BYTES,    /* of them those both of whose ends are there: a carrier that knows says so */
    TESS_FOR_ANYTHING, /* whatever is under way, or nothing */
    TESS_CAUSE_COUNT
} tess_cause;
/* Begins to count, taking the lock: of so many workers, which should not wait. Without `counts` nobody says what works.
 */
void tess_lost_start(int workers, bool counts);
/* Returns that number of workers. */
int tess_lost_workers(void);
/* Counts so many more of a cause as under way: tiles that come, a submission that stands still, messages. */
void tess_lost_more(tess_cause cause, int more);
/* Returns, taking the lock, the seconds lost to a cause since it was last asked of that cause. */
double tess_lost_take(tess_cause cause);
/* Records, taking the lock, that a worker takes up (1) or ends (-1) a body. */
void tess_lost_works(int more);
/* Returns, at no cost, whether every worker has a body. */
bool tess_lost_busy(void);
/* Records, taking the lock, that a message is under way (1) or has ended (-1). */
void tess_lost_message(int more);

/* ---- journeys.c: tiles on their way; with the lock held ---- */

typedef enum tess_way { TESS_IN, TESS_OUT } tess_way;
typedef struct tess_journey {
    tess_tile *tile;
    const char *label, *kind; /* "weight" */
    uint64_t bytes;
    tess_way way;
    double since;
    struct tess_journey *after, **before;
} tess_journey;
/* Lets the tile set out that the first four fields tell of; it may do so again before it was told to have arrived. */
tess_journey *tess_journey_begin(tess_way way, const tess_journey *of);
/* Lets it arrive. */
void tess_journey_end(tess_journey *j);
/* Describes, taking the lock, the tile that has been under way for longest. */
void tess_journey_oldest(char *text, size_t room);

/* ---- idle.c: workers without work sleep ---- */

/* Lets them sleep from now on. */
void tess_idle_start(void);
/* Keeps them awake from now on. */
void tess_idle_stop(void);
/* Records, from any thread, that there may be work for them: after it was given to StarPU. */
void tess_idle_wake(void);
/* Sets whether each task that a CPU may run is told of so when it becomes ready. */
void tess_idle_told(bool is);
/* Records, from any thread, that a task was submitted or ended: there may be work, unless that is told by itself. */
void tess_idle_task(void);
/* Returns a number that is another one after either. */
unsigned tess_idle_moves(void);
/* Returns how often it was said that there may be work, about. */
unsigned tess_idle_events(void);
/* Returns whether this worker looked for a task and found none since it was last asked. */
bool tess_idle_rested(void);
/* Sets what a worker without a task does before it sleeps, outside of bodies; it returns whether it did something. NULL
 * is nothing. */
void tess_idle_helper(bool (*with)(int worker));
/* Records, from any thread, that there are parts to help with, to so many of those who sleep. */
void tess_idle_help(int most);

enum { TESS_MAX_WORKERS = STARPU_NMAXWORKERS };

/* ---- parts.c: what bodies share with workers that have no task ---- */

/* Is told, from a worker that helped with this task, from when to when it did; the task is there still. */
typedef void (*tess_parts_helped)(const void *task, int worker, double begin, double end);
/* Is told how many bytes more of RAM, or fewer, workers' rooms take. */
typedef void (*tess_parts_holds)(int64_t bytes);
/* Begins a run of so many workers; with `counts` they are those that should not wait (lost.c). */
void tess_parts_start(int workers, bool counts, tess_parts_helped helped, tess_parts_holds holds);
/* Ends it, when they are gone. */
void tess_parts_stop(void);
/* Records, from a worker, that it is about to enter a CPU body, of the task at this place in the program. */
void tess_parts_own(int worker, const void *task, uint32_t order);
/* Of a body: the owner's seconds in parts; those of the longest part each time that it came to parts; and the owner's
 * seconds of waiting for others. */
typedef struct tess_parts_times {
    double shared, longest, waited;
} tess_parts_times;
/* What a thread does of parts: one a thread, which bodies.c keeps. */
typedef struct tess_parts_me {
    struct tess_place *mine;
    bool inside; /* a part */
    bool helps;
    int worker;
    int64_t said; /* for tests: so many parts the body is said to have; 0: nothing is said; below 0: it had them */
    bool cut;     /* it had several, however many */
    tess_parts_times times;
} tess_parts_me;
tess_parts_me *tess_parts_self(void);
/* For tests that make owners shy: how many parts its codelet says that the body has. */
void tess_parts_said(int64_t parts);
bool tess_parts_shy(void);
/* Records that the worker has left it. */
void tess_parts_disown(tess_parts_times *times);
/* Takes parts of whoever has some, from a worker in no body; false: nobody has. */
bool tess_parts_help(int worker);
/* Returns a worker's own room, what was in it lost. */
void *tess_parts_room(int worker, size_t bytes);

/* ---- bodies.c: which workers compute ---- */

struct starpu_perfmodel;

/* Records, from a worker's thread, that it enters a CPU body. */
void tess_body_begins(int worker);
/* Runs the body of a codelet there. */
void tess_body_run(const tess_codelet *cl, const tess_work *w);
/* Records that the worker has left it. */
void tess_body_ends(int worker);
/* Returns the processor's seconds, ever, of the workers that are in a CPU body. */
double tess_bodies_seconds(void);
/* Sets how StarPU learns what the bodies of a codelet take. */
void tess_body_model(struct starpu_perfmodel *m);

/* ---- patience.c: the end of a run in which nothing moves ---- */

/* Starts to look whether anything moves while the main thread waits; after so many seconds (0: a minute) in which
 * nothing does the run is ended. Called again it changes the seconds. */
void tess_patience_start(double seconds);
/* Stops looking. */
void tess_patience_stop(void);
/* Describes who is at fault where nothing moves, and what a user may do then. */
void tess_patience_blames(const char *where, const char *hint);
/* Sets the folder for the file that says more, where it is there (else, the working directory), and who writes it, in a
 * few seconds or not at all. */
void tess_patience_describes(const char *folder, void (*describe)(FILE *f));
/* Records, from any thread, that something moved which gives nobody work: a part of a tile's RAM was made ready. */
void tess_patience_moved(void);

/* ---- fault.c: the failure that sticks to what runs ---- */

enum { TESS_FAULT_TEXT = 512 };
/* Notes a failure as of the task of that order, from any thread; the earliest task's stands. */
void tess_fault_set(uint32_t order, const char *text);
/* Returns whether one stands. */
extern volatile bool tess_fault_stands;
/* Takes it. */
void tess_fault_take(char text[TESS_FAULT_TEXT]);
#endif
