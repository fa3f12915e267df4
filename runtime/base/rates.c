/* What a machine's rates allow. */
#include "simulated.h"
#include <math.h>

double tess_simulated_bound(const tess_simulated *m, tess_dtype t, tess_cost cost)
{
    const double rate = m->matrix_rate[t == TESS_BF16 ? TESS_BF16 : TESS_F32] / m->cores,
                 copy = m->copy_rate / m->cores;
    return cost.flops > 0 ? cost.flops / rate + cost.passes / copy : cost.bytes / copy;
}

double tess_simulated_gpu_bound(const tess_simulated_gpus *g, tess_dtype t, tess_cost cost)
{
    const double memory = cost.bytes / g->copy_rate;
    if (!(cost.flops > 0)) return memory;
    return fmax(cost.flops / g->matrix_rate[t == TESS_F32 ? TESS_F32 : TESS_BF16], memory) + cost.passes / g->copy_rate;
}

bool tess_simulated_peers(const tess_simulated_gpus *g, int from, int to)
{
    return g->peer_rate > 0 && (!g->pairs || g->pair[from][to]);
}
