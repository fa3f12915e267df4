/* The learning rate of a step, by DeepSpeed's schedules. */
#ifndef TESS_SCHEDULE_IMPL_H
#define TESS_SCHEDULE_IMPL_H
#include "graph/graph.h"
#include "models/train/checkpoint/checkpoint.h"
#include "models/train/config/config.h"

/* Where the number of all steps is known: what is left out of the schedule, and shares of all steps. */
void tess_schedule_settle(tess_config *c);
/* Returns, of a settled configuration, what the optimizer uses in its step number `step`, counted from 0, in
 * DeepSpeed's engine. */
double tess_schedule_lr(const tess_config *c, int64_t step);
/* Returns whether that is 0 in every step. */
bool tess_schedule_rests(const tess_config *c);
/* Stores the optimizer's betas in that step: its own, but in OneCycle with cycle_momentum, where beta1 moves against
 * the rate.
 */
void tess_schedule_betas(const tess_config *c, int64_t step, double betas[2]);
/* Returns what the step of that number is run with, after those that fp16's scale of the loss has seen. */
tess_step_input tess_schedule_input(const tess_config *c, int64_t step, uint64_t seed, const tess_loss_scale *scale);

#endif
