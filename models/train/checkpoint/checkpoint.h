/* Checkpoints: they let a run go on bit for bit, and other programs use its model. DIR/step-00000100 holds
 *
 *     state.json               step, seed and samples drawn, the settings of the run, and its losses on data.valid
 *     states.safetensors       (or shards) masters and moments of all parameters (networks/networks.h), in the same
 *                              bytes for any number of ranks
 *     sums.json                sums over each of these tensors, which are compared when it is read
 *     config.json, ...         the model's files as Hugging Face names them, and its tokenizer's
 *
 * A checkpoint is written under another name, made durable, then renamed: a directory with the final name is whole. A
 * checkpoint that is removed loses its name first, and then state.json. One that is replaced by a newer one of the same
 * step stays complete until that has the name. DIR/best links to the best checkpoint, if it is kept. The order of the
 * data and the random numbers are functions of seed and step, so these two describe the state of both. Nothing in it
 * depends on tiles or ranks.
 *
 * Where the comment says so, all ranks call a function together, and get the same status. */
#ifndef TESS_CHECKPOINT_H
#define TESS_CHECKPOINT_H
#include "graph/graph.h"
#include "models/networks/tessera_networks.h"
#include "models/train/checkpoint/spikes.h"

/* The settings of a run that may differ in a run that resumes from it. */
typedef struct tess_run_facts {
    bool known; /* false: the checkpoint is from a version that did not write them */
    bool bf16, fp16, shuffle;
    bool fp8, half_gradients;      /* products of 8 bits; gradients that are summed in bf16 */
    bool lines;                    /* samples are examples, as many whatever their length; it is not written */
    int64_t steps, schedule_steps; /* schedule_steps: the step at which the decay ends; 0: there is no decay */
    int64_t batch, length;
    uint64_t samples, tokens, sum; /* of data.train, see data.h */
    int64_t parameters, trained;   /* `trained` of the parameters are not frozen; both 0: an older version */
    uint64_t frozen;               /* a checksum of the names of frozen parameters; 0: none is */
} tess_run_facts;

typedef struct tess_progress {
    int64_t step;    /* steps done */
    int64_t samples; /* drawn from the data */
    uint64_t seed;
    /* The lowest loss on data.valid and the step after which it was measured; 0: there was none yet. */
    int64_t best_step;
    double best_loss;
    /* For early_stop: the last loss that was better by min_delta, and the evaluations since; marked 0: none yet. */
    bool marked;
    double mark_loss;
    int64_t worse;
    char optimizer[24];    /* the optimizer of the states; "" in older checkpoints: AdamW */
    int moments;           /* moments of each parameter */
    tess_keeping keeping;  /* the format of matrices' moments */
    tess_loss_scale scale; /* the loss scale of fp16; value 0: the run so far was not in fp16 */
    tess_spikes spikes;    /* norms that on_spike compares with; zeros: none were seen */
    tess_run_facts told;
} tess_progress;

typedef struct tess_checkpoint_conf {
    const char *dir;
    int64_t keep; /* the number of newest checkpoints that stay */
    bool best;    /* the checkpoint of progress.best_step stays too, and DIR/best links to it */
} tess_checkpoint_conf;

/* Makes the directory for a run that will write there, and removes the leftovers of a run that ended while it wrote.
 * Returns TESS_INVALID if it cannot be made or written to. All ranks call it. */
tess_status tess_checkpoint_prepare(const char *dir) TESS_NODISCARD;
/* Begins a checkpoint of the states as they are; with `beside` steps may run until it is ended, as tess_states_begin
 * says. All ranks call both. */
typedef struct tess_checkpoint_saving tess_checkpoint_saving;
tess_status tess_checkpoint_begin(const tess_checkpoint_conf *c, const tess_model *m, tess_graph *g,
                                  const tess_progress *p, bool beside, tess_checkpoint_saving **saving) TESS_NODISCARD;
/* Ends it: it has its name, and old ones are removed; `fine`: no step since has failed. NULL is TESS_OK. */
tess_status tess_checkpoint_end(tess_checkpoint_saving *saving, bool fine) TESS_NODISCARD;
/* Does both. */
tess_status tess_checkpoint_save(const tess_checkpoint_conf *c, const tess_model *m, tess_graph *g,
                                 const tess_progress *p) TESS_NODISCARD;
/* Removes old checkpoints but `keep` newest and the best, if the run that wrote them ended before it did. Rank 0 calls
 * it. */
void tess_checkpoint_tidy(const tess_checkpoint_conf *c, int64_t best);
/* Stores the progress of the newest whole checkpoint in dir; *found is false if there is none. A checkpoint that a run
 * was about to replace when it ended gets its name back. Rank 0 calls it. */
tess_status tess_checkpoint_find(const char *dir, tess_progress *p, bool *found) TESS_NODISCARD;
/* The same of the newest checkpoint that is not damaged, which is read whole for that; newer ones get another name,
 * with a line. TESS_INVALID where all of them are damaged. Rank 0 calls it. */
tess_status tess_checkpoint_find_whole(const char *dir, tess_progress *p, bool *found) TESS_NODISCARD;
/* Adds to the error that the checkpoint of a step cannot be read, where it is damaged, which one before it is whole.
 * Rank 0 calls it. */
void tess_checkpoint_name_whole(const char *dir, int64_t step);
/* Removes all checkpoints in dir, and nothing else; returns how many. */
size_t tess_checkpoint_clear(const char *dir);
/* Reads masters and moments from that step's checkpoint into the tiles; TESS_INVALID if it is of another model. All
 * ranks call it. For a model with adapters it holds the adapters alone, and the base is loaded before. */
tess_status tess_checkpoint_load(const char *dir, int64_t step, const tess_model *m, tess_graph *g) TESS_NODISCARD;
/* Returns the path of a step's checkpoint, a new string. */
char *tess_checkpoint_path(const char *dir, int64_t step);

/* ---- for readers, also while a run writes here ------------------------------------------------------------------- */

/* Stores in *picked, a new string, the newest checkpoint in `dir`, or `dir` itself if it holds none; NULL for NULL. All
 * ranks call it, and rank 0 decides. */
tess_status tess_checkpoint_pick(const char *dir, char **picked) TESS_NODISCARD;
/* Calls open(path, what) on the checkpoint that tess_checkpoint_pick returns, and retries on a newer one if the run
 * removed it meanwhile; close(what) cleans up before each retry. *path, a new string, is the last path that was tried.
 * All ranks call it, and retry together. */
tess_status tess_checkpoint_open(const char *dir, tess_status (*open)(const char *path, void *what),
                                 void (*close)(void *what), void *what, char **path) TESS_NODISCARD;
/* Returns TESS_INVALID unless the states are of this optimizer, with that number of moments. `path` is the
 * checkpoint's. */
tess_status tess_checkpoint_same_optimizer(const char *path, const tess_progress *p, const char *optimizer,
                                           int moments) TESS_NODISCARD;
/* Reads a checkpoint's state.json. */
tess_status tess_checkpoint_progress(const char *path, tess_progress *p) TESS_NODISCARD;

#endif
