/* The steps of a run that the configuration asks to be traced: OUTPUT/trace.json, one file of all ranks. In the order
 * in which it is called, by all ranks but for the last:
 *
 *     tess_tracing_open(&t, &run, &plan, &measure, done);        // before the first step
 *     tess_tracing_begin(&t, step);                              // each step
 *     tess_tracing_end(&t, step, begin, end);
 *     tess_tracing_merge(&t);                                    // after the last step
 *     tess_tracing_close(&t);                                    // whatever happened, before tiles go
 */
#ifndef TESS_TRACING_H
#define TESS_TRACING_H
#include "models/train/report/measure.h"
#include "models/train/run/run.h"

typedef struct tess_tracing {
    const char *output; /* borrowed; NULL: no step is traced */
    int64_t first, last;
    bool open, any; /* its file; a step was traced */
} tess_tracing;

/* Opens the trace of a run that has done `done` steps; without effect if none of its steps is traced. */
tess_status tess_tracing_open(tess_tracing *t, const tess_run *r, const tess_holds *plan, const tess_measure *m,
                              int64_t done) TESS_NODISCARD;
/* Removes the traces of an earlier run from the output of a new one. Rank 0 calls it. */
void tess_tracing_clear(const char *output);
/* Takes note that a step begins, the first being 1. */
void tess_tracing_begin(tess_tracing *t, int64_t step);
/* Takes note that it ended, and when it was. Behind the last traced step it merges. */
void tess_tracing_end(tess_tracing *t, int64_t step, double begin, double end);
/* Makes one file of all ranks'. */
void tess_tracing_merge(tess_tracing *t);
/* Closes this rank's file, whatever became of the others'. */
void tess_tracing_close(tess_tracing *t);

#endif
