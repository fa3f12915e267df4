/* The list of tasks: submit.c makes one of StarPU's of one task, which run.c runs, with what body_context.c has for
 * bodies; list.c, above it and the flows, says what is submitted and what is let in; tile_access.c lets the main thread
 * look at tiles between them; profile.c says where the time went, and timeline.c, to the trace, when. */
#ifndef TESS_LIST_H
#define TESS_LIST_H
#include "runtime/progress/progress.h"
#include <starpu.h>
#include <stdatomic.h>

/* ---- timeline.c; called while a step is traced ---- */

/* Records, from a worker, that it is about to enter the body of a task. */
void tess_timeline_enters(const tess_task *t);
/* Records, from a CPU's worker, when it entered the body and left it. */
void tess_timeline_ran(const tess_task *t, double begin, double end);
/* Records, from a worker, from when to when it helped with the body of another's task. */
void tess_timeline_helped(const tess_task *t, int worker, double begin, double end);
/* Records, from the same worker, that the task has ended, and what StarPU kept of it, NULL where it did not. */
void tess_timeline_task(const tess_task *t, const struct starpu_profiling_task_info *i, double flops);

/* ---- profile.c; called by workers ---- */

/* Begins to keep times; those of StarPU around bodies too, or not. */
void tess_profile_start(bool profile);
/* Counts a body that ran on a CPU; other workers may have run parts of it. */
void tess_profile_ran(const tess_task *t, int worker, double begin, double end, const tess_parts_times *parts);
/* Counts what a worker did of the body of another's task. */
void tess_profile_helped(const tess_task *t, int worker, double begin, double end);
/* Counts a task whose kernels were put on a GPU's stream. */
void tess_profile_launched(const tess_task *t, int worker);
/* Counts what StarPU kept of a task that has ended; NULL where it did not. */
void tess_profile_task(const tess_task *t, const struct starpu_profiling_task_info *i);

/* The main thread's seconds of submission since the profile began, waiting excluded. */
extern double tess_submit_seconds;

/* ---- tile_access.c ---- */

/* Lends tiles that wait for a task which writes them: before it is submitted, or behind it. */
tess_status tess_tiles_lend(const tess_task *t, int when) TESS_NODISCARD;

/* ---- run.c: what StarPU calls, on workers ---- */

void tess_task_run_cpu(void *buffers[], void *task);
void tess_task_run_cuda(void *buffers[], void *task);
/* After the task: its times are kept, and the flow is told. */
void tess_task_done(void *place);
/* After a part of another's task was done. */
void tess_task_helped(const void *task, int worker, double begin, double end);
/* Returns whether StarPU knows nothing of this use. */
bool tess_task_left_out(const tess_task *t, const tess_use *u);

/* ---- body_context.c ---- */

/* One worker's figures for one codelet, written by that worker alone. */
struct tess_tally {
    uint64_t tasks;
    double busy, waiting, scheduling, flops, bytes;
    double alone;
};
/* Bodies with the same work, of all workers. */
struct tess_shape {
    tess_cost cost;
    uint64_t tasks;
    double busy;
};
struct tess_codelet_state {
    struct starpu_codelet cl;
    struct starpu_perfmodel model;
    char symbol[64];
    const tess_codelet *owner;
    struct tess_tally tally[TESS_MAX_WORKERS];
    struct tess_shape shape[TESS_PROFILE_SHAPES_OF_ONE];
    int shapes;
    atomic_bool chosen; /* a task of its does as much as another chose */
    struct tess_codelet_state *next;
};
/* All codelets that were submitted since the start. */
extern struct tess_codelet_state *tess_codelets;

/* The tasks that are submitted between two calls of tess_env_set. */
typedef struct tess_tasks_run {
    tess_env env, before; /* what bodies are given beside their buffers */
    unsigned number;
    uint64_t tasks; /* that did not end; messages do not count */
    uint32_t end;   /* behind the place of its last task, counted from env.first on */
} tess_tasks_run;
/* Returns the one whose tasks are submitted now. */
tess_tasks_run *tess_tasks_run_now(void);
/* Returns that of a number; NULL: it has ended, and others came since. */
tess_tasks_run *tess_tasks_run_of(unsigned number);
/* Waits until its tasks have ended. */
void tess_tasks_run_wait(const tess_tasks_run *r);

/* ---- submit.c ---- */

/* Begins a run, in which StarPU's times around bodies are kept or not. */
void tess_tasks_start(bool profile);
/* Ends it: StarPU's side of codelets is forgotten. */
void tess_tasks_stop(void);
/* Submits a task to StarPU, to run in those places; 0 is anywhere. */
tess_status tess_task_submit(const tess_task *t, uint32_t where) TESS_NODISCARD;

/* ---- standstill.c: what a run was doing that stands still ---- */

/* A task that StarPU has. */
typedef struct tess_known_task {
    struct starpu_task *_Atomic task; /* NULL: the place is free */
    tess_tasks_run *of;
} tess_known_task;
/* Takes note of a task that is about to be submitted; returns its place. */
tess_known_task *tess_standstill_knows(struct starpu_task *task, tess_tasks_run *of);
/* Takes it back. */
struct starpu_task *tess_standstill_forgets(tess_known_task *place);
/* Takes note of the task whose body a worker is in; NULL: none. */
void tess_standstill_does(int worker, const tess_task *t);
/* Writes down all of that. */
void tess_standstill_describe(FILE *f);

/* ---- tile_access.c ---- */

/* Makes StarPU forget all tiles, before it goes; they are then as they were made. */
void tess_tiles_stop(void);
#endif
