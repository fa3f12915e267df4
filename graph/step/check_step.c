/* What a program may get wrong of a step, beside describe/check.c, which is of its graph. */
#include "graph/step/step_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns whether the step makes a tensor of that name on its way to the output. */
static bool has_result(const tess_tensor *output, const char *name)
{
    const tess_graph *g = output->g;
    bool *wanted = tess_alloc((size_t)g->nodes + 1), has = false;
    tess_lower_mark(output, wanted);
    for (int k = 0; k < g->nodes && !has; k++)
        has = wanted[k] && g->node[k]->out->kind != TESS_KIND_LOSS && !strcmp(g->node[k]->out->name, name);
    free(wanted);
    return has;
}

static tess_status check_watches(const tess_tensor *output, const tess_step_conf *c)
{
    if (c->watches < 0 || (c->watches > 0 && !c->watch))
        return tess_error(TESS_INVALID, "step", "%d watches, at %p", c->watches, (const void *)c->watch);
    for (int k = 0; k < c->watches; k++) {
        if (!c->watch[k].name || !c->watch[k].see)
            return tess_error(TESS_INVALID, "step", "a watch without a %s", c->watch[k].name ? "function" : "name");
        if (!has_result(output, c->watch[k].name))
            return tess_error(TESS_INVALID, "step",
                              "watches %s, which is no activation that its output depends on (tess_name names one)",
                              c->watch[k].name);
    }
    return TESS_OK;
}

/* Local steps are those of ranks that each have all weights, and know of no other's gradient. */
static tess_status check_local(const tess_graph *g, const tess_step_conf *c)
{
    const tess_grid *grid = &g->conf.grid;
    const tess_local *l = &c->local;
    if (l->steps < 0 || !isfinite(l->lr) || !(l->momentum >= 0) || isinf(l->momentum))
        return tess_error(TESS_INVALID, "local steps",
                          "%lld with the outer lr %g, momentum %g (all are finite, steps and momentum not negative)",
                          (long long)l->steps, l->lr, l->momentum);
    const char *what = grid->stage > 0 && grid->data > 1 ? "a ZeRO stage, by which each rank updates a part (stage 0)"
                       : g->owned                        ? "parallel.expert, by which each rank updates some (1)"
                       : grid->tensor * grid->pipeline * grid->sequence > 1
                           ? "parallel.tensor, .pipeline or .sequence (data-parallel ranks alone)"
                       : c->skips ? "steps that may be skipped (bf16 or fp32, without on_spike)"
                       : c->optimizer.keeping != TESS_KEEP_F32 ? "optimizer_states in fewer bits (fp32)"
                       : tess_optimizer_kind_of(&c->optimizer)->width
                           ? "Adafactor (an optimizer with moments of whole matrices)"
                           : NULL;
    for (int k = 0; k < g->params && !what; k++)
        if (tess_is_state(g->param[k])) what = "a network with states, which steps replace";
    if (!what) return TESS_OK;
    return tess_error(TESS_INVALID, "local steps", "%lld, which is not there for %s", (long long)c->local.steps, what);
}

/* Ranks with other shares send what they send once a step, or once a block: what goes in every micro-batch would not be
 * met. */
static tess_status check_shares(const tess_graph *g, const tess_step_conf *c, int64_t micro)
{
    const tess_grid *grid = &g->conf.grid;
    const int64_t sum = tess_shares_sum(c->shares, grid->data, NULL);
    const char *what = grid->stage == 3 && grid->pipeline > 1
                           ? "ZeRO's stage 3 with parallel.pipeline, whose weights come for each micro-batch (2)"
                       : grid->sequence > 1 ? "parallel.sequence (1)"
                       : c->local.steps     ? "parallel.local_steps (0)"
                                            : NULL;
    for (int k = 0; k < g->nodes && !what; k++)
        if (g->node[k]->op == &tess_op_route) what = "experts, whose balance each rank finds of its own rows";
    if (what) return tess_error(TESS_INVALID, "shares", "\"%s\", which is not there for %s", c->shares, what);
    if (!sum)
        return tess_error(TESS_INVALID, "shares",
                          "\"%s\", expected %d numbers from 1 on with commas between, one for each data-parallel rank",
                          c->shares, grid->data);
    if (micro % sum)
        return tess_error(TESS_INVALID, "shares",
                          "\"%s\", whose sum, %lld, does not divide %lld micro-batches (%lld would do)", c->shares,
                          (long long)sum, (long long)micro, (long long)(micro + sum - micro % sum));
    return TESS_OK;
}

tess_status tess_check_step(const tess_tensor *output, const tess_step_conf *c)
{
    const tess_graph *g = output->g;
    int64_t micro = c->micro > 0 ? c->micro : tess_grid_batches(&g->conf.grid), places;
    if (output->kind == TESS_KIND_INPUT || output->kind == TESS_KIND_PARAM)
        return tess_error(TESS_INVALID, output->name, "is no op's result: a step over it has nothing to compute");
    if (c->micro < 0 || c->recompute_every < 0)
        return tess_error(TESS_INVALID, "step", "micro %lld, recompute_every %d (neither is negative)",
                          (long long)c->micro, c->recompute_every);
    for (int k = 0; k < c->layout.keeps; k++)
        if (!c->layout.keep || c->layout.keep[k] < 0 || c->layout.keep[k] >= output->g->nodes)
            return tess_error(TESS_INVALID, "step", "keeps node %d (the graph has nodes 0 to %d)",
                              c->layout.keep ? c->layout.keep[k] : -1, output->g->nodes - 1);
    int64_t row_tiles;
    if (c->shares) TESS_TRY(check_shares(g, c, micro));
    TESS_TRY(tess_check_sequence(output, c));
    TESS_TRY(tess_guests_check(g));
    tess_lower_spans(output, c->deterministic, &row_tiles);
    if (__builtin_mul_overflow(micro, row_tiles, &places) || __builtin_mul_overflow(places, g->tensors, &places) ||
        places > TESS_MOST_PLACES)
        return tess_error(TESS_INVALID, "step",
                          "%lld micro-batches of %lld row tiles, with %d tensors each, are too many (raise tile_rows, "
                          "or make fewer micro-batches)",
                          (long long)micro, (long long)row_tiles, g->tensors);
    TESS_TRY(check_watches(output, c));
    if (!c->train || c->keep_gradients) return TESS_OK;
    TESS_TRY(tess_optimizer_check(&c->optimizer));
    return c->local.steps ? check_local(g, c) : TESS_OK;
}
