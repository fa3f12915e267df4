/* The choice among the ways in which a step can be laid out: its micro-batches one after the other or layer by layer;
 * with clipping, its updates at the end or late, in the next step. Each is another list of the same tasks, so each has
 * a plan of its own, and the one whose step is fastest on paper is taken.
 *
 * Nothing is decided for tiles until a way is: plans are values, and the best one's marks are applied at the end. All
 * ranks take the same way: by what the rank has to do that does worst in it. They ask each other the same questions in
 * the same order, whatever memory a rank has: one without a GPU or a cap asks with nothing of its own. */
#include "describe.h"
#include "plan.h"
#include "program.h"
#include <math.h>
#include <stdlib.h>

struct way {
    tess_step *step;
    tess_uses *uses;
    tess_marks *marks;
    tess_plan plan; /* with what it needs, where it does not fit */
    double measure; /* of its time, where the disk is a level */
};

static void drop(struct way *w)
{
    tess_marks_free(w->marks);
    tess_uses_free(w->uses);
    tess_step_free(w->step);
    *w = (struct way){0};
}

/* Of all ranks: the worst status, the most that is needed. */
static tess_status agree(tess_status status, uint64_t *needed, double *measure)
{
    int64_t worst[] = {status, (int64_t)*needed, (int64_t)(fmin(*measure, 1e12) * 1e6)};
    tess_ranks_most(worst, 3);
    *needed = (uint64_t)worst[1];
    *measure = (double)worst[2] * 1e-6;
    return (tess_status)worst[0];
}

/* Of the rank that has the most: bytes that go to a GPU and back; and those with what goes to other ranks. A link
 * between GPUs is faster than the one to RAM, a network slower: all count alike. Without a GPU both are 0. */
static void count_moves(const struct way *w, const tess_limits *limits, int64_t *copied, int64_t *moved)
{
    tess_holds plan;
    tess_step_holds(w->step, &plan);
    int64_t most[2] = {(int64_t)(w->plan.gpu.read + w->plan.gpu.written)};
    if (limits->gpu.memory) most[1] = most[0] + (int64_t)plan.sent;
    tess_ranks_most(most, 2);
    *copied = most[0];
    *moved = most[1];
}

static tess_status plan_gpu(struct way *w, const tess_gpu_conf *conf)
{
    tess_plan *l = &w->plan;
    double none = 0;
    tess_status status = TESS_OK;
    if (conf->memory)
        status = tess_plan_gpu(w->uses, conf, tess_program_fixed(tess_step_program(w->step), 1), w->marks, &l->gpu);
    uint64_t needed = l->gpu.needed;
    status = agree(status, &needed, &none);
    if (status == TESS_OK) return TESS_OK;
    l->gpu.needed = needed;
    return status;
}

static tess_status plan_ram(struct way *w, const tess_place_conf *conf)
{
    tess_plan *l = &w->plan;
    tess_status status = TESS_OK;
    if (conf->ram) {
        const uint64_t fixed = tess_program_fixed(tess_step_program(w->step), conf->workers);
        status = tess_plan_ram(w->uses, conf, fixed, true, w->marks, &l->ram);
        w->measure = conf->rates.flops > 0 ? tess_forecast_measure(&l->ram.time) : l->ram.time.seconds;
    }
    status = agree(status, &l->ram.needed, &w->measure);
    if (status != TESS_OK) l->gpu = (tess_gpu_placement){0};
    return status;
}

/* A way and its plan; TESS_INVALID where it does not fit. */
static tess_status try_way(tess_tensor *output, const tess_step_conf *of, const tess_limits *limits, bool by_layer,
                           bool late, struct way *w)
{
    tess_step_conf conf = *of;
    *w = (struct way){.plan = {.by_layer = by_layer, .late = late}};
    conf.by_layer = by_layer;
    conf.late = late;
    const tess_status made = tess_ranks_agree(tess_step_new(output, &conf, &w->step));
    if (made != TESS_OK) {
        drop(w);
        return made;
    }
    w->uses = tess_uses_list(tess_step_program(w->step));
    w->marks = tess_marks_new(w->uses);
    TESS_TRY(plan_gpu(w, &limits->gpu));
    return plan_ram(w, &limits->ram);
}

/* The less that is lacking of the two, RAM before a GPU. */
static void keep_lack(const tess_plan *p, tess_plan *least)
{
    const bool ram = !p->gpu.needed, had = !least->gpu.needed, first = had && !least->ram.needed;
    const uint64_t needed = ram ? p->ram.needed : p->gpu.needed;
    if (first || (ram && !had) || (ram == had && needed < (ram ? least->ram.needed : least->gpu.needed))) *least = *p;
}

/* The fastest way on paper of those that fit under a cap on RAM. Where none fits, `best` has no step, and *least says
 * what would do. */
static tess_status fastest(tess_tensor *output, const tess_step_conf *conf, const tess_limits *limits, struct way *best,
                           tess_plan *least)
{
    const bool pipeline = output->g->conf.grid.pipeline > 1; /* its order is the sections' own */
    *best = (struct way){0};
    *least = (tess_plan){0};
    for (int k = 0; k < (pipeline ? 1 : 4); k++) {
        const bool by_layer = k & 1, late = k & 2;
        struct way w;
        if ((by_layer && conf->micro < 2) || (late && !(conf->optimizer.clip > 0 || conf->skips))) continue;
        const tess_status status = try_way(output, conf, limits, by_layer, late, &w);
        if (status == TESS_INVALID && w.step) keep_lack(&w.plan, least);
        if (status == TESS_OK && (!best->step || w.measure < best->measure)) {
            drop(best);
            *best = w;
            continue;
        }
        const bool broke = status != TESS_OK && (status != TESS_INVALID || !w.step);
        drop(&w);
        if (!broke) continue;
        drop(best);
        *least = (tess_plan){0};
        return status;
    }
    return best->step ? TESS_OK : TESS_INVALID;
}

/* Without a cap on RAM: layer by layer weights and gradients come to a GPU, or from other ranks, and go once for all
 * micro-batches, and activations for each; takes what moves less. RAM has no plan then, so nothing more goes there for
 * it: activations of all micro-batches are many. */
static tess_status fewest_moves(tess_tensor *output, const tess_step_conf *conf, const tess_limits *limits,
                                struct way *best, tess_plan *least)
{
    tess_status status = try_way(output, conf, limits, false, false, best);
    *least = best->plan;
    if (status != TESS_OK) {
        drop(best);
        return status;
    }
    int64_t copied, moved;
    count_moves(best, limits, &copied, &moved);
    if (moved == 0 || conf->micro < 2 || output->g->conf.grid.pipeline > 1) return TESS_OK;
    struct way w;
    status = try_way(output, conf, limits, true, false, &w);
    if (status == TESS_OK && w.step) {
        int64_t copies, moves;
        count_moves(&w, limits, &copies, &moves);
        if (moves < moved && copies <= copied) {
            struct way other = *best;
            *best = w;
            w = other;
        }
    }
    const bool broke = !w.step;
    drop(&w);
    if (broke) drop(best);
    return broke ? status : TESS_OK;
}

static void apply(const struct way *w, const tess_limits *limits)
{
    tess_program *p = tess_step_program(w->step);
    if (limits->gpu.memory) tess_marks_apply(p, w->uses, w->marks, TESS_TIER_GPU);
    if (!limits->ram.ram) return;
    tess_marks_apply(p, w->uses, w->marks, TESS_TIER_CPU);
    tess_step_note_disk(w->step, true, w->plan.ram.disk);
}

tess_status tess_step_lay_out(tess_tensor *output, const tess_step_conf *conf, const tess_limits *limits,
                              tess_step **step, tess_plan *out)
{
    struct way best;
    if (step) *step = NULL;
    if (!output) return tess_check_null_output();
    if (!conf || !limits || !step || !out)
        return tess_error(TESS_INVALID, "step", "is to be laid out, but %s is NULL",
                          !conf     ? "conf"
                          : !limits ? "limits"
                          : !step   ? "the place for it"
                                    : "out");
    *out = (tess_plan){0};
    int64_t capped = limits->ram.ram > 0;
    tess_ranks_most(&capped, 1);
    TESS_TRY(tess_ranks_agree(limits->gpu.memory || limits->ram.ram ? tess_check_place(output->g) : TESS_OK));
    const tess_status status = (capped ? fastest : fewest_moves)(output, conf, limits, &best, out);
    if (status != TESS_OK) return status;
    apply(&best, limits);
    *out = best.plan;
    *step = best.step;
    best.step = NULL;
    drop(&best);
    return TESS_OK;
}
