/* Two micro-batches in turns, op by op, each at its own pace if one has more of them: while ranks of the tensor
 * dimension sum what one has made, a GPU computes the other. Nothing else changes: what one of them writes is used by
 * the other in the order in which they were emitted, so a gradient grows micro-batch by micro-batch, and the bits are
 * those of one after the other. */
#include "graph/lower/lower.h"
#include <stdlib.h>
#include <string.h>

/* Ranks have to have one order of messages. Where those of the data dimension send something for each micro-batch, and
 * so wait for each other at places that differ, there are no pairs. */
bool tess_lower_may_pair(const tess_graph *g, const tess_step_conf *conf)
{
    const tess_grid *grid = &g->conf.grid;
    const bool order = grid->pipeline == 1 || (grid->schedule == TESS_1F1B && grid->interleave == 1);
    const int stages = conf->layout.by_layer ? 3 : 2;
    bool alone = grid->stage < stages && grid->sequence <= 1 && !grid->gradient_codes && !conf->shares;
    for (int k = 0; k < g->params; k++) alone &= !g->param[k]->held->on.stays;
    return conf->train && order && alone;
}

/* Of each task which op of its micro-batch it belongs to, counted as they came; what is the step's goes with the op
 * before it. */
static uint32_t *count_ops(const tess_program *p, size_t from, size_t end)
{
    uint32_t *op = tess_alloc((end - from + 1) * sizeof *op), n = 0;
    const tess_origin *last = NULL;
    for (size_t k = from; k < end; k++) {
        const tess_origin *o = &p->origin[k];
        if (o->of && (!last || last->node != o->node || last->backward != o->backward)) n++, last = o;
        op[k - from] = n;
    }
    return op;
}

/* Of each tile the first run's last write and last use, as the number of the task plus 1. */
struct last {
    size_t write, use;
};

static struct last *find_last(const tess_program *p, size_t from, size_t second, size_t end)
{
    uint32_t n = 0;
    for (size_t k = from; k < end; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++) *tess_tile_number(p->task[k].use[i].tile) = 0;
    for (size_t k = from; k < end; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            uint32_t *number = tess_tile_number(p->task[k].use[i].tile);
            if (!*number) *number = ++n;
        }
    struct last *last = tess_alloc(((size_t)n + 1) * sizeof *last);
    for (size_t k = from; k < second; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            const tess_use *u = &p->task[k].use[i];
            struct last *l = &last[*tess_tile_number(u->tile)];
            if (u->mode & TESS_SCRATCH) continue;
            l->use = k + 1;
            if (u->mode & TESS_W) l->write = k + 1;
        }
    return last;
}

/* How many of the first run's tasks are before this one of the second, whatever the ops. */
static size_t needs(const tess_task *t, const struct last *last)
{
    size_t least = 0;
    for (unsigned i = 0; i < t->nuse; i++) {
        const struct last *l = &last[*tess_tile_number(t->use[i].tile)];
        const size_t k = t->use[i].mode & TESS_SCRATCH ? 0 : t->use[i].mode & TESS_W ? l->use : l->write;
        if (k > least) least = k;
    }
    return least;
}

void tess_program_pair(tess_program *p, size_t from, size_t second)
{
    const size_t end = p->tasks, n = end - from;
    TESS_FREED uint32_t *a = count_ops(p, from, second), *b = count_ops(p, second, end);
    TESS_FREED struct last *last = find_last(p, from, second, end);
    TESS_FREED tess_task *task = tess_alloc((n + 1) * sizeof *task);
    TESS_FREED tess_use **use = tess_alloc((n + 1) * sizeof *use);
    TESS_FREED tess_origin *origin = tess_alloc((n + 1) * sizeof *origin);
    memcpy(task, p->task + from, n * sizeof *task);
    memcpy(use, p->use + from, n * sizeof *use);
    memcpy(origin, p->origin + from, n * sizeof *origin);
    p->tasks = from;
    const uint64_t as = second > from ? a[second - 1 - from] : 0, bs = end > second ? b[end - 1 - second] : 0;
    size_t i = from;
    for (size_t k = second; k <= end; k++) {
        const size_t least = k < end ? needs(&task[k - from], last) : second;
        for (; i < second && (i < least || a[i - from] * bs <= b[k - second] * as); i++)
            tess_program_put(p, &task[i - from], use[i - from], &origin[i - from]);
        if (k < end) tess_program_put(p, &task[k - from], use[k - from], &origin[k - from]);
    }
}
