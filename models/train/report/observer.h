/* What watches a run that trains, for whoever makes its steps: its metrics and lines, its measured rates, its trace,
 * its digests, and what its output says of it before the first step. All ranks call these, in this order; rank 0 alone
 * writes what is of all.
 *
 *     TESS_TRY(tess_observer_check(c));                         // before what another run left is touched
 *     tess_observer_begin(&o, &run, &plan);
 *     ... StarPU starts, weights are there ...
 *     TESS_TRY(tess_observer_open(&o, step, &plan, done));
 *     for (each step) {
 *         tess_observer_step_begins(&o, step, done);
 *         ... it is fed and runs; s has its number, loss, rate and norm ...
 *         tess_observer_step_ends(&o, tokens, used, &s);        // and now what was measured
 *         TESS_TRY(tess_observer_step(&o, &s));                 // with what was evaluated after it
 *     }
 *     TESS_TRY(tess_observer_end(&o));
 *     tess_observer_close(&o);                                  // whatever happened, before tiles go
 */
#ifndef TESS_OBSERVER_H
#define TESS_OBSERVER_H
#include "models/train/report/digests.h"
#include "models/train/report/measure.h"
#include "models/train/report/tracing.h"

typedef struct tess_observer {
    const tess_run *run;
    tess_report *report;
    tess_measure measure;
    tess_tracing tracing;
    tess_digests_file digests;
    double start; /* of the step, or the end of the one before where it had begun by then */
} tess_observer;

/* Checks that what the configuration asks for can be written, on rank 0. */
tess_status tess_observer_check(const tess_config *c) TESS_NODISCARD;
/* Begins to measure: what the machine can do, beside the flops of this rank's part of a step. */
void tess_observer_begin(tess_observer *o, const tess_run *r, const tess_holds *plan);
/* Opens the files of a run that has done `done` steps. */
tess_status tess_observer_open(tess_observer *o, const tess_step *step, const tess_holds *plan,
                               int64_t done) TESS_NODISCARD;
/* Takes note that a step begins, behind `done` ones; not of one that begins before the last has ended. */
void tess_observer_step_begins(tess_observer *o, tess_step *step, int64_t done);
/* Takes note that it ended, and fills in what was measured; `used`: the share of its rows that are no padding. */
void tess_observer_step_ends(tess_observer *o, int64_t tokens, double used, tess_step_report *s);
/* Returns whether it looks into this step (the first is 1), or the next, which then are alone. */
bool tess_observer_sees(const tess_observer *o, int64_t step);
/* Writes the step down, and says what is due of it. */
tess_status tess_observer_step(tess_observer *o, const tess_step_report *s) TESS_NODISCARD;
/* Drops what was written of steps behind `done`, to which the run has gone back. */
tess_status tess_observer_back(tess_observer *o, int64_t done) TESS_NODISCARD;
/* Makes whole what is written of all steps; TESS_FAILED where it is not. */
tess_status tess_observer_end(tess_observer *o) TESS_NODISCARD;
/* Ends the page of a run that has made all its steps, where it was killed before it could. */
void tess_observer_finish(const tess_config *c);
/* Closes all that is open, and keeps the matrix rate that steps have proved. */
void tess_observer_close(tess_observer *o);

#endif
