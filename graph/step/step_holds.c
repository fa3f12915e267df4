/* What a step holds: the tiles of parameters and states, and what its tasks need beside them. */
#include "graph/plan/plan.h"
#include "graph/step/step_impl.h"
#include <stdlib.h>

/* The tiles of a parameter and its states that this rank holds, but for the gradients, in the order: weights, masters,
 * moments and what is beside these. */
static int64_t held_tiles(const tess_tensor *p, tess_tile **tile)
{
    int64_t n = 0;
    for (int64_t j = 0; j < p->cut->tiles; j++)
        if (p->held->tile[j].weight) tile[n++] = p->held->tile[j].weight;
    for (int64_t i = 0; i < p->held->states; i++)
        if (p->held->state[i].weight) tile[n++] = p->held->state[i].weight;
    for (int64_t i = 0; i < p->held->states; i++)
        if (p->held->state[i].master && p->held->state[i].master != p->held->state[i].weight)
            tile[n++] = p->held->state[i].master;
    for (int64_t i = 0; i < p->held->states + p->held->rests; i++) {
        const struct tess_state *s = &p->held->state[i];
        if (s->anchor) tile[n++] = s->anchor;
        for (int part = TESS_MOMENT1; part < TESS_ALL_PARTS; part++)
            if ((tile[n] = tess_state_part(s, (tess_part)part))) n++;
    }
    return n;
}

tess_tile **tess_step_held(const tess_graph *g, int64_t *n)
{
    int64_t most = g->cache ? tess_cache_tiles(g->cache, NULL) : 0;
    for (int k = 0; k < g->params; k++)
        most +=
            g->param[k]->cut->tiles + (5 + TESS_MOMENTS_MOST) * (g->param[k]->held->states + g->param[k]->held->rests);
    tess_tile **tile = tess_alloc((size_t)(most + 1) * sizeof *tile);
    *n = g->cache ? tess_cache_tiles(g->cache, tile) : 0;
    for (int k = 0; k < g->params; k++) *n += held_tiles(g->param[k], tile + *n);
    return tile;
}

void tess_step_holds(const tess_step *s, tess_holds *plan)
{
    *plan = (tess_holds){0};
    int64_t n;
    tess_tile **tile = tess_step_held(s->g, &n);
    uint64_t on_gpu[TESS_ROLE_COUNT] = {0};
    for (int64_t i = 0; i < n; i++) {
        const tess_role r = tess_tile_role(tile[i]);
        const tess_tier home = tess_tile_home(tile[i]);
        if (!s->conf.train && r == TESS_ROLE_MOMENT) continue;
        uint64_t *const by_home[] = {
            [TESS_TIER_GPU] = on_gpu, [TESS_TIER_CPU] = plan->stays, [TESS_TIER_DISK] = plan->on_disk};
        plan->resident[r] += tess_tile_bytes(tile[i]);
        by_home[home][r] += tess_tile_bytes(tile[i]);
    }
    free(tile);
    tess_program_holds(s->low.program, plan);
    if (s->low.outer) {
        tess_holds outer = {0};
        tess_program_holds(s->low.outer, &outer);
        plan->sent_between = outer.sent;
    }
    for (int r = 0; r < TESS_ROLE_COUNT; r++) {
        plan->peak_total += plan->resident[r];
        plan->ram[r] += plan->resident[r] - on_gpu[r];
        plan->peak_ram += plan->resident[r] - on_gpu[r];
    }
}

uint64_t tess_step_held_bytes(const tess_graph *g, tess_tier tier)
{
    uint64_t bytes = 0;
    int64_t n;
    TESS_FREED tess_tile **tile = tess_step_held(g, &n);
    for (int64_t i = 0; i < n; i++)
        if (tess_tile_home(tile[i]) == tier) bytes += tess_tile_bytes(tile[i]);
    return bytes;
}
