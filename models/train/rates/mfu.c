/* The yardstick of MFU, see mfu.h. Functions of their arguments alone. */
#include "models/train/rates/mfu.h"
#include <math.h>

/* Of fp32 the widest vectors do 64 flops a cycle, of bf16 the widest matrix units 1024, and no clock reaches 8 GHz; the
 * fastest GPUs do some 2e15 flops a second of bf16. */
static const double CORE[] = {[TESS_F32] = 1e12, [TESS_BF16] = 16e12}, GPU = 2e16;

double tess_mfu_limit(tess_dtype t, int cores, int gpus)
{
    return gpus > 0 ? GPU * gpus : CORE[t] * cores;
}

static bool counts(double rate, double limit)
{
    return isfinite(rate) && rate > 0 && rate <= limit;
}

double tess_mfu_best(double kept, double measured, double limit)
{
    double best = counts(kept, limit) ? kept : 0;
    return counts(measured, limit) && measured > best ? measured : best;
}

double tess_mfu_share(double *yardstick, double limit, double flops, double seconds)
{
    const double rate = flops / seconds;
    if (!counts(*yardstick, INFINITY) || !(seconds > 0) || !(rate >= 0)) return NAN;
    if (rate <= *yardstick) return rate / *yardstick;
    if (counts(rate, limit)) *yardstick = rate;
    return 1;
}
