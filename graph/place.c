/* Placement over tiers: which tiles live in RAM, which flow between RAM and disk, and between which of their uses a
 * flowing one stays.
 *
 * The order of a step is known, and it repeats. So each tile has, between each two uses that follow each other in that
 * cycle, a gap; letting it leave in a gap costs a write if it was written since it came, and a read if the next use
 * reads it. Keeping it costs its bytes of RAM for the length of the gap. Gaps are taken greedily, the most traffic
 * saved a byte and moment first, as long as RAM has room for them at every moment of the gap: short gaps first, so that
 * what the forward pass used last stays for the backward pass, and of equal ones a fixed part stays while the rest
 * flows, where keeping the least recently used first would make everything flow.
 *
 * The traffic of what is left is the plan's. No placement moves less than the bound: the same choice with fractions of
 * gaps allowed, and RAM's moments added up to one total. */
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

/* Keeps the gap if RAM has room at each of its moments. */
static void keep(struct gap *g, uint64_t *left, size_t tasks)
{
    uint64_t bytes = tess_tile_bytes(g->tile);
    for (size_t k = 0; k < g->count; k++)
        if (left[(g->first + k) % tasks] < bytes) return;
    for (size_t k = 0; k < g->count; k++) left[(g->first + k) % tasks] -= bytes;
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

/* Bytes of the flowing tiles of the task with the most. */
static uint64_t largest_task(const tess_program *p)
{
    uint64_t most = 0;
    for (size_t k = 0; k < p->tasks; k++) {
        uint64_t bytes = 0;
        for (unsigned i = 0; i < p->task[k].nuse; i++)
            if (may_flow(p->task[k].use[i].tile)) bytes += tess_tile_bytes(p->task[k].use[i].tile);
        if (bytes > most) most = bytes;
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

tess_status tess_program_place(tess_program *p, const tess_place_conf *conf, uint64_t fixed, tess_placement *out)
{
    uint64_t ram = conf->ram;
    *out = (tess_placement){.largest_task = largest_task(p)};
    /* Two tasks at a time, and as much again on its way out. */
    uint64_t flowing = 4 * out->largest_task;
    if (flowing < ram / 8) flowing = ram / 8;
    out->needed = fixed + flowing;
    if (out->needed > ram)
        return tess_error(TESS_INVALID, "memory.cpu",
                          "%s for tiles, but the least a step can work with is %s (its largest task alone "
                          "holds %s)",
                          tess_human_bytes((double)ram), tess_human_bytes((double)out->needed),
                          tess_human_bytes((double)out->largest_task));
    size_t uses, gaps = 0;
    struct use_of *u = list_uses(p, &uses);
    struct gap *g = tess_alloc(uses * sizeof *g);
    for (size_t i = 0; i < uses; i += same_tile(u + i, uses - i))
        gaps += gaps_of(p, u + i, same_tile(u + i, uses - i), g + gaps);
    qsort(g, gaps, sizeof *g, by_worth);
    uint64_t *left = tess_alloc(p->tasks * sizeof *left), resident = ram - fixed - flowing;
    for (size_t k = 0; k < p->tasks; k++) left[k] = resident;
    for (size_t i = 0; i < gaps; i++)
        if (!(conf->away >> tess_tile_role(g[i].tile) & 1)) keep(&g[i], left, p->tasks);
    for (size_t i = 0; i < uses; i += same_tile(u + i, uses - i)) traffic_of(p, u + i, same_tile(u + i, uses - i), out);
    out->bound = lower_bound(g, gaps, (double)(ram - fixed) * (double)p->tasks);
    out->disk = set_homes(g, gaps, u, uses);
    out->budget = flowing / 2;
    free(u);
    free(g);
    free(left);
    return TESS_OK;
}
