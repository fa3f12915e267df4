/* Which rank computes slower than those that do the same work: one that lost a core, or that its machine throttles. All
 * others wait for it, so that no time of a step shows whose fault it is; the rate within bodies of tasks does.
 *
 *     tess_pace *p = tess_pace_new(rank, ranks);
 *     for (each step) tess_pace_step(p, counts, tess_seconds(), &s);   // says who is slow, once, and writes it in s
 *     tess_pace_free(p);
 */
#ifndef TESS_PACE_H
#define TESS_PACE_H
#include "models/train/report/report.h"

/* What all ranks know of one. */
typedef struct tess_pace_rank {
    char host[64];
    double flops; /* of its part of a step: ranks with the same do the same work */
} tess_pace_rank;

typedef struct tess_pace tess_pace;

/* Begins with those of all ranks. */
tess_pace *tess_pace_new(const tess_pace_rank *rank, int ranks);
/* Frees it; NULL is nothing. */
void tess_pace_free(tess_pace *p);
/* Adds what each rank did since the last time, flops and nanoseconds within bodies, (ranks, 2); a rank without
 * nanoseconds is not judged. Fills in slow_rank and slow_rate. */
void tess_pace_step(tess_pace *p, const int64_t *count, double now, tess_step_report *s);

#endif
