/* Placement over tiers: which tiles live in RAM, which flow between RAM and disk, and between which of their uses a
 * flowing one stays.
 *
 * The order of a step is known, and it repeats. So each tile has, between each two uses that follow each other in that
 * cycle, a gap; letting it leave in a gap costs a write if it was written since it came, and a read if the next use
 * reads it. Keeping it costs its bytes of RAM at each moment of the gap, a moment being a task. At its moment a task
 * holds the tiles it uses, and a share of RAM is set aside for tiles that come early and leave late (the slack); the
 * rest is room for gaps. They are taken greedily, the most traffic saved a byte and moment first, as long as every
 * moment of the gap has room: short gaps first, so that what the forward pass used last stays for the backward pass,
 * and of equal ones a fixed part stays while the rest flows, where keeping the least recently used first would make
 * everything flow.
 *
 * The traffic of what is left is the plan's. No placement moves less than the bound: the same choice with fractions of
 * gaps allowed, without slack, and RAM's moments added up to one total. */
#include "graph_impl.h"
#include <math.h>
#include <stdlib.h>

struct use_of {
    tess_tile *tile;
    size_t task;
    unsigned index;
};

struct gap {
    tess_tile *tile;
    tess_use *use;       /* after which it is */
    size_t first, count; /* tasks between, in the cycle */
    uint64_t moved;      /* bytes, when the tile leaves */
    double worth;        /* of them a byte and task */
    bool kept, spared;   /* spared: need not go away with its role */
};

static int by_tile_and_task(const void *a, const void *b)
{
    const struct use_of *x = a, *y = b;
    if (x->tile != y->tile) return (x->tile > y->tile) - (x->tile < y->tile);
    return (x->task > y->task) - (x->task < y->task);
}

static int by_worth(const void *a, const void *b)
{
    const struct gap *x = a, *y = b;
    if (x->worth != y->worth) return (x->worth < y->worth) - (x->worth > y->worth);
    /* Of equals what is used last in a step stays: the end of a step has no work left to hide traffic behind. */
    return (x->first < y->first) - (x->first > y->first);
}

static bool may_flow(const tess_tile *t)
{
    tess_role r = tess_tile_role(t);
    return r != TESS_ROLE_INPUT && r != TESS_ROLE_SCALAR && r != TESS_ROLE_SCRATCH;
}

static struct use_of *list_uses(const tess_program *p, size_t *count)
{
    size_t n = 0, room = 4096;
    struct use_of *u = tess_alloc(room * sizeof *u);
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            if (!may_flow(p->task[k].use[i].tile)) continue;
            if (n == room) u = tess_realloc(u, (room *= 2) * sizeof *u);
            u[n++] = (struct use_of){p->task[k].use[i].tile, k, i};
        }
    qsort(u, n, sizeof *u, by_tile_and_task);
    *count = n;
    return u;
}

/* How many of the uses from `u` on are of its tile. */
static size_t same_tile(const struct use_of *u, size_t left)
{
    size_t n = 1;
    while (n < left && u[n].tile == u[0].tile) n++;
    return n;
}

static tess_use *use_at(const tess_program *p, const struct use_of *u)
{
    return (tess_use *)&p->task[u->task].use[u->index];
}

/* The gaps of one tile, whose uses are u[0..n), into g; how many. A write is charged to the first gap after it. */
static size_t gaps_of(const tess_program *p, const struct use_of *u, size_t n, struct gap *g)
{
    size_t gaps = 0;
    uint64_t bytes = tess_tile_bytes(u[0].tile);
    for (size_t i = 0; i < n; i++) {
        tess_use *use = use_at(p, &u[i]);
        if (use->mode & TESS_LAST) continue; /* nothing is left to keep */
        size_t from = u[i].task, to = i + 1 < n ? u[i + 1].task : u[0].task + p->tasks;
        if (to == from) { /* the same task names it again */
            use->mode |= TESS_KEEP;
            continue;
        }
        uint64_t moved = (use->mode & TESS_W ? bytes : 0) + (use_at(p, &u[(i + 1) % n])->mode & TESS_R ? bytes : 0);
        g[gaps++] = (struct gap){.tile = u[i].tile,
                                 .use = use,
                                 .first = from + 1,
                                 .count = to - from - 1,
                                 .moved = moved,
                                 .worth = (double)moved / ((double)bytes * (double)(to - from))};
    }
    return gaps;
}

/* What one tile moves in a step of the cycle: the second time around, when it begins as the step before left it. */
static void traffic_of(const tess_program *p, const struct use_of *u, size_t n, tess_placement *out)
{
    uint64_t bytes = tess_tile_bytes(u[0].tile);
    bool dirty = false;
    for (size_t i = 0; i < 2 * n; i++) {
        int mode = use_at(p, &u[i % n])->mode, next = use_at(p, &u[(i + 1) % n])->mode;
        dirty |= (mode & TESS_W) != 0;
        if (mode & TESS_LAST) dirty = false;
        if (mode & (TESS_LAST | TESS_KEEP)) continue;
        if (dirty && i >= n) out->written += bytes;
        if ((next & TESS_R) && i >= n) out->read += bytes;
        dirty = false;
    }
}

/* The least that any placement moves: gaps in the same order, cut where the room of all moments together is used up. */
static uint64_t lower_bound(const struct gap *g, size_t n, double room)
{
    double moved = 0;
    for (size_t i = 0; i < n; i++) {
        double takes = (double)tess_tile_bytes(g[i].tile) * (double)g[i].count;
        double part = takes <= room ? 1 : room / takes;
        room -= part * takes;
        moved += (1 - part) * (double)g[i].moved;
    }
    return (uint64_t)moved;
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
            if (may_flow(u[i].tile) && !again) need[k] += tess_tile_bytes(u[i].tile);
        }
        if (need[k] > most) most = need[k];
    }
    return most;
}

/* A tile that stays in all of its gaps lives in RAM; the others' home is the disk, and their bytes are returned. */
static uint64_t set_homes(struct gap *g, size_t gaps, const struct use_of *u, size_t uses)
{
    uint64_t disk = 0;
    for (size_t i = 0; i < uses; i++) tess_tile_set_home(u[i].tile, TESS_TIER_CPU);
    for (size_t i = 0; i < gaps; i++)
        if (!g[i].kept) tess_tile_set_home(g[i].tile, TESS_TIER_DISK);
    for (size_t i = 0; i < uses; i += same_tile(u + i, uses - i))
        if (tess_tile_home(u[i].tile) == TESS_TIER_DISK) disk += tess_tile_bytes(u[i].tile);
    return disk;
}

/* ---- choosing ---- */

struct placing {
    tess_program *p;
    const tess_place_conf *conf;
    uint64_t room;
    uint64_t *need; /* of each task */
    struct use_of *use;
    struct gap *gap; /* in order of worth */
    size_t uses, gaps;
};

static bool role_in(unsigned roles, const tess_tile *t)
{
    return roles >> tess_tile_role(t) & 1;
}

/* Of activations only those leave by force that the forward pass keeps for the backward pass. */
static bool goes_away(const struct placing *s, const struct gap *g)
{
    const tess_program *p = s->p;
    if (!role_in(s->conf->away, g->tile) || g->spared) return false;
    if (tess_tile_role(g->tile) != TESS_ROLE_ACTIVATION) return true;
    return !p->backward[(g->first + p->tasks - 1) % p->tasks] && p->backward[(g->first + g->count) % p->tasks];
}

/* Keeps the gap if RAM has room at each of its moments. */
static void keep(const struct placing *s, struct gap *g, tess_room *left)
{
    int64_t bytes = (int64_t)tess_tile_bytes(g->tile);
    bool stays = role_in(s->conf->stay, g->tile);
    g->kept = stays || !goes_away(s, g);
    if (!g->kept) return;
    if (tess_room_take(left, g->first, g->count, bytes) < 0 && !stays) {
        tess_room_take(left, g->first, g->count, -bytes);
        g->kept = false;
    }
}

/* Places with that slack; what RAM lacks for tiles that must stay in it. */
static uint64_t place(struct placing *s, uint64_t slack, tess_placement *out)
{
    const tess_program *p = s->p;
    int64_t *moment = tess_alloc(p->tasks * sizeof *moment);
    for (size_t k = 0; k < p->tasks; k++) {
        uint64_t taken = s->need[k] + slack;
        moment[k] = taken < s->room ? (int64_t)(s->room - taken) : 0;
    }
    tess_room *left = tess_room_new(moment, p->tasks);
    for (int stays = 1; stays >= 0; stays--)
        for (size_t i = 0; i < s->gaps; i++)
            if (role_in(s->conf->stay, s->gap[i].tile) == (bool)stays) keep(s, &s->gap[i], left);
    int64_t least = tess_room_least(left);
    tess_room_free(left);
    free(moment);
    for (size_t i = 0; i < s->gaps; i++) {
        struct gap *g = &s->gap[i];
        g->use->mode = g->kept ? g->use->mode | TESS_KEEP : g->use->mode & ~TESS_KEEP;
    }
    out->slack = slack;
    out->read = out->written = 0;
    for (size_t i = 0, n; i < s->uses; i += n) traffic_of(p, s->use + i, n = same_tile(s->use + i, s->uses - i), out);
    out->disk = set_homes(s->gap, s->gaps, s->use, s->uses);
    if (s->conf->rates.flops > 0) tess_program_simulate(p, &s->conf->rates, s->room, s->conf->workers, &out->time);
    return least < 0 ? (uint64_t)-least : 0;
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
    uint64_t asked = s->conf->slack_states * largest_state(s->p);
    if (s->conf->slack > asked) asked = s->conf->slack;
    if (asked) return asked < most ? asked : most;
    if (!(s->conf->rates.flops > 0)) return most < s->room / 8 ? most : s->room / 8;
    uint64_t best = 0;
    double seconds = INFINITY;
    for (uint64_t part = 2; part <= 16; part += part < 4 ? 1 : part / 2) {
        uint64_t slack = s->room / part < most ? s->room / part : most;
        place(s, slack, out);
        if (out->time.seconds >= seconds * 0.995) continue; /* of equals the larger one: it forgives more */
        best = slack;
        seconds = out->time.seconds;
    }
    return best;
}

static int by_place(const void *a, const void *b)
{
    const struct gap *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Spares the weights that a step uses last, as many as may stay in RAM. */
static void spare_weights(struct placing *s)
{
    uint64_t left = s->conf->weights_in_ram;
    if (!left || !(s->conf->away >> TESS_ROLE_WEIGHT & 1)) return;
    qsort(s->gap, s->gaps, sizeof *s->gap, by_place);
    for (size_t i = s->gaps; i-- > 0;) {
        struct gap *g = &s->gap[i];
        uint64_t bytes = tess_tile_bytes(g->tile);
        if (tess_tile_role(g->tile) != TESS_ROLE_WEIGHT || g->spared || bytes > left) continue;
        left -= bytes;
        for (size_t k = 0; k < s->gaps; k++) s->gap[k].spared |= s->gap[k].tile == g->tile;
    }
}

static void list_gaps(struct placing *s)
{
    s->use = list_uses(s->p, &s->uses);
    s->gap = tess_alloc((s->uses + 1) * sizeof *s->gap);
    for (size_t i = 0, n; i < s->uses; i += n)
        s->gaps += gaps_of(s->p, s->use + i, n = same_tile(s->use + i, s->uses - i), s->gap + s->gaps);
    spare_weights(s);
    qsort(s->gap, s->gaps, sizeof *s->gap, by_worth);
}

static tess_status too_little(const tess_place_conf *conf, const tess_placement *out, const char *why, uint64_t bytes)
{
    return tess_error(TESS_INVALID, "memory.cpu", "%s for tiles, but the least a step can work with is %s (%s %s)",
                      tess_human_bytes((double)conf->ram), tess_human_bytes((double)out->needed), why,
                      tess_human_bytes((double)bytes));
}

tess_status tess_program_place(tess_program *p, const tess_place_conf *conf, uint64_t fixed, tess_placement *out)
{
    struct placing s = {.p = p, .conf = conf, .need = tess_alloc((p->tasks + 1) * sizeof *s.need)};
    *out = (tess_placement){.largest_task = task_needs(p, s.need)};
    out->needed = fixed + out->largest_task;
    if (out->needed > conf->ram) {
        free(s.need);
        return too_little(conf, out, "its largest task alone holds", out->largest_task);
    }
    s.room = out->room = conf->ram - fixed;
    list_gaps(&s);
    double moments = 0;
    for (size_t k = 0; k < p->tasks; k++) moments += (double)(s.room - s.need[k]);
    uint64_t slack = best_slack(&s, s.room - out->largest_task, out), lacks = place(&s, slack, out);
    if (lacks) lacks = place(&s, 0, out);
    out->bound = lower_bound(s.gap, s.gaps, moments);
    free(s.use);
    free(s.gap);
    free(s.need);
    if (!lacks) return TESS_OK;
    out->needed = conf->ram + lacks;
    return too_little(conf, out, "tiles that may not leave RAM lack", lacks);
}
