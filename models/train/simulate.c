/* A step on a machine that is not here: the bench's steps, in the program that simulates. */
#include "bench_impl.h"
#include "machine_impl.h"

tess_status tess_simulate(const tess_config *c, const tess_simulated *m, int steps, FILE *out)
{
    (void)m;
    return tess_bench(c, steps, out, NULL);
}
