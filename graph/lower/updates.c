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
#include "graph/lower/parcels_impl.h"
#include <stdlib.h>

enum { FAN = 64 };

/* The sum of `parts` tiles of arg->n numbers each, over all ranks or this one; as doubles, and, unless NULL, in *exact
 * before it is rounded. */
static tess_tile *total(tess_lower *L, tess_tile **part, int parts, const tess_exact_arg *arg, const char *label,
                        int which, bool over_ranks, tess_tile **exact)
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
    if (over_ranks) tess_lower_all_reduce_exact(L, sum, arg->n, which);
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
    return total(L, L->losses, L->nlosses, &arg, "loss", 0, true, &L->losses_exact);
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

/* Whether its matrices are updated as a whole. */
static bool is_whole(const tess_tensor *p)
{
    return p->held->optimizer && p->held->optimizer->whole;
}

static tess_update_arg *arg_of(tess_lower *L, const tess_tensor *p, const struct tess_state *s, const tess_tile *norm)
{
    const tess_optimizer *o = &L->conf->optimizer;
    return TESS_ARG(L, tess_update_arg, .n = tess_state_elements(p, s), .copy = p->held->copy ? L->dtype : TESS_F32,
                    .optimizer = o, .moments = p->held->moments, .weight_decay = tess_param_decay(p, o),
                    .lr_scale = p->held->own_rates ? p->held->lr_scale : 1, .clip = norm != NULL,
                    .skips = L->conf->skips, .late = L->late_norm && norm == L->late_norm, .kept = kept_of(p, s),
                    .name = p->name, .at_master = s->master ? 0 : s->at, .at_copy = s->weight ? 0 : s->at,
                    .columns = p->dim[1]);
}

/* An update of a state, whose gradient is in `grad`; `more`, unless NULL, stands in the place of the copy. */
static void emit_update(tess_lower *L, const tess_tensor *p, const struct tess_state *s, tess_codelet *cl,
                        tess_update_arg *a, tess_use master, tess_tile *grad, tess_tile *norm, tess_tile *loss,
                        tess_tile *more)
{
    tess_tile *weight = s->weight ? s->weight : p->held->tile[s->tile].weight;
    tess_use use[5 + TESS_MOMENTS_MOST] = {master};
    unsigned n = 1;
    for (int m = 0; m < a->moments; m++) use[n++] = (tess_use){s->moment[m], TESS_RW};
    use[n++] = (tess_use){grad, TESS_R};
    use[n++] = (tess_use){loss, TESS_R};
    use[n++] = (tess_use){norm ? norm : s->norm, TESS_R};
    if (more) use[n++] = (tess_use){more, TESS_R};
    if (a->copy != TESS_F32) use[n++] = (tess_use){weight, p->held->on.sliced && !s->weight ? TESS_RW : TESS_W};
    tess_emit(L, &cl[TESS_F32], a, use, n);
}

static tess_use master_of(const tess_tensor *p, const struct tess_state *s)
{
    return (tess_use){s->master ? s->master : p->held->tile[s->tile].weight, TESS_RW};
}

/* The gradient that waits for the update in bf16, or NULL: it is the sum. */
static tess_tile *few_of(const tess_lower *L, const struct tess_state *s)
{
    return L->conf->optimizer.gradients == TESS_F32 ? NULL : s->few;
}

static void update(tess_lower *L, tess_tensor *p, struct tess_state *s, tess_tile *norm, tess_tile *loss)
{
    tess_update_arg *a = arg_of(L, p, s, norm);
    tess_tile *few = few_of(L, s);
    if (few) a->gradient = TESS_BF16;
    emit_update(L, p, s, p->held->optimizer->update, a, master_of(p, s), few ? few : s->sum, norm, loss, NULL);
}

/* ---- whole matrices ---- */

/* A matrix that is updated as a whole. Its states' rows come together in `x`, on each rank that has some or changes all
 * of it: with ZeRO one rank of those that share it does, and they take turns; else each does for itself. */
struct matrix {
    tess_tensor *p;
    int64_t row, rows, tile, end; /* its rows of the parameter, and their tiles */
    int64_t stride;
    tess_tile *x; /* f32 (rows, stride) */
    int maker;
    bool begun; /* something is in x */
};

static tess_tile *take_turns(tess_lower *L, size_t bytes, const char *label)
{
    int k = 0;
    while (k < L->nturns && L->turns[k].bytes != bytes) k++;
    if (k == L->nturns) {
        L->turns = tess_realloc(L->turns, (size_t)(k + 1) * sizeof *L->turns);
        L->turns[L->nturns++] = (struct tess_turns){.bytes = bytes};
    }
    struct tess_turns *t = &L->turns[k];
    t->turn = !t->turn;
    if (!t->tile[t->turn]) t->tile[t->turn] = tess_program_tile(L->p, bytes, TESS_ROLE_ACTIVATION, label);
    return t->tile[t->turn];
}

static tess_use in_matrix(struct matrix *m)
{
    const tess_use use = {m->x, m->begun ? TESS_RW : TESS_W};
    m->begun = true;
    return use;
}

/* Elements of x before a row of one of the parameter's tiles. */
static int64_t before(const struct matrix *m, int64_t tile, int64_t row)
{
    int64_t first, count;
    tess_param_rows(m->p, tile, &first, &count);
    return (first + row - m->row) * m->stride;
}

/* The slices that others own go to the maker, or back. */
static void exchange(tess_lower *L, struct matrix *m, bool back)
{
    const int mine = tess_grid_data(L->grid), shard = tess_grid_shard(L->grid), from = mine - mine % shard;
    const bool sends = (mine == m->maker) == back;
    L->lane = tess_lower_data_lane(L, false, !back);
    tess_parcel parts = {0};
    for (int64_t j = m->tile; j < m->end; j++) {
        tess_slices slices;
        tess_grid_slices(m->p, j, &slices);
        for (int s = 0; s < slices.n;) {
            const int tag = tess_grid_tag(m->p, j, s, TESS_TAG_TOTAL);
            const tess_slice slice = tess_grid_run(&slices, shard, &s);
            const int holder = from + slice.owner % shard;
            if (holder == m->maker || (mine != m->maker && mine != holder)) continue;
            tess_parcel_add(&parts, sends ? (tess_use){m->x, TESS_R} : in_matrix(m),
                            tess_grid_peer(L->grid, mine == m->maker ? holder : m->maker), tag, sends,
                            (size_t)before(m, j, slice.row) * sizeof(float),
                            (size_t)(slice.rows * m->stride) * sizeof(float));
        }
    }
    tess_parcel_send(L, &parts);
    L->lane = TESS_LANE_STEP;
}

static void change_whole(tess_lower *L, struct matrix *m, tess_tile *norm, tess_tile *loss)
{
    const tess_optimizer_kind *kind = m->p->held->optimizer;
    const tess_dtype t = L->dtype == TESS_F32 ? TESS_F32 : TESS_BF16;
    tess_whole_arg *a = TESS_ARG(L, tess_whole_arg, .rows = m->rows, .columns = m->p->dim[1],
                                 .update = {.n = m->rows * m->p->dim[1],
                                            .columns = m->p->dim[1],
                                            .optimizer = &L->conf->optimizer,
                                            .clip = true,
                                            .skips = L->conf->skips,
                                            .weight_decay = tess_param_decay(m->p, &L->conf->optimizer),
                                            .lr_scale = m->p->held->own_rates ? m->p->held->lr_scale : 1,
                                            .name = m->p->name});
    tess_tile *room = take_turns(L, kind->room(a, t), "room of a matrix");
    L->recomputing = true; /* its work is not the model's */
    TESS_EMIT(L, &kind->whole[t], a, in_matrix(m), {room, TESS_W}, {loss, TESS_R}, {norm, TESS_R});
    L->recomputing = false;
}

static void update_matrix(tess_lower *L, struct matrix *m, tess_tile *norm, tess_tile *loss)
{
    tess_tensor *p = m->p;
    const struct tess_param *h = p->held;
    const tess_optimizer_kind *kind = h->optimizer;
    const bool shared = h->on.sliced;
    const double across = (double)p->dim[1], down = (double)m->rows;
    const int64_t first = h->tile[m->tile].first_state,
                  end = h->tile[m->end - 1].first_state + h->tile[m->end - 1].states;
    const int shard = tess_grid_shard(L->grid), mine = tess_grid_data(L->grid), owner = tess_grid_expert(p, m->tile);
    m->maker = !shared ? mine : owner >= 0 ? owner : mine - mine % shard + L->matrices++ % shard;
    if (first == end && m->maker != tess_grid_data(L->grid)) return;
    m->stride = kind->stride ? kind->stride(m->rows, p->dim[1]) : p->dim[1];
    m->x = take_turns(L, (size_t)(m->rows * m->stride) * sizeof(float), "a whole matrix");
    for (int64_t k = first; k < end; k++) {
        const struct tess_state *s = &h->state[k];
        tess_update_arg *a = arg_of(L, p, s, norm);
        a->copy = TESS_F32;
        a->at_copy = a->at_master;
        a->at_master = before(m, s->tile, s->row);
        emit_update(L, p, s, kind->update, a, in_matrix(m), s->sum, norm, loss,
                    kind->width ? master_of(p, s).tile : NULL);
    }
    if (shared) exchange(L, m, false);
    if (m->maker == tess_grid_data(L->grid)) change_whole(L, m, norm, loss);
    if (shared) exchange(L, m, true);
    for (int64_t k = first; k < end; k++) {
        const struct tess_state *s = &h->state[k];
        tess_update_arg *a = arg_of(L, p, s, norm);
        if (!kind->width) a->moments = 0, a->kept = (tess_kept){0};
        a->at_gradient = before(m, s->tile, s->row);
        if (kind->stretch)
            a->stretch = kind->stretch(a->optimizer, h->turned ? across : down, h->turned ? down : across);
        emit_update(L, p, s, kind->apply, a, master_of(p, s), m->x, norm, loss, NULL);
    }
}

/* Each matrix of a stack by itself. */
static void update_matrices(tess_lower *L, tess_tensor *p, tess_tile *norm, tess_tile *loss)
{
    const int64_t tiles = p->cut->tiles / p->cut->members, rows = p->dim[0] / p->cut->members;
    for (int64_t k = 0; k < p->cut->members && !p->held->on.absent; k++) {
        struct matrix m = {.p = p, .row = k * rows, .rows = rows, .tile = k * tiles, .end = (k + 1) * tiles};
        if (L->touched[p->id][m.tile] && tess_grid_section(L->grid) == p->held->on.home)
            update_matrix(L, &m, norm, loss);
    }
}

/* All of this rank's slices; where the weight is whole on every rank, those of the others come. */
static void update_all(tess_lower *L, tess_tensor *p, tess_tile *norm, tess_tile *loss)
{
    const bool whole = is_whole(p);
    if (whole) update_matrices(L, p, norm, loss);
    for (int64_t j = 0; j < p->cut->tiles; j++) {
        const struct tess_param_tile *t = &p->held->tile[j];
        if ((!norm || norm != L->late_norm) && !L->touched[p->id][j])
            continue; /* a late one comes before the gradients */
        for (int64_t k = 0; k < t->states && !whole; k++) update(L, p, &p->held->state[t->first_state + k], norm, loss);
        if (p->held->on.sliced && !p->held->on.gathered && tess_grid_section(L->grid) == p->held->on.home)
            tess_lower_all_gather(L, p, j, (tess_use){t->weight, TESS_RW}, tess_weight_dtype(p), TESS_TAG_WEIGHT,
                                  tess_grid_shard(L->grid));
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
        if (few_of(L, s))
            TESS_EMIT(L, &tess_add_sum[TESS_BF16], TESS_ARG(L, tess_map_arg, .n = a->n), {s->sum, TESS_R},
                      {s->few, TESS_W});
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
    const bool own = L->conf->local.steps > 0; /* then each rank clips by the norm of its own gradient */
    int64_t most = 0;
    int n = 0;
    for (int k = 0; k < L->g->params; k++) most += L->g->param[k]->held->states;
    tess_tile **part = tess_alloc((size_t)(most + 1) * sizeof *part);
    for (int k = 0; k < L->g->params; k++)
        for (int64_t i = 0; i < L->g->param[k]->held->states; i++) {
            const struct tess_state *s = &L->g->param[k]->held->state[i];
            if ((s->counts || own) && !tess_is_state(L->g->param[k]) && L->touched[L->g->param[k]->id][s->tile])
                part[n++] = s->norm;
        }
    tess_tile *norm = total(L, part, n, &(tess_exact_arg){.n = 1}, "gradient norm", 1, !own, NULL);
    free(part);
    for (int k = 0; k < L->g->params && tess_step_waits(L->conf); k++)
        if (!L->late_norm || is_whole(L->g->param[k])) update_all(L, L->g->param[k], norm, L->loss);
    if (!L->late_norm) return norm;
    keep(L, norm, L->late_norm);
    keep(L, L->loss, L->late_loss);
    return norm;
}

void tess_lower_late(tess_lower *L, tess_tensor *p)
{
    if (tess_is_frozen(p) || is_whole(p)) return; /* of these the gradients alone would wait */
    if (!L->updated[p->id]) update_all(L, p, L->late_norm, L->late_loss);
    L->updated[p->id] = true;
}
