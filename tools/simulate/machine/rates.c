/* What a machine's rates allow, and what a body says that computes nothing.
 *
 * A codelet's share of the rates goes by the work of a task, because one share does not hold from model to model:
 * forward products reach 0.94 to 0.98 with 1024 rows and 0.83 to 0.89 with 256. A task between measured ones takes the
 * mean of their logarithms, weighted by one over the squared distance in rows, flops a byte and, a tenth as much,
 * bytes; so no share leaves the measured range. Predicted products are then within 0.976 to 1.022 of measured ones,
 * where one share had 0.915. task_us is measured from the end of a body to the begin of the worker's next, 28 to 45
 * us. */
#include "codelets/codelets.h"
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
    const double size = log(c.bytes / p->bytes), flops = p->flops > 0 ? log((c.flops + c.lost) / p->flops) : 0,
                 rows = p->rows > 0 && c.rows > 0 ? log(c.rows / p->rows) : 0;
    if (size * size + flops * flops + rows * rows < SAME) return 0;
    return p->flops > 0 ? rows * rows + (flops - size) * (flops - size) + SIZE * size * size : size * size;
}

/* Between all points by the squares of how far they are. What comes out is one of the shares or lies between them. */
static double between(const tess_simulated_shares *s, int codelet, tess_cost cost)
{
    double sum = 0, weights = 0;
    for (int i = 0; i < s->points; i++) {
        const tess_simulated_point *p = &s->point[i];
        if (p->of != codelet || (p->flops > 0) != (cost.flops > 0) || !(p->bytes > 0) || !(cost.bytes > 0)) continue;
        const double d = apart(p, cost);
        if (!(d > 0)) return p->share;
        sum += log(p->share) / d;
        weights += 1 / d;
    }
    return weights > 0 ? exp(sum / weights) : 0;
}

double tess_simulated_share_of(const tess_simulated_shares *s, const char *codelet, tess_cost cost)
{
    for (int i = 0; i < s->codelets; i++) {
        if (strcmp(s->codelet[i].codelet, codelet)) continue;
        const double share = between(s, i, cost);
        return share > 0 ? share : s->codelet[i].share;
    }
    return cost.flops > 0 ? s->products : s->copies;
}

double tess_simulated_gpu_bound(const tess_simulated_gpus *g, tess_dtype t, tess_cost cost)
{
    const double memory = cost.bytes / g->copy_rate;
    if (!(cost.flops > 0)) return memory;
    const double rate = g->matrix_rate[t == TESS_F32 ? TESS_F32 : TESS_BF16];
    return fmax((cost.flops + cost.lost) / rate, memory) + cost.passes / g->copy_rate;
}

/* Notes a codelet that the machine's file does not know, once. */
static void note(const tess_simulated_shares *s, const char *codelet, tess_cost cost, tess_simulated_lacks *lacks)
{
    for (int i = 0; i < s->codelets; i++)
        if (!strcmp(s->codelet[i].codelet, codelet)) return;
    for (int i = 0; i < lacks->codelets; i++)
        if (!strcmp(lacks->codelet[i].name, codelet)) return;
    if (lacks->codelets == TESS_SIMULATED_SHARES) return;
    snprintf(lacks->codelet[lacks->codelets].name, sizeof lacks->codelet->name, "%s", codelet);
    lacks->codelet[lacks->codelets++].multiplies = cost.flops > 0;
}

static double seconds_of(const tess_simulated *m, const tess_codelet *cl, tess_cost cost, bool gpu)
{
    const tess_simulated_shares *s = gpu ? &m->gpus.shares : &m->shares;
    char name[64];
    snprintf(name, sizeof name, "%.50s %s", cl->name, tess_dtype_name(cl->dtype));
    if (m->lacks && gpu == (m->gpus.count > 0)) note(s, name, cost, m->lacks);
    return (gpu ? tess_simulated_gpu_bound(&m->gpus, cl->dtype, cost) : tess_simulated_bound(m, cl->dtype, cost)) /
           tess_simulated_share_of(s, name, cost);
}

/* Kernels of a bundle follow each other: it takes what its parts take. */
static double bundle_seconds(const tess_simulated *m, const tess_task *t, bool gpu)
{
    const tess_bundle_arg *a = t->arg;
    double sum = 0;
    for (unsigned k = 0; k < a->parts; k++) {
        const tess_bundle_part *p = &a->part[k];
        tess_cost cost = {0};
        if (p->cl->cost)
            cost = p->cl->cost(p->arg);
        else
            for (unsigned i = 0; i < p->nbuf; i++) cost.bytes += (double)tess_tile_bytes(t->use[p->buf[i]].tile);
        sum += seconds_of(m, p->cl, cost, gpu);
    }
    return sum;
}

double tess_simulated_body_seconds(const tess_simulated *m, const tess_task *t, bool gpu)
{
    const tess_dtype d = t->cl->dtype;
    if ((unsigned)d < TESS_REAL_DTYPES && (t->cl == &tess_bundle[d] || t->cl == &tess_bundle_either[d]))
        return bundle_seconds(m, t, gpu);
    return seconds_of(m, t->cl, tess_task_cost(t), gpu);
}

static void say_lacking(const tess_simulated_lacks *l, bool multiplies, const char *like, double share, FILE *out)
{
    int n = 0;
    for (int i = 0; i < l->codelets; i++) {
        if (l->codelet[i].multiplies != multiplies) continue;
        if (!n++) fprintf(out, "; not there, so as %s at %.3g of the rate: ", like, share);
        fprintf(out, "%s%s", n > 1 ? ", " : "", l->codelet[i].name);
    }
}

void tess_simulated_say_rates(const tess_simulated *m, FILE *out)
{
    const tess_simulated_shares *s = m->gpus.count ? &m->gpus.shares : &m->shares;
    if (s->codelets) {
        fprintf(out, "rates     of %d codelets by the machine's file", s->codelets);
        say_lacking(m->lacks, true, "products", s->products, out);
        say_lacking(m->lacks, false, "copies", s->copies, out);
        fputc('\n', out);
    } else {
        fprintf(out,
                "rates     by rates of papers: the machine's file has no codelet's, products take %.3g of them, copies "
                "%.3g\n",
                s->products, s->copies);
    }
}

bool tess_simulated_peers(const tess_simulated_gpus *g, int from, int to)
{
    return g->peer_rate > 0 && (!g->pairs || g->pair[from][to]);
}

void tess_simulated_choose(const tess_task *t)
{
    if (t->option != TESS_MAKES_CHOICE || !t->choice) return;
    TESS_FREED int32_t *offset = tess_alloc(((size_t)t->choice->options + 1) * sizeof *offset);
    for (int64_t k = 0; k <= t->choice->options; k++) offset[k] = (int32_t)k;
    tess_choice_make(t->choice, offset);
}
