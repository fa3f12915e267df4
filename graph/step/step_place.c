/* Where a step's tiles are: what a plan needs of the step, and what it says to it. */
#include "plan.h"
#include "step_impl.h"
#include <stdlib.h>
#include <string.h>

/* The tiles of a parameter and its states that this rank holds, but for the gradients, in the order: weights, masters,
 * moments. */
static int64_t held_tiles(const tess_tensor *p, tess_tile **tile)
{
    int64_t n = 0;
    for (int64_t j = 0; j < p->cut->tiles; j++)
        if (p->held->tile[j].weight) tile[n++] = p->held->tile[j].weight;
    for (int64_t i = 0; i < p->held->states; i++)
        if (p->held->state[i].weight) tile[n++] = p->held->state[i].weight;
    for (int64_t i = 0; i < p->held->states; i++)
        if (p->held->state[i].master && p->held->state[i].master != p->held->state[i].weight)
            tile[n++] = p->held->state[i].master;
    for (int64_t i = 0; i < p->held->states; i++)
        for (int m = 0; m < p->held->moments; m++) tile[n++] = p->held->state[i].moment[m];
    return n;
}

static tess_tile **held(const tess_graph *g, int64_t *n)
{
    int64_t most = g->cache ? tess_cache_tiles(g->cache, NULL) : 0;
    for (int k = 0; k < g->params; k++)
        most += g->param[k]->cut->tiles + (2 + TESS_MOMENTS_MOST) * g->param[k]->held->states;
    tess_tile **tile = tess_alloc((size_t)(most + 1) * sizeof *tile);
    *n = g->cache ? tess_cache_tiles(g->cache, tile) : 0;
    for (int k = 0; k < g->params; k++) *n += held_tiles(g->param[k], tile + *n);
    return tile;
}

void tess_step_holds(const tess_step *s, tess_holds *plan)
{
    *plan = (tess_holds){0};
    int64_t n;
    tess_tile **tile = held(s->g, &n);
    uint64_t on_gpu[TESS_ROLE_COUNT] = {0};
    for (int64_t i = 0; i < n; i++) {
        const tess_role r = tess_tile_role(tile[i]);
        const tess_tier home = tess_tile_home(tile[i]);
        if (!s->conf.train && r == TESS_ROLE_MOMENT) continue;
        uint64_t *const by_home[] = {
            [TESS_TIER_GPU] = on_gpu, [TESS_TIER_CPU] = plan->stays, [TESS_TIER_DISK] = plan->on_disk};
        plan->resident[r] += tess_tile_bytes(tile[i]);
        by_home[home][r] += tess_tile_bytes(tile[i]);
    }
    free(tile);
    tess_program_holds(s->low.program, plan);
    for (int r = 0; r < TESS_ROLE_COUNT; r++) {
        plan->peak_total += plan->resident[r];
        plan->ram[r] += plan->resident[r] - on_gpu[r];
        plan->peak_ram += plan->resident[r] - on_gpu[r];
    }
}

/* Bytes of the parameters and their states that live on a tier, placed by the step that trains them. */
static uint64_t held_bytes(const tess_graph *g, tess_tier tier)
{
    uint64_t bytes = 0;
    int64_t n;
    tess_tile **tile = held(g, &n);
    for (int64_t i = 0; i < n; i++)
        if (tess_tile_home(tile[i]) == tier) bytes += tess_tile_bytes(tile[i]);
    free(tile);
    return bytes;
}

/* Nothing uses the masters but what loads and stores them; their bytes on disk. Moments there are none. */
static uint64_t states_to_disk(const tess_graph *g)
{
    uint64_t bytes = 0;
    int64_t n;
    tess_tile **tile = held(g, &n);
    for (int64_t i = 0; i < n; i++) {
        if (tess_tile_role(tile[i]) != TESS_ROLE_MASTER) continue;
        tess_tile_set_home(tile[i], TESS_TIER_DISK);
        bytes += tess_tile_bytes(tile[i]);
    }
    free(tile);
    return bytes;
}

void tess_step_leave_disk(tess_step *s)
{
    const tess_program *p = s->low.program;
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++)
            if (tess_tile_home(p->use[k][i].tile) == TESS_TIER_DISK)
                tess_tile_set_home(p->use[k][i].tile, TESS_TIER_CPU);
    tess_step_note_disk(s, true, 0);
}

tess_dtype tess_step_dtype(const tess_step *s)
{
    return s && s->g ? s->g->conf.dtype : TESS_F32;
}

/* A step that is alone has nothing to do with some parameters: others do, which come beside it. Their bytes on disk. */
static uint64_t unused_to_disk(const tess_step *s)
{
    const tess_graph *g = tess_graph_owner(s->g);
    uint64_t bytes = 0;
    for (int k = 0; k < g->params; k++) {
        const tess_tensor *mine = tess_graph_find_param(s->g, g->param[k]->name);
        if (mine && s->low.uses[mine->id]) continue;
        for (int64_t j = 0; j < g->param[k]->cut->tiles && g->param[k]->held->tile; j++) {
            tess_tile *t = g->param[k]->held->tile[j].weight;
            if (!t) continue;
            tess_tile_set_home(t, TESS_TIER_DISK);
            bytes += tess_tile_bytes(t);
        }
    }
    return bytes;
}

tess_program *tess_step_program(const tess_step *s)
{
    return s->low.program;
}

static tess_status plan_ram(tess_step *s, const tess_place_conf *conf, uint64_t fixed, bool all, tess_placement *out)
{
    tess_program *p = s->low.program;
    tess_uses *u = tess_uses_list(p);
    tess_marks *m = tess_marks_new(u);
    const tess_status status = tess_plan_ram(u, conf, fixed + tess_program_fixed(p, conf->workers), all, m, out);
    if (status == TESS_OK) tess_marks_apply(p, u, m, TESS_TIER_CPU);
    tess_marks_free(m);
    tess_uses_free(u);
    return status;
}

static tess_status place(tess_step *s, const tess_place_conf *conf, tess_placement *out)
{
    if (s->conf.train) return plan_ram(s, conf, 0, true, out);
    if (!conf->alone) return plan_ram(s, conf, held_bytes(s->g, TESS_TIER_CPU), false, out);
    uint64_t states = states_to_disk(tess_graph_owner(s->g)) + unused_to_disk(s);
    TESS_TRY(plan_ram(s, conf, 0, true, out));
    out->disk += states;
    return TESS_OK;
}

/* Where a tile lives is said before it holds anything. */
tess_status tess_check_place(tess_graph *of)
{
    const tess_graph *g = tess_graph_owner(of);
    bool holds = false;
    for (int k = 0; k < g->params; k++)
        for (int64_t i = 0; i < g->param[k]->held->states; i++)
            holds |= g->param[k]->held->state[i].begun[TESS_MASTER] && g->session == tess_session();
    if (!holds) return TESS_OK;
    return tess_error(TESS_INVALID, "step", "comes too late to be placed (before anything is drawn, loaded or run)");
}

static tess_status check_place(const tess_step *s, const void *conf, const void *out, bool all)
{
    TESS_TRY(tess_step_check(s));
    if (!conf || !out)
        return tess_error(TESS_INVALID, "step", "is to be placed, but %s is NULL", conf ? "out" : "conf");
    if (s->ran && tess_graph_owner(s->g)->session == tess_session())
        return tess_error(TESS_INVALID, "step",
                          "comes too late to be placed (before anything is drawn, loaded or run)");
    return all ? tess_check_place(s->g) : TESS_OK;
}

void tess_step_note_disk(tess_step *s, bool all, uint64_t bytes)
{
    tess_graph *const g[] = {s->g, tess_graph_owner(s->g)};
    for (int k = 0; k < 2; k++) g[k]->on_disk = bytes > 0 || (!all && g[k]->on_disk);
}

tess_status tess_step_place(tess_step *s, const tess_place_conf *conf, tess_placement *out)
{
    const bool all = s && conf && (s->conf.train || conf->alone);
    TESS_TRY(check_place(s, conf, out, all));
    tess_status status = place(s, conf, out);
    tess_step_note_disk(s, all, status == TESS_OK ? out->disk : 0);
    return status;
}

/* A step beside the one that trains makes room as it goes, where it has too little. */
tess_status tess_step_place_gpu(tess_step *s, const tess_gpu_conf *conf, tess_gpu_placement *out)
{
    TESS_TRY(check_place(s, conf, out, conf && conf->all));
    tess_program *p = s->low.program;
    tess_gpu_conf rest = *conf;
    const uint64_t taken = conf->all ? 0 : held_bytes(s->g, TESS_TIER_GPU);
    rest.memory = conf->memory > taken ? conf->memory - taken : 0;
    tess_uses *u = tess_uses_list(p);
    tess_marks *m = tess_marks_new(u);
    const tess_status status = tess_plan_gpu(u, &rest, tess_program_fixed(p, 1), m, out);
    if (status == TESS_OK || !conf->all) tess_marks_apply(p, u, m, TESS_TIER_GPU);
    tess_marks_free(m);
    tess_uses_free(u);
    return status;
}

void tess_step_forecast(const tess_step *s, const tess_rates *rates, uint64_t room, int workers, tess_forecast *out)
{
    tess_uses *u = tess_uses_list(s->low.program);
    tess_marks *m = tess_marks_read(s->low.program, u);
    tess_plan_simulate(u, m, rates, room, workers, out);
    tess_marks_free(m);
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
    double *seconds = tess_alloc((p->tasks + 1) * sizeof *seconds), *sum = tess_alloc(sizeof measured->row);
    double *alone = tess_alloc((p->tasks + 1) * sizeof *alone);
    uint64_t *count = tess_alloc(sizeof measured->row);
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
    bool *chain = tess_alloc((p->tasks + 1) * sizeof *chain);
    tess_plan_parallel(u, seconds, alone, out, chain);
    for (size_t k = 0; k < p->tasks; k++) {
        const tess_profile_row *r = chain[k] ? row_of(measured, p->task[k].cl) : NULL;
        if (!r) continue;
        out->chain[r - measured->row].tasks++;
        out->chain[r - measured->row].seconds += alone[k];
    }
    tess_uses_free(u);
    free(chain);
    free(seconds);
    free(alone);
    free(sum);
    free(count);
}
