/* A bench: bench.c runs steps, bench_text.c says where their time went. */
#ifndef TESS_BENCH_H
#define TESS_BENCH_H
#include "models/train/report/measure.h"
#include "models/train/report/tracing.h"
#include "models/train/run/run.h"

typedef struct tess_bench_run {
    tess_run run;
    tess_step *step;
    tess_holds plan;
    tess_measure measure;
    tess_tracing tracing;
    uint64_t read, written, moved; /* from and to the disk, before the steps that are measured; moved: both */
    double drive_busy;             /* seconds, of the same */
    uint64_t sent, received;       /* to other ranks and from them, the same */
    double cores;                  /* seconds that carrying them took of cores */
} tess_bench_run;

/* Prints something of steps that take so long as a rule, all of whose tasks are in the profile. */
typedef void (*tess_bench_teller)(void *of, FILE *out, tess_bench_run *b, double median, const tess_profile *p,
                                  int steps);
/* Makes steps on random tokens, and calls `begin`, unless NULL, before the first step that is measured and `tell` with
 * the results. */
tess_status tess_bench_told(const tess_config *c, int steps, FILE *out, void (*begin)(void *of), tess_bench_teller tell,
                            void *of) TESS_NODISCARD;

/* efficiency.c: keeps what the tasks of steps reached of the yardsticks, of a run on cores alone that was long enough.
 */
void tess_efficiency_keep(const tess_bench_run *b, const tess_profile *p);

/* bench_text.c: where the time of the steps went. */
void tess_bench_print(FILE *out, tess_bench_run *b, double median, const tess_profile *p, int steps);

#endif
