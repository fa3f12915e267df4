/* What a run that trains says of itself before its first step and after its last. Rank 0 alone says it. */
#ifndef TESS_ANNOUNCE_IMPL_H
#define TESS_ANNOUNCE_IMPL_H
#include "models/train/checkpoint/checkpoint.h"
#include "models/train/run/run.h"

/* Prints what the user may not have meant: a line each. */
void tess_announce_oddities(const tess_run *r);
/* Prints a line for each thing that the way in which the step was laid out leaves: what all ranks of the tensor
 * dimension hold, what they exchange, and tasks of generic ops, or without a body for a GPU. */
void tess_announce_step(const tess_run *r, const tess_step *step);
/* Prints what is trained, on how many samples, and the settings that would cost its user less. `drawn`: the seed from
 * which weights are drawn that the model has none of; NULL: a checkpoint has them. `valid` may be NULL. */
void tess_announce_run(const tess_run *r, const tess_holds *plan, const tess_data *data, const tess_data *valid,
                       const uint64_t *drawn);

/* How a run ended. */
typedef struct tess_ending {
    const tess_config *c;
    const tess_progress *at;
    bool stopped, early, adapts; /* by a signal; by early_stop; adapters alone were trained */
} tess_ending;
/* Prints what the run leaves, and, where it was to go on, how it does. */
void tess_announce_end(const tess_ending *e);

#endif
