/* How long the thread that carries messages waits before it looks again whether one has come or gone. MPI cannot say so
 * by itself, and a look that finds nothing costs whoever computes the core and its caches. */
#include "runtime/messages/messages.h"
#include "runtime/progress/progress.h"
#include "runtime/ranks/ranks.h"

/* While all workers have work looks become rare, and what comes is found late by a small part of what it was waited
 * for. A worker that has none sleeps, and it may be a message that it waits for: then looks go on for a while without a
 * pause. */
void tess_rest(unsigned seen, double idle)
{
    enum { SPIN_US = 500, LEAST_US = 50, MOST_US = 1000 };
    const double us = 1e6 * idle;
    if (us < SPIN_US && !tess_starved_busy()) return;
    const long rest = us / 8 > MOST_US ? MOST_US : us / 8 > LEAST_US ? (long)(us / 8) : LEAST_US;
    tess_bell_rest(seen, rest);
}

unsigned tess_rest_news(void)
{
    return tess_bell_rings();
}

void tess_rest_end(void)
{
    tess_bell_ring(tess_rank());
}
