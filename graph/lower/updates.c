/* The optimizer's part of a step: as soon as a parameter's gradient is complete its update is emitted, so that it
 * overlaps with the rest of the backward pass and the gradient's memory goes back.
 *
 * With clipping the updates wait for the global norm, a sum in a fixed tree. They follow at the end of the step; or
 * they come late, in the next step's forward pass, each before the first use of its parameter, where there is work to
 * hide their traffic behind. The same updates give the same bits. Late ones read the loss and the norm of the step
 * before from two tiles of their own.
 *
 * Why late: with clipping no update may begin before the norm of all gradients is known, and then no work is left that
 * could hide it. Updating at once and taking it back where the norm clips would need the old states, 12 bytes a
 * parameter; the norm of the step before gives other results. A late update is the same task with the same inputs. By
 * arithmetic Llama 8B with 241 GB of updates on 16 cores needs 1.3 to 1.6 s for them and its forward pass hides 1.0 s,
 * so 0.3 to 0.6 s of a step of 4.0 s stay visible, where 1.5 to 1.9 s were. On a drive gradients that wait cost 8
 * bytes a parameter more. */
#include "graph/lower/lower.h"
#include <stdlib.h>

enum { FAN = 64 };

/* The sum of `parts` tiles of arg->n numbers each, over all ranks; as doubles, and, unless NULL, in *exact before it
 * is rounded. */
static tess_tile *total(tess_lower *L, tess_tile **part, int parts, const tess_exact_arg *arg, const char *label,
                        int which, tess_tile **exact)
{
    tess_tile *sum = tess_program_tile(L->p, (size_t)arg->n * tess_exact_bytes(), TESS_ROLE_SCALAR, label);
    for (int first = 0; first == 0 || first < parts; first += FAN) {
        tess_use use[FAN + 1] = {{sum, first ? TESS_RW : TESS_W}};
        tess_exact_arg *a = tess_arg_copy(L, arg, sizeof *arg);
        unsigned k = 1;
        a->acc = first > 0;
        for (int i = first; i < parts && i < first + FAN; i++) use[k++] = (tess_use){part[i], TESS_R};
        tess_emit(L, &tess_exact_add[TESS_F32], a, use, k);
    }
    tess_lower_all_reduce_exact(L, sum, arg->n, which);
    const int64_t values = arg->means ? 2 : arg->n;
    tess_tile *value = tess_program_tile(L->p, (size_t)values * sizeof(double), TESS_ROLE_SCALAR, label);
    TESS_EMIT(L, &tess_exact_round[TESS_F32], tess_arg_copy(L, arg, sizeof *arg), {value, TESS_W}, {sum, TESS_R});
    if (exact) *exact = sum;
    return value;
}

tess_tile *tess_lower_loss(tess_lower *L)
{
    const int losses = tess_losses(L);
    const tess_exact_arg arg = {
        .n = 2 * (losses + tess_numbers(L)), .doubles = true, .means = losses > 1 ? 2 * losses : 0};
    return total(L, L->losses, L->nlosses, &arg, "loss", 0, &L->losses_exact);
}

/* Returns where the rows of a state are in the whole parameter. */
static tess_kept kept_of(const tess_tensor *p, const struct tess_state *s)
{
    tess_kept kept = tess_param_kept(p);
    int part = 0;
    if (kept.as == TESS_KEEP_F32) return kept; /* fp32 needs no format */
    for (int64_t i = s->first_piece; i < p->held->pieces; i++) {
        const struct tess_placed_piece *h = &p->held->piece[i];
        if (&p->held->state[h->state] != s) break;
        TESS_ASSERT(part < TESS_KEPT_PARTS);
        kept.part[part].rows = h->piece.rows;
        kept.part[part++].first = h->piece.row;
    }
    kept.dice = ~tess_param_stream(p); /* not the numbers that it was drawn with */
    return kept;
}

static void update(tess_lower *L, tess_tensor *p, struct tess_state *s, tess_tile *norm, tess_tile *loss)
{
    const struct tess_param_tile *t = &p->held->tile[s->tile];
    const tess_optimizer *o = &L->conf->optimizer;
    tess_update_arg *a =
        TESS_ARG(L, tess_update_arg, .n = tess_state_elements(p, s), .copy = p->held->copy ? L->dtype : TESS_F32,
                 .optimizer = o, .moments = p->held->moments, .weight_decay = tess_param_decay(p, o),
                 .lr_scale = p->held->own_rates ? p->held->lr_scale : 1, .clip = norm != NULL, .skips = L->conf->skips,
                 .late = L->late_norm && norm == L->late_norm, .kept = kept_of(p, s), .name = p->name,
                 .at_master = s->master ? 0 : s->at, .at_copy = s->weight ? 0 : s->at);
    tess_use use[5 + TESS_MOMENTS_MOST] = {{s->master ? s->master : t->weight, TESS_RW}};
    unsigned n = 1;
    for (int m = 0; m < a->moments; m++) use[n++] = (tess_use){s->moment[m], TESS_RW};
    use[n++] = (tess_use){s->sum, TESS_R};
    use[n++] = (tess_use){loss, TESS_R};
    use[n++] = (tess_use){norm ? norm : s->norm, TESS_R};
    if (a->copy != TESS_F32)
        use[n++] = (tess_use){s->weight ? s->weight : t->weight, p->held->on.sliced && !s->weight ? TESS_RW : TESS_W};
    tess_emit(L, &p->held->optimizer->update[TESS_F32], a, use, n);
}

/* All of this rank's slices; where the weight is whole on every rank, those of the others come. */
static void update_all(tess_lower *L, tess_tensor *p, tess_tile *norm, tess_tile *loss)
{
    for (int64_t j = 0; j < p->cut->tiles; j++) {
        const struct tess_param_tile *t = &p->held->tile[j];
        if ((!norm || norm != L->late_norm) && !L->touched[p->id][j])
            continue; /* a late one comes before the gradients */
        for (int64_t k = 0; k < t->states; k++) update(L, p, &p->held->state[t->first_state + k], norm, loss);
        if (p->held->on.sliced && !p->held->on.gathered && tess_grid_section(L->grid) == p->held->on.home)
            tess_lower_all_gather(L, p, j, (tess_use){t->weight, TESS_RW}, tess_weight_dtype(p), TESS_TAG_WEIGHT);
        if (p->held->on.shared) tess_lower_broadcast_weight(L, p, j);
    }
}

void tess_lower_update(tess_lower *L, tess_tensor *p)
{
    for (int64_t k = 0; k < p->held->states; k++) {
        struct tess_state *s = &p->held->state[k];
        if (!L->touched[p->id][s->tile]) continue;
        tess_square_arg *a = TESS_ARG(L, tess_square_arg, .n = tess_state_elements(p, s), .name = p->name,
                                      .row = p->rank == 2 ? p->dim[1] : TESS_VECTOR_ROWS);
        const tess_use use[] = {{s->sum, TESS_R}, {s->norm, TESS_W}, {L->loss, TESS_R}};
        tess_emit(L, &tess_square_sum[TESS_F32], a, use, L->conf->skips ? 2 : 3); /* with the loss it may fail */
    }
    if (!tess_step_waits(L->conf)) update_all(L, p, NULL, L->loss);
}

/* As much as there is room for: updates read no numbers beside the loss. */
static void keep(tess_lower *L, tess_tile *value, tess_tile *kept)
{
    tess_copy_arg *a = TESS_ARG(L, tess_copy_arg, .bytes = tess_tile_bytes(kept));
    TESS_EMIT(L, &tess_copy[TESS_F32], a, {value, TESS_R}, {kept, TESS_W});
}

tess_tile *tess_lower_norm(tess_lower *L)
{
    int64_t most = 0;
    int n = 0;
    for (int k = 0; k < L->g->params; k++) most += L->g->param[k]->held->states;
    tess_tile **part = tess_alloc((size_t)(most + 1) * sizeof *part);
    for (int k = 0; k < L->g->params; k++)
        for (int64_t i = 0; i < L->g->param[k]->held->states; i++) {
            const struct tess_state *s = &L->g->param[k]->held->state[i];
            if (s->counts && !tess_is_state(L->g->param[k]) && L->touched[L->g->param[k]->id][s->tile])
                part[n++] = s->norm;
        }
    tess_tile *norm = total(L, part, n, &(tess_exact_arg){.n = 1}, "gradient norm", 1, NULL);
    free(part);
    if (L->late_norm) {
        keep(L, norm, L->late_norm);
        keep(L, L->loss, L->late_loss);
        return norm;
    }
    for (int k = 0; k < L->g->params && tess_step_waits(L->conf); k++) update_all(L, L->g->param[k], norm, L->loss);
    return norm;
}

void tess_lower_late(tess_lower *L, tess_tensor *p)
{
    if (tess_is_frozen(p)) return;
    if (!L->updated[p->id]) update_all(L, p, L->late_norm, L->late_loss);
    L->updated[p->id] = true;
}
