/* The list of tasks: submit.c makes one of StarPU's of one task; list.c, above it and the flows, says what is submitted
 * and what is let in; look.c lets the main thread look at tiles between them; profile.c says where the time went, and
 * timeline.c, to the trace, when. */
#ifndef TESS_LIST_IMPL_H
#define TESS_LIST_IMPL_H
#include "progress.h"
#include <starpu.h>

/* ---- timeline.c; called while a step is traced ---- */

/* Records, from a worker, that it is about to enter the body of a task. */
void tess_timeline_enters(const tess_task *t);
/* Records, from a CPU's worker, when it entered the body and left it. */
void tess_timeline_ran(const tess_task *t, double begin, double end);
/* Records, from a worker, from when to when it helped with the body of another's task. */
void tess_timeline_helped(const tess_task *t, int worker, double begin, double end);
/* Records, from the same worker, that the task has ended, and what StarPU kept of it, NULL where it did not. */
void tess_timeline_task(const tess_task *t, const struct starpu_profiling_task_info *i, double flops);

/* ---- submit.c ---- */

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
/* From the end of a CPU's body to the begin of its worker's next, where that found its task at its first look: what
 * StarPU and the runtime take around a body. Written by that worker alone. */
struct tess_around {
    double ended, seconds;
    uint64_t times;
};
extern struct tess_around tess_around[TESS_MAX_WORKERS];
struct tess_codelet_state {
    struct starpu_codelet cl;
    struct starpu_perfmodel model;
    char symbol[64];
    const tess_codelet *owner;
    struct tess_tally tally[TESS_MAX_WORKERS];
    struct tess_shape shape[TESS_PROFILE_SHAPES_OF_ONE];
    int shapes;
    struct tess_codelet_state *next;
};
/* All codelets that were submitted since the start. */
extern struct tess_codelet_state *tess_codelets;

/* Begins a run, in which StarPU's times around bodies are kept or not. */
void tess_tasks_start(bool profile);
/* Ends it: StarPU's side of codelets is forgotten. */
void tess_tasks_stop(void);
/* Returns the step whose tasks are submitted, from 0. */
int64_t tess_env_step(void);
/* Submits a task to StarPU, to run in those places; 0 is anywhere. */
tess_status tess_task_submit(const tess_task *t, uint32_t where) TESS_NODISCARD;

/* ---- list.c ---- */

/* The main thread's seconds of submission since the profile began, waiting excluded. */
extern double tess_submit_seconds;

/* ---- look.c ---- */

/* Makes StarPU forget all tiles, before it goes; they are then as they were made. */
void tess_tiles_stop(void);
#endif
