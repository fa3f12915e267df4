/* Gaps: what it saves to keep a tile in RAM between two of its uses, and what no choice of gaps can save.
 *
 * A tile that leaves in a gap is read at the end of it, if the next use reads it. It is written, if it was since the
 * last time it left; a write is due once for all gaps up to the next use that writes, and charged to the longest.
 *
 * The bound. Let each moment have a price, at which a gap must buy room for its bytes. Whatever the prices are, nothing
 * saves more than what all gaps that are worth their price save beyond it, plus the price of all the room there is
 * (each gap of a placement either pays for its room or would not be bought). So all that could move less that is a
 * lower bound, and the best prices give the best of these bounds. Subgradient steps find them: moments that are sold
 * out become dearer, others cheaper. */
#include "place_impl.h"
#include <stdlib.h>
#include <string.h>

static int by_tile_and_task(const void *a, const void *b)
{
    const tess_use_of *x = a, *y = b;
    if (x->tile != y->tile) return (x->tile > y->tile) - (x->tile < y->tile);
    if (x->task != y->task) return (x->task > y->task) - (x->task < y->task);
    return (x->index > y->index) - (x->index < y->index);
}

static void list_uses(const tess_program *p, tess_gaps *g)
{
    size_t room = 4096;
    g->use = tess_alloc(room * sizeof *g->use);
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            if (!tess_tile_flows(p->task[k].use[i].tile)) continue;
            if (g->uses == room) g->use = tess_realloc(g->use, (room *= 2) * sizeof *g->use);
            g->use[g->uses++] = (tess_use_of){p->task[k].use[i].tile, k, i};
        }
    qsort(g->use, g->uses, sizeof *g->use, by_tile_and_task);
}

size_t tess_gaps_same_tile(const tess_gaps *g, size_t i)
{
    size_t n = 1;
    while (i + n < g->uses && g->use[i + n].tile == g->use[i].tile) n++;
    return n;
}

static tess_use *use_at(const tess_program *p, const tess_use_of *u)
{
    return (tess_use *)&p->task[u->task].use[u->index];
}

/* Charges the write of use w of u[0..n) to the longest of the gaps up to the next use that writes. gap[i] is the one
 * after use i, NULL where there is none. */
static void charge_write(const tess_program *p, const tess_use_of *u, size_t n, size_t w, tess_gap *const *gap)
{
    tess_gap *longest = NULL;
    size_t i = w;
    do {
        if (gap[i] && (!longest || gap[i]->count > longest->count)) longest = gap[i];
        i = (i + 1) % n;
    } while (i != w && !(use_at(p, &u[i])->mode & TESS_W));
    if (longest) longest->moved += tess_tile_bytes(u[0].tile);
}

/* The gaps of one tile, whose uses are u[0..n). */
static void list_gaps(const tess_program *p, tess_gaps *g, const tess_use_of *u, size_t n)
{
    tess_gap **gap = tess_alloc(n * sizeof *gap);
    for (size_t i = 0; i < n; i++) {
        tess_use *use = use_at(p, &u[i]);
        if (use->mode & TESS_LAST) continue; /* nothing is left to keep */
        size_t from = u[i].task, to = i + 1 < n ? u[i + 1].task : u[0].task + p->tasks;
        if (to == from) { /* the same task names it again */
            use->mode |= TESS_KEEP;
            continue;
        }
        gap[i] = &g->gap[g->gaps++];
        bool read = use_at(p, &u[(i + 1) % n])->mode & TESS_R;
        *gap[i] = (tess_gap){.tile = u[i].tile,
                             .id = g->gaps - 1,
                             .use = use,
                             .first = (from + 1) % p->tasks,
                             .count = to - from - 1,
                             .moved = read ? tess_tile_bytes(u[i].tile) : 0};
    }
    for (size_t i = 0; i < n; i++)
        if (use_at(p, &u[i])->mode & TESS_W) charge_write(p, u, n, i, gap);
    free(gap);
}

void tess_gaps_list(const tess_program *p, tess_gaps *g)
{
    *g = (tess_gaps){.moments = p->tasks};
    list_uses(p, g);
    g->gap = tess_alloc((g->uses + 1) * sizeof *g->gap);
    for (size_t i = 0, n; i < g->uses; i += n) list_gaps(p, g, g->use + i, n = tess_gaps_same_tile(g, i));
}

void tess_gaps_free(tess_gaps *g)
{
    free(g->use);
    free(g->gap);
}

/* Twice around, of which the second time counts: it begins as the step before left it. */
void tess_gaps_traffic(const tess_program *p, const tess_gaps *g, uint64_t *read, uint64_t *written)
{
    *read = *written = 0;
    for (size_t at = 0, n; at < g->uses; at += n) {
        const tess_use_of *u = g->use + at;
        n = tess_gaps_same_tile(g, at);
        uint64_t bytes = tess_tile_bytes(u[0].tile);
        bool dirty = false;
        for (size_t i = 0; i < 2 * n; i++) {
            int mode = use_at(p, &u[i % n])->mode, next = use_at(p, &u[(i + 1) % n])->mode;
            dirty |= (mode & TESS_W) != 0;
            if (mode & TESS_LAST) dirty = false;
            if (mode & (TESS_LAST | TESS_KEEP)) continue;
            if (dirty && i >= n) *written += bytes;
            if ((next & TESS_R) && i >= n) *read += bytes;
            dirty = false;
        }
    }
}

/* ---- the bound ---- */

/* Calls for the one or two stretches of moments that a gap has. */
#define EACH_STRETCH(g, gap, from, to, ...)                                                                            \
    do {                                                                                                               \
        size_t end_ = (gap)->first + (gap)->count, over_ = end_ > (g)->moments ? end_ - (g)->moments : 0;              \
        for (int part_ = 0; part_ <= (over_ > 0); part_++) {                                                           \
            size_t from = part_ ? 0 : (gap)->first, to = part_ ? over_ : end_ - over_;                                 \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

/* The prices of gap g's moments; sum[k] is that of the moments before k. */
static double price_of(const tess_gaps *g, const tess_gap *gap, const double *sum)
{
    double price = 0;
    EACH_STRETCH(g, gap, from, to, price += sum[to] - sum[from]);
    return price * (double)tess_tile_bytes(gap->tile);
}

/* The value of the bound's other side at these prices, and in `spare` what room each moment has left. */
static double sell(const tess_gaps *g, const int64_t *room, const double *price, double *sum, double *spare)
{
    double value = 0;
    sum[0] = 0;
    for (size_t k = 0; k < g->moments; k++) {
        sum[k + 1] = sum[k] + price[k];
        value += price[k] * (double)room[k];
        spare[k] = 0;
    }
    spare[g->moments] = 0;
    for (size_t i = 0; i < g->gaps; i++) {
        const tess_gap *gap = &g->gap[i];
        double gain = (double)gap->moved - price_of(g, gap, sum), bytes = (double)tess_tile_bytes(gap->tile);
        if (gain <= 0) continue;
        value += gain;
        EACH_STRETCH(g, gap, from, to, spare[from] -= bytes; spare[to] += bytes);
    }
    for (size_t k = 1; k < g->moments; k++) spare[k] += spare[k - 1];
    for (size_t k = 0; k < g->moments; k++) spare[k] += (double)room[k];
    return value;
}

/* One step of the prices, as long as it takes to come half way to what is known to be reached. */
static void move_prices(size_t moments, double *price, const double *spare, double excess)
{
    double length = 0;
    for (size_t k = 0; k < moments; k++)
        if (!(price[k] == 0 && spare[k] > 0)) length += spare[k] * spare[k];
    if (length == 0) return;
    double step = 0.5 * excess / length;
    for (size_t k = 0; k < moments; k++) {
        price[k] -= step * spare[k];
        if (price[k] < 0) price[k] = 0;
    }
}

uint64_t tess_gaps_bound(tess_gaps *g, const int64_t *room, uint64_t reached, int rounds)
{
    size_t n = g->moments + 1;
    double *price = tess_alloc(n * sizeof *price), *best = tess_alloc(n * sizeof *best),
           *sum = tess_alloc((n + 1) * sizeof *sum), *spare = tess_alloc(n * sizeof *spare);
    double all = 0, least = 0;
    for (size_t i = 0; i < g->gaps; i++) all += (double)g->gap[i].moved;
    for (int round = 0; round < rounds; round++) {
        double value = sell(g, room, price, sum, spare);
        if (round == 0 || value < least) {
            least = value;
            memcpy(best, price, g->moments * sizeof *price);
        }
        double excess = value - (all - (double)reached);
        if (excess <= 0) break;
        move_prices(g->moments, price, spare, excess);
    }
    sell(g, room, best, sum, spare);
    for (size_t i = 0; i < g->gaps; i++) g->gap[i].order = (double)g->gap[i].moved / (price_of(g, &g->gap[i], sum) + 1);
    free(price);
    free(best);
    free(sum);
    free(spare);
    return all > least ? (uint64_t)(all - least) : 0;
}
