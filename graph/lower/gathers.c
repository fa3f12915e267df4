/* Weights that ranks have slices of (stage 3). Each rank of the data dimension owns slices of a weight. Before the
 * first use in a stretch of nodes the slices come together in a tile that is no parameter's but an activation's: it
 * goes after its last use. One that is used again soon is kept, as far as the grid's bounds allow.
 *
 * Where machines have several ranks each, a slice crosses the network once to each of them: in a first message it goes
 * from its owner to the ranks of its own machine, and to that rank of every other which has the owner's place there; in
 * a second these pass it on. So each rank takes and passes on as much as the next.
 *
 * Where groups of ranks share the states, each group by itself, the slices of its weights come from within it. What is
 * summed is still sliced over all ranks, and each sum goes to all that hold its slice. Where all ranks share them, and
 * groups have copies, the first gathering of a step brings a weight to the group, and the next ones come from there. */
#include "graph/lower/parcels_impl.h"

/* From whom place d gets a slice of o's: from o, or from the place of its own machine that o has in its. */
static int giver(int o, int d, int near)
{
    const int relay = d - d % near + o % near;
    return d == relay ? o : relay;
}

/* The ranks that a slice goes to: `step` apart, the owner among them; of a machine `near`. */
struct takers {
    int first, end, step, near;
};

/* What this rank gives and gets of o's slice: of the owner, or, `on`, of those who have it from there. */
static void add_shares(tess_lower *L, tess_parcel *m, tess_use use, const tess_span *slice, int o,
                       const struct takers *to, bool on)
{
    const int near = to->near, mine = tess_grid_data(L->grid), here = mine - mine % near,
              gives = (o == mine) != on && mine % near == o % near;
    const int end = gives ? on ? here + near : to->end : 0;
    for (int d = on ? here + to->first % to->step : to->first; d < end; d += to->step)
        if (d != mine && giver(o, d, near) == mine)
            tess_parcel_add(m, use, tess_grid_peer(L->grid, d), slice->tag, true, slice->offset, slice->bytes);
    if (o != mine && (giver(o, mine, near) != o) == on)
        tess_parcel_add(m, use, tess_grid_peer(L->grid, giver(o, mine, near)), slice->tag, false, slice->offset,
                        slice->bytes);
}

/* Slices of p's j-th tile, whose row `row` the use's tile begins with: from those who hold them, of `of` ranks in a row
 * that share them, to those of these ranks that are `step` apart. Messages that are in `kept`, unless it is NULL, are
 * those of another time. */
static void give_slices(tess_lower *L, const tess_tensor *p, int64_t j, tess_use use, tess_dtype type, int kind, int of,
                        int step, int64_t row, const tess_message_arg **kept)
{
    const int all = tess_grid_near(L->grid, L->g->near), mine = tess_grid_data(L->grid), from = mine - mine % of;
    const bool large = tess_tile_bytes(use.tile) >= (size_t)L->g->near_bytes,
               relays = step == 1 ? of % all == 0 && all < of : all % step == 0;
    tess_slices slices;
    struct takers to = {.end = from + of, .step = step, .near = large && relays ? all : 1};
    for (int on = 0; on < (to.near > 1 ? 2 : 1); on++) {
        tess_parcel m = {0};
        L->lane = tess_lower_data_lane(L, on || all % of == 0, step > 1);
        if (kept && kept[on]) {
            tess_emit(L, &tess_message, kept[on], &use, 1);
            use.mode = TESS_RW;
            continue;
        }
        tess_grid_slices(p, j, &slices);
        for (int s = 0; s < slices.n;) {
            const int tag = tess_grid_tag(p, j, s, kind);
            const tess_slice run = tess_grid_run(&slices, of, &s);
            const tess_span span = {.tag = tag,
                                    .offset = tess_dtype_bytes(type, (run.row - row) * p->dim[1]),
                                    .bytes = tess_dtype_bytes(type, run.rows * p->dim[1])};
            to.first = from + run.owner % step;
            if (mine % step == run.owner % step) add_shares(L, &m, use, &span, from + run.owner % of, &to, on);
        }
        if (m.spans) use.mode = TESS_RW; /* something has come */
        const tess_message_arg *sent = tess_parcel_send(L, &m);
        if (kept) kept[on] = sent;
    }
    L->lane = TESS_LANE_STEP;
}

void tess_lower_all_gather(tess_lower *L, const tess_tensor *p, int64_t j, tess_use use, tess_dtype type, int kind,
                           int of)
{
    give_slices(L, p, j, use, type, kind, of, 1, 0, NULL);
}

void tess_lower_share_sum(tess_lower *L, const tess_tensor *p, int64_t j)
{
    const struct tess_param_tile *t = &p->held->tile[j];
    const int group = tess_grid_shard(L->grid);
    if (group == L->grid->data || !t->states) return;
    const struct tess_state *s = &p->held->state[t->first_state];
    tess_slices slices;
    tess_grid_slices(p, j, &slices);
    give_slices(L, p, j, (tess_use){s->sum, slices.own >= 0 ? TESS_RW : TESS_W}, TESS_F32, TESS_TAG_TOTAL,
                L->grid->data, group, s->row, NULL);
}

static void copy_rows(tess_lower *L, const tess_tensor *p, tess_use from, int64_t at, tess_use to, int64_t to_at,
                      int64_t rows)
{
    const tess_dtype type = tess_weight_sent(p);
    tess_copy_arg *a =
        TESS_ARG(L, tess_copy_arg, .from = tess_dtype_bytes(type, at * p->dim[1]),
                 .to = tess_dtype_bytes(type, to_at * p->dim[1]), .bytes = tess_dtype_bytes(type, rows * p->dim[1]));
    TESS_EMIT(L, &tess_copy[TESS_F32], a, from, to);
}

/* From all ranks; or from those of the group, of the copy that it has from the first time. What comes in codes is read
 * into t. */
static void gather(tess_lower *L, const tess_tensor *p, int64_t j, struct tess_gather *g, tess_tile *t)
{
    const tess_dtype type = tess_weight_sent(p), of = tess_weight_dtype(p);
    const struct tess_param_tile *tile = &p->held->tile[j];
    const struct tess_state *s = tile->states ? &p->held->state[tile->first_state] : NULL;
    const int mine = tess_grid_data(L->grid), group = L->grid->group;
    const bool again = g->copied;
    int64_t first, n;
    tess_param_rows(p, j, &first, &n);
    n *= p->dim[1];
    if (type != of && !g->codes)
        g->codes = tess_program_tile(L->p, tess_dtype_bytes(type, n), TESS_ROLE_ACTIVATION, p->name);
    tess_use whole = {type == of ? t : g->codes, TESS_W};
    if (again && g->copy)
        copy_rows(L, p, (tess_use){g->copy, TESS_R}, 0, whole, g->row, g->rows);
    else if (!again && s && type == of)
        copy_rows(L, p, (tess_use){s->weight, TESS_R}, 0, whole, s->row, s->rows);
    else if (!again && s)
        TESS_EMIT(L, &tess_quantize[of],
                  TESS_ARG(L, tess_count_arg, .n = tess_state_elements(p, s), .at = s->at, .as = type, .of = of),
                  {s->weight, TESS_R}, whole);
    if (again ? g->copy != NULL : s != NULL) whole.mode = TESS_RW;
    if (!p->held->on.stays)
        give_slices(L, p, j, whole, type, TESS_TAG_WEIGHT, again ? group : tess_grid_shard(L->grid), 1, 0,
                    g->message[again]);
    whole.mode = TESS_R;
    tess_slices slices = {0};
    if (L->grid->copies && !again) tess_grid_slices(p, j, &slices);
    for (int k = 0; k < slices.n;) {
        const tess_slice run = tess_grid_run(&slices, group, &k);
        if (run.owner % group != mine % group) continue;
        g->row = run.row, g->rows = run.rows;
        g->copy = tess_program_tile(L->p, tess_dtype_bytes(type, run.rows * p->dim[1]), TESS_ROLE_ACTIVATION, p->name);
        copy_rows(L, p, whole, run.row, (tess_use){g->copy, TESS_W}, 0, run.rows);
    }
    g->copied = L->grid->copies;
    if (type != of)
        TESS_EMIT(L, &tess_dequantize[of], TESS_ARG(L, tess_count_arg, .n = n, .as = type), whole, {t, TESS_W});
}

/* The tile of a gathered weight, or of what codes of an owned one stand for. */
static tess_tile *gathered(tess_lower *L, const tess_tensor *p, int64_t j)
{
    struct tess_gather *g = &L->gather[p->id][j];
    int64_t first, rows, most = L->grid->live < L->grid->reuse ? L->grid->live : L->grid->reuse;
    if (g->have && g->stretch == L->stretch) return g->tile[g->turn];
    tess_param_rows(p, j, &first, &rows);
    /* The micro-batches of a rank that come behind the first have the weights that it had, and take none of the time by
     * which all ranks gather alike. */
    if (!L->once || L->micro == 0) {
        if (!g->have || L->clock - g->clock > most) {
            g->turn = !g->turn;
            const size_t bytes = tess_dtype_bytes(tess_weight_dtype(p), rows * p->dim[1]);
            if (!g->tile[g->turn]) g->tile[g->turn] = tess_program_tile(L->p, bytes, TESS_ROLE_ACTIVATION, p->name);
            gather(L, p, j, g, g->tile[g->turn]);
            g->have = true;
        }
        if (!p->held->on.stays) L->clock += rows * p->dim[1];
        g->clock = L->clock;
    }
    TESS_ASSERT(g->have);
    g->stretch = L->stretch;
    return g->tile[g->turn];
}

tess_use tess_weight(tess_lower *L, const tess_tensor *p, int64_t tile)
{
    L->uses[p->id] = true;
    if (p->held->on.stays && !tess_weight_in_codes(p))
        return (tess_use){p->held->state[p->held->tile[tile].first_state].weight, TESS_R};
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
                                      TESS_TAG_WEIGHT, tess_grid_shard(L.grid));
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
