/* What the model says of all samples before the first step, where the loss compares with it (DPO, KTO).
 *
 *     TESS_TRY(tess_reference_plan(&run, &reference)); // beside the step that trains
 *     ... the weights are loaded ...
 *     TESS_TRY(tess_reference_find(&reference, train, valid, resumes));
 *     ... the run feeds it with its pairs ...
 *     tess_reference_close(&reference);
 *
 * It is OUTPUT/reference.safetensors, which is made once: each sample is scored by the forward pass of the same graph,
 * under the same caps. A run that goes on reads it. Of adapters it is the base, beside which they begin as nothing. */
#ifndef TESS_REFERENCE_IMPL_H
#define TESS_REFERENCE_IMPL_H
#include "models/files/safetensors/safetensors.h"
#include "models/train/run/run.h"

typedef struct tess_reference {
    tess_run *r; /* NULL: there is none */
    tess_step *step;
    tess_safetensors *file;
} tess_reference;

/* Plans the pass that scores; nothing where the loss needs none. After the step that trains was placed. */
tess_status tess_reference_plan(tess_run *r, tess_reference *reference) TESS_NODISCARD;
/* Scores all pairs of both data (valid may be NULL), or finds that done by the run that is resumed. All ranks call it.
 */
tess_status tess_reference_find(tess_reference *reference, const tess_data *train, const tess_data *valid,
                                bool resumes) TESS_NODISCARD;
/* Finds k of KTO's loss for n samples, those at places of the run or with `plain` of the data, and lets the run feed
 * it: how much likelier their prompts make other completions than the reference does, as a mean in their order, or 0 if
 * that is more. Nothing for other losses. All ranks call it. */
tess_status tess_reference_bound(tess_reference *reference, const tess_data *data, bool plain, uint64_t first,
                                 int64_t n) TESS_NODISCARD;
/* Closes it; zeros are nothing. */
void tess_reference_close(tess_reference *reference);

#endif
