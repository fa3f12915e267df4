/* A step as whoever schedules it sees it: its tiles, and its tasks in the order of the list, with those that each waits
 * for. Nothing is kept: a list of 100,000s of tasks goes by, one after the other. */
#include "graph/plan/plan.h"
#include "graph/step/step_impl.h"
#include <stdlib.h>
#include <string.h>

static const char *const where_name[] = {[TESS_RUNS_ON_CPU] = "cpu",
                                         [TESS_RUNS_ON_GPU] = "gpu",
                                         [TESS_RUNS_ON_EITHER] = "either",
                                         [TESS_IS_MESSAGE] = "message"};

/* Seconds of a task by the rates; of messages no rate is measured. */
static double seconds_of(const tess_uses *u, size_t k, const tess_rates *rates, int workers)
{
    return rates && u->task[k].where != TESS_IS_MESSAGE ? tess_plan_seconds(u, k, rates, workers) : 0;
}

void tess_step_parallelism_by(const tess_step *s, const tess_rates *rates, int workers, tess_parallelism *out)
{
    tess_uses *u = tess_uses_list(s->low.program);
    double *seconds = tess_alloc((u->tasks + 1) * sizeof *seconds), *alone = tess_alloc((u->tasks + 1) * sizeof *alone);
    for (size_t k = 0; k < u->tasks; k++) {
        seconds[k] = seconds_of(u, k, rates, workers);
        alone[k] = seconds[k] / (u->task[k].parts > 1 ? u->task[k].parts : 1);
    }
    tess_plan_parallel(u, seconds, alone, out, NULL);
    free(seconds), free(alone);
    tess_uses_free(u);
}

/* What a task's time is in proportion to, among those of its codelet. */
static double weight(const tess_task *t)
{
    const tess_cost c = t->cl->cost ? t->cl->cost(t->arg) : (tess_cost){0};
    double bytes = c.bytes;
    for (unsigned i = 0; i < t->nuse && !c.flops && !c.bytes; i++) bytes += (double)tess_tile_bytes(t->use[i].tile);
    return c.flops > 0 ? c.flops : bytes + 1;
}

static const tess_profile_row *row_of(const tess_profile *p, const tess_codelet *cl)
{
    for (int i = 0; i < p->rows; i++)
        if (p->row[i].dtype == cl->dtype && !strcmp(p->row[i].name, cl->name)) return &p->row[i];
    return NULL;
}

void tess_step_parallelism(const tess_step *s, const tess_profile *measured, tess_parallelism *out)
{
    const tess_program *p = s->low.program;
    TESS_FREED double *seconds = tess_alloc((p->tasks + 1) * sizeof *seconds), *sum = tess_alloc(sizeof measured->row);
    TESS_FREED double *alone = tess_alloc((p->tasks + 1) * sizeof *alone);
    TESS_FREED uint64_t *count = tess_alloc(sizeof measured->row);
    for (int pass = 0; pass < 2; pass++)
        for (size_t k = 0; k < p->tasks; k++) {
            const tess_profile_row *r = row_of(measured, p->task[k].cl);
            if (!r || !r->tasks) continue;
            const size_t i = (size_t)(r - measured->row);
            if (pass) {
                seconds[k] = r->busy / (double)r->tasks * weight(&p->task[k]) * (double)count[i] / sum[i];
                alone[k] = r->busy > 0 && r->alone < r->busy ? seconds[k] * r->alone / r->busy : seconds[k];
            } else
                sum[i] += weight(&p->task[k]), count[i]++;
        }
    tess_uses *u = tess_uses_list(p);
    TESS_FREED bool *chain = tess_alloc((p->tasks + 1) * sizeof *chain);
    tess_plan_parallel(u, seconds, alone, out, chain);
    for (size_t k = 0; k < p->tasks; k++) {
        const tess_profile_row *r = chain[k] ? row_of(measured, p->task[k].cl) : NULL;
        if (!r) continue;
        out->chain[r - measured->row].tasks++;
        out->chain[r - measured->row].seconds += alone[k];
    }
    tess_uses_free(u);
}

/* ---- the list ---- */

/* Each task's predecessors: before[first[k]] up to before[first[k + 1]], in order, some of them twice. */
struct befores {
    size_t *first;
    uint32_t *before;
};

static struct befores find_befores(const tess_uses *u)
{
    tess_waits w = tess_waits_find(u);
    struct befores b = {.first = tess_alloc((u->tasks + 2) * sizeof *b.first)};
    for (size_t k = 0; k < u->tasks; k++) b.first[k + 2] = b.first[k + 1] + w.left[k];
    b.before = tess_alloc((b.first[u->tasks + 1] + 1) * sizeof *b.before);
    for (size_t k = 0; k < u->tasks;
         k++) /* first[k + 1] is where k's begin until they are there, and then where they end */
        for (size_t i = w.first[k]; i < w.first[k + 1]; i++) b.before[b.first[w.behind[i] + 1]++] = (uint32_t)k;
    tess_waits_free(&w);
    return b;
}

/* Leaves each once, in place. */
static size_t drop_doubles(uint32_t *of, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (!kept || of[kept - 1] != of[i]) of[kept++] = of[i];
    return kept;
}

/* What a task does with each of its tiles; returns how many these are. */
static size_t list_uses(const tess_uses *u, const tess_marks *m, size_t k, tess_listed_use *use)
{
    size_t n = 0;
    for (size_t at = u->task[k].first; at < u->task[k + 1].first; at++) {
        const uint32_t i = u->named[at], tile = u->use[i].tile;
        size_t j = 0;
        while (j < n && use[j].tile != tile) j++;
        if (j < n) continue;
        int mode = u->use[i].mode & ~(TESS_LEAVES_RAM | TESS_LEAVES_GPU);
        if (m->home[tile] == TESS_TIER_DISK && m->leaves[i] >> TESS_TIER_CPU & 1) mode |= TESS_LEAVES_RAM;
        if (m->leaves[i] >> TESS_TIER_GPU & 1) mode |= TESS_LEAVES_GPU;
        use[n++] = (tess_listed_use){tile, mode};
    }
    return n;
}

static double held_by(const tess_task *t)
{
    double bytes = 0;
    for (unsigned i = 0; i < t->nuse; i++)
        if (!(t->use[i].mode & TESS_SCRATCH)) bytes += (double)tess_tile_bytes(t->use[i].tile);
    return bytes;
}

static void list_tiles(const tess_program *p, const tess_uses *u, const tess_lister *to)
{
    uint32_t next = 0;
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            const tess_tile *t = p->task[k].use[i].tile;
            const uint32_t tile = u->use[u->named[u->task[k].first + i]].tile;
            if (tile < next) continue;
            TESS_ASSERT(tile == next);
            to->tile(to->of, next++,
                     &(tess_listed_tile){.name = tess_tile_label(t),
                                         .role = tess_tile_role(t),
                                         .home = tess_tile_home(t),
                                         .bytes = tess_tile_bytes(t),
                                         .lasts = tess_tile_role(t) != TESS_ROLE_SCRATCH && u->tile[tile].lasts});
        }
}

void tess_step_list(const tess_step *s, const tess_rates *rates, int workers, const tess_lister *to)
{
    const tess_program *p = s->low.program;
    tess_uses *u = tess_uses_list(p);
    tess_marks *m = tess_marks_read(p, u);
    struct befores b = find_befores(u);
    size_t most = 0;
    list_tiles(p, u, to);
    for (size_t k = 0; k < p->tasks; k++)
        if (p->task[k].nuse > most) most = p->task[k].nuse;
    tess_listed_use *use = tess_alloc((most + 1) * sizeof *use);
    for (size_t k = 0; k < p->tasks; k++) {
        const tess_cost c = tess_task_cost(&p->task[k]);
        uint32_t *before = b.before + b.first[k];
        const tess_listed_task t = {.codelet = p->task[k].cl,
                                    .where = where_name[u->task[k].where],
                                    .backward = p->origin[k].backward,
                                    .flops = c.flops,
                                    .bytes = c.flops > 0 ? c.passes : c.bytes,
                                    .held = held_by(&p->task[k]),
                                    .seconds = seconds_of(u, k, rates, workers),
                                    .parts = u->task[k].parts > 1 ? u->task[k].parts : 1,
                                    .use = use,
                                    .uses = list_uses(u, m, k, use),
                                    .before = before,
                                    .befores = drop_doubles(before, b.first[k + 1] - b.first[k])};
        to->task(to->of, (uint32_t)k, &t);
    }
    free(use), free(b.first), free(b.before);
    tess_marks_free(m);
    tess_uses_free(u);
}
