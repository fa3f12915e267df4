/* What a graph's parameters are made of on this rank, once all of it is described: their tiles, states and pieces. */
#include "graph/lower/tensor/tensor.h"
#include "graph/step/step_impl.h"
#include <stdlib.h>
#include <string.h>

static void make_state(tess_tensor *p, struct tess_param_tile *t, int64_t j, int64_t row, int64_t rows)
{
    struct tess_state *s = &p->held->state[p->held->states++];
    *s = (struct tess_state){.tile = j, .row = row, .rows = rows, .at = row * p->dim[1]};
    const size_t n = (size_t)tess_state_elements(p, s), bytes = tess_dtype_bytes(tess_weight_dtype(p), (int64_t)n);
    if (p->held->on.gathered) s->weight = tess_tile_new(bytes, TESS_ROLE_WEIGHT, p->name);
    if (p->held->on.gathered && !p->held->copy) s->master = s->weight;
    if (!p->held->frozen) {
        if (p->held->copy) s->master = tess_tile_new(4 * n, TESS_ROLE_MASTER, p->name);
        s->norm = tess_tile_new(tess_exact_bytes(), TESS_ROLE_SCALAR, p->name);
        s->sum = p->held->on.sliced ? tess_tile_new(4 * n, TESS_ROLE_GRADIENT, p->name) : t->gradient;
    }
    const tess_grid *grid = &p->g->conf.grid;
    const int shard = p->held->on.sliced ? tess_grid_shard(grid) : 1; /* of several that hold it one counts */
    s->counts = (p->cut->split || tess_grid_tensor(grid) == 0) &&
                t->index % (grid->data / shard) == tess_grid_data(grid) / shard;
    t->states++;
}

static void make_rest(tess_tensor *p, int64_t j)
{
    struct tess_state *s = &p->held->state[p->held->states + p->held->rests++];
    s->tile = j;
    s->counts = p->cut->split || tess_grid_tensor(&p->g->conf.grid) == 0;
    tess_param_rows(p, j, &s->row, &s->rows);
    s->row = 0;
    s->rest = tess_tile_new(4 * (size_t)tess_state_elements(p, s), TESS_ROLE_MOMENT, p->name);
}

/* Adds a rectangle of state k, `at` elements behind its first; where columns are in strips, row by row. */
static void add_pieces(tess_tensor *p, int64_t k, tess_piece all, int64_t at)
{
    const struct tess_owned *on = &p->held->on;
    for (int64_t i = 0; i < (on->strips ? all.rows * on->blocks : 1); i++)
        for (int j = 0; j < (on->strips ? on->strips : 1); j++) {
            tess_piece piece = all;
            if (on->strips) {
                piece.row += i / on->blocks, piece.rows = 1;
                piece.col = i % on->blocks * on->apart + on->strip[j].global, piece.cols = on->strip[j].rows;
            }
            p->held->piece[p->held->pieces++] = (struct tess_placed_piece){.piece = piece, .state = k, .at = at};
            at += piece.rows * piece.cols;
        }
}

/* A state's rows, segment by segment. */
static void make_pieces(tess_tensor *p)
{
    const struct tess_segment all = {0, 0, p->dim[0]};
    const int64_t strips = p->held->on.strips * p->held->on.blocks * p->dim[0];
    const int64_t states = p->held->states + p->held->rests;
    int segments = p->held->on.segments ? p->held->on.segments : 1;
    p->held->piece = tess_arena_get(p->g->arena, (size_t)(states * segments + strips + 1) * sizeof *p->held->piece);
    for (int64_t k = 0; k < states; k++) {
        struct tess_state *s = &p->held->state[k];
        s->first_piece = p->held->pieces;
        int64_t from = s->tile * p->cut->tile_rows + s->row, to = from + s->rows;
        for (int i = 0; i < segments; i++) {
            const struct tess_segment *g = p->held->on.segments ? &p->held->on.segment[i] : &all;
            int64_t first = from > g->local ? from : g->local, end = to < g->local + g->rows ? to : g->local + g->rows;
            if (first >= end) continue;
            tess_piece piece = {g->global + first - g->local, end - first, p->held->on.col0, p->dim[1], s->counts};
            add_pieces(p, k, piece, (first - from) * p->dim[1]);
        }
    }
    if (p->held->rests) p->held->rest_pieces = p->held->pieces - p->held->state[p->held->states].first_piece;
    p->held->pieces -= p->held->rest_pieces;
}

static void make_tiles(tess_tensor *p)
{
    tess_graph *g = p->g;
    const tess_grid *grid = &g->conf.grid;
    const int shard = tess_grid_shard(grid);
    p->held->copy = g->conf.dtype != TESS_F32 && tess_param_narrows(p);
    if (p->held->quantized && !tess_param_has_blocks(p)) p->held->quantized = TESS_F32;
    const bool owned = tess_grid_expert(p, 0) >= 0;
    p->held->on.stays = owned && g->rows_go && !p->held->on.shared;
    p->held->on.gathered =
        p->held->on.stays ||
        (grid->data > 1 && grid->stage == 3 && p->dim[0] * p->dim[1] > grid->persist && !p->held->on.shared) ||
        tess_weight_in_codes(p);
    p->held->on.sliced = p->held->on.gathered || (grid->data > 1 && (grid->stage > 0 || owned) && !p->held->frozen);
    bool states = !p->held->on.absent && tess_grid_section(grid) == p->held->on.home;
    p->held->tile = tess_arena_get(g->arena, (size_t)p->cut->tiles * sizeof *p->held->tile);
    int64_t most = 0;
    tess_slices slices = {.n = 1};
    for (int64_t j = 0; j < p->cut->tiles && states; j++) {
        if (p->held->on.sliced) tess_grid_slices(p, j, &slices);
        most += slices.n;
    }
    p->held->state = tess_arena_get(g->arena, (size_t)(most + p->cut->tiles) * sizeof *p->held->state);
    for (int64_t j = 0; j < p->cut->tiles; j++) {
        struct tess_param_tile *t = &p->held->tile[j];
        int64_t first, count;
        tess_param_rows(p, j, &first, &count);
        const size_t n = (size_t)(count * p->dim[1]), bytes = tess_dtype_bytes(tess_weight_dtype(p), (int64_t)n);
        t->index = g->param_tiles++;
        t->first_state = p->held->states;
        if (p->held->on.absent) continue;
        if (!p->held->on.gathered) t->weight = tess_tile_new(bytes, TESS_ROLE_WEIGHT, p->name);
        if (!p->held->frozen) t->gradient = tess_tile_new(4 * n, TESS_ROLE_GRADIENT, p->name);
        if (!p->held->on.sliced && states) make_state(p, t, j, 0, count);
        if (!p->held->on.sliced || !states) continue;
        tess_grid_slices(p, j, &slices);
        for (int s = 0; s < slices.n;) {
            const tess_slice run = tess_grid_run(&slices, shard, &s);
            if (run.owner % shard == tess_grid_data(grid) % shard) make_state(p, t, j, run.row, run.rows);
        }
    }
    for (int64_t j = 0; j < p->cut->tiles && states && tess_gradient_sent(p) == TESS_INT8; j++) make_rest(p, j);
    make_pieces(p);
}

/* Which sections of the pipeline use each parameter that has no tiles yet. */
static void find_users(tess_graph *g)
{
    bool **uses = tess_alloc((size_t)(g->tensors + 1) * sizeof *uses), *twice = tess_alloc((size_t)g->tensors + 1);
    int n = g->conf.grid.pipeline;
    for (int k = 0; k < g->params; k++) uses[g->param[k]->id] = tess_arena_get(g->arena, (size_t)n * sizeof **uses);
    tess_pipeline_users(g, uses, twice);
    for (int k = 0; k < g->params; k++) {
        tess_tensor *p = g->param[k];
        if (p->held->tile) continue;
        p->held->on.user = uses[p->id];
        p->held->on.sections = 0;
        for (int s = n - 1; s >= 0; s--)
            if (p->held->on.user[s] && ++p->held->on.sections) p->held->on.home = s;
        p->held->on.twice = twice[p->id];
        p->held->on.shared = p->held->on.sections > 1 || p->held->on.twice;
        bool elsewhere = p->held->on.leads && tess_grid_tensor(&g->conf.grid);
        p->held->on.absent =
            elsewhere || (p->held->on.sections > 0 ? !p->held->on.user[tess_grid_section(&g->conf.grid)]
                                                   : tess_grid_section(&g->conf.grid) > 0);
    }
    free(uses);
    free(twice);
}

void tess_graph_ready(tess_graph *g)
{
    if (g->conf.share) tess_graph_ready(g->conf.share);
    tess_tensor_split(g);
    find_users(g);
    if (g->owned) tess_guests_choose(g);
    for (int k = 0; k < g->params; k++) {
        tess_tensor *p = g->param[k], *of = p->held->storage;
        if (p->held->tile) continue;
        if (!of->held->tile) make_tiles(of);
        if (p != of) {
            memcpy(p->dim, of->dim, sizeof p->dim);
            *p->cut = *of->cut;
            p->held = of->held;
        }
    }
}
