/* Steps whose gradient is out of proportion (on_spike). */
#ifndef TESS_SPIKES_H
#define TESS_SPIKES_H
#include "graph/graph.h"
#include "models/train/checkpoint/loss_scale.h"

typedef struct tess_spikes {
    double mean;  /* of the logarithms of the norms so far, the last 50 counting most */
    int64_t seen; /* how many they are */
    int64_t row;  /* steps that were skipped since the last one that was not */
    int64_t back; /* times that the run has gone back */
} tess_spikes;

/* Returns the most that the norm of the next step's gradient may be; 0: there is no telling. */
double tess_spikes_most(const tess_config *c, const tess_spikes *s);
/* Goes on after a step, counted from 0: what its gradient is to the norms so far, and to fp16's scale of the loss.
 * TESS_FAILED: too many in a row were skipped, or there is no smaller scale. */
tess_status tess_spikes_next(const tess_config *c, tess_spikes *s, tess_loss_scale *scale, const tess_step_result *r,
                             int64_t step) TESS_NODISCARD;

#endif
