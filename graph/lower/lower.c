/* Lowering: from nodes over tensors to tasks over tiles.
 *
 * A step is its micro-batches, forward then backward, and the optimizer's tasks as soon as a parameter's gradient is
 * complete. There are two orders. Batch by batch, one micro-batch after the other, holds the activations of one at a
 * time. Layer by layer, all of them through one block before the next, holds those of all, but meets each weight and
 * each gradient once: less traffic where states flow and activations are small. Within a micro-batch and block the
 * order is op by op, and in an op row tile by row tile: the row tiles of an op are independent, and that is where the
 * parallelism comes from.
 *
 * Both orders give the same bits. A parameter's gradient adds up use by use, and within a use micro-batch by
 * micro-batch. Layer by layer that is the order of the tasks; batch by batch the later uses of a parameter that is used
 * twice wait until the end of the step.
 *
 * Values. Each (tensor, micro-batch, row tile) has an instance, the tile that forward wrote last. Activation
 * checkpointing needs nothing more: before a block's backward its forward is emitted again and makes new instances; the
 * old ones had their last reader in the forward pass, so their memory went back then.
 *
 * Gradients. The first rule that reaches a tensor writes its gradient, later ones add. An op that only passes a
 * gradient on (a residual addition) shares the tile between tensors; who must add to a shared one copies it first. */
#include "graph/lower/lower.h"
#include <stdlib.h>
#include <string.h>

/* The nodes whose backward is put off: those that use a parameter after (in the backward pass) another did. Only one
 * that has no gradient to pass on, and reads no activation, can wait; where another kind would have to, the two orders
 * differ, which is false. */
static bool find_put_off(const tess_lower *L, const bool *wanted, bool *put)
{
    bool agree = true;
    int *last = tess_alloc((size_t)L->g->tensors * sizeof *last); /* node + 1 that uses the parameter last */
    for (int k = L->g->nodes - 1; k >= 0; k--) {
        const tess_node *n = L->g->node[k];
        bool passes = false;
        if (!tess_wants_gradient(L, n->out)) continue;
        for (int i = 0; wanted[k] && i < n->inputs; i++) {
            const tess_tensor *t = n->in[i];
            if (t && t->kind == TESS_KIND_ACTIVATION && n->op->reads >> i & 1)
                passes = true; /* its tile is the next's */
            if (!t || !tess_wants_gradient(L, t)) continue;
            passes |= t->kind == TESS_KIND_ACTIVATION;
            if (t->kind == TESS_KIND_PARAM && last[t->id]) put[k] = true;
            if (t->kind == TESS_KIND_PARAM) last[t->id] = k + 1;
        }
        if (!put[k] || !passes) continue;
        agree = put[k] = false;
    }
    free(last);
    return agree;
}

/* Nodes of one block that follow each other are a stretch: those from `first` on, up to the one returned. */
static int stretch_end(const tess_lower *L, int first)
{
    int end = first + 1;
    while (end < L->g->nodes && L->g->node[end]->block == L->g->node[first]->block) end++;
    return end;
}

/* What a micro-batch added from `begin` on goes in turns with what the one before did, if it is the second of two. */
static void pair(tess_lower *L, size_t begin, size_t *before)
{
    if (L->pairs && L->micro % 2) tess_program_pair(L->p, *before, begin);
    *before = begin;
}

/* One micro-batch after the other, or in pairs, which have tiles of their own; then what was put off. */
static void batch_by_batch(tess_lower *L, const bool *wanted, const bool *put)
{
    int nodes = L->g->nodes;
    size_t before = 0;
    for (L->micro = 0; L->micro < L->micros; L->micro++) {
        const size_t begin = L->p->tasks;
        tess_program_slots(L->p, L->pairs && L->micro % 2, true);
        for (int first = 0, end; first < nodes; first = end) {
            end = stretch_end(L, first);
            tess_lower_forward(L, first, end, wanted);
        }
        if (L->micro + 1 == L->micros) tess_lower_losses(L);
        L->recomputed = -1;
        L->p->now.backward = true;
        if (L->conf->train) tess_lower_backward(L, 0, nodes, wanted, put);
        L->p->now.backward = false;
        pair(L, begin, &before);
    }
    L->p->now.backward = true;
    for (int k = nodes - 1; k >= 0 && L->conf->train && put; k--)
        for (L->micro = 0; put[k] && L->micro < L->micros; L->micro++) tess_lower_node_backward(L, L->g->node[k]);
}

/* All micro-batches through one stretch after the other; a stretch of blocks that are recomputed together is one. */
static void layer_by_layer(tess_lower *L, const bool *wanted)
{
    int nodes = L->g->nodes, *end = tess_alloc((size_t)(nodes + 1) * sizeof *end), n = 0;
    size_t before = 0;
    for (int first = 0; first < nodes; first = end[n++]) {
        end[n] = stretch_end(L, first);
        while (end[n] < nodes && tess_lower_group(L, L->g->node[first]) >= 0 &&
               tess_lower_group(L, L->g->node[end[n]]) == tess_lower_group(L, L->g->node[first]))
            end[n] = stretch_end(L, end[n]);
    }
    for (int s = 0; s < n; s++)
        for (L->micro = 0; L->micro < L->micros; L->micro++) {
            const size_t begin = L->p->tasks;
            tess_lower_forward(L, s ? end[s - 1] : 0, end[s], wanted);
            pair(L, begin, &before);
        }
    tess_lower_losses(L);
    L->p->now.backward = true;
    for (int s = n - 1; s >= 0 && L->conf->train; s--)
        for (L->micro = 0; L->micro < L->micros; L->micro++) {
            const size_t begin = L->p->tasks;
            L->recomputed = -1;
            tess_lower_backward(L, s ? end[s - 1] : 0, end[s], wanted, NULL);
            pair(L, begin, &before);
            if (L->once && L->micro + 1 == L->micros) tess_lower_owed(L);
        }
    free(end);
}

static void make_inputs(tess_lower *L)
{
    int64_t micros = L->micros;
    L->input = tess_arena_get(L->p->arena, (size_t)L->g->tensors * sizeof *L->input);
    for (int k = 0; k < L->g->tensors; k++) {
        const tess_tensor *t = L->g->tensor[k];
        if (t->kind != TESS_KIND_INPUT) continue;
        L->input[k] = tess_arena_get(L->p->arena, (size_t)(micros * L->row_tiles) * sizeof **L->input);
        for (int64_t m = 0; m < micros * L->row_tiles; m++) {
            if (tess_is_whole(t) && m % L->row_tiles) continue; /* it has one a micro-batch */
            const int64_t values = tess_is_whole(t) ? t->dim[1] : tess_rows(L, t, (int)(m % L->row_tiles));
            const size_t bytes = (size_t)values * sizeof(int32_t);
            const bool same = m % L->cut.here && t->dim[1] != L->cut.length;
            L->input[k][m] = same ? L->input[k][m - 1] : tess_program_tile(L->p, bytes, TESS_ROLE_INPUT, t->name);
        }
    }
}

static void check_weights(tess_lower *L)
{
    for (int k = 0; k < L->g->params; k++) {
        const tess_tensor *p = L->g->param[k];
        for (int64_t j = 0; j < p->cut->tiles && (L->grid->pipeline > 1 ? !p->held->on.absent : L->pending[p->id] > 0);
             j++) {
            if (p->held->on.stays && !p->held->tile[j].states) continue; /* its owner looks at it */
            tess_tile *t = tess_weight(L, p, j).tile;
            const tess_dtype type = tess_weight_dtype(p);
            if (tess_is_quantized(type)) break; /* a block of what is not finite is NaN, and so is the loss */
            tess_count_arg *a = TESS_ARG(L, tess_count_arg, .name = p->name,
                                         .n = (int64_t)(tess_tile_bytes(t) / tess_dtype_size(type)));
            TESS_EMIT(L, &tess_finite[type], a, {t, TESS_R});
        }
    }
}

/* The tables by tensor and by node, in the program's arena. */
static void make_tables(tess_lower *L)
{
    tess_arena *a = L->p->arena;
    size_t tensors = (size_t)L->g->tensors, nodes = (size_t)L->g->nodes;
    size_t tiles = (size_t)(L->row_tiles * L->micros);
    L->value = tess_arena_get(a, tensors * sizeof *L->value);
    L->grad = tess_arena_get(a, tensors * sizeof *L->grad);
    L->touched = tess_arena_get(a, tensors * sizeof *L->touched);
    L->pending = tess_arena_get(a, tensors * sizeof *L->pending);
    L->updated = tess_arena_get(a, tensors * sizeof *L->updated);
    L->gather = tess_arena_get(a, tensors * sizeof *L->gather);
    L->tree = tess_arena_get(a, tensors * sizeof *L->tree);
    L->growing = tess_arena_get(a, tensors * sizeof *L->growing);
    L->early = tess_arena_get(a, tensors * sizeof *L->early);
    L->begun = tess_arena_get(a, tensors * sizeof *L->begun);
    L->guests = tess_arena_get(a, tensors * sizeof *L->guests);
    L->alone = tess_arena_get(a, tensors * sizeof *L->alone);
    L->second = tess_arena_get(a, tensors * sizeof *L->second);
    for (size_t k = 0; k < tensors; k++) {
        const tess_param_cut *cut = L->g->tensor[k]->cut;
        const size_t of = cut ? (size_t)cut->tiles : 0; /* of a parameter */
        const size_t sums = of ? (size_t)tess_lower_gradients(L, L->g->tensor[k]) : 0,
                     at = L->routed && L->routed[k] ? tiles * (size_t)(1 + L->grid->data) : tiles;
        L->gather[k] = tess_arena_get(a, of * sizeof **L->gather);
        L->tree[k] = tess_arena_get(a, sums * sizeof **L->tree);
        L->guests[k] = tess_arena_get(a, sums * sizeof **L->guests);
        L->growing[k] = tess_arena_get(a, (size_t)L->micros * sizeof **L->growing);
        L->begun[k] = tess_arena_get(a, sums * sizeof **L->begun);
        L->second[k] = tess_arena_get(a, of * sizeof **L->second);
        for (size_t j = 0; j < sums; j++) L->begun[k][j] = -1;
        L->value[k] = tess_arena_get(a, at * sizeof **L->value);
        L->grad[k] = tess_arena_get(a, at * sizeof **L->grad);
        L->touched[k] = tess_arena_get(a, of * sizeof **L->touched);
    }
    L->room = tess_arena_get(a, (nodes + 1) * sizeof *L->room);
    L->aux = tess_arena_get(a, (nodes + 1) * sizeof *L->aux);
    for (size_t k = 0; k < nodes; k++) {
        const bool goes = L->routed && L->g->node[k]->op == &tess_op_route;
        L->aux[k] = tess_arena_get(a, tiles * (size_t)(goes ? 1 + L->grid->data : 1) * sizeof **L->aux);
    }
    L->result = tess_arena_get(a, tiles * sizeof *L->result);
    L->uses = tess_arena_get(a, tensors * sizeof *L->uses);
    L->kept = tess_arena_get(a, (nodes + 1) * sizeof *L->kept);
    tess_lower_keeps(L->g, L->conf, L->kept);
    L->wants = tess_arena_get(a, tensors * sizeof *L->wants);
    if (L->conf->train) tess_lower_wants(L->g, L->wants);
}

/* The late updates alone; NULL where there are none. */
static tess_program *late_program(const tess_lower *of)
{
    if (!of->late_norm) return NULL;
    tess_lower L = *of;
    L.p = tess_program_new();
    L.updated = tess_arena_get(L.p->arena, (size_t)L.g->tensors * sizeof *L.updated);
    for (int k = 0; k < L.g->params; k++)
        if (of->updated[L.g->param[k]->id]) tess_lower_late(&L, L.g->param[k]);
    tess_program_finish(L.p, false);
    return L.p;
}

void tess_lower_step(const tess_tensor *output, const tess_step_conf *conf, tess_lowered *out)
{
    tess_graph *g = output->g;
    const tess_grid *grid = &g->conf.grid;
    tess_lower L = {
        .g = g, .p = tess_program_new(), .conf = conf, .grid = grid, .dtype = g->conf.dtype, .output = output};
    tess_grid_share(grid, conf, tess_grid_data(grid), &L.micro0, &L.micros);
    int64_t row_tiles;
    L.cut = tess_lower_spans(output, conf->deterministic, &row_tiles);
    L.row_tiles = (int)row_tiles;
    L.once = conf->shares && grid->stage == 3 && grid->data > 1;
    L.pairs = conf->layout.pairs && L.micros > 1 && L.row_tiles == 1 && tess_lower_may_pair(g, conf);
    tess_guests_find(&L);
    make_tables(&L);
    make_inputs(&L);
    bool *wanted = tess_alloc((size_t)g->nodes + 1);
    tess_lower_mark(output, wanted);
    tess_lower_idle(&L, wanted);
    if (grid->pipeline == 1) tess_lower_count(&L, wanted);
    if (conf->check_finite) check_weights(&L);
    if (conf->layout.late && conf->train && tess_step_waits(conf) && !conf->keep_gradients) {
        L.late_loss = tess_program_tile(L.p, 2 * sizeof(double), TESS_ROLE_SCALAR, "loss of the step before");
        L.late_norm = tess_program_tile(L.p, sizeof(double), TESS_ROLE_SCALAR, "gradient norm of the step before");
    }
    bool *put = tess_alloc((size_t)g->nodes + 1), agree = find_put_off(&L, wanted, put);
    if (grid->pipeline > 1)
        tess_lower_pipeline(&L, wanted);
    else if (L.once || (conf->layout.by_layer && (agree || conf->deterministic) && conf->train))
        layer_by_layer(&L, wanted);
    else
        batch_by_batch(&L, wanted, L.micros > 1 && !conf->deterministic && !conf->shares ? put : NULL);
    tess_tile *norm = conf->train && !conf->keep_gradients ? tess_lower_norm(&L) : NULL;
    free(put);
    free(wanted);
    tess_tile **losses = tess_arena_get(L.p->arena, (size_t)L.nlosses * sizeof *losses + 1);
    if (L.nlosses) memcpy(losses, L.losses, (size_t)L.nlosses * sizeof *losses);
    free(L.losses);
    free(L.owed);
    free(L.wait);
    free(L.scratch);
    free(L.turns);
    if (grid->copies) tess_program_drop_copies(L.p);
    tess_program_fuse(L.p);
    if (g->cache) tess_program_bundle(L.p);
    if (conf->train && tess_ranks() == 1) tess_program_chain(L.p, conf->chains);
    tess_program_finish(L.p, conf->keep_gradients);
    *out = (tess_lowered){L.p,       L.input,     L.result, L.loss,           norm, L.losses_exact, losses,
                          L.nlosses, L.row_tiles, L.cut,    late_program(&L), NULL, NULL,           L.uses,
                          L.bounds,  L.used,      L.pairs};
    if (!conf->train || conf->keep_gradients || !conf->local.steps) return;
    out->anchors = tess_lower_anchors(g);
    out->outer = tess_lower_outer(g, &conf->local, L.loss);
}
