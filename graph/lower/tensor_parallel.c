/* Tensor parallelism: a pass over the nodes of a graph that leaves each rank of the tensor dimension its part.
 *
 * A region is what lies between linears that make its tensors and linears that read them: ops whose columns come from
 * the same columns of their inputs (TESS_COLUMNS_SAME), as elementwise maps, rotary positions and attention do. There
 * the columns are shared out: the linears before it keep some rows of their weights, those behind it some columns. A
 * rank's share of a region is whole units: groups of heads where there is attention, else runs of columns; units need
 * not divide evenly. The linears behind a region then make sums of which every rank has a part: a node `leave` adds
 * them up. What the linears before it read, all ranks have; its gradient comes in parts: a node `enter` adds those up.
 * That is two sums forward and two backward a transformer's layer.
 *
 * A table that only embeddings and losses read is shared out by its tiles: an embedding makes the rows of the tokens
 * that a rank has, and zeros, which leave adds up; a loss needs the statistics of all tiles, a few numbers a row.
 *
 * All else is done by every rank alike, with the same bits, and counts and is saved on the first. This file knows ops
 * by what they say of themselves, and says of which matrices nothing could be shared out (tess_graph_unsplit). */
#include "param.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { RUN = 64 }; /* columns that stay together where they divide so */

struct region {
    const tess_graph *g;
    bool *tensor; /* [tensor]: in it */
    bool *node;   /* [node]: all of its tensors are */
    bool *before, *behind;
    int64_t units; /* that a node of it insists on; 0: none does */
    bool fits;
    char why[160]; /* it does not */
};

static bool is_matrix(const tess_node *n)
{
    return n->op->columns == TESS_COLUMNS_MATRIX;
}

static bool works_on_columns(const tess_node *n)
{
    return n->op->columns == TESS_COLUMNS_SAME;
}

/* The first reason counts. */
static void TESS_PRINTF(2, 3) refuse(struct region *r, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    if (r->fits) vsnprintf(r->why, sizeof r->why, format, ap);
    va_end(ap);
    r->fits = false;
}

static int uses_of(const tess_graph *g, const tess_tensor *t)
{
    int n = 0;
    for (int k = 0; k < g->nodes; k++)
        for (int i = 0; i < g->node[k]->inputs; i++) n += g->node[k]->in[i] == t;
    return n;
}

/* A weight that this node alone reads may be cut. */
static void check_cuttable(struct region *r, const tess_node *n)
{
    for (int i = 1; i < 3; i++)
        if (n->in[i] && uses_of(r->g, n->in[i]) > 1) refuse(r, "%s has other uses", n->in[i]->name);
}

static void grow(struct region *r, const tess_tensor *t);

/* A node inside the region: all of its tensors are, but for inputs of ids, which all ranks have. */
static void take(struct region *r, const tess_node *n)
{
    if (r->node[n->id]) return;
    r->node[n->id] = true;
    const tess_units *u = &n->op->units;
    int64_t width[TESS_MOST_BESIDE];
    bool exact = false;
    const int64_t units = u->count ? u->count(n, &exact) : 0;
    if (exact) {
        if (r->units && r->units != units) refuse(r, "%s has other units than its neighbours", n->op->name);
        r->units = units;
        if (u->beside && u->beside(n, units, width) > 1 && n->in[0]->producer && !is_matrix(n->in[0]->producer))
            refuse(r, "%s is what %s reads", n->in[0]->producer->op->name, n->op->name);
    }
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] && n->in[i]->kind != TESS_KIND_INPUT) grow(r, n->in[i]);
    grow(r, n->out);
}

static void grow(struct region *r, const tess_tensor *t)
{
    if (r->tensor[t->id] || !r->fits) return;
    r->tensor[t->id] = true;
    const tess_node *made = t->producer;
    if (!made)
        refuse(r, "%s is no op's result", t->name);
    else if (!is_matrix(made) && !works_on_columns(made))
        refuse(r, "%s does not work on columns by themselves", made->op->name);
    if (r->fits && is_matrix(made)) {
        r->before[made->id] = true;
        check_cuttable(r, made);
    } else if (r->fits)
        take(r, made);
    int readers = 0;
    for (int k = 0; k < r->g->nodes && r->fits; k++) {
        const tess_node *n = r->g->node[k];
        for (int i = 0; i < n->inputs && r->fits; i++) {
            if (n->in[i] != t) continue;
            readers++;
            if (n->block != made->block)
                refuse(r, "%s is of another block", n->op->name);
            else if (is_matrix(n)) {
                r->behind[n->id] = true;
                check_cuttable(r, n);
            } else if (works_on_columns(n))
                take(r, n);
            else
                refuse(r, "%s does not work on columns by themselves", n->op->name);
        }
    }
    if (!readers) refuse(r, "nothing reads %s", t->name);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* How many units the tensors of a region have; 0: it cannot be shared out. */
static int64_t units_of(struct region *r)
{
    int64_t columns = 0, divides = 0, units;
    for (int k = 0; k < r->g->tensors; k++)
        if (r->tensor[k]) columns = r->g->tensor[k]->dim[2];
    for (int k = 0; k < r->g->nodes; k++) {
        const tess_node *n = r->g->node[k];
        bool exact = false;
        const int64_t count = r->node[k] && n->op->units.count ? n->op->units.count(n, &exact) : 0;
        if (count && !exact) divides = common_divisor(count, divides);
    }
    units = r->units ? r->units : divides ? divides : columns % RUN ? columns : columns / RUN;
    if (divides % units) refuse(r, "its heads are not a multiple of %lld groups", (long long)units);
    if (units < r->g->conf.grid.tensor)
        refuse(r, "%lld unit%s of columns cannot be shared out", (long long)units, units == 1 ? "" : "s");
    return r->fits ? units : 0;
}

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

/* Of `units` units this rank's [first, end). */
static void share(const tess_grid *g, int64_t units, int64_t *first, int64_t *end)
{
    *first = units * tess_grid_tensor(g) / g->tensor;
    *end = units * (tess_grid_tensor(g) + 1) / g->tensor;
}

/* Rows of a weight before the region, and of its bias: units of whole rows, of each of the tensors that it makes side
 * by side. */
static void cut_rows(const tess_graph *g, tess_node *n, int64_t units, const tess_node *reader)
{
    int64_t first, end, width[TESS_MOST_BESIDE] = {n->in[1]->cut->whole[0] / units};
    const int tensors = reader ? reader->op->units.beside(reader, units, width) : 1;
    share(&g->conf.grid, units, &first, &end);
    for (int b = 1; b < 3; b++) {
        tess_tensor *p = n->in[b];
        int64_t begin = 0;
        if (!p || p->held->on.segments || p->held->storage != p) continue;
        for (int k = 0; k < tensors; k++) {
            add_segment(p, begin + first * width[k], (end - first) * width[k]);
            begin += units * width[k];
        }
        recut(p);
    }
    if (n->in[2] && n->in[2]->held->storage == n->in[2]) {
        n->in[2]->cut->tile_rows = n->in[1]->cut->tile_rows;
        n->in[2]->cut->tiles = n->in[1]->cut->tiles;
    }
}

/* Columns of a weight behind the region; its bias is added by the first rank alone. */
static void cut_columns(const tess_graph *g, tess_node *n, int64_t units)
{
    int64_t first, end;
    tess_tensor *p = n->in[1], *bias = n->in[2];
    share(&g->conf.grid, units, &first, &end);
    if (p->held->storage == p && !p->cut->split) {
        int64_t unit = p->cut->whole[1] / units;
        p->held->on.col0 = first * unit;
        p->dim[1] = (end - first) * unit;
        p->cut->split = true;
        recut(p);
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

static void cut_region(tess_graph *g, const struct region *r, int64_t units)
{
    int64_t first, end;
    share(&g->conf.grid, units, &first, &end);
    for (int k = 0; k < g->nodes; k++) {
        tess_node *n = g->node[k];
        const tess_node *reader = NULL; /* of tensors side by side */
        int64_t width[TESS_MOST_BESIDE];
        for (int i = 0; i < g->nodes && r->before[k]; i++) {
            const tess_units *u = &g->node[i]->op->units;
            if (r->node[i] && g->node[i]->in[0] == n->out && u->beside && u->beside(g->node[i], units, width) > 1)
                reader = g->node[i];
        }
        n->cut |= r->before[k] || r->behind[k];
        if (r->before[k]) cut_rows(g, n, units, reader);
        if (r->behind[k]) cut_columns(g, n, units);
    }
    for (int k = 0; k < g->tensors; k++)
        if (r->tensor[k]) {
            g->tensor[k]->dim[2] = g->tensor[k]->dim[2] / units * (end - first);
            g->tensor[k]->apart = true;
        }
    for (int k = 0; k < g->nodes; k++)
        if (r->node[k] && g->node[k]->op->units.keep) g->node[k]->op->units.keep(g->node[k], units, first, end);
}

/* A table that only embeddings and losses read: whole tiles of it, at least one a rank. */
static bool cut_table(tess_tensor *p)
{
    const tess_graph *g = p->g;
    int64_t n = g->conf.grid.tensor, first, end, rows;
    for (int k = 0; k < g->nodes; k++)
        for (int i = 0; i < g->node[k]->inputs; i++)
            if (g->node[k]->in[i] == p && (i == 0 || i != g->node[k]->op->table)) return false;
    if (p->rank != 2 || uses_of(g, p) == 0 || p->cut->whole[0] < n) return false;
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
    share(&g->conf.grid, p->cut->tiles, &first, &end);
    rows = (end * p->cut->tile_rows < p->cut->whole[0] ? end * p->cut->tile_rows : p->cut->whole[0]) -
           first * p->cut->tile_rows;
    p->cut->first_tile = first;
    p->cut->tiles = end - first;
    add_segment(p, first * p->cut->tile_rows, rows);
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

static tess_node *insert(tess_graph *g, int at, const tess_op *op, tess_tensor *in, int block)
{
    tess_node *n = tess_arena_get(g->arena, sizeof *n);
    tess_tensor *out = tess_arena_get(g->arena, sizeof *out);
    *out = *in;
    out->id = g->tensors;
    out->producer = n;
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
    part->apart = true;
    leave->out->apart = false;
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
        enter->out->apart = true;
        node[k]->in[0] = enter->out;
    }
}

static void split_region(tess_graph *g, struct region *r)
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

/* The region that node k's output belongs to, if it is one; else `why` says why not, if it says nothing yet. */
static void try_region(tess_graph *g, const tess_node *n, char *why, size_t room)
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
        if ((r.before[k] || r.behind[k]) && ((r.before[k] && r.behind[k]) || g->node[k]->cut))
            refuse(&r, "%s is between linears on either side", g->node[k]->out->name);
    split_region(g, &r);
    if (!r.fits && !why[0]) snprintf(why, room, "%s", r.why);
    free(r.tensor);
    free(r.node);
    free(r.before);
    free(r.behind);
}

/* ---- what is not shared out ---- */

/* Says how many matrices each rank has whole, the first of them, and why that one could not be shared out. */
static void note_unsplit(tess_graph *g, const char *why)
{
    bool *matrix = tess_alloc((size_t)g->tensors + 1);
    const tess_tensor *first = NULL;
    int all = 0, whole = 0;
    for (int k = 0; k < g->nodes; k++) {
        const tess_node *n = g->node[k];
        const int in = is_matrix(n) ? 1 : n->op->stack ? n->op->stack : n->op->table;
        if (in) matrix[n->in[in]->id] = true;
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
    tess_node **linear = tess_alloc((size_t)(g->nodes + 1) * sizeof *linear);
    char why[160] = "";
    int n = 0;
    for (int k = 0; k < g->nodes; k++)
        if (is_matrix(g->node[k])) linear[n++] = g->node[k];
    for (int k = 0; k < n; k++)
        if (!linear[k]->cut) try_region(g, linear[k], why, sizeof why);
    free(linear);
    for (int k = 0; k < g->params; k++) cut_table(g->param[k]);
    for (int k = 0; k < g->nodes; k++) {
        tess_node *node = g->node[k];
        if (!node->op->table || !node->in[node->op->table]->held->storage->cut->split) continue;
        cut_table_bias(node);
        if (node->op->table_parts) add_leave(g, k++);
    }
    note_unsplit(g, why);
}
