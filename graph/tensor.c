/* Tensor parallelism: a pass over the nodes of a graph that leaves each rank of the tensor dimension its part.
 *
 * A region is what lies between linears that make its tensors and linears that read them: elementwise maps, rotary
 * positions and attention, which all work on columns by themselves. There the columns are shared out: the linears
 * before it keep some rows of their weights, those behind it some columns. A rank's share of a region is whole units:
 * groups of heads where there is attention, else runs of columns; units need not divide evenly. The linears behind a
 * region then make sums of which every rank has a part: a node `leave` adds them up. What the linears before it read,
 * all ranks have; its gradient comes in parts: a node `enter` adds those up. That is two sums forward and two backward
 * a transformer's layer.
 *
 * A table that only embeddings and losses read is shared out by its tiles: an embedding makes the rows of the tokens
 * that a rank has, and zeros, which leave adds up; a loss needs the statistics of all tiles, a few numbers a row.
 *
 * All else is done by every rank alike, with the same bits, and counts and is saved on the first. */
#include "graph_impl.h"
#include <stdlib.h>
#include <string.h>

enum { RUN = 64 }; /* columns that stay together where they divide so */

struct region {
    const tess_graph *g;
    bool *tensor; /* [tensor]: in it */
    bool *node;   /* [node]: all of its tensors are */
    bool *before, *behind;
    int64_t groups;
    bool fits;
};

static bool is(const tess_node *n, const tess_op *op)
{
    return n->op == op;
}

static bool works_on_columns(const tess_node *n)
{
    return is(n, &tess_op_gelu) || is(n, &tess_op_silu) || is(n, &tess_op_mul) || is(n, &tess_op_rope) ||
           is(n, &tess_op_attention);
}

static int uses_of(const tess_graph *g, const tess_tensor *t)
{
    int n = 0;
    for (int k = 0; k < g->nodes; k++)
        for (int i = 0; i < g->node[k]->inputs; i++) n += g->node[k]->in[i] == t;
    return n;
}

/* A weight that this node alone reads may be cut. */
static bool cuttable(const tess_graph *g, const tess_node *n)
{
    return uses_of(g, n->in[1]) == 1 && (!n->in[2] || uses_of(g, n->in[2]) == 1);
}

static void grow(struct region *r, const tess_tensor *t);

/* A node inside the region: all of its tensors are. */
static void take(struct region *r, const tess_node *n)
{
    if (r->node[n->id]) return;
    r->node[n->id] = true;
    if (is(n, &tess_op_attention)) {
        int64_t groups = n->attention.conf.groups;
        if (r->groups && r->groups != groups) r->fits = false;
        r->groups = groups;
        if (n->attention.packed && n->in[0]->producer && !is(n->in[0]->producer, &tess_op_linear)) r->fits = false;
    }
    for (int i = 0; i < n->inputs; i++) grow(r, n->in[i]);
    grow(r, n->out);
}

static void grow(struct region *r, const tess_tensor *t)
{
    if (r->tensor[t->id] || !r->fits) return;
    r->tensor[t->id] = true;
    const tess_node *made = t->producer;
    if (!made || !(is(made, &tess_op_linear) || works_on_columns(made))) r->fits = false;
    if (r->fits && is(made, &tess_op_linear)) {
        r->before[made->id] = true;
        r->fits = cuttable(r->g, made);
    } else if (r->fits)
        take(r, made);
    int readers = 0;
    for (int k = 0; k < r->g->nodes && r->fits; k++) {
        const tess_node *n = r->g->node[k];
        for (int i = 0; i < n->inputs && r->fits; i++) {
            if (n->in[i] != t) continue;
            readers++;
            if (n->block != made->block)
                r->fits = false;
            else if (is(n, &tess_op_linear)) {
                r->behind[n->id] = true;
                r->fits = cuttable(r->g, n);
            } else if (works_on_columns(n))
                take(r, n);
            else
                r->fits = false;
        }
    }
    if (!readers) r->fits = false;
}

/* How many units the tensors of a region have; 0: it cannot be shared out. */
static int64_t units_of(const struct region *r)
{
    int64_t units = r->groups;
    for (int k = 0; k < r->g->tensors && r->fits; k++) {
        const tess_tensor *t = r->g->tensor[k];
        if (!r->tensor[k]) continue;
        if (!r->groups) units = t->dim[2] % RUN ? t->dim[2] : t->dim[2] / RUN;
    }
    for (int k = 0; k < r->g->nodes && units; k++) {
        const tess_node *n = r->g->node[k];
        if (!r->node[k] || !is(n, &tess_op_rope)) continue;
        int64_t heads = n->out->dim[2] / n->rope.dim;
        if (!r->groups) units = heads;
        if (heads % units) units = 0;
    }
    return units < r->g->conf.grid.tensor ? 0 : units;
}

/* ---- cutting ---- */

static void recut(tess_tensor *p)
{
    int64_t rows = tess_rows_of_tile(p->g, p->dim[0], p->dim[1]);
    p->tile_rows = rows;
    p->tiles = (p->dim[0] + rows - 1) / rows;
}

static void add_segment(tess_tensor *p, int64_t global, int64_t rows)
{
    int64_t at = p->segments ? p->segment[p->segments - 1].local + p->segment[p->segments - 1].rows : 0;
    p->segment[p->segments++] = (struct tess_segment){at, global, rows};
    p->dim[0] = at + rows;
    p->split = true;
}

/* Of `units` units this rank's [first, end). */
static void share(const tess_grid *g, int64_t units, int64_t *first, int64_t *end)
{
    *first = units * tess_grid_tensor(g) / g->tensor;
    *end = units * (tess_grid_tensor(g) + 1) / g->tensor;
}

/* Rows of a weight before the region, and of its bias: units of `unit` rows; packed: q, k and v one after the other. */
static void cut_rows(const tess_graph *g, tess_node *n, int64_t units, const tess_node *packed)
{
    int64_t first, end, begin = 0;
    share(&g->conf.grid, units, &first, &end);
    for (int b = 1; b < 3; b++) {
        tess_tensor *p = n->in[b];
        if (!p || p->segments || p->storage != p) continue;
        if (packed) {
            int64_t dim = packed->attention.dim, per = packed->attention.conf.heads / units;
            begin = 0;
            for (int part = 0; part < 3; part++) {
                int64_t unit = part ? dim : per * dim;
                add_segment(p, begin + first * unit, (end - first) * unit);
                begin += units * unit;
            }
        } else {
            int64_t unit = p->whole[0] / units;
            add_segment(p, first * unit, (end - first) * unit);
        }
        recut(p);
    }
    if (n->in[2] && n->in[2]->storage == n->in[2]) {
        n->in[2]->tile_rows = n->in[1]->tile_rows;
        n->in[2]->tiles = n->in[1]->tiles;
    }
}

/* Columns of a weight behind the region; its bias is added by the first rank alone. */
static void cut_columns(const tess_graph *g, tess_node *n, int64_t units)
{
    int64_t first, end;
    tess_tensor *p = n->in[1], *bias = n->in[2];
    share(&g->conf.grid, units, &first, &end);
    if (p->storage == p && !p->split) {
        int64_t unit = p->whole[1] / units;
        p->col0 = first * unit;
        p->dim[1] = (end - first) * unit;
        p->split = true;
        recut(p);
        if (bias) {
            bias->tile_rows = p->tile_rows;
            bias->tiles = p->tiles;
        }
    }
    if (bias) bias->leads = true;
    if (tess_grid_tensor(&g->conf.grid)) n->in[2] = NULL;
}

static void cut_region(tess_graph *g, const struct region *r, int64_t units)
{
    int64_t first, end;
    share(&g->conf.grid, units, &first, &end);
    for (int k = 0; k < g->nodes; k++) {
        tess_node *n = g->node[k];
        const tess_node *packed = NULL;
        if (r->before[k])
            for (int i = 0; i < g->nodes; i++)
                if (r->node[i] && g->node[i]->in[0] == n->out && is(g->node[i], &tess_op_attention) &&
                    g->node[i]->attention.packed)
                    packed = g->node[i];
        n->cut |= r->before[k] || r->behind[k];
        if (r->before[k]) cut_rows(g, n, units, packed);
        if (r->behind[k]) cut_columns(g, n, units);
    }
    for (int k = 0; k < g->tensors; k++)
        if (r->tensor[k]) g->tensor[k]->dim[2] = g->tensor[k]->dim[2] / units * (end - first);
    for (int k = 0; k < g->nodes; k++) {
        tess_node *n = g->node[k];
        if (!r->node[k] || !is(n, &tess_op_attention)) continue;
        int64_t per = n->attention.conf.heads / units;
        n->attention.all_heads = n->attention.conf.heads;
        n->attention.head0 = first * per;
        n->attention.conf.heads = (end - first) * per;
        n->attention.conf.groups = end - first;
    }
}

/* A table that only embeddings and losses read: whole tiles of it, at least one a rank. */
static bool cut_table(tess_tensor *p)
{
    const tess_graph *g = p->g;
    int64_t n = g->conf.grid.tensor, first, end, rows;
    for (int k = 0; k < g->nodes; k++)
        for (int i = 0; i < g->node[k]->inputs; i++)
            if (g->node[k]->in[i] == p &&
                !(i == 1 && (is(g->node[k], &tess_op_embedding) || is(g->node[k], &tess_op_cross_entropy))))
                return false;
    if (p->rank != 2 || uses_of(g, p) == 0 || p->whole[0] < n) return false;
    if (p->storage != p) return p->storage->split;
    if (p->tiles < n) {
        p->tile_rows = (p->whole[0] + n - 1) / n;
        p->tiles = (p->whole[0] + p->tile_rows - 1) / p->tile_rows;
    }
    if (p->tiles < n) { /* a few rows: their number hardly exceeds the ranks' */
        p->tile_rows = p->whole[0] / n;
        p->tiles = (p->whole[0] + p->tile_rows - 1) / p->tile_rows;
    }
    p->all_tiles = p->tiles;
    share(&g->conf.grid, p->tiles, &first, &end);
    rows = (end * p->tile_rows < p->whole[0] ? end * p->tile_rows : p->whole[0]) - first * p->tile_rows;
    p->first_tile = first;
    p->tiles = end - first;
    add_segment(p, first * p->tile_rows, rows);
    return true;
}

/* The bias of a head is cut as its table is. */
static void cut_head_bias(const tess_node *n)
{
    tess_tensor *b = n->in[3];
    const tess_tensor *w = n->in[1];
    if (!b || b->storage != b || b->split) return;
    b->tile_rows = w->tile_rows;
    b->tiles = w->tiles;
    b->all_tiles = w->all_tiles;
    b->first_tile = w->first_tile;
    add_segment(b, w->segment[0].global, w->segment[0].rows);
}

/* ---- enter and leave ---- */

static tess_node *insert(tess_graph *g, int at, const tess_op *op, tess_tensor *in, int block)
{
    tess_node *n = tess_arena_get(g->arena, sizeof *n);
    tess_tensor *out = tess_arena_get(g->arena, sizeof *out);
    *out = *in;
    out->id = g->tensors;
    out->producer = n;
    out->storage = out;
    g->tensor = tess_realloc(g->tensor, (size_t)(g->tensors + 1) * sizeof *g->tensor);
    g->tensor[g->tensors++] = out;
    *n = (tess_node){.op = op, .block = block, .inputs = 1, .in = {in}, .out = out};
    g->node = tess_realloc(g->node, (size_t)(g->nodes + 1) * sizeof *g->node);
    memmove(g->node + at + 1, g->node + at, (size_t)(g->nodes - at) * sizeof *g->node);
    g->node[at] = n;
    g->nodes++;
    for (int k = at; k < g->nodes; k++) g->node[k]->id = k;
    return n;
}

/* Behind node k: what reads its output from now on reads the sum of all ranks' parts. */
static void add_leave(tess_graph *g, int k)
{
    tess_tensor *part = g->node[k]->out;
    tess_node *leave = insert(g, k + 1, &tess_op_leave, part, g->node[k]->block);
    for (int i = k + 2; i < g->nodes; i++)
        for (int j = 0; j < g->node[i]->inputs; j++)
            if (g->node[i]->in[j] == part) g->node[i]->in[j] = leave->out;
}

/* Before the first of the marked nodes that read x: they all read it through one node. */
static void add_enter(tess_graph *g, tess_node *const *node, int n, tess_tensor *x)
{
    int first = -1;
    tess_node *enter = NULL;
    for (int k = 0; k < n; k++) {
        if (node[k]->in[0] != x) continue;
        if (first < 0) enter = insert(g, first = node[k]->id, &tess_op_enter, x, node[k]->block);
        node[k]->in[0] = enter->out;
    }
}

static void split_region(tess_graph *g, const struct region *r)
{
    int64_t units = r->fits ? units_of(r) : 0;
    if (!units) return;
    tess_node **before = tess_alloc((size_t)(g->nodes + 1) * sizeof *before), **behind;
    behind = tess_alloc((size_t)(g->nodes + 1) * sizeof *behind);
    int nbefore = 0, nbehind = 0, nodes = g->nodes;
    cut_region(g, r, units);
    for (int k = 0; k < nodes; k++) {
        if (r->before[k]) before[nbefore++] = g->node[k];
        if (r->behind[k]) behind[nbehind++] = g->node[k];
    }
    for (int k = 0; k < nbefore; k++)
        if (before[k]->in[0]->kind == TESS_KIND_ACTIVATION && before[k]->in[0]->producer->op != &tess_op_enter)
            add_enter(g, before + k, nbefore - k, before[k]->in[0]);
    for (int k = 0; k < nbehind; k++) add_leave(g, behind[k]->id);
    free(before);
    free(behind);
}

/* The region that node k's output belongs to, if it is one. */
static void try_region(tess_graph *g, const tess_node *n)
{
    size_t tensors = (size_t)g->tensors + 1, nodes = (size_t)g->nodes + 1;
    struct region r = {.g = g,
                       .tensor = tess_alloc(tensors),
                       .node = tess_alloc(nodes),
                       .before = tess_alloc(nodes),
                       .behind = tess_alloc(nodes),
                       .fits = true};
    grow(&r, n->out);
    for (int k = 0; k < g->nodes; k++) /* the end of one is not the beginning of another */
        if ((r.before[k] || r.behind[k]) && ((r.before[k] && r.behind[k]) || g->node[k]->cut)) r.fits = false;
    split_region(g, &r);
    free(r.tensor);
    free(r.node);
    free(r.before);
    free(r.behind);
}

void tess_tensor_split(tess_graph *g)
{
    if (g->conf.grid.tensor <= 1 || g->tensor_split) return;
    g->tensor_split = true;
    tess_node **linear = tess_alloc((size_t)(g->nodes + 1) * sizeof *linear);
    int n = 0;
    for (int k = 0; k < g->nodes; k++)
        if (is(g->node[k], &tess_op_linear)) linear[n++] = g->node[k];
    for (int k = 0; k < n; k++)
        if (!linear[k]->cut) try_region(g, linear[k]);
    free(linear);
    for (int k = 0; k < g->params; k++) cut_table(g->param[k]);
    for (int k = 0; k < g->nodes; k++) {
        tess_node *node = g->node[k];
        if (is(node, &tess_op_cross_entropy) && node->in[1]->storage->split) cut_head_bias(node);
        if (is(node, &tess_op_embedding) && node->in[1]->storage->split) {
            add_leave(g, k);
            k++;
        }
    }
}
