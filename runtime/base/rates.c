/* What a machine's rates allow. */
#include "simulated.h"

double tess_simulated_bound(const tess_simulated *m, tess_dtype t, tess_cost cost)
{
    const double rate = m->matrix_rate[t == TESS_BF16 ? TESS_BF16 : TESS_F32] / m->cores,
                 copy = m->copy_rate / m->cores;
    return cost.flops > 0 ? cost.flops / rate + cost.passes / copy : cost.bytes / copy;
}
