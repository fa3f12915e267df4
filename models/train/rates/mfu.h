/* The yardstick of MFU: the flops a second that a machine can do, and the share of them that a step reached. No share
 * is above 1: a step that is faster than the yardstick proves it too low. */
#ifndef TESS_MFU_H
#define TESS_MFU_H
#include "runtime/runtime.h"

/* Returns what no core, and no GPU, comes near: a figure beyond is a broken file's or clock's. */
double tess_mfu_limit(tess_dtype t, int cores, int gpus);
/* Returns the larger of two figures, one kept and one measured now, since other programs only ever make a measured
 * figure smaller. A figure that is missing (0), or not between 0 and `limit`, does not count; returns 0 if neither
 * counts. */
double tess_mfu_best(double kept, double measured, double limit);
/* Returns flops / seconds as a share of *yardstick, 0 to 1; NaN if the yardstick, or a second, is missing. A share
 * above 1 raises the yardstick, up to `limit`. */
double tess_mfu_share(double *yardstick, double limit, double flops, double seconds);

#endif
