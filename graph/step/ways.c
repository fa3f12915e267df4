/* The choice among the ways in which a step can be laid out: its micro-batches one after the other or layer by layer;
 * with clipping, its updates at the end or late, in the next step. Each is another list of the same tasks, so each has
 * a plan of its own, and the one whose step is fastest on paper is taken; without a drive, by rules that need no time.
 * Where blocks are computed again, as much of them is kept as there is room for (lower/keeps.c).
 *
 * Nothing is decided for tiles until a way is: plans are values, and the best one's marks are applied at the end. All
 * ranks take the same way: by what the rank has to do that does worst in it. They ask each other the same questions in
 * the same order, whatever memory a rank has: one without a GPU or a cap asks with nothing of its own. */
#include "graph/plan/plan.h"
#include "graph/step/step_impl.h"
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
        status = tess_plan_gpu(w->uses, conf, tess_program_fixed(w->step->low.program, 1), w->marks, &l->gpu);
    uint64_t needed = l->gpu.needed;
    status = agree(status, &needed, &none);
    if (status == TESS_OK) return TESS_OK;
    l->gpu.needed = needed;
    return status;
}

/* What sums between local steps have beside stays in RAM if all does, else it rests on disk. */
static tess_status plan_local(struct way *w, const tess_place_conf *conf, uint64_t fixed)
{
    tess_placement *ram = &w->plan.ram;
    const uint64_t local = tess_step_house_local(w->step->g, TESS_TIER_CPU);
    const tess_status status = tess_plan_ram(w->uses, conf, fixed + local, true, w->marks, ram);
    ram->room += local;
    if (!local || (status == TESS_OK && !ram->disk)) return status;
    tess_marks_free(w->marks);
    w->marks = tess_marks_new(w->uses);
    TESS_TRY(tess_plan_ram(w->uses, conf, fixed, true, w->marks, ram));
    ram->disk += local;
    return TESS_OK;
}

static tess_status plan_ram(struct way *w, const tess_place_conf *conf)
{
    tess_plan *l = &w->plan;
    tess_status status = TESS_OK;
    if (conf->ram) {
        const uint64_t fixed = tess_program_fixed(w->step->low.program, conf->workers);
        status = plan_local(w, conf, fixed);
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
    conf.layout.by_layer = by_layer;
    conf.layout.late = late;
    const tess_status made = tess_ranks_agree(tess_step_new(output, &conf, &w->step));
    if (made != TESS_OK) {
        drop(w);
        return made;
    }
    w->plan.pairs = w->step->low.pairs;
    w->uses = tess_uses_list(w->step->low.program);
    w->marks = tess_marks_new(w->uses);
    TESS_TRY(plan_gpu(w, &limits->gpu));
    return plan_ram(w, &limits->ram);
}

/* A rank has several micro-batches, which one may take layer by layer; a pipeline's order is its sections' own. */
static bool has_orders(const tess_step_conf *conf, const tess_grid *g)
{
    return conf->micro > tess_grid_batches(g) && g->pipeline == 1;
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
    const bool orders = has_orders(conf, &output->g->conf.grid);
    *best = (struct way){0};
    *least = (tess_plan){0};
    for (int k = 0; k < 4; k++) {
        const bool by_layer = k & 1, late = k & 2;
        struct way w;
        if ((by_layer && !orders) || (late && !tess_step_waits(conf))) continue;
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
 * it: activations of all micro-batches are many. With `late` updates always come so: beside a GPU the cores make those
 * of states in RAM while its next forward pass goes on, and no more bytes move for it, since with clipping all
 * gradients outlive the backward pass anyway. Cores alone would gain nothing. */
static tess_status fewest_moves(tess_tensor *output, const tess_step_conf *conf, const tess_limits *limits, bool late,
                                struct way *best, tess_plan *least)
{
    tess_status status = try_way(output, conf, limits, false, late, best);
    *least = best->plan;
    if (status != TESS_OK) {
        drop(best);
        return status;
    }
    int64_t copied, moved;
    count_moves(best, limits, &copied, &moved);
    if (moved == 0 || !has_orders(conf, &output->g->conf.grid)) return TESS_OK;
    struct way w;
    status = try_way(output, conf, limits, true, late, &w);
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

/* Whether a step in pairs is another one, and all that it has at a time is no more than a GPU's memory. */
static tess_status pairs_fit(tess_tensor *output, const tess_step_conf *conf, const tess_limits *limits, bool *fit)
{
    tess_step_conf pairs = *conf;
    tess_step *s = NULL;
    tess_holds holds;
    pairs.layout.pairs = true;
    TESS_TRY(tess_ranks_agree(tess_step_new(output, &pairs, &s)));
    tess_step_holds(s, &holds);
    int64_t lacks = !s->low.pairs || (limits->gpu.memory && holds.peak_total > limits->gpu.memory);
    tess_ranks_most(&lacks, 1);
    *fit = !lacks;
    tess_step_free(s);
    return TESS_OK;
}

/* Ranks of the tensor dimension wait for each sum of theirs, unless another micro-batch computes meanwhile. Cores have
 * tiles of a few rows to compute; on a GPU one tile has all rows, and a second micro-batch is what there is: they go in
 * pairs where that fits, and nothing is copied to a GPU or back. */
static tess_status in_pairs(tess_tensor *output, tess_step_conf *conf, const tess_limits *limits, bool late,
                            struct way *best, tess_plan *least)
{
    int64_t copied = 0, moved;
    bool fit = false;
    *best = (struct way){0};
    if (output->g->conf.grid.tensor > 1) TESS_TRY(pairs_fit(output, conf, limits, &fit));
    conf->layout.pairs = fit;
    const tess_status status = fewest_moves(output, conf, limits, late, best, least);
    if (!fit) return status;
    if (status == TESS_OK) count_moves(best, limits, &copied, &moved);
    if (status == TESS_OK ? copied == 0 : status != TESS_INVALID || !least->gpu.needed) return status;
    drop(best);
    conf->layout.pairs = false;
    return fewest_moves(output, conf, limits, late, best, least);
}

/* A link to a GPU, in bytes a second, as the rates below are a GPU's. */
#define LINK   2.5e10
#define SLOWER 1e6

/* What the forward tasks of each node take, in nanoseconds by these rates, and its output's size, of the rank that has
 * the most; NULL: by a GPU's. */
static tess_price *find_prices(const struct way *w, const tess_graph *g, const tess_rates *known)
{
    static const tess_rates gpu = {.flops = 4e8, .copy = 2e6}; /* SLOWER times slower than one: without overheads */
    const tess_program *p = w->step->low.program;
    tess_price *price = tess_alloc((size_t)(g->nodes + 1) * sizeof *price);
    for (size_t k = 0; k < p->tasks; k++)
        if (p->origin[k].of && !p->origin[k].backward)
            price[p->origin[k].node].time +=
                (int64_t)(1e9 * tess_plan_seconds(w->uses, k, known && known->flops > 0 ? known : &gpu, 1));
    for (int k = 0; k < g->nodes; k++) {
        const int64_t *dim = g->node[k]->out->dim;
        price[k].size = dim[0] * dim[1] * dim[2];
    }
    tess_ranks_most((int64_t *)price, 2 * g->nodes);
    return price;
}

/* Bytes of the optimizer's states that do not live on the GPU: a step brings them there, or leaves their updates to the
 * cores, which no plan of a GPU counts as copies. */
static uint64_t states_below(const struct way *w)
{
    uint64_t bytes = 0;
    for (size_t t = 0; t < w->uses->tiles; t++) {
        const tess_plan_tile *tile = &w->uses->tile[t];
        const bool state = tile->role == TESS_ROLE_MASTER || tile->role == TESS_ROLE_MOMENT;
        if (state && w->marks->home[t] != TESS_TIER_GPU) bytes += tile->bytes;
    }
    return bytes;
}

/* Nothing more is copied to a GPU or moved by a drive than by `base`, no more states live below the GPU unless that
 * pays, and a cap on RAM has a sixteenth left. */
static bool has_room(const struct way *w, const struct way *base, const tess_limits *limits, bool pays)
{
    tess_holds holds;
    tess_step_holds(w->step, &holds);
    const uint64_t needed = tess_holds_need(&holds, limits->ram.workers) + limits->ram.taken, cap = limits->whole;
    int64_t more = (cap && needed > cap - cap / 16) ||
                   (limits->gpu.memory && !pays && states_below(w) > states_below(base)) ||
                   w->plan.gpu.read + w->plan.gpu.written > base->plan.gpu.read + base->plan.gpu.written ||
                   w->plan.ram.read + w->plan.ram.written > base->plan.ram.read + base->plan.ram.written;
    tess_ranks_most(&more, 1);
    return !more;
}

/* The most that there is room for; of cores over a drive, the best on paper of some. Beside a GPU an output may take
 * the room of states in RAM if it saves more time in all micro-batches than those take to come and go once a step. */
static void keep_more(tess_tensor *output, tess_step_conf conf, const tess_limits *limits, bool drive, bool gpu,
                      struct way *best)
{
    const bool paper = drive && !gpu; /* what is forecast is the time of cores */
    enum { PARTS = 4, ROUNDS = 6 };
    struct way base = *best;
    tess_limits trials = *limits;
    tess_price *price = find_prices(best, output->g, gpu ? NULL : &limits->ram.rates);
    const double states = 2 * 1e9 * SLOWER / LINK * (double)tess_dtype_size(output->g->conf.dtype);
    int pay;
    const int n = tess_lower_worth(output, &conf, price, states, &conf.layout.keep, &pay);
    int low = 0, high = n + 1; /* there is room for `low`, and not for `high` */
    free(price);
    if (!paper) trials.gpu.refuse = base.plan.gpu.read + base.plan.gpu.written + 1;
    for (int k = 0; k < (paper ? PARTS : ROUNDS) && high - low > 1; k++) {
        struct way w;
        conf.layout.keeps = paper ? n * (k + 1) / PARTS : k == 0 ? n : (low + high) / 2;
        const tess_status status = try_way(output, &conf, &trials, base.plan.by_layer, base.plan.late, &w);
        const bool better =
            status == TESS_OK &&
            (paper ? w.measure < best->measure : has_room(&w, &base, limits, !drive && conf.layout.keeps <= pay));
        if (!paper) *(better ? &low : &high) = conf.layout.keeps;
        struct way *worse = better ? best : &w;
        if (worse->step != base.step) drop(worse);
        if (better) *best = w;
        if (better) best->plan.kept = conf.layout.keeps;
    }
    if (best->step != base.step) drop(&base);
    best->plan.again = n;
}

/* A task is submitted in its turn, and a GPU's wait for places there: cores have many updates to choose from only if
 * these are blocks ahead. Not where RAM is short, nor where the messages of weights, which follow updates, keep an
 * order. */
static int blocks_ahead(const tess_grid *g)
{
    enum { BLOCKS = 6 };
    return g->pipeline == 1 && (g->data == 1 || g->stage == 0 || g->stage == 3) ? BLOCKS : 0;
}

static void apply(struct way *w, const tess_limits *limits)
{
    tess_program *p = w->step->low.program;
    tess_gpu_placement *gpu = &w->plan.gpu;
    uint64_t to, back;
    if (limits->gpu.memory) tess_marks_apply(p, w->uses, w->marks, TESS_TIER_GPU);
    /* Before a run it is not known to the flow that messages take tiles from the GPU. */
    const bool plays = limits->gpu.memory && !limits->gpu.messages && !limits->ram.ram;
    if (plays && tess_gpu_flow_play(p->task, p->tasks, gpu->room, &to, &back)) gpu->read = to, gpu->written = back;
    if (!limits->ram.ram) return;
    tess_marks_apply(p, w->uses, w->marks, TESS_TIER_CPU);
    tess_step_house_local(w->step->g, w->plan.ram.disk ? TESS_TIER_DISK : TESS_TIER_CPU);
    tess_step_note_disk(w->step, true, w->plan.ram.disk);
}

tess_status tess_step_lay_out(tess_tensor *output, const tess_step_conf *conf, const tess_limits *limits,
                              tess_step **step, tess_plan *out)
{
    struct way best;
    if (step) *step = NULL;
    if (!output) return tess_check_null_output();
    if (!conf || !limits || !step || !out)
        return tess_error(TESS_INVALID, "tess_step_lay_out", "%s is NULL",
                          !conf     ? "conf"
                          : !limits ? "limits"
                          : !step   ? "step"
                                    : "out");
    *out = (tess_plan){0};
    int64_t has[] = {limits->ram.ram > 0, limits->gpu.memory > 0, limits->whole > 0}; /* some rank */
    tess_step_conf plain = *conf;
    plain.layout.keeps = 0;
    if (limits->ram.ram || conf->recompute_every) plain.chains = 0;
    tess_ranks_most(has, 3);
    plain.layout.late_ahead = has[0] || has[2] ? 0 : blocks_ahead(&output->g->conf.grid);
    TESS_TRY(tess_ranks_agree(limits->gpu.memory || limits->ram.ram ? tess_check_place(output->g) : TESS_OK));
    const bool late = has[1] && tess_step_waits(conf);
    const tess_status status = has[0]   ? fastest(output, &plain, limits, &best, out)
                               : has[1] ? in_pairs(output, &plain, limits, late, &best, out)
                                        : fewest_moves(output, &plain, limits, late, &best, out);
    if (status != TESS_OK) return status;
    const bool away = limits->ram.away >> TESS_ROLE_ACTIVATION & 1; /* asked for: of a block its input alone waits */
    if (conf->recompute_every > 0 && !conf->inputs_alone && !away && (has[0] || has[1] || has[2]))
        keep_more(output, plain, limits, has[0], has[1], &best);
    apply(&best, limits);
    *out = best.plan;
    *step = best.step;
    best.step = NULL;
    drop(&best);
    return TESS_OK;
}
