/* Prices: which gaps are worth their room, and what no choice of gaps can save.
 *
 * Let each moment have a price, at which a gap must buy room for its bytes. Whatever the prices are, nothing saves more
 * than what all gaps that are worth their price save beyond it, plus the price of all the room there is (each gap of a
 * choice either pays for its room or would not be bought). So all that could move less that is a lower bound, and the
 * best prices give the best of these bounds. Subgradient steps find them: moments that are sold out become dearer,
 * others cheaper. */
#include "graph/plan/plan.h"
#include <stdlib.h>
#include <string.h>

/* What is asked of a gap again and again, side by side, in the order of turns, in which values are added up. */
struct bid {
    double moved, bytes;
    uint32_t first, end, over; /* its moments: from first up to end, and around the cycle those before `over` */
};

static struct bid bid_of(const tess_gaps *g, const tess_gap *gap)
{
    const size_t end = (size_t)gap->first + gap->count, over = end > g->moments ? end - g->moments : 0;
    return (struct bid){(double)gap->moved, (double)gap->bytes, gap->first, (uint32_t)(end - over), (uint32_t)over};
}

/* Those of gaps that save anything: no price makes others worth their room. free() it. */
static struct bid *list_bids(const tess_gaps *g, size_t *bids)
{
    struct bid *bid = tess_alloc((g->gaps + 1) * sizeof *bid);
    *bids = 0;
    for (size_t i = 0; i < g->gaps; i++) {
        const tess_gap *gap = &g->gap[g->turn[i]];
        if (gap->moved > 0) bid[(*bids)++] = bid_of(g, gap);
    }
    return bid;
}

/* The prices of its moments; sum[k] is that of the moments before k, sum[0] is 0. */
static double price_of(const struct bid *b, const double *sum)
{
    return (sum[b->end] - sum[b->first] + sum[b->over]) * b->bytes;
}

/* The value of the bound's other side at these prices, and in `spare` what room each moment has left. */
static double sell(size_t moments, const struct bid *bid, size_t bids, const int64_t *room, const double *price,
                   double *sum, double *spare)
{
    double value = 0;
    sum[0] = 0;
    for (size_t k = 0; k < moments; k++) {
        sum[k + 1] = sum[k] + price[k];
        value += price[k] * (double)room[k];
        spare[k] = 0;
    }
    spare[moments] = 0;
    for (const struct bid *b = bid; b < bid + bids; b++) {
        const double gain = b->moved - price_of(b, sum);
        if (gain <= 0) continue;
        value += gain;
        spare[b->first] -= b->bytes;
        spare[b->end] += b->bytes;
        if (!b->over) continue;
        spare[0] -= b->bytes;
        spare[b->over] += b->bytes;
    }
    for (size_t k = 1; k < moments; k++) spare[k] += spare[k - 1];
    for (size_t k = 0; k < moments; k++) spare[k] += (double)room[k];
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

uint64_t tess_gaps_bound(tess_gaps *g, const int64_t *room, uint64_t reached, uint64_t enough, int rounds)
{
    size_t n = g->moments + 1, bids;
    TESS_FREED struct bid *bid = list_bids(g, &bids);
    TESS_FREED double *price = tess_alloc(n * sizeof *price), *best = tess_alloc(n * sizeof *best),
                      *sum = tess_alloc((n + 1) * sizeof *sum), *spare = tess_alloc(n * sizeof *spare);
    double all = 0, least = 0;
    for (size_t i = 0; i < g->gaps; i++) all += (double)g->gap[i].moved;
    for (int round = 0; round < rounds; round++) {
        double value = sell(g->moments, bid, bids, room, price, sum, spare);
        if (round == 0 || value < least) {
            least = value;
            memcpy(best, price, g->moments * sizeof *price);
        }
        double excess = value - (all - (double)reached);
        if (excess <= 0 || all - least >= (double)enough) break;
        move_prices(g->moments, price, spare, excess);
    }
    sell(g->moments, bid, bids, room, best, sum, spare);
    for (size_t i = 0; i < g->gaps; i++) {
        const struct bid b = bid_of(g, &g->gap[i]);
        g->gap[i].order = b.moved / (price_of(&b, sum) + 1);
    }
    return all > least ? (uint64_t)(all - least) : 0;
}
