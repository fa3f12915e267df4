/* What `tessera estimate` prints of a run that was placed: each tier's parts and their sum, and the time of a step. */
#ifndef TESS_ESTIMATE_IMPL_H
#define TESS_ESTIMATE_IMPL_H
#include "models/train/run/run.h"

/* Prints what RAM must hold where nothing can leave it, part by part, beside what there is. */
void tess_estimate_needs(FILE *out, const tess_run *r, const tess_step *step, uint64_t limit);
/* Prints each tier of a run that fits; `least`: that memory.cpu may be; 0: not known. */
void tess_estimate_tiers(FILE *out, const tess_run *r, const tess_step *step, uint64_t limit, uint64_t least);
/* Prints what goes to other ranks. */
void tess_estimate_messages(FILE *out, const tess_run *r, const tess_holds *p);
/* Prints the time of a step with a GPU, and in which each part of the machine is at work. */
void tess_estimate_gpu_time(FILE *out, const tess_run *r, const tess_holds *p, const tess_rehearsed *t);
/* Prints the time of a step. */
void tess_estimate_time(FILE *out, const tess_run *r, const tess_holds *p, const tess_forecast *t);

#endif
