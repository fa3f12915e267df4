/* Checkpoints: all that a run needs to go on bit for bit, and that others need to use its model. DIR/step-00000100
 * holds
 *
 *     state.json               step, seed and samples drawn, what the run was told, and what data.valid said so far
 *     states.safetensors       (or shards) masters and moments of all parameters (networks/networks.h), whoever
 *                              held what of them
 *     config.json, ...         of the model, as Hugging Face has it, and its tokenizer's files
 *
 * It is written under another name, made durable, then renamed: what has the name is whole. One that goes loses its
 * name first, and then state.json. One that is replaced by another of its step keeps all until that has the name.
 * DIR/best is a link to the best one, where one is kept. The order of the data and the random numbers are functions of
 * seed and step, so these two are the position and the generator's state. It says nothing of tiles or ranks: any number
 * of ranks writes the same bytes and reads those of any other.
 *
 * Where the comment says so, all ranks call a function together, and get the same status. */
#ifndef TESS_CHECKPOINT_H
#define TESS_CHECKPOINT_H
#include "graph/graph.h"
#include "models/networks/tessera_networks.h"
#include "models/train/checkpoint/loss_scale.h"

/* What a run was told, as far as one that goes on from it may be told something else. */
typedef struct tess_run_facts {
    bool known; /* false: the checkpoint is of a version that did not write this */
    bool bf16, fp16, shuffle;
    bool lines;                    /* samples are examples, as many whatever their length; it is not written */
    int64_t steps, schedule_steps; /* schedule_steps: where its decay ends; 0: it has none */
    int64_t batch, length;
    uint64_t samples, tokens, sum; /* of data.train, see data.h */
    int64_t parameters, trained;   /* trained: of these; both 0: a version that wrote neither, and froze none */
    uint64_t frozen;               /* a sum of the names of what is frozen; 0: nothing is */
} tess_run_facts;

typedef struct tess_progress {
    int64_t step;    /* steps done */
    int64_t samples; /* drawn from the data */
    uint64_t seed;
    /* The lowest loss on data.valid and the step that it came after; 0: there was none yet. */
    int64_t best_step;
    double best_loss;
    /* For early_stop: the last loss that was better by min_delta, and the evaluations since; marked 0: none yet. */
    bool marked;
    double mark_loss;
    int64_t worse;
    char optimizer[24]; /* whose states there are, and how many of a parameter; "" in older ones: AdamW's */
    int moments;
    tess_keeping keeping;  /* of matrices' moments */
    tess_loss_scale scale; /* of the loss, in fp16; value 0: the run so far was not in fp16 */
    tess_run_facts told;
} tess_progress;

typedef struct tess_checkpoint_conf {
    const char *dir;
    int64_t keep; /* newest ones that stay */
    bool best;    /* and progress.best_step's, which `best` then leads to */
} tess_checkpoint_conf;

/* Makes the directory for a run that will write there, and removes what one left that ended while it wrote.
 * TESS_INVALID when it cannot be made, or not be written to. Of all ranks. */
tess_status tess_checkpoint_prepare(const char *dir) TESS_NODISCARD;
/* Writes one. Of all ranks. */
tess_status tess_checkpoint_save(const tess_checkpoint_conf *c, const tess_model *m, tess_graph *g,
                                 const tess_progress *p) TESS_NODISCARD;
/* Removes all but those that c keeps, and the best: for a run that goes on from one that ended before it came to this.
 * Of rank 0. */
void tess_checkpoint_tidy(const tess_checkpoint_conf *c, int64_t best);
/* Finds the newest whole checkpoint in dir: its progress, false in *found when there is none. One that a run was about
 * to replace when it ended gets its name back. Of rank 0. */
tess_status tess_checkpoint_find(const char *dir, tess_progress *p, bool *found) TESS_NODISCARD;
/* Removes all checkpoints in dir, and nothing else; returns how many. */
size_t tess_checkpoint_clear(const char *dir);
/* Reads masters and moments of that step's checkpoint, each to its tiles; TESS_INVALID when it is of another model. Of
 * all ranks. Of a model with adapters these alone are there: the base was loaded before. */
tess_status tess_checkpoint_load(const char *dir, int64_t step, const tess_model *m, tess_graph *g) TESS_NODISCARD;
/* Returns the path of a step's checkpoint, a new string. */
char *tess_checkpoint_path(const char *dir, int64_t step);

/* ---- for those who only look, perhaps while a run writes here ---------------------------------------------------- */

/* Picks, where `dir` holds checkpoints, the newest of them, else `dir` itself: a new string. NULL is NULL. Of all
 * ranks: that of rank 0 counts. */
tess_status tess_checkpoint_pick(const char *dir, char **picked) TESS_NODISCARD;
/* Opens what was picked so; where the run removes that before it is open there is a newer one, which is opened then.
 * `open` does it to `what`, and `close` undoes that, or the part of it that was done, before it is tried anew. *path is
 * what was opened, or could not be: a new string. Of all ranks, which try anew together. */
tess_status tess_checkpoint_open(const char *dir, tess_status (*open)(const char *path, void *what),
                                 void (*close)(void *what), void *what, char **path) TESS_NODISCARD;
/* Refuses the states of another optimizer than this, with so many of a parameter. `path` is the checkpoint's. */
tess_status tess_checkpoint_same_optimizer(const char *path, const tess_progress *p, const char *optimizer,
                                           int moments) TESS_NODISCARD;
/* Reads what state.json of a checkpoint says. */
tess_status tess_checkpoint_progress(const char *path, tess_progress *p) TESS_NODISCARD;

#endif
