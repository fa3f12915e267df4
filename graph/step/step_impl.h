/* The inside of a step, for the files that make it, feed it, run it and place its tiles. */
#ifndef TESS_STEP_IMPL_H
#define TESS_STEP_IMPL_H
#include "graph/lower/lower.h"

/* A run of a step, from its submission until it is waited for. */
struct tess_step_run {
    tess_step_input in;
    tess_step_result out;
    unsigned tasks;          /* the runtime's number of them */
    double unscale;          /* of its gradients */
    tess_reading loss, norm; /* which the next run writes again: */
    double sum[2], square;   /* losses and what counted; the square of the norm */
};

struct tess_step {
    tess_graph *g; /* NULL: it was freed */
    tess_tensor *output;
    tess_step_conf conf;
    tess_lowered low;
    int tensors;                       /* of the graph, when the step was made */
    int64_t targets[TESS_MOST_LOSSES]; /* that count, as fed last, of each loss */
    int32_t **fed;                     /* [tensor]: the values fed last, for looking into a failure; NULL: none yet */
    int32_t **fed_before;              /* [tensor]: those of a run under way, where others were fed since; NULL: none */
    struct tess_step_run run[2];       /* in turn */
    int64_t begun, ended;              /* runs */
    tess_env env;                      /* of the last run, by which its updates are made, if they come late */
    tess_env before;                   /* of the run before it */
    bool pending;                      /* they are yet to come */
    bool ran;                          /* in this session */
    struct tess_step_digests *digests; /* NULL: its runs keep none */
    tess_step *next, **link;           /* of the graph's steps */
};

/* Checks what a step of that output is to do (check_step.c). */
tess_status tess_check_step(const tess_tensor *output, const tess_step_conf *c) TESS_NODISCARD;
/* Checks that the step is one, and that its graph is there. */
tess_status tess_step_check(const tess_step *s) TESS_NODISCARD;
/* Lists the tiles of parameters and states that this rank holds, and those of a cache; the caller frees the list. */
tess_tile **tess_step_held(const tess_graph *g, int64_t *n);
/* Returns the bytes of parameters and states that live on a tier, placed by the step that trains them. */
uint64_t tess_step_held_bytes(const tess_graph *g, tess_tier tier);
/* Sets the home of what the sums between local steps alone read and write, and returns its bytes. */
uint64_t tess_step_house_local(const tess_graph *g, tess_tier home);
/* Makes RAM the home of tiles that an earlier plan put on disk, before anything is drawn or loaded (step_place.c). */
void tess_step_leave_disk(tess_step *s);
/* Keeps digests of the step's tasks from now on, if they are asked for. */
void tess_step_digests_begin(const tess_step *s);
/* Writes them, when all tasks have ended; `step` counts from 0. */
void tess_step_digests_end(const tess_step *s, int64_t step);
/* Returns whether runs are under way. */
static inline bool tess_step_runs(const tess_step *s)
{
    return s->begun > s->ended;
}
/* Waits for runs under way, and forgets what came of them. */
void tess_step_drop_runs(tess_step *s);
/* Forgets the inputs of the run that ended. */
void tess_step_forget_before(tess_step *s);
/* Its late updates are made, or will never be. */
void tess_step_forget_pending(tess_step *s);
/* Takes it out of its graph, with what was fed. */
void tess_step_leave(tess_step *s);
/* Returns the input that the loss, or this one of those that it adds, takes its targets from; NULL: none. */
const tess_tensor *tess_step_targets(const tess_step *s, int loss);
/* Makes the tiles of parameters that have none yet, once all of the graph is described (ready.c). */
void tess_graph_ready(tess_graph *g);
/* Returns TESS_INVALID once the parameters hold anything. */
tess_status tess_check_place(tess_graph *of) TESS_NODISCARD;
/* Records that `bytes` of a step's tiles, or with `all` of all tiles, need the disk. */
void tess_step_note_disk(tess_step *s, bool all, uint64_t bytes);

/* ---- before a run (session.c) ---- */

/* Checks that StarPU runs, with a disk if tiles rest there. Values from an earlier session are gone then. */
tess_status tess_check_session(tess_graph *g) TESS_NODISCARD;
/* Checks that the parameters which a step uses were drawn or loaded. */
tess_status tess_check_params(const tess_graph *g, const bool *used) TESS_NODISCARD;

/* ---- a graph and its steps (step_lifetime.c) ---- */

/* Tells the steps of a graph that it is freed. */
void tess_steps_orphan(tess_graph *g);
/* Resets the steps of a graph for a new session. */
void tess_steps_forget(tess_graph *g);
/* Runs the late updates of g's parameters that are due, unless they belong to the step `but`. */
tess_status tess_settle(tess_graph *g, const tess_step *but) TESS_NODISCARD;

#endif
