/* Weights that ranks have slices of (stage 3). Each rank of the data dimension owns slices of a weight. Before the
 * first use in a stretch of nodes the slices come together in a tile that is no parameter's but an activation's: it
 * goes after its last use. One that is used again soon is kept, as far as the grid's bounds allow.
 *
 * Where machines have several ranks each, a slice crosses the network once to each of them: in a first message it goes
 * from its owner to the ranks of its own machine, and to that rank of every other which has the owner's place there; in
 * a second these pass it on. So each rank takes and passes on as much as the next. */
#include "graph/lower/parcels_impl.h"

/* From whom place d gets a slice of o's: from o, or from the place of its own machine that o has in its. */
static int giver(int o, int d, int near)
{
    const int relay = d - d % near + o % near;
    return d == relay ? o : relay;
}

/* What this rank gives and gets of o's slice: of the owner, or, `on`, of those who have it from there. */
static void add_shares(tess_lower *L, tess_parcel *m, tess_use use, const tess_span *slice, int o, int near, bool on)
{
    const int mine = tess_grid_data(L->grid), here = mine - mine % near,
              gives = (o == mine) != on && mine % near == o % near;
    const int end = gives ? on ? here + near : L->grid->data : 0;
    for (int d = on ? here : 0; d < end; d++)
        if (d != mine && giver(o, d, near) == mine)
            tess_parcel_add(m, use, tess_grid_peer(L->grid, d), slice->tag, true, slice->offset, slice->bytes);
    if (o != mine && (giver(o, mine, near) != o) == on)
        tess_parcel_add(m, use, tess_grid_peer(L->grid, giver(o, mine, near)), slice->tag, false, slice->offset,
                        slice->bytes);
}

/* Slices of a tile that is all of p's j-th, of that dtype: from their owners to everyone. */
void tess_lower_all_gather(tess_lower *L, const tess_tensor *p, int64_t j, tess_use use, tess_dtype type, int kind)
{
    const int slices = tess_grid_slices(p, j), all = tess_grid_near(L->grid, L->g->near),
              near = tess_tile_bytes(use.tile) < (size_t)L->g->near_bytes ? 1 : all;
    for (int on = 0; on < (near > 1 ? 2 : 1); on++) {
        L->lane = tess_lower_data_lane(L, on);
        /* A rank owns one slice of a tile at most, and passes on one of `near`, those at the ends beside it. */
        tess_parcel m = tess_parcel_begin(L, slices + (on ? (slices / near + 2) * near : L->grid->data), 1);
        for (int s = 0; s < slices; s++) {
            const tess_slice slice = tess_grid_slice(p, j, s);
            const tess_span of = {.tag = tess_grid_tag(p, j, s, kind),
                                  .offset = tess_dtype_bytes(type, slice.row * p->dim[1]),
                                  .bytes = tess_dtype_bytes(type, slice.rows * p->dim[1])};
            add_shares(L, &m, use, &of, slice.owner, near, on);
        }
        if (m.spans) use.mode = TESS_RW; /* something has come */
        tess_parcel_send(L, &m);
    }
    L->lane = TESS_LANE_STEP;
}

static void gather(tess_lower *L, const tess_tensor *p, int64_t j, tess_tile *t)
{
    const tess_dtype type = tess_weight_dtype(p);
    const struct tess_param_tile *tile = &p->held->tile[j];
    for (int64_t k = 0; k < tile->states; k++) {
        const struct tess_state *s = &p->held->state[tile->first_state + k];
        tess_copy_arg *a = TESS_ARG(L, tess_copy_arg, .to = tess_dtype_bytes(type, s->at),
                                    .bytes = tess_dtype_bytes(type, tess_state_elements(p, s)));
        TESS_EMIT(L, &tess_copy[TESS_F32], a, {s->weight, TESS_R}, {t, k ? TESS_RW : TESS_W});
    }
    tess_lower_all_gather(L, p, j, (tess_use){t, tile->states ? TESS_RW : TESS_W}, type, TESS_TAG_WEIGHT);
}

/* The tile of a gathered weight. */
static tess_tile *gathered(tess_lower *L, const tess_tensor *p, int64_t j)
{
    struct tess_gather *g = &L->gather[p->id][j];
    int64_t first, rows, most = L->grid->live < L->grid->reuse ? L->grid->live : L->grid->reuse;
    if (g->have && g->stretch == L->stretch) return g->tile[g->turn];
    tess_param_rows(p, j, &first, &rows);
    if (!g->have || L->clock - g->clock > most) {
        g->turn = !g->turn;
        const size_t bytes = tess_dtype_bytes(tess_weight_dtype(p), rows * p->dim[1]);
        if (!g->tile[g->turn]) g->tile[g->turn] = tess_program_tile(L->p, bytes, TESS_ROLE_ACTIVATION, p->name);
        gather(L, p, j, g->tile[g->turn]);
        g->have = true;
    }
    L->clock += rows * p->dim[1];
    g->clock = L->clock;
    g->stretch = L->stretch;
    return g->tile[g->turn];
}

tess_use tess_weight(tess_lower *L, const tess_tensor *p, int64_t tile)
{
    L->uses[p->id] = true;
    return (tess_use){p->held->on.gathered ? gathered(L, p, tile) : p->held->tile[tile].weight, TESS_R};
}

tess_program *tess_lower_gather_program(tess_graph *g)
{
    tess_lower L = {.g = g, .p = tess_program_new(), .grid = &g->conf.grid, .dtype = g->conf.dtype};
    for (int k = 0; k < g->params; k++)
        for (int64_t j = 0; j < g->param[k]->cut->tiles; j++) {
            const tess_tensor *p = g->param[k];
            if (p->held->on.absent) continue;
            if (p->held->on.sliced && !p->held->on.gathered && tess_grid_section(L.grid) == p->held->on.home)
                tess_lower_all_gather(&L, p, j, (tess_use){p->held->tile[j].weight, TESS_RW}, tess_weight_dtype(p),
                                      TESS_TAG_WEIGHT);
            if (p->held->on.shared) tess_lower_broadcast_weight(&L, p, j);
        }
    tess_program_finish(L.p, false);
    return L.p;
}

/* ---- of several sections ---- */

void tess_lower_broadcast_weight(tess_lower *L, const tess_tensor *p, int64_t j)
{
    const tess_grid *g = L->grid;
    int mine = tess_grid_section(g), tag = tess_grid_tag(p, j, 0, TESS_TAG_WEIGHT);
    tess_tile *t = p->held->tile[j].weight;
    for (int s = 0; s < g->pipeline && mine == p->held->on.home; s++)
        if (p->held->on.user[s] && s != mine)
            tess_lower_message(L, (tess_use){t, TESS_R}, g->rank + (s - mine) * g->tensor, tag, true);
    if (mine != p->held->on.home)
        tess_lower_message(L, (tess_use){t, TESS_W}, g->rank + (p->held->on.home - mine) * g->tensor, tag, false);
}
