/* Prices: which gaps are worth their room, and what no choice of gaps can save.
 *
 * Let each moment have a price, at which a gap must buy room for its bytes. Whatever the prices are, nothing saves more
 * than what all gaps that are worth their price save beyond it, plus the price of all the room there is (each gap of a
 * choice either pays for its room or would not be bought). So all that could move less that is a lower bound, and the
 * best prices give the best of these bounds. Subgradient steps find them: moments that are sold out become dearer,
 * others cheaper. */
#include "plan.h"
#include <stdlib.h>
#include <string.h>

/* Calls for the one or two stretches of moments that a gap has. */
#define EACH_STRETCH(g, gap, from, to, ...)                                                                            \
    do {                                                                                                               \
        size_t end_ = (size_t)(gap)->first + (gap)->count, over_ = end_ > (g)->moments ? end_ - (g)->moments : 0;      \
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
    return price * (double)gap->bytes;
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
        double gain = (double)gap->moved - price_of(g, gap, sum), bytes = (double)gap->bytes;
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
