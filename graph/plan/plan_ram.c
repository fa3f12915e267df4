/* RAM above the disk: the level as a configuration's keys and caps make it, and how much of it is set aside.
 *
 * At its moment a task holds the tiles it uses, workers have their buffers, and a share of the rest is set aside for
 * tiles that come early and leave late (the slack). Keys may say of roles that they stay or leave whatever room there
 * is; of weights that are to leave some may be spared. */
#include "graph/plan/plan.h"
#include <stdlib.h>

static bool role_in(unsigned roles, const tess_plan_tile *t)
{
    return roles >> t->role & 1;
}

/* ---- what may leave ---- */

/* By the moment after the use, around the cycle. */
static int by_place(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    if (x[0] != y[0]) return (x[0] > y[0]) - (x[0] < y[0]);
    return (x[1] > y[1]) - (x[1] < y[1]);
}

/* Marks the weights that a step uses last, as many as may stay in RAM. free() it. */
static bool *spare_weights(const tess_uses *u, const tess_level *l, const tess_marks *m, const tess_place_conf *conf)
{
    uint64_t left = conf->weights_in_ram;
    bool *spared = tess_alloc((u->tiles + 1) * sizeof *spared);
    if (!left || !(conf->away >> TESS_ROLE_WEIGHT & 1)) return spared;
    uint32_t(*place)[2] = tess_alloc((u->uses + 1) * sizeof *place);
    size_t n = 0;
    for (size_t i = 0; i < u->uses; i++) {
        const uint32_t t = u->use[i].tile;
        if (!tess_level_has(l, m, t) || u->tile[t].role != TESS_ROLE_WEIGHT || (u->use[i].mode & TESS_LAST)) continue;
        place[n][0] = (uint32_t)((u->use[i].task + 1) % u->tasks);
        place[n++][1] = t;
    }
    qsort(place, n, sizeof *place, by_place);
    while (n-- > 0) {
        const uint32_t t = place[n][1];
        if (spared[t] || u->tile[t].bytes > left) continue;
        left -= u->tile[t].bytes;
        spared[t] = true;
    }
    free(place);
    return spared;
}

/* Of activations only those leave by force that the forward pass keeps for the backward pass. */
static bool goes_away(const tess_uses *u, const tess_plan_use *use, const tess_plan_use *next)
{
    if (u->tile[use->tile].role != TESS_ROLE_ACTIVATION) return true;
    return !u->task[use->task].backward && u->task[next->task].backward;
}

static void set_leave(const tess_uses *u, const tess_place_conf *conf, const tess_marks *m, tess_level *l)
{
    TESS_FREED bool *spared = spare_weights(u, l, m, conf);
    for (size_t at = 0, n; at < u->uses; at += n) {
        const tess_plan_tile *tile = &u->tile[u->use[at].tile];
        const bool rests = !l->homes && tile->lasts && tile->home == TESS_TIER_CPU;
        const bool away = role_in(conf->away, tile) && !spared[u->use[at].tile];
        n = tess_uses_of_tile(u, at);
        for (size_t i = 0; i < n; i++)
            l->leave[at + i] = rests                                                              ? TESS_RESTS
                               : role_in(conf->stay, tile)                                        ? TESS_MUST_STAY
                               : away && goes_away(u, &u->use[at + i], &u->use[at + (i + 1) % n]) ? TESS_MUST_LEAVE
                                                                                                  : TESS_MAY_LEAVE;
    }
}

/* ---- how much is set aside ---- */

static uint64_t largest_state(const tess_uses *u)
{
    uint64_t most = 0;
    for (size_t t = 0; t < u->tiles; t++) {
        const tess_role role = u->tile[t].role;
        if ((role == TESS_ROLE_MASTER || role == TESS_ROLE_MOMENT) && u->tile[t].bytes > most) most = u->tile[t].bytes;
    }
    return most;
}

/* What was asked for, or else shares of the room that are tried; no more than `most`. */
static void set_slacks(const tess_uses *u, const tess_place_conf *conf, uint64_t most, tess_level *l)
{
    enum { LEAST_PART = 2, MOST_PART = 12, PART = 6 };
    uint64_t asked = conf->slack_states * largest_state(u);
    if (conf->slack > asked) asked = conf->slack;
    if (!asked && !l->rates) asked = l->room / 8;
    if (!asked && l->quick) asked = l->room / PART;
    if (asked) l->slack[l->slacks++] = asked < most ? asked : most;
    const bool many = u->tasks >= TESS_MANY_TASKS;
    for (uint64_t part = MOST_PART; !asked && part >= LEAST_PART; part -= many ? part / 2 : part > 4 ? part / 4 : 1)
        l->slack[l->slacks++] = l->room / part < most ? l->room / part : most;
    if (!l->slacks) l->slack[l->slacks++] = 0; /* there is no room at all */
}

/* ---- the plan ---- */

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

/* Returns the RAM that leaves `bytes` after the margin. */
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

static tess_status place(const tess_uses *u, const tess_place_conf *conf, const tess_level *l, tess_marks *m,
                         tess_placement *out)
{
    tess_placed placed;
    tess_level_place(u, l, m, &placed);
    out->slack = placed.slack;
    out->read = placed.read;
    out->written = placed.written;
    out->bound = placed.bound;
    out->disk = placed.below;
    out->time = placed.time;
    if (!l->rates) out->time.seconds = (double)(placed.read + placed.written); /* the only measure there is */
    if (!placed.lacks) return TESS_OK;
    out->needed = with_margin(conf->ram - out->margin + placed.lacks);
    return too_little(conf, out, "tiles that may not leave RAM lack", placed.lacks);
}

tess_status tess_plan_ram(const tess_uses *u, const tess_place_conf *conf, uint64_t fixed, bool all, tess_marks *m,
                          tess_placement *out)
{
    tess_level l = {.homes = all, .workers = conf->workers, .rates = conf->rates.flops > 0 ? &conf->rates : NULL};
    tess_level_init(u, TESS_TIER_CPU, &l);
    l.quick = u->tasks >= TESS_VERY_MANY_TASKS;
    l.rounds = u->tasks < TESS_MANY_TASKS ? 100 : l.quick ? 12 : 30;
    l.last_rounds = u->tasks < TESS_MANY_TASKS ? 400 : l.quick ? 30 : 100;
    uint64_t *need = tess_alloc((u->tasks + 1) * sizeof *need);
    *out = (tess_placement){.largest_task = tess_level_needs(u, &l, m, need)};
    free(need);
    out->fixed = fixed + conf->taken;
    out->buffers = buffers(conf, out->largest_task);
    out->margin = margin(conf->ram);
    const uint64_t least = out->fixed + out->buffers + out->largest_task;
    out->needed = with_margin(least);
    tess_status status;
    if (least + out->margin > conf->ram)
        status = too_little(conf, out, "its largest task alone holds", out->largest_task);
    else {
        l.room = out->room = conf->ram - out->fixed - out->buffers - out->margin;
        set_leave(u, conf, m, &l);
        set_slacks(u, conf, l.room - out->largest_task, &l);
        status = place(u, conf, &l, m, out);
    }
    tess_level_free(&l);
    return status;
}
