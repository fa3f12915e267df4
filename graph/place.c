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
#include <stdlib.h>
#include <string.h>

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
    bool kept;
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
    return (x->first > y->first) - (x->first < y->first); /* the same choice on every machine */
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

/* The room at each moment, in a tree whose nodes know the least of theirs: gaps are long and many. Of node i, the
 * children are 2i and 2i+1, and `taken` is what all moments below it gave, over and above what the children know. */
struct room {
    size_t leaves;
    int64_t *least, *taken;
};

static void room_new(struct room *r, const uint64_t *bytes, size_t n)
{
    for (r->leaves = 1; r->leaves < n;) r->leaves *= 2;
    r->least = tess_alloc(2 * r->leaves * sizeof *r->least);
    r->taken = tess_alloc(2 * r->leaves * sizeof *r->taken);
    for (size_t i = 0; i < r->leaves; i++) r->least[r->leaves + i] = i < n ? (int64_t)bytes[i] : INT64_MAX;
    for (size_t i = r->leaves - 1; i > 0; i--) {
        int64_t a = r->least[2 * i], b = r->least[2 * i + 1];
        r->least[i] = a < b ? a : b;
    }
}

/* Takes `bytes` from the moments [first, end) below node i, which has [at, at + width); the least that is left there. */
static int64_t room_take(struct room *r, size_t i, size_t at, size_t width, size_t first, size_t end, int64_t bytes)
{
    if (end <= at || at + width <= first) return INT64_MAX;
    if (first <= at && at + width <= end) {
        r->taken[i] += bytes;
        return r->least[i] -= bytes;
    }
    int64_t a = room_take(r, 2 * i, at, width / 2, first, end, bytes);
    int64_t b = room_take(r, 2 * i + 1, at + width / 2, width / 2, first, end, bytes);
    int64_t x = r->least[2 * i], y = r->least[2 * i + 1];
    r->least[i] = (x < y ? x : y) - r->taken[i];
    return (a < b ? a : b) - r->taken[i];
}

/* The same around the end of the cycle of n moments. */
static int64_t room_take_around(struct room *r, size_t n, size_t first, size_t count, int64_t bytes)
{
    size_t end = first + count, over = end > n ? end - n : 0;
    int64_t a = room_take(r, 1, 0, r->leaves, first < n ? first : n, end < n ? end : n, bytes);
    if (first >= n) return room_take(r, 1, 0, r->leaves, first - n, end - n, bytes);
    int64_t b = over ? room_take(r, 1, 0, r->leaves, 0, over, bytes) : INT64_MAX;
    return a < b ? a : b;
}

/* Keeps the gap if RAM has room at each of its moments. */
static void keep(struct gap *g, struct room *left, size_t tasks)
{
    int64_t bytes = (int64_t)tess_tile_bytes(g->tile);
    if (g->count && room_take_around(left, tasks, g->first, g->count, bytes) < 0) {
        room_take_around(left, tasks, g->first, g->count, -bytes);
        return;
    }
    g->kept = true;
    g->use->mode |= TESS_KEEP;
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

/* What is set aside for tiles on their way: an eighth of the room, if the largest task leaves that much. */
static uint64_t slack_of(uint64_t room, uint64_t largest)
{
    return room / 8 < room - largest ? room / 8 : room - largest;
}

tess_status tess_program_place(tess_program *p, const tess_place_conf *conf, uint64_t fixed, tess_placement *out)
{
    uint64_t *need = tess_alloc(p->tasks * sizeof *need);
    *out = (tess_placement){.largest_task = task_needs(p, need)};
    out->needed = fixed + out->largest_task;
    if (out->needed > conf->ram) {
        free(need);
        return tess_error(TESS_INVALID, "memory.cpu",
                          "%s for tiles, but the least a step can work with is %s (its largest task alone "
                          "holds %s)",
                          tess_human_bytes((double)conf->ram), tess_human_bytes((double)out->needed),
                          tess_human_bytes((double)out->largest_task));
    }
    out->room = conf->ram - fixed;
    uint64_t slack = slack_of(out->room, out->largest_task);
    double moments = 0;
    for (size_t k = 0; k < p->tasks; k++) {
        need[k] = out->room - need[k];
        moments += (double)need[k];
        need[k] = need[k] > slack ? need[k] - slack : 0; /* what gaps may take */
    }
    struct room left;
    room_new(&left, need, p->tasks);
    size_t uses, gaps = 0;
    struct use_of *u = list_uses(p, &uses);
    struct gap *g = tess_alloc(uses * sizeof *g);
    for (size_t i = 0; i < uses; i += same_tile(u + i, uses - i))
        gaps += gaps_of(p, u + i, same_tile(u + i, uses - i), g + gaps);
    qsort(g, gaps, sizeof *g, by_worth);
    for (size_t i = 0; i < gaps; i++)
        if (!(conf->away >> tess_tile_role(g[i].tile) & 1)) keep(&g[i], &left, p->tasks);
    for (size_t i = 0; i < uses; i += same_tile(u + i, uses - i)) traffic_of(p, u + i, same_tile(u + i, uses - i), out);
    out->bound = lower_bound(g, gaps, moments);
    out->disk = set_homes(g, gaps, u, uses);
    free(u);
    free(g);
    free(need);
    free(left.least);
    free(left.taken);
    return TESS_OK;
}
