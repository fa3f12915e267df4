/* What a machine's rates allow, and what a body says that computes nothing.
 *
 * A codelet's share of the rates goes by the work of a task, because one share does not hold from model to model:
 * forward products reach 0.94 to 0.98 with 1024 rows and 0.83 to 0.89 with 256. A task between measured ones takes the
 * mean of their logarithms, weighted by one over the squared distance in rows, flops a byte and, a tenth as much,
 * bytes; so no share leaves the measured range. Predicted products are then within 0.976 to 1.022 of measured ones,
 * where one share had 0.915. task_us is measured from the end of a body to the begin of the worker's next, 28 to 45
 * us. */
#include "tools/simulate/simulated.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double tess_simulated_bound(const tess_simulated *m, tess_dtype t, tess_cost cost)
{
    const double rate = m->matrix_rate[t == TESS_BF16 ? TESS_BF16 : TESS_F32] / m->cores,
                 copy = m->copy_rate / m->cores;
    return cost.flops > 0 ? cost.flops / rate + cost.passes / copy : cost.bytes / copy;
}

/* How far a task is from one that was measured; 0: it has the same work, in the six digits of a file. Products of as
 * many rows, and with as many flops a byte, are near, whatever their size: a weight is packed once for all rows. */
static double apart(const tess_simulated_point *p, tess_cost c)
{
    const double SIZE = 0.1, SAME = 1e-8;
    const double size = log(c.bytes / p->bytes), flops = p->flops > 0 ? log(c.flops / p->flops) : 0,
                 rows = p->rows > 0 && c.rows > 0 ? log(c.rows / p->rows) : 0;
    if (size * size + flops * flops + rows * rows < SAME) return 0;
    return p->flops > 0 ? rows * rows + (flops - size) * (flops - size) + SIZE * size * size : size * size;
}

/* Between all points by the squares of how far they are. What comes out is one of the shares or lies between them. */
static double between(const tess_simulated *m, int codelet, tess_cost cost)
{
    double sum = 0, weights = 0;
    for (int i = 0; i < m->points; i++) {
        const tess_simulated_point *p = &m->point[i];
        if (p->of != codelet || (p->flops > 0) != (cost.flops > 0) || !(p->bytes > 0) || !(cost.bytes > 0)) continue;
        const double d = apart(p, cost);
        if (!(d > 0)) return p->share;
        sum += log(p->share) / d;
        weights += 1 / d;
    }
    return weights > 0 ? exp(sum / weights) : 0;
}

double tess_simulated_share_of(const tess_simulated *m, const char *codelet, tess_cost cost)
{
    for (int i = 0; i < m->shares; i++) {
        if (strcmp(m->share[i].codelet, codelet)) continue;
        const double share = between(m, i, cost);
        return share > 0 ? share : m->share[i].share;
    }
    return cost.flops > 0 ? m->matrix_share : m->copy_share;
}

double tess_simulated_gpu_bound(const tess_simulated_gpus *g, tess_dtype t, tess_cost cost)
{
    const double memory = cost.bytes / g->copy_rate;
    if (!(cost.flops > 0)) return memory;
    const double rate = g->matrix_rate[t == TESS_F32 ? TESS_F32 : TESS_BF16];
    return fmax((cost.flops + cost.lost) / rate, memory) + cost.passes / g->copy_rate;
}

static void name_of(const tess_codelet *cl, char name[64])
{
    snprintf(name, 64, "%.50s %s", cl->name, tess_dtype_name(cl->dtype));
}

/* The share of a GPU's rates that the codelet is said to reach, or else what its like do. */
static double gpu_share_of(const tess_simulated_gpus *g, const char *codelet, tess_cost cost)
{
    for (int i = 0; i < g->shares; i++)
        if (!strcmp(g->share[i].codelet, codelet)) return g->share[i].share;
    return cost.flops > 0 ? g->matrix_share : g->copy_share;
}

double tess_simulated_body_seconds(const tess_simulated *m, const tess_task *t, bool gpu)
{
    const tess_simulated_gpus *g = &m->gpus;
    const tess_cost cost = tess_task_cost(t);
    const tess_dtype dtype = t->cl->dtype;
    char name[64];
    name_of(t->cl, name);
    return gpu ? tess_simulated_gpu_bound(g, dtype, cost) / gpu_share_of(g, name, cost)
               : tess_simulated_bound(m, dtype, cost) / tess_simulated_share_of(m, name, cost);
}

bool tess_simulated_peers(const tess_simulated_gpus *g, int from, int to)
{
    return g->peer_rate > 0 && (!g->pairs || g->pair[from][to]);
}

void tess_simulated_choose(const tess_task *t)
{
    if (t->option != TESS_MAKES_CHOICE || !t->choice) return;
    int32_t *offset = tess_alloc(((size_t)t->choice->options + 1) * sizeof *offset);
    for (int64_t k = 0; k <= t->choice->options; k++) offset[k] = (int32_t)k;
    tess_choice_make(t->choice, offset);
    free(offset);
}
