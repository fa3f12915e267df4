/* What a step takes: its share of the machine's matrix rate, and what it moved between tiers and ranks. */
#ifndef TESS_MEASURE_H
#define TESS_MEASURE_H
#include "models/train/report/pace.h"

typedef struct tess_measure {
    tess_dtype dtype;                       /* of the matrices */
    double own, flops, yardstick, limit;    /* flops of this rank's part of a step; of all of it, and for its mfu */
    bool proved;                            /* a step was faster than the yardstick */
    uint64_t disk_read, disk_written, sent; /* so far */
    double worked, busy;                    /* flops and seconds of bodies so far */
    tess_pace *pace;                        /* NULL: there is one rank, or no step yet */
} tess_measure;

/* Begins with the flops of this rank's part of a step; all ranks call it. */
void tess_measure_begin(tess_measure *m, tess_dtype t, double flops);
/* Returns a step's share of the yardstick, which is raised where the step proves it too low. */
double tess_measure_mfu(tess_measure *m, double seconds);
/* Counts from here on: what was moved or waited for before is not the next step's. */
void tess_measure_start(tess_measure *m);
/* Fills in what follows from the seconds of the step since then, and what it moved and held; padding, all but `used`
 * of the step, is no work of the model's. All ranks call it. */
void tess_measure_step(tess_measure *m, double seconds, int64_t tokens, double used, tess_step_report *s);
/* Keeps the yardstick for later runs, if a step has raised it. */
void tess_measure_keep(const tess_measure *m);

#endif
