/* Placing a step's tiles: what a plan needs of the step, and what it says to it. */
#include "graph/plan/plan.h"
#include "graph/step/step_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Nothing uses the masters but what loads and stores them; their bytes on disk. Moments there are none. */
static uint64_t states_to_disk(const tess_graph *g)
{
    uint64_t bytes = 0;
    int64_t n;
    TESS_FREED tess_tile **tile = tess_step_held(g, &n);
    for (int64_t i = 0; i < n; i++) {
        if (tess_tile_role(tile[i]) != TESS_ROLE_MASTER) continue;
        tess_tile_set_home(tile[i], TESS_TIER_DISK);
        bytes += tess_tile_bytes(tile[i]);
    }
    return bytes;
}

uint64_t tess_step_house_local(const tess_graph *g, tess_tier home)
{
    uint64_t bytes = 0;
    for (int k = 0; k < g->params; k++)
        for (int64_t i = 0; i < g->param[k]->held->states; i++) {
            tess_tile *const tile[] = {g->param[k]->held->state[i].anchor, g->param[k]->held->state[i].outer};
            for (int t = 0; t < 2; t++) {
                if (!tile[t]) continue;
                tess_tile_set_home(tile[t], home);
                bytes += tess_tile_bytes(tile[t]);
            }
        }
    return bytes;
}

void tess_step_leave_disk(tess_step *s)
{
    tess_step_house_local(tess_graph_owner(s->g), TESS_TIER_CPU);
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
    if (s->conf.train)
        return plan_ram(s, conf, tess_step_house_local(tess_graph_owner(s->g), TESS_TIER_CPU), true, out);
    if (!conf->alone) return plan_ram(s, conf, tess_step_held_bytes(s->g, TESS_TIER_CPU), false, out);
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
    if (!conf || !out) return tess_error(TESS_INVALID, "step", "%s is NULL", conf ? "out" : "conf");
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
    const uint64_t taken = conf->all ? 0 : tess_step_held_bytes(s->g, TESS_TIER_GPU);
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

/* By how much the drive is slower in a step that reads and writes than if it did one alone. */
static double slower_drive(const tess_drive *d, double read, double written)
{
    const double alone = d->read_rate > 0 ? fmax(read / d->read_rate, written / d->write_rate) : 0;
    return alone > 0 ? tess_drive_seconds(d, read, written) / alone : 1;
}

double tess_step_gpu_seconds(const tess_step *s, const tess_stage *stage)
{
    const tess_program *p = s->low.program;
    double sum = 0;
    for (size_t k = 0; k < p->tasks; k++)
        if (p->task[k].cl != &tess_message && tess_task_can_gpu(&p->task[k])) sum += stage->seconds(&p->task[k], true);
    return sum;
}

void tess_step_rehearse(const tess_step *s, const tess_plan *plan, const tess_stage *stage, tess_rehearsed *out)
{
    const tess_program *p = s->low.program;
    tess_uses *u = tess_uses_list(p);
    tess_marks *m = tess_marks_read(p, u);
    double *gpu = tess_alloc((p->tasks + 1) * sizeof *gpu), *cores = tess_alloc((p->tasks + 1) * sizeof *cores);
    uint8_t *lane = tess_alloc(p->tasks + 1);
    for (size_t k = 0; k < p->tasks; k++) {
        const bool message = u->task[k].where == TESS_IS_MESSAGE;
        gpu[k] = stage->seconds(&p->task[k], true);
        cores[k] = message ? 0 : stage->seconds(&p->task[k], false) / stage->cores;
        if (message) lane[k] = (uint8_t)(((const tess_message_arg *)p->task[k].arg)->lane % TESS_MESSAGE_LANES);
    }
    const double slower = slower_drive(&stage->drive, (double)plan->ram.read, (double)plan->ram.written);
    tess_times times = {.gpu = gpu,
                        .cores = cores,
                        .lane = lane,
                        .messages_on_gpu = tess_ranks() > 1,
                        .pairs = plan->pairs,
                        .room = {plan->gpu.room, plan->ram.disk ? plan->ram.room : UINT64_MAX},
                        .in = {stage->link, stage->drive.read_rate / slower},
                        .out = {stage->link, stage->drive.write_rate / slower},
                        .latency = {stage->link_latency, 0},
                        .ram = stage->ram};
    *out = (tess_rehearsed){0};
    tess_plan_rehearse_gpu(u, m, &times, out);
    /* Tiles that have to go for a place in one piece are in the plan's bytes and not in its marks. */
    const double marked = stage->link * (out->to_gpu + out->from_gpu);
    const double more = marked > 0 ? (double)(plan->gpu.read + plan->gpu.written) / marked : 0;
    if (more > 1) {
        times.in[0] /= more, times.out[0] /= more;
        *out = (tess_rehearsed){0};
        tess_plan_rehearse_gpu(u, m, &times, out);
    }
    out->seconds += stage->between;
    free(gpu), free(cores), free(lane);
    tess_marks_free(m);
    tess_uses_free(u);
}
