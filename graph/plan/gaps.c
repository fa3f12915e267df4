/* Gaps: what it saves to keep a tile on a level between two of its uses there, and what a step moves as marked.
 *
 * A tile that leaves in a gap is read at the end of it, if the next use reads it, unless the contents are others by
 * then. It is written, if it was since the last time it left; a write is due once for all gaps up to the next use that
 * writes, and charged to the longest, so that it never counts twice. What a task elsewhere reads must be written
 * whether the tile stays or not, and what such a task writes must be read: that is charged to no gap. */
#include "graph/plan/plan.h"
#include <stdlib.h>

/* The use after i whose gap the write of what use w left may still be due in; w where there is none. */
static size_t next_due(const tess_plan_use *u, const uint8_t *used, size_t n, size_t w, size_t i)
{
    if (u[i].mode & TESS_LAST) return w;
    i = (i + 1) % n;
    return ((u[i].mode & TESS_W) && used[i]) || (u[i].mode & TESS_RW) == TESS_W ? w : i;
}

/* Charges the write of what use w of u[0..n) left to the longest of the gaps in which it may be due; to none, if a task
 * elsewhere reads it. gap[i] is the one after use i, NULL where there is none. */
static void charge_write(const tess_plan_use *u, const uint8_t *used, size_t n, size_t w, tess_gap *const *gap)
{
    tess_gap *longest = NULL;
    size_t i = w;
    do {
        if (!used[i] && (u[i].mode & TESS_R)) return;
        if (gap[i] && (!longest || gap[i]->count > longest->count)) longest = gap[i];
    } while ((i = next_due(u, used, n, w, i)) != w);
    if (longest) longest->moved += longest->bytes;
    do {
        if (gap[i]) gap[i]->due = true;
    } while ((i = next_due(u, used, n, w, i)) != w);
}

/* The gaps of one tile, whose uses are those from `at` on: between those here that follow each other. */
static void list_gaps(const tess_uses *all, const tess_level *l, size_t at, size_t n, tess_gaps *g)
{
    const tess_plan_use *u = all->use + at;
    const uint8_t *used = l->used + at;
    const uint64_t bytes = all->tile[u->tile].bytes;
    TESS_FREED tess_gap **gap = tess_alloc(n * sizeof *gap);
    for (size_t i = 0; i < n; i++) {
        if (!used[i] || (u[i].mode & TESS_LAST)) continue;
        bool anew = false;
        size_t j = (i + 1) % n;
        for (; !used[j]; j = (j + 1) % n) anew |= (u[j].mode & (TESS_W | TESS_LAST)) != 0;
        gap[i] = &g->gap[g->gaps++];
        *gap[i] = (tess_gap){.bytes = bytes,
                             .moved = !anew && (u[j].mode & TESS_R) ? bytes : 0,
                             .use = (uint32_t)(at + i),
                             .first = (uint32_t)((u[i].task + 1) % all->tasks),
                             .count = (uint32_t)((u[j].task + all->tasks - u[i].task - 1) % all->tasks),
                             .anew = anew};
    }
    for (size_t i = 0; i < n; i++)
        if (used[i] && (u[i].mode & TESS_W)) charge_write(u, used, n, i, gap);
}

void tess_gaps_list(const tess_uses *u, const tess_level *l, const tess_marks *m, tess_gaps *g)
{
    *g = (tess_gaps){.gap = tess_alloc((u->uses + 1) * sizeof *g->gap), .moments = u->tasks};
    for (size_t i = 0, n; i < u->uses; i += n) {
        n = tess_uses_of_tile(u, i);
        if (tess_level_has(l, m, u->use[i].tile)) list_gaps(u, l, i, n, g);
    }
    g->turn = tess_alloc((g->gaps + 1) * sizeof *g->turn);
    tess_gaps_arrange(g);
}

void tess_gaps_free(tess_gaps *g)
{
    free(g->gap);
    free(g->turn);
}

/* Goes around twice, and counts the second time, which begins as the step before left it. */
static void count_tile(const tess_uses *all, const tess_level *l, const tess_marks *m, size_t at, size_t n,
                       uint64_t moved[2])
{
    const tess_plan_use *u = all->use + at;
    const uint64_t bytes = all->tile[u->tile].bytes;
    bool is_here = false, is_below = false;
    for (size_t i = 0; i < 2 * n; i++) {
        const int mode = u[i % n].mode;
        const bool used = l->used[at + i % n];
        bool *mine = used ? &is_here : &is_below, *other = used ? &is_below : &is_here;
        const bool in = used && (mode & TESS_R) && !is_here && is_below;
        bool out = !used && (mode & TESS_R) && !is_below && is_here;
        *mine = true;
        if (mode & TESS_W) *other = false;
        if (mode & TESS_LAST) is_here = is_below = false;
        if (is_here && (m->leaves[at + i % n] >> l->tier & 1)) {
            out |= !is_below;
            is_here = false;
            is_below = true;
        }
        if (i >= n && in) moved[0] += bytes;
        if (i >= n && out) moved[1] += bytes;
    }
}

void tess_gaps_traffic(const tess_uses *u, const tess_level *l, const tess_marks *m, uint64_t *read, uint64_t *written)
{
    uint64_t moved[2] = {0};
    for (size_t i = 0, n; i < u->uses; i += n) {
        n = tess_uses_of_tile(u, i);
        if (tess_level_has(l, m, u->use[i].tile)) count_tile(u, l, m, i, n, moved);
    }
    *read = moved[0];
    *written = moved[1];
}
