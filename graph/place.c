/* Placement over tiers: which tiles live in RAM, which flow between RAM and disk, and between which of their uses a
 * flowing one stays.
 *
 * The order of a step is known, and it repeats. So each tile has, between each two uses that follow each other in that
 * cycle, a gap; letting it leave in a gap costs a write, a read or both. Keeping it costs its bytes of RAM at each
 * moment of the gap, a moment being a task. At its moment a task holds the tiles it uses, and a share of RAM is set
 * aside for tiles that come early and leave late (the slack); the rest is room for gaps.
 *
 * Gaps are taken one after the other as long as every moment of the gap has room. Which first? Those that save the most
 * traffic a byte and moment: short ones, so that what the forward pass used last stays for the backward pass, and of
 * equal ones a fixed part, where keeping the least recently used would make everything flow. Better is an order that
 * knows which moments are crowded: the prices of moments that gaps.c finds while it proves how little any placement
 * must move. */
#include "place_impl.h"
#include <math.h>
#include <stdlib.h>

/* Of equals what is used last in a step stays: its end has no work left to hide traffic behind. */
static int by_order(const void *a, const void *b)
{
    const tess_gap *x = a, *y = b;
    if (x->order != y->order) return (x->order < y->order) - (x->order > y->order);
    if (x->first != y->first) return (x->first < y->first) - (x->first > y->first);
    return (x->count > y->count) - (x->count < y->count);
}

/* Bytes of the tiles that each task uses, one that it names twice counted once; the most. */
static uint64_t task_needs(const tess_program *p, uint64_t *need)
{
    uint64_t most = 0;
    for (size_t k = 0; k < p->tasks; k++) {
        const tess_use *u = p->task[k].use;
        need[k] = 0;
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            bool again = false;
            for (unsigned j = 0; j < i; j++) again |= u[j].tile == u[i].tile;
            if (tess_tile_flows(u[i].tile) && !again) need[k] += tess_tile_bytes(u[i].tile);
        }
        if (need[k] > most) most = need[k];
    }
    return most;
}

/* A tile that stays in all of its gaps lives in RAM; the others' home is the disk, and their bytes are returned. */
static uint64_t set_homes(const tess_gaps *g, bool all)
{
    uint64_t disk = 0;
    for (size_t i = 0; i < g->uses; i++)
        if (all || tess_program_drops(g->use[i].tile)) tess_tile_set_home(g->use[i].tile, TESS_TIER_CPU);
    for (size_t i = 0; i < g->gaps; i++)
        if (!g->gap[i].kept) tess_tile_set_home(g->gap[i].tile, TESS_TIER_DISK);
    for (size_t i = 0; i < g->uses; i += tess_gaps_same_tile(g, i))
        if (tess_tile_home(g->use[i].tile) == TESS_TIER_DISK) disk += tess_tile_bytes(g->use[i].tile);
    return disk;
}

/* ---- choosing ---- */

/* Tasks from which on fewer amounts of slack are tried, and prices less exact: planning takes its time, too. */
enum { MANY = 10000 };

struct placing {
    tess_program *p;
    const tess_place_conf *conf;
    bool all; /* else parameters have their homes */
    uint64_t room;
    uint64_t *need; /* of each task */
    tess_gaps gaps;
};

static bool role_in(unsigned roles, const tess_tile *t)
{
    return roles >> tess_tile_role(t) & 1;
}

static bool lives_in_ram(const struct placing *s, const tess_tile *t)
{
    return !s->all && !tess_program_drops(t) && tess_tile_home(t) == TESS_TIER_CPU;
}

/* Of activations only those leave by force that the forward pass keeps for the backward pass. */
static bool goes_away(const struct placing *s, const tess_gap *g)
{
    const tess_program *p = s->p;
    if (!role_in(s->conf->away, g->tile) || g->spared) return false;
    if (tess_tile_role(g->tile) != TESS_ROLE_ACTIVATION) return true;
    return !p->backward[(g->first + p->tasks - 1) % p->tasks] && p->backward[(g->first + g->count) % p->tasks];
}

/* Keeps the gap if RAM has room at each of its moments. */
static void keep(const struct placing *s, tess_gap *g, tess_room *left)
{
    int64_t bytes = (int64_t)tess_tile_bytes(g->tile);
    if (lives_in_ram(s, g->tile)) {
        g->kept = true; /* and counted before */
        return;
    }
    bool stays = role_in(s->conf->stay, g->tile);
    g->kept = stays || !goes_away(s, g);
    if (!g->kept) return;
    if (tess_room_take(left, g->first, g->count, bytes) < 0 && !stays) {
        tess_room_take(left, g->first, g->count, -bytes);
        g->kept = false;
    }
}

/* What each moment has for gaps. */
static int64_t *moments(const struct placing *s, uint64_t slack)
{
    int64_t *m = tess_alloc((s->p->tasks + 1) * sizeof *m);
    for (size_t k = 0; k < s->p->tasks; k++) {
        uint64_t taken = s->need[k] + slack;
        m[k] = taken < s->room ? (int64_t)(s->room - taken) : 0;
    }
    return m;
}

/* Keeps gaps in their order; what RAM lacks for tiles that must stay in it. */
static uint64_t fill(struct placing *s, const int64_t *moment, tess_placement *out)
{
    tess_gaps *g = &s->gaps;
    tess_room *left = tess_room_new(moment, s->p->tasks);
    qsort(g->gap, g->gaps, sizeof *g->gap, by_order);
    for (int stays = 1; stays >= 0; stays--)
        for (size_t i = 0; i < g->gaps; i++)
            if (role_in(s->conf->stay, g->gap[i].tile) == (bool)stays) keep(s, &g->gap[i], left);
    int64_t least = tess_room_least(left);
    tess_room_free(left);
    for (size_t i = 0; i < g->gaps; i++) {
        tess_gap *gap = &g->gap[i];
        gap->use->mode = gap->kept ? gap->use->mode | TESS_KEEP : gap->use->mode & ~TESS_KEEP;
    }
    tess_gaps_traffic(s->p, g, &out->read, &out->written);
    return least < 0 ? (uint64_t)-least : 0;
}

/* Orders to try: by the prices that the bound found; the same with more weight on what a step uses last, since its end
 * has no work left to hide traffic behind; by the traffic saved a byte and moment. */
enum order { BY_PRICE, BY_PRICE_LAST, BY_WORTH };

static void set_order(tess_gaps *g, const double *by_price, enum order order)
{
    for (size_t i = 0; i < g->gaps; i++) {
        tess_gap *gap = &g->gap[i];
        double last = (double)((gap->first + g->moments - 1) % g->moments) / (double)g->moments;
        double worth = (double)gap->moved / ((double)tess_tile_bytes(gap->tile) * (double)(gap->count + 1));
        gap->order = order == BY_WORTH ? worth : by_price[gap->id] * (order == BY_PRICE_LAST ? 1 + last / 4 : 1);
    }
}

/* Places in that order; what RAM lacks for tiles that must stay in it. */
static uint64_t place_by(struct placing *s, const int64_t *moment, const double *by_price, enum order order,
                         tess_placement *out)
{
    set_order(&s->gaps, by_price, order);
    uint64_t lacks = fill(s, moment, out);
    out->disk = set_homes(&s->gaps, s->all);
    if (s->conf->rates.flops > 0)
        tess_program_simulate(s->p, &s->conf->rates, s->room, s->conf->workers, &out->time);
    else
        out->time.seconds = (double)(out->read + out->written); /* the only measure there is */
    return lacks;
}

/* Places with that slack, in the order that makes the step fastest on paper; of equals the one that moves less. */
static uint64_t place(struct placing *s, uint64_t slack, tess_placement *out)
{
    int rounds = s->p->tasks < MANY ? 100 : 30;
    int64_t *moment = moments(s, slack);
    double *by_price = tess_alloc((s->gaps.gaps + 1) * sizeof *by_price);
    place_by(s, moment, by_price, BY_WORTH, out);
    tess_gaps_bound(&s->gaps, moment, out->read + out->written, rounds);
    for (size_t i = 0; i < s->gaps.gaps; i++) by_price[s->gaps.gap[i].id] = s->gaps.gap[i].order;
    enum order best = BY_WORTH;
    tess_placement least = *out;
    for (enum order o = BY_PRICE; o < BY_WORTH; o++) {
        place_by(s, moment, by_price, o, out);
        double ratio = out->time.seconds / least.time.seconds;
        if (ratio > 1.005 || (ratio > 0.995 && out->read + out->written >= least.read + least.written)) continue;
        best = o;
        least = *out;
    }
    uint64_t lacks = place_by(s, moment, by_price, best, out);
    out->slack = slack;
    free(moment);
    free(by_price);
    return lacks;
}

static uint64_t largest_state(const tess_program *p)
{
    uint64_t most = 0;
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            const tess_tile *t = p->task[k].use[i].tile;
            if (tess_tile_role(t) == TESS_ROLE_MOMENT && tess_tile_bytes(t) > most) most = tess_tile_bytes(t);
        }
    return most;
}

/* The slack that makes the step fastest on paper: much of it hides waiting, little of it keeps more in RAM. */
static uint64_t best_slack(struct placing *s, uint64_t most, tess_placement *out)
{
    enum { LEAST_PART = 2, MOST_PART = 12 };
    uint64_t asked = s->conf->slack_states * largest_state(s->p);
    if (s->conf->slack > asked) asked = s->conf->slack;
    if (asked) return asked < most ? asked : most;
    if (!(s->conf->rates.flops > 0)) return most < s->room / 8 ? most : s->room / 8;
    uint64_t best = 0;
    double seconds = INFINITY;
    bool many = s->p->tasks >= MANY;
    for (uint64_t part = MOST_PART; part >= LEAST_PART; part -= many ? part / 2 : part > 4 ? part / 4 : 1) {
        uint64_t slack = s->room / part < most ? s->room / part : most;
        place(s, slack, out);
        if (out->time.seconds > seconds * 0.99) continue; /* of equals the smaller one: it moves less */
        best = slack;
        seconds = out->time.seconds;
    }
    return best;
}

static int by_place(const void *a, const void *b)
{
    const tess_gap *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Spares the weights that a step uses last, as many as may stay in RAM. */
static void spare_weights(const struct placing *s, const tess_gaps *g)
{
    uint64_t left = s->conf->weights_in_ram;
    if (!left || !(s->conf->away >> TESS_ROLE_WEIGHT & 1)) return;
    qsort(g->gap, g->gaps, sizeof *g->gap, by_place);
    for (size_t i = g->gaps; i-- > 0;) {
        uint64_t bytes = tess_tile_bytes(g->gap[i].tile);
        if (tess_tile_role(g->gap[i].tile) != TESS_ROLE_WEIGHT || g->gap[i].spared || bytes > left) continue;
        left -= bytes;
        for (size_t k = 0; k < g->gaps; k++) g->gap[k].spared |= g->gap[k].tile == g->gap[i].tile;
    }
}

/* Workers' buffers for products: a few times what their operands have at most. */
static uint64_t buffers(const tess_place_conf *conf, uint64_t largest)
{
    return (uint64_t)conf->workers * (3 * largest < conf->worker_bytes ? 3 * largest : conf->worker_bytes);
}

/* The part of RAM that tiles take beyond their bytes: whole pages, and buffers that wait for the next tile. */
static uint64_t margin(uint64_t ram)
{
    return ram / 32;
}

/* The RAM of which a margin leaves so much. */
static uint64_t with_margin(uint64_t bytes)
{
    return bytes + bytes / 31 + 1;
}

static tess_status too_little(const tess_place_conf *conf, tess_placement *out, const char *why, uint64_t bytes)
{
    return tess_error(TESS_INVALID, "RAM", "%s, but the least a step can work with is %s (%s %s)",
                      tess_human_bytes((double)conf->ram), tess_human_bytes((double)out->needed), why,
                      tess_human_bytes((double)bytes));
}

tess_status tess_program_place(tess_program *p, const tess_place_conf *conf, uint64_t fixed, bool all,
                               tess_placement *out)
{
    int rounds = p->tasks < MANY ? 400 : 100;
    struct placing s = {.p = p, .conf = conf, .all = all, .need = tess_alloc((p->tasks + 1) * sizeof *s.need)};
    *out = (tess_placement){.largest_task = task_needs(p, s.need)};
    out->fixed = fixed + conf->taken;
    out->buffers = buffers(conf, out->largest_task);
    out->margin = margin(conf->ram);
    const uint64_t least = out->fixed + out->buffers + out->largest_task;
    out->needed = with_margin(least);
    if (least + out->margin > conf->ram) {
        free(s.need);
        return too_little(conf, out, "its largest task alone holds", out->largest_task);
    }
    s.room = out->room = conf->ram - out->fixed - out->buffers - out->margin;
    tess_gaps_list(p, &s.gaps);
    spare_weights(&s, &s.gaps);
    uint64_t slack = best_slack(&s, s.room - out->largest_task, out), lacks = place(&s, slack, out);
    if (lacks) lacks = place(&s, 0, out);
    int64_t *moment = moments(&s, 0);
    out->bound = tess_gaps_bound(&s.gaps, moment, out->read + out->written, rounds);
    free(moment);
    tess_gaps_free(&s.gaps);
    free(s.need);
    if (!lacks) return TESS_OK;
    out->needed = with_margin(conf->ram - out->margin + lacks);
    return too_little(conf, out, "tiles that may not leave RAM lack", lacks);
}
