/* The scale of the loss in fp16, from step to step (scale.c). */
#ifndef TESS_LOSS_SCALE_H
#define TESS_LOSS_SCALE_H
#include "models/train/config/config.h"
#include "runtime/runtime.h"

typedef struct tess_loss_scale {
    double value;
    int64_t steps, overflow; /* seen by it so far; which of them was the last that was skipped, -1: none */
    int64_t hysteresis;      /* skips until the scale is halved */
    int64_t skipped;         /* steps of the run that changed nothing */
} tess_loss_scale;

/* Returns the first step's. */
tess_loss_scale tess_loss_scale_begin(const tess_config *c);
/* Makes of the scale in a checkpoint the one that a run goes on with: a run in bf16 or fp32 had none. */
void tess_loss_scale_resume(const tess_config *c, tess_loss_scale *s);
/* Goes on after a step, counted from 0, to the next one's. TESS_FAILED: there is no smaller one. */
tess_status tess_loss_scale_next(const tess_config *c, tess_loss_scale *s, bool overflow, int64_t step) TESS_NODISCARD;

#endif
