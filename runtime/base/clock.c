/* The clock that all times are of. */
#include "runtime/runtime.h"
#include <time.h>

double tess_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
