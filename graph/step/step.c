/* A step is made of a graph, which knows its steps. */
#include "graph/step/step_impl.h"
#include <stdlib.h>
#include <string.h>

/* A node that the output depends on, whose gradient is wanted and that has none; NULL: there is none such. */
static const tess_node *gradient_lacks(const tess_tensor *output, const bool *wants)
{
    const tess_graph *g = output->g;
    const tess_node *lacks = NULL;
    TESS_FREED bool *needed = tess_alloc((size_t)g->nodes + 1);
    tess_lower_mark(output, needed);
    for (int k = 0; k < g->nodes && !lacks; k++)
        if (needed[k] && g->node[k]->op->no_gradient && wants[g->node[k]->out->id]) lacks = g->node[k];
    return lacks;
}

/* Something that the loss is made of can be trained, and what it is made of passes the gradient on. */
static tess_status check_trains(const tess_tensor *output)
{
    bool *wants = tess_alloc((size_t)output->g->tensors * sizeof *wants);
    tess_lower_wants(output->g, wants);
    const bool trains = wants[output->id];
    const tess_node *lacks = gradient_lacks(output, wants);
    free(wants);
    if (!trains)
        return tess_error(TESS_INVALID, "step",
                          "all parameters that the loss is made of are frozen: nothing would be trained");
    if (!lacks) return TESS_OK;
    return tess_error(
        TESS_INVALID, lacks->out->name,
        "depends on trained parameters by an op without a gradient (register %s with a backward function, "
        "or freeze these parameters)",
        lacks->op->name);
}

tess_status tess_step_new(tess_tensor *output, const tess_step_conf *conf, tess_step **step)
{
    static const tess_step_conf preset;
    if (!step) return tess_error(TESS_INVALID, "tess_step_new", "step is NULL");
    *step = NULL;
    if (!output) return tess_check_null_output();
    if (!conf) conf = &preset;
    tess_graph *g = output->g;
    if (g->failed) {
        tess_check_forget();
        return tess_error(TESS_INVALID, "graph", "%s", g->error);
    }
    TESS_TRY(tess_check_step(output, conf));
    if (conf->train && output->kind != TESS_KIND_LOSS)
        return tess_error(TESS_INVALID, output->name, "is no loss (training needs the result of tess_cross_entropy)");
    if (conf->micro > 0 && !conf->shares && conf->micro % tess_grid_batches(&g->conf.grid))
        return tess_error(TESS_INVALID, "step", "%lld micro-batches cannot be divided evenly over %d ranks",
                          (long long)conf->micro, g->conf.grid.data);
    if (output->kind != TESS_KIND_LOSS && g->conf.grid.pipeline * g->conf.grid.tensor * g->conf.grid.sequence > 1)
        return tess_error(TESS_INVALID, output->name, "is no loss (a model over several ranks has no other output)");
    TESS_TRY(tess_pipeline_check(g));
    if (conf->train) TESS_TRY(check_trains(output));
    tess_graph_ready(g);
    const int64_t most = tess_grid_most_tiles(&g->conf.grid);
    if (g->param_tiles > most)
        return tess_error(TESS_INVALID, "step",
                          "its parameters have %lld tiles, and %d data-parallel ranks have tags for %lld (raise "
                          "tile_elements)",
                          (long long)g->param_tiles, g->conf.grid.data, (long long)most);
    for (int k = 0; k < g->params && conf->train && !conf->keep_gradients; k++) {
        TESS_TRY(tess_param_moments(g->param[k], &conf->optimizer, true));
        tess_param_beside(g->param[k], &conf->local, conf->optimizer.gradients);
    }
    tess_step *s = tess_alloc(sizeof *s);
    s->g = g;
    s->output = output;
    s->conf = *conf;
    if (s->conf.micro < 1) s->conf.micro = tess_grid_batches(&g->conf.grid);
    s->tensors = g->tensors;
    s->fed = tess_alloc((size_t)g->tensors * sizeof *s->fed);
    s->fed_before = tess_alloc((size_t)g->tensors * sizeof *s->fed_before);
    s->next = g->steps;
    s->link = &g->steps;
    if (g->steps) g->steps->link = &s->next;
    g->steps = s;
    if (output->kind == TESS_KIND_LOSS && !output->producer->op->targets) /* a number that each micro-batch has */
        tess_step_share(s, NULL, &s->targets[0]);
    tess_lower_step(output, &s->conf, &s->low);
    const tess_program *p = s->low.program;
    if (p->too_large) {
        tess_error(TESS_INVALID, p->of,
                   "a tile of %s, which is too large (at most %s; lower tile_rows, loss_rows or "
                   "tile_elements)",
                   tess_human_bytes((double)p->too_large), tess_human_bytes((double)TESS_TILE_MOST));
        tess_step_free(s);
        return TESS_INVALID;
    }
    *step = s;
    return TESS_OK;
}

/* ---- a step and its graph ---- */

tess_status tess_settle(tess_graph *g, const tess_step *but)
{
    tess_step *s = tess_graph_owner(g)->pending;
    if (!s || s == but) return TESS_OK;
    s->before = s->env;
    s->before.before = NULL;
    tess_step_forget_pending(s);
    tess_env_set(&(tess_env){.before = &s->before});
    TESS_TRY(tess_program_run(s->low.updates, true));
    return tess_wait();
}

void tess_step_free(tess_step *s)
{
    if (!s) return;
    tess_step_leave(s);
    free(s->fed), free(s->fed_before);
    tess_program_free(s->low.updates);
    tess_program_free(s->low.anchors);
    tess_program_free(s->low.outer);
    tess_program_free(s->low.program);
    tess_step_digest(s, NULL); /* nothing runs any more */
    free(s);
}
