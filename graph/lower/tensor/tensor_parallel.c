/* Tensor parallelism: a pass over the nodes of a graph that leaves each rank of the tensor dimension its part.
 *
 * A region (regions.c) is what lies between products that make its tensors and products that read them: of a family's
 * graph, ops whose columns come from the same columns of their inputs, as elementwise maps, rotary positions and
 * attention do; of tensors of any rank, ops that keep one dimension. That is shared out: the products before it keep
 * some rows of their weights, those behind it some columns. A rank's share of a region is whole units: groups of heads
 * where there is attention, else runs of columns; units need not divide evenly. The products at the end of a region
 * make a partial sum on every rank: a node `leave` all-reduces it. The operand of the products at its beginning is
 * replicated, and its gradient is a partial sum: a node `enter` all-reduces that. These are two all-reduces forward and
 * two backward for a transformer's layer.
 *
 * A table that only embeddings and losses read is shared out by its tiles: an embedding makes the rows of the tokens
 * that a rank has, and zeros, which leave adds up; a loss needs the statistics of all tiles, a few numbers a row.
 *
 * All else is done by every rank alike, with the same bits, and counts and is saved on the first. This file knows ops
 * by their descriptions, and lists the matrices that could not be sharded (tess_graph_unsplit). */
#include "graph/lower/tensor/regions_impl.h"
#include <stdlib.h>
#include <string.h>

/* ---- cutting ---- */

static void recut(tess_tensor *p)
{
    int64_t rows = tess_rows_of_tile(p->g, p->dim[0], p->dim[1]);
    p->cut->tile_rows = rows;
    p->cut->tiles = (p->dim[0] + rows - 1) / rows;
}

static void add_segment(tess_tensor *p, int64_t global, int64_t rows)
{
    int64_t at = p->held->on.segments ? p->held->on.segment[p->held->on.segments - 1].local +
                                            p->held->on.segment[p->held->on.segments - 1].rows
                                      : 0;
    p->held->on.segment[p->held->on.segments++] = (struct tess_segment){at, global, rows};
    p->dim[0] = at + rows;
    p->cut->split = true;
}

/* Of `units` units this rank's. */
static tess_portion share(const tess_grid *g, int64_t units)
{
    return (tess_portion){units, units * tess_grid_tensor(g) / g->tensor,
                          units * (tess_grid_tensor(g) + 1) / g->tensor};
}

/* Rows of a weight before the region, and of its bias: units of whole rows, of each of the tensors that it makes side
 * by side. */
static void cut_rows(tess_node *n, const tess_portion *s, const tess_split *is, const tess_node *reader)
{
    int64_t width[TESS_MOST_BESIDE] = {n->in[1]->cut->whole[0] / s->units};
    int tensors = reader ? tess_beside_of(reader, s->units, width) : 1;
    for (int k = 0; is->runs > 1 && k < is->runs; k++) width[k] = is->length[k] / s->units, tensors = is->runs;
    for (int b = 1; b < 3; b++) {
        tess_tensor *p = n->in[b];
        int64_t begin = 0;
        if (!p || p->held->on.segments || p->held->storage != p) continue;
        for (int k = 0; k < tensors; k++) {
            add_segment(p, begin + s->first * width[k], (s->end - s->first) * width[k]);
            begin += s->units * width[k];
        }
        recut(p);
    }
    if (n->in[2] && n->in[2]->held->storage == n->in[2]) {
        n->in[2]->cut->tile_rows = n->in[1]->cut->tile_rows;
        n->in[2]->cut->tiles = n->in[1]->cut->tiles;
    }
}

/* Keeps columns of a parameter: `blocks` times the split's runs, with `inner` columns an element. */
static void keep_columns(tess_tensor *p, const tess_portion *s, const tess_split *is, int64_t blocks, int64_t inner)
{
    struct tess_owned *on = &p->held->on;
    int64_t at = 0;
    for (int k = 0; k < is->runs; k++) {
        const int64_t unit = is->length[k] / s->units * inner;
        on->strip[k] = (struct tess_segment){0, at + s->first * unit, (s->end - s->first) * unit};
        at += is->length[k] * inner;
    }
    const bool one = blocks == 1 && is->runs == 1;
    on->col0 = one ? on->strip[0].global : 0;
    on->strips = one ? 0 : is->runs;
    on->blocks = blocks, on->apart = at;
    p->dim[1] = p->dim[1] / at * tess_portion_of(s, at);
    p->cut->split = true;
    recut(p);
}

/* Columns of a weight behind the region; its bias is added by the first rank alone. */
static void cut_columns(const tess_graph *g, tess_node *n, const tess_portion *s, const tess_split *is)
{
    tess_tensor *p = n->in[1], *bias = n->in[2];
    if (p->held->storage == p && !p->cut->split) {
        const tess_split one = {.runs = 1, .length = {p->cut->whole[1]}};
        keep_columns(p, s, is->runs > 1 ? is : &one, 1, 1);
        if (bias) {
            bias->cut->tile_rows = p->cut->tile_rows;
            bias->cut->tiles = p->cut->tiles;
        }
    }
    if (bias) bias->held->on.leads = true;
    if (!tess_grid_tensor(&g->conf.grid)) return;
    n->elsewhere = bias;
    n->in[2] = NULL;
}

/* A parameter of any rank along one of its dimensions: rows where it is the first, else columns. */
static void cut_param(tess_tensor *p, const tess_portion *s, const tess_split *is)
{
    int64_t inner = 1, blocks = 1, at = 0;
    if (p->held->storage != p || p->cut->split) return;
    for (int d = 1; d < p->nd->rank; d++)
        if (d != is->dim) *(d < is->dim ? &blocks : &inner) *= p->nd->dim[d];
    if (is->dim > 0) {
        keep_columns(p, s, is, blocks, inner);
        return;
    }
    for (int k = 0; k < is->runs; at += is->length[k++])
        add_segment(p, at + s->first * (is->length[k] / s->units), tess_portion_of(s, is->length[k]));
    recut(p);
}

/* The sizes that a tensor of the region has on this rank. */
static void cut_tensor(tess_tensor *t, const tess_portion *s, const tess_split *is)
{
    if (t->kind == TESS_KIND_PARAM) cut_param(t, s, is);
    if (t->nd) {
        int64_t *dim = (int64_t *)&t->nd->dim[is->dim], own = tess_portion_of(s, *dim);
        if (t->kind != TESS_KIND_PARAM) t->dim[2] = t->dim[2] / *dim * own;
        *dim = own;
    } else
        t->dim[2] = tess_portion_of(s, t->dim[2]);
    t->apart |= t->kind != TESS_KIND_PARAM;
}

static void cut_region(tess_graph *g, const tess_region *r, const tess_portion *s)
{
    for (int k = 0; k < g->nodes; k++) {
        tess_node *n = g->node[k];
        const tess_node *reader = NULL; /* of tensors side by side */
        int64_t width[TESS_MOST_BESIDE];
        for (int i = 0; i < g->nodes && r->before[k]; i++) {
            if (r->node[i] && g->node[i]->in[0] == n->out && tess_beside_of(g->node[i], s->units, width) > 1)
                reader = g->node[i];
        }
        n->cut |= r->before[k] || r->behind[k] || (r->node[k] && r->node[k]->has[0] == TESS_HAS_SUM);
        if (r->before[k]) cut_rows(n, s, &r->of[n->out->id], reader);
        if (r->behind[k]) cut_columns(g, n, s, &r->of[n->in[0]->id]);
    }
    for (int k = 0; k < g->tensors; k++)
        if (r->of[k].runs) cut_tensor(g->tensor[k], s, &r->of[k]);
    for (int k = 0; k < g->nodes; k++) {
        const tess_op *op = g->node[k]->op;
        if (r->node[k] && op->units.keep) op->units.keep(g->node[k], s->units, s->first, s->end);
        if (r->node[k] && op->keep) op->keep(g->node[k], r->node[k], s);
    }
}

/* A table that only embeddings and losses read: whole tiles of it, at least one a rank. */
static bool cut_table(tess_tensor *p)
{
    const tess_graph *g = p->g;
    int64_t n = g->conf.grid.tensor, rows;
    for (int k = 0; k < g->nodes; k++)
        for (int i = 0; i < g->node[k]->inputs; i++)
            if (g->node[k]->in[i] == p && (i == 0 || i != g->node[k]->op->table)) return false;
    if (p->rank != 2 || tess_uses_of(g, p) == 0 || p->cut->whole[0] < n) return false;
    if (p->held->storage != p) return p->held->storage->cut->split;
    if (p->cut->tiles < n) {
        p->cut->tile_rows = (p->cut->whole[0] + n - 1) / n;
        p->cut->tiles = (p->cut->whole[0] + p->cut->tile_rows - 1) / p->cut->tile_rows;
    }
    if (p->cut->tiles < n) { /* a few rows: their number hardly exceeds the ranks' */
        p->cut->tile_rows = p->cut->whole[0] / n;
        p->cut->tiles = (p->cut->whole[0] + p->cut->tile_rows - 1) / p->cut->tile_rows;
    }
    p->cut->all_tiles = p->cut->tiles;
    const tess_portion s = share(&g->conf.grid, p->cut->tiles);
    rows = (s.end * p->cut->tile_rows < p->cut->whole[0] ? s.end * p->cut->tile_rows : p->cut->whole[0]) -
           s.first * p->cut->tile_rows;
    p->cut->first_tile = s.first;
    p->cut->tiles = s.end - s.first;
    add_segment(p, s.first * p->cut->tile_rows, rows);
    return true;
}

/* The bias of a head is cut as its table is. */
static void cut_table_bias(const tess_node *n)
{
    tess_tensor *b = n->op->table_bias ? n->in[n->op->table_bias] : NULL;
    const tess_tensor *w = n->in[n->op->table];
    if (!b || b->held->storage != b || b->cut->split) return;
    b->cut->tile_rows = w->cut->tile_rows;
    b->cut->tiles = w->cut->tiles;
    b->cut->all_tiles = w->cut->all_tiles;
    b->cut->first_tile = w->cut->first_tile;
    add_segment(b, w->held->on.segment[0].global, w->held->on.segment[0].rows);
}

/* ---- enter and leave ---- */

/* Behind node k: what reads its output from now on reads the sum of all ranks' parts. */
static void add_leave(tess_graph *g, int k)
{
    tess_tensor *part = g->node[k]->out;
    tess_node *leave = tess_node_insert(g, k + 1, &tess_op_leave, part, g->node[k]->block);
    part->apart = true;
    leave->out->apart = false;
    for (int i = k + 2; i < g->nodes; i++)
        for (int j = 0; j < g->node[i]->inputs; j++)
            if (g->node[i]->in[j] == part) g->node[i]->in[j] = leave->out;
}

/* A read of what all ranks have, by a node that makes some of its result. */
struct reads {
    tess_node *node;
    int input;
};

/* Before the first of these that read x: they all read it through one node. */
static void add_enter(tess_graph *g, const struct reads *of, int n, tess_tensor *x)
{
    tess_node *enter = NULL;
    for (int k = 0; k < n; k++) {
        if (of[k].node->in[of[k].input] != x) continue;
        if (!enter) enter = tess_node_insert(g, of[k].node->id, &tess_op_enter, x, of[k].node->block);
        enter->out->apart = true;
        of[k].node->in[of[k].input] = enter->out;
    }
}

/* Returns whether an input has a gradient that is a partial sum on each rank. */
static bool comes_in_parts(const tess_region *r, const tess_node *n, int input)
{
    const tess_tensor *t = n->in[input];
    const tess_splits *s = r->node[n->id];
    if (!s || !t || t->kind != TESS_KIND_ACTIVATION || t->producer->op == &tess_op_enter) return false;
    if (!n->op->split) return r->before[n->id] && input == 0;
    return s->has[input + 1] == TESS_HAS_ALL && !(t->nd && t->nd->fixed);
}

static void split_region(tess_graph *g, tess_region *r, int64_t units)
{
    const tess_portion s = share(&g->conf.grid, units);
    TESS_FREED struct reads *all = tess_alloc((size_t)(g->nodes * TESS_MOST_INPUTS + 1) * sizeof *all);
    TESS_FREED tess_node **sum = tess_alloc((size_t)(g->nodes + 1) * sizeof *sum);
    int reads = 0, sums = 0;
    for (int k = 0; k < g->params; k++) g->param[k]->divided |= r->reads[g->param[k]->id] > 0;
    cut_region(g, r, &s);
    for (int k = 0; k < g->nodes; k++) {
        for (int i = 0; i < g->node[k]->inputs; i++)
            if (comes_in_parts(r, g->node[k], i)) all[reads++] = (struct reads){g->node[k], i};
        if (r->node[k] && r->node[k]->has[0] == TESS_HAS_SUM) sum[sums++] = g->node[k];
    }
    for (int k = 0; k < reads; k++) {
        tess_tensor *x = all[k].node->in[all[k].input];
        if (x->producer->op != &tess_op_enter) add_enter(g, all + k, reads - k, x);
    }
    for (int k = 0; k < sums; k++) add_leave(g, sum[k]->id);
}

/* Shares out the region that a node's output belongs to along a dimension, if there is one; else `why` says why not, if
 * it says nothing yet. Where several tensors lie side by side it turns out which. */
static bool try_region(tess_graph *g, const tess_node *n, int dim, char *why, size_t room)
{
    int rank;
    const int64_t length = tess_dims_of(n->out, &rank)[dim];
    bool done = false;
    for (int runs = 1; runs && !done;) {
        tess_split is = {.dim = dim, .runs = runs};
        for (int k = 0; k < runs; k++) is.length[k] = length / runs;
        tess_region r = tess_region_of(g, n->out, &is);
        const int64_t units = r.fits ? tess_region_units(&r) : 0;
        runs = runs == 1 && !r.fits && r.runs > 1 && r.runs <= TESS_MOST_BESIDE && length % r.runs == 0 ? r.runs : 0;
        done = units > 0;
        if (!done && !runs && !why[0]) snprintf(why, room, "%s", r.why);
        const int nodes = g->nodes;
        if (done) split_region(g, &r, units);
        tess_region_free(&r, nodes);
    }
    return done;
}

/* ---- what is not shared out ---- */

/* Stores words for how many matrices each rank has whole, the first of them, and why that one could not be shared out.
 */
static void note_unsplit(tess_graph *g, const char *why)
{
    bool *matrix = tess_alloc((size_t)g->tensors + 1);
    const tess_tensor *first = NULL;
    int all = 0, whole = 0;
    for (int k = 0; k < g->nodes; k++) {
        const tess_node *n = g->node[k];
        const int in = tess_is_matrix(n) ? 1 : n->op->stack ? n->op->stack : n->op->table;
        if (in) matrix[n->in[in]->id] = true;
        for (int i = 0; i < n->inputs && n->op->begins; i++) matrix[n->in[i]->id] |= n->in[i]->kind == TESS_KIND_PARAM;
    }
    for (int k = 0; k < g->params; k++) {
        const tess_tensor *p = g->param[k];
        all += matrix[p->id];
        if (!matrix[p->id] || p->held->storage->cut->split) continue;
        whole++;
        if (!first) first = p;
    }
    free(matrix);
    if (whole)
        g->unsplit = tess_arena_format(g->arena, "%d of %d matrices, %s first: %s", whole, all, first->name,
                                       why[0] ? why : "it has too few rows");
}

void tess_tensor_split(tess_graph *g)
{
    if (g->conf.grid.tensor <= 1 || g->tensor_split) return;
    g->tensor_split = true;
    tess_node **product = tess_alloc((size_t)(g->nodes + 1) * sizeof *product);
    char why[160] = "";
    int n = 0;
    for (int k = 0; k < g->nodes; k++)
        if (tess_is_matrix(g->node[k]) || g->node[k]->op->begins) product[n++] = g->node[k];
    for (int k = 0; k < n; k++) {
        const tess_op *op = product[k]->op;
        bool done = product[k]->cut || product[k]->out->apart;
        if (!done && !op->begins) try_region(g, product[k], 2, why, sizeof why);
        for (int d, j = 0; !done && op->begins && (d = op->begins(product[k], j)) >= 0; j++)
            done = try_region(g, product[k], d, why, sizeof why);
    }
    free(product);
    for (int k = 0; k < g->params; k++) cut_table(g->param[k]);
    for (int k = 0; k < g->nodes; k++) {
        tess_node *node = g->node[k];
        if (!node->op->table || !node->in[node->op->table]->held->storage->cut->split) continue;
        cut_table_bias(node);
        if (node->op->table_parts) add_leave(g, k++);
    }
    note_unsplit(g, why);
    if (g->conf.grid.rows && !g->cache) tess_tensor_divide(g);
}
