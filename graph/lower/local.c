/* Local steps: between two sums each rank of the data dimension makes steps of its own (DiLoCo). The first of a run of
 * them begins with a copy of the masters. Behind the last, what a rank came away from that copy stands in the place of
 * a gradient, and is summed over ranks as gradients are; the outer optimizer, SGD with Nesterov's momentum, makes of
 * the mean a step from the copy, on every rank the same one. Both are lists of their own, since most steps have
 * neither. */
#include "graph/lower/lower.h"

/* Where the weights are in fp32. */
static tess_tile *master_of(const tess_tensor *p, const struct tess_state *s)
{
    return s->master ? s->master : p->held->tile[s->tile].weight;
}

static void copy(tess_lower *L, tess_tile *from, tess_tile *to)
{
    tess_copy_arg *a = TESS_ARG(L, tess_copy_arg, .bytes = tess_tile_bytes(to));
    TESS_EMIT(L, &tess_copy[TESS_F32], a, {from, TESS_R}, {to, TESS_W});
}

tess_program *tess_lower_anchors(tess_graph *g)
{
    tess_lower L = {.g = g, .p = tess_program_new(), .grid = &g->conf.grid, .dtype = g->conf.dtype};
    for (int k = 0; k < g->params; k++)
        for (int64_t i = 0; i < g->param[k]->held->states; i++) {
            const struct tess_state *s = &g->param[k]->held->state[i];
            if (s->anchor) copy(&L, master_of(g->param[k], s), s->anchor);
        }
    tess_program_finish(L.p, false);
    return L.p;
}

static void outer_step(tess_lower *L, tess_tensor *p, struct tess_state *s)
{
    const tess_optimizer *o = &L->conf->optimizer;
    const int64_t n = tess_state_elements(p, s), row = p->rank == 2 ? p->dim[1] : TESS_VECTOR_ROWS;
    const tess_dtype narrow = p->held->copy ? L->dtype : TESS_F32;
    tess_update_arg *a = TESS_ARG(L, tess_update_arg, .n = n, .copy = narrow, .optimizer = o,
                                  .moments = tess_optimizer_moments(o), .lr_scale = 1, .name = p->name);
    tess_use use[6] = {{master_of(p, s), TESS_RW}};
    unsigned uses = 1;
    TESS_EMIT(L, &tess_square_sum[TESS_F32], TESS_ARG(L, tess_square_arg, .n = n, .row = row, .name = p->name),
              {s->sum, TESS_R}, {s->norm, TESS_W}, {L->loss, TESS_R});
    copy(L, s->anchor, master_of(p, s));
    if (a->moments) use[uses++] = (tess_use){s->outer, TESS_RW};
    use[uses++] = (tess_use){s->sum, TESS_R};
    use[uses++] = (tess_use){L->loss, TESS_R};
    use[uses++] = (tess_use){s->norm, TESS_R};
    if (narrow != TESS_F32) use[uses++] = (tess_use){p->held->tile[s->tile].weight, TESS_W};
    tess_emit(L, &tess_update_sgd[TESS_F32], a, use, uses);
}

tess_program *tess_lower_outer(tess_graph *g, const tess_local *local, tess_tile *loss)
{
    tess_lower L = {.g = g, .p = tess_program_new(), .grid = &g->conf.grid, .dtype = g->conf.dtype, .micros = 1};
    tess_step_conf *conf = TESS_ARG(&L, tess_step_conf, .train = true);
    conf->optimizer = tess_sgd(local->momentum);
    conf->optimizer.nesterov = local->momentum > 0;
    L.conf = conf;
    L.loss = loss;
    L.early = tess_arena_get(L.p->arena, (size_t)g->tensors * sizeof *L.early);
    L.touched = tess_arena_get(L.p->arena, (size_t)g->tensors * sizeof *L.touched);
    for (int k = 0; k < g->params; k++) {
        tess_tensor *p = g->param[k];
        bool *touched = L.touched[p->id] = tess_arena_get(L.p->arena, (size_t)p->cut->tiles * sizeof *touched);
        for (int64_t i = 0; i < p->held->states; i++) {
            struct tess_state *s = &p->held->state[i];
            if (!s->anchor) continue;
            copy(&L, s->anchor, s->sum);
            tess_map_arg *away = TESS_ARG(&L, tess_map_arg, .n = tess_state_elements(p, s), .by = -1, .acc = true);
            TESS_EMIT(&L, &tess_scale[TESS_F32], away, {master_of(p, s), TESS_R}, {s->sum, TESS_RW});
            touched[s->tile] = true;
        }
        tess_lower_reduce(&L, p);
        for (int64_t i = 0; i < p->held->states; i++)
            if (p->held->state[i].anchor) outer_step(&L, p, &p->held->state[i]);
    }
    tess_program_finish(L.p, false);
    return L.p;
}
