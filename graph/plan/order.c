/* Gaps in order, by a radix sort: there are hundreds of thousands of them in a step of a large model, and they are
 * sorted again for each amount of slack that is tried. Unlike a sort by comparisons it takes a dozen passes, whatever
 * their order is. */
#include "graph/plan/plan.h"
#include <stdlib.h>
#include <string.h>

enum { DIGIT = 11, VALUES = 1 << DIGIT };

struct keyed {
    uint64_t key;
    uint32_t at;
};

/* By their keys, the least first; equal ones stay as they are. `spare` has room for as many. */
static void sort(struct keyed *k, struct keyed *spare, size_t n)
{
    struct keyed *from = k, *to = spare;
    for (unsigned shift = 0; shift < 64; shift += DIGIT) {
        size_t count[VALUES + 1] = {0};
        for (size_t i = 0; i < n; i++) count[(from[i].key >> shift & (VALUES - 1)) + 1]++;
        if (n == 0 || count[(from[0].key >> shift & (VALUES - 1)) + 1] == n) continue; /* all have the same digit */
        for (int v = 0; v < VALUES; v++) count[v + 1] += count[v];
        for (size_t i = 0; i < n; i++) to[count[from[i].key >> shift & (VALUES - 1)]++] = from[i];
        struct keyed *other = from;
        from = to;
        to = other;
    }
    if (from != k) memcpy(k, from, n * sizeof *k);
}

void tess_gaps_sort(tess_gaps *g, const double *order)
{
    TESS_FREED struct keyed *k = tess_alloc(2 * (g->gaps + 1) * sizeof *k);
    for (size_t i = 0; i < g->gaps; i++) {
        uint64_t bits; /* of numbers that are not below zero the order is that of their bits */
        memcpy(&bits, &order[i], sizeof bits);
        k[i] = (struct keyed){~bits, (uint32_t)i};
    }
    sort(k, k + g->gaps, g->gaps);
    for (size_t i = 0; i < g->gaps; i++) g->turn[i] = k[i].at;
}

void tess_gaps_arrange(tess_gaps *g)
{
    struct keyed *k = tess_alloc(2 * (g->gaps + 1) * sizeof *k);
    tess_gap *gap = tess_alloc((g->gaps + 1) * sizeof *gap);
    for (size_t i = 0; i < g->gaps; i++)
        k[i] = (struct keyed){(uint64_t)(UINT32_MAX - g->gap[i].first) << 32 | g->gap[i].count, (uint32_t)i};
    sort(k, k + g->gaps, g->gaps);
    for (size_t i = 0; i < g->gaps; i++) gap[i] = g->gap[k[i].at];
    free(g->gap);
    free(k);
    g->gap = gap;
}
