/* From a program to the list that a plan is made of: tiles and tasks become numbers. */
#include "graph/lower/program.h"
#include "graph/plan/plan.h"
#include <stdlib.h>

static bool flows(tess_role r)
{
    return r != TESS_ROLE_INPUT && r != TESS_ROLE_SCALAR && r != TESS_ROLE_SCRATCH;
}

static tess_plan_where where(const tess_task *t)
{
    if (t->cl == &tess_message) return TESS_IS_MESSAGE;
    if (!tess_task_can_gpu(t)) return TESS_RUNS_ON_CPU;
    return t->cl->either ? TESS_RUNS_ON_EITHER : TESS_RUNS_ON_GPU;
}

/* Workers that could share its body. */
static uint32_t parts(const tess_task *t)
{
    enum { MOST = 4096 };
    const int64_t n = t->cl->parts ? t->cl->parts(t->cl, t->arg) : 1;
    return n < MOST ? (uint32_t)n : MOST;
}

static void list_tasks(const tess_program *p, tess_uses *u)
{
    u->task = tess_alloc((p->tasks + 1) * sizeof *u->task);
    size_t at = 0;
    for (size_t k = 0; k < p->tasks; at += p->task[k++].nuse) {
        const tess_task *t = &p->task[k];
        u->task[k] = (tess_plan_task){.first = at, .where = where(t), .backward = p->origin[k].backward};
        if (t->cl->cost) u->task[k].cost = t->cl->cost(t->arg);
        u->task[k].parts = parts(t);
    }
    u->task[p->tasks].first = at;
}

static void list_tiles(const tess_program *p, tess_uses *u)
{
    const uint32_t *index = p->index;
    size_t n = 0;
    u->tile = tess_alloc((u->tiles + 1) * sizeof *u->tile);
    for (size_t k = 0; k < p->tasks; index += p->task[k++].nuse)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            const tess_tile *t = p->task[k].use[i].tile;
            if (index[i] != n) continue; /* it is not its first use */
            const tess_role role = p->role[n];
            u->tile[n++] = (tess_plan_tile){.bytes = tess_tile_bytes(t),
                                            .role = role,
                                            .home = tess_tile_home(t),
                                            .flows = flows(role),
                                            .lasts = !tess_role_drops(role)};
        }
}

/* Where in u->use the uses of each tile begin: as many as tasks that name it. */
static uint32_t *first_uses(const tess_program *p, const uint32_t *index, tess_uses *u)
{
    uint32_t *first = tess_alloc((u->tiles + 1) * sizeof *first);
    uint32_t *last = tess_alloc((u->tiles + 1) * sizeof *last); /* the task that named it last, and one */
    for (size_t k = 0; k < p->tasks; index += p->task[k++].nuse)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            if (last[index[i]] == k + 1) continue;
            last[index[i]] = (uint32_t)k + 1;
            first[index[i] + 1]++;
        }
    for (size_t t = 0; t < u->tiles; t++) first[t + 1] += first[t];
    u->uses = first[u->tiles];
    free(last);
    return first;
}

static void list_uses(const tess_program *p, const uint32_t *index, tess_uses *u)
{
    TESS_FREED uint32_t *end = first_uses(p, index, u);
    u->use = tess_alloc((u->uses + 1) * sizeof *u->use);
    u->named = tess_alloc((u->task[p->tasks].first + 1) * sizeof *u->named);
    for (size_t k = 0, at = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++, at++) {
            const uint32_t t = index[at];
            bool again = false;
            for (size_t j = u->task[k].first; j < at; j++) again |= index[j] == t;
            if (!again) u->use[end[t]++] = (tess_plan_use){.tile = t, .task = (uint32_t)k};
            u->use[end[t] - 1].mode |= p->task[k].use[i].mode;
            u->named[at] = end[t] - 1;
        }
}

tess_uses *tess_uses_list(const tess_program *p)
{
    tess_uses *u = tess_alloc(sizeof *u);
    u->tasks = p->tasks;
    u->tiles = p->numbers; /* by their places in the list: so a plan depends on it alone */
    list_tasks(p, u);
    list_tiles(p, u);
    list_uses(p, p->index, u);
    return u;
}

void tess_uses_free(tess_uses *u)
{
    if (!u) return;
    free(u->tile);
    free(u->task);
    free(u->use);
    free(u->named);
    free(u);
}

size_t tess_uses_of_tile(const tess_uses *u, size_t i)
{
    size_t n = 1;
    while (i + n < u->uses && u->use[i + n].tile == u->use[i].tile) n++;
    return n;
}
