/* The optimizer's part of a step: as soon as a parameter's gradient is complete its update is emitted, so that it
 * overlaps with the rest of the backward pass and the gradient's memory goes back.
 *
 * With clipping the updates wait for the global norm, a sum in a fixed tree. They follow at the end of the step; or
 * they come late, in the next step's forward pass, each before the first use of its parameter, where there is work to
 * hide their traffic behind. The same updates give the same bits. Late ones read the loss and the norm of the step
 * before from two tiles of their own. */
#include "graph_impl.h"
#include <stdlib.h>

enum { FAN = 64 };

/* Sums `parts` tiles of `scalars` doubles each, FAN at a time, in their order. */
tess_tile *tess_lower_sum(tess_lower *L, tess_tile **part, int parts, int64_t scalars, const char *label)
{
    TESS_ASSERT(parts > 0);
    tess_tile **level = tess_arena_get(L->p->arena, (size_t)parts * sizeof *level);
    int n = 0;
    for (int first = 0; first < parts; first += FAN) {
        tess_use use[FAN + 1];
        unsigned k = 1;
        use[0] = (tess_use){
            level[n++] = tess_program_tile(L->p, (size_t)scalars * sizeof(double), TESS_ROLE_SCALAR, label), TESS_W};
        for (int i = first; i < parts && i < first + FAN; i++) use[k++] = (tess_use){part[i], TESS_R};
        tess_emit(L, &tess_scalar_sum[TESS_F32], TESS_ARG(L, tess_count_arg, .n = scalars), use, k);
    }
    return n == 1 ? level[0] : tess_lower_sum(L, level, n, scalars, label);
}

static void update(tess_lower *L, tess_tensor *p, int64_t j, tess_tile *norm, tess_tile *loss)
{
    struct tess_param_tile *t = &p->tile[j];
    const tess_optimizer *o = &L->conf->optimizer;
    tess_adamw_arg *a =
        TESS_ARG(L, tess_adamw_arg, .n = (int64_t)(tess_tile_bytes(t->master) / sizeof(float)),
                 .decay = !(o->no_decay_1d && p->rank == 1), .l2 = o->l2, .copy = t->weight != t->master,
                 .clip = norm != NULL, .late = L->late_norm && norm == L->late_norm, .name = p->name);
    tess_use use[] = {{t->master, TESS_RW},  {t->moment[0], TESS_RW}, {t->moment[1], TESS_RW},
                      {t->gradient, TESS_R}, {loss, TESS_R},          {norm ? norm : t->norm, norm ? TESS_R : TESS_W},
                      {t->weight, TESS_W}};
    tess_emit(L, &tess_adamw[TESS_F32], a, use, a->copy ? 7 : 6);
}

void tess_lower_update(tess_lower *L, tess_tensor *p)
{
    for (int64_t j = 0; j < p->tiles; j++) {
        struct tess_param_tile *t = &p->tile[j];
        if (L->conf->optimizer.clip == 0) {
            update(L, p, j, NULL, L->loss);
            continue;
        }
        tess_count_arg *a =
            TESS_ARG(L, tess_count_arg, .name = p->name, .n = (int64_t)(tess_tile_bytes(t->gradient) / sizeof(float)));
        TESS_EMIT(L, &tess_square_sum[TESS_F32], a, {t->gradient, TESS_R}, {t->norm, TESS_W}, {L->loss, TESS_R});
    }
}

tess_tile *tess_lower_norm(tess_lower *L)
{
    int n = 0;
    for (int k = 0; k < L->g->params; k++) n += (int)L->g->param[k]->tiles;
    tess_tile **part = tess_alloc((size_t)n * sizeof *part);
    n = 0;
    for (int k = 0; k < L->g->params; k++)
        for (int64_t j = 0; j < L->g->param[k]->tiles; j++)
            if (L->touched[L->g->param[k]->id][j]) part[n++] = L->g->param[k]->tile[j].norm;
    tess_tile *norm = tess_lower_sum(L, part, n, 1, "gradient norm");
    free(part);
    if (L->late_norm) {
        TESS_EMIT(L, &tess_scalar_sum[TESS_F32], TESS_ARG(L, tess_count_arg, .n = 1), {L->late_norm, TESS_W},
                  {norm, TESS_R});
        TESS_EMIT(L, &tess_scalar_sum[TESS_F32], TESS_ARG(L, tess_count_arg, .n = 2), {L->late_loss, TESS_W},
                  {L->loss, TESS_R});
        return norm;
    }
    for (int k = 0; k < L->g->params && L->conf->optimizer.clip > 0; k++)
        for (int64_t j = 0; j < L->g->param[k]->tiles; j++)
            if (L->touched[L->g->param[k]->id][j]) update(L, L->g->param[k], j, norm, L->loss);
    return norm;
}

void tess_lower_late(tess_lower *L, tess_tensor *p)
{
    for (int64_t j = 0; j < p->tiles && !L->updated[p->id]; j++) update(L, p, j, L->late_norm, L->late_loss);
    L->updated[p->id] = true;
}
