/* Checkpoints: all that a run needs to go on bit for bit. DIR/step-00000100 holds
 *
 *     state.json               step, seed and samples drawn; written last, so it marks a whole one
 *     states.safetensors       (or shards) of each parameter the master, NAME.exp_avg and NAME.exp_avg_sq, all of
 *                              (rows, columns), whoever held what of it
 *
 * It is written under another name, made durable, then renamed: what has the name is whole. The order of the data and
 * the random numbers are functions of seed and step, so these two are the position and the generator's state. It
 * says nothing of tiles or ranks: any number of ranks writes the same bytes and reads those of any other.
 *
 * All ranks call these together, and get the same status. */
#ifndef TESS_CHECKPOINT_IMPL_H
#define TESS_CHECKPOINT_IMPL_H
#include "models.h"

typedef struct tess_progress {
    int64_t step;    /* steps done */
    int64_t samples; /* drawn from the data */
    uint64_t seed;
} tess_progress;

/* Makes the directory; TESS_INVALID when it cannot be, or not be written to. */
tess_status tess_checkpoint_prepare(const char *dir) TESS_NODISCARD;
tess_status tess_checkpoint_save(const char *dir, int64_t keep, tess_graph *g, const tess_progress *p) TESS_NODISCARD;
/* Removes all but the newest: for a run that goes on from one that ended before it came to this. */
void tess_checkpoint_tidy(const char *dir, int64_t keep);
/* The newest whole checkpoint in dir: its progress, false in *found when there is none. */
tess_status tess_checkpoint_find(const char *dir, tess_progress *p, bool *found) TESS_NODISCARD;
/* Masters and moments of that step's checkpoint, each to its tiles; TESS_INVALID when it is of another model. */
tess_status tess_checkpoint_load(const char *dir, int64_t step, tess_graph *g) TESS_NODISCARD;

#endif
