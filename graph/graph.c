/* Building a graph: tensors and nodes in one arena, shapes checked as ops are added, the first error kept. */
#include "graph_impl.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define OR(value, otherwise) ((value) != 0 ? (value) : (otherwise))

tess_graph *tess_graph_new(const tess_graph_conf *conf)
{
    tess_graph *g = tess_alloc(sizeof *g);
    g->conf = *conf;
    g->conf.tile_rows = OR(conf->tile_rows, 1024);
    g->conf.tile_elements = OR(conf->tile_elements, 5 << 19);
    g->conf.loss_rows = OR(conf->loss_rows, 512);
    g->arena = tess_arena_new();
    return g;
}

static void free_tiles(tess_tensor *p)
{
    for (int64_t j = 0; j < p->tiles; j++) {
        struct tess_param_tile *t = &p->tile[j];
        if (t->weight != t->master) tess_tile_free(t->weight);
        tess_tile_free(t->master);
        tess_tile_free(t->moment[0]);
        tess_tile_free(t->moment[1]);
        tess_tile_free(t->gradient);
        tess_tile_free(t->norm);
    }
}

void tess_graph_free(tess_graph *g)
{
    if (!g) return;
    for (int i = 0; i < g->params; i++)
        if (g->param[i]->storage == g->param[i]) free_tiles(g->param[i]);
    free(g->tensor);
    free(g->node);
    free(g->param);
    free(g->block_name);
    tess_arena_free(g->arena);
    free(g);
}

/* The graph remembers its first error; what is built on top of it is NULL. */
static void *fail(tess_graph *g)
{
    if (!g->failed) snprintf(g->error, sizeof g->error, "%s", tess_error_text());
    g->failed = true;
    return NULL;
}

static tess_tensor *new_tensor(tess_graph *g, tess_kind kind, const char *name)
{
    tess_tensor *t = tess_arena_get(g->arena, sizeof *t);
    t->g = g;
    t->kind = kind;
    t->id = g->tensors;
    t->name = tess_arena_format(g->arena, "%s", name);
    t->storage = t;
    if ((g->tensors & (g->tensors - 1)) == 0)
        g->tensor = tess_realloc(g->tensor, (size_t)OR(2 * g->tensors, 1) * sizeof *g->tensor);
    return g->tensor[g->tensors++] = t;
}

tess_tensor *tess_input(tess_graph *g, const char *name, int64_t batch, int64_t length)
{
    if (batch < 1 || length < 1 || (g->batch && g->batch != batch)) {
        tess_error(TESS_INVALID, name,
                   "an input of shape (%lld,%lld) in a graph whose batch is %lld (both dimensions are "
                   "at least 1, and all inputs have the same batch)",
                   (long long)batch, (long long)length, (long long)g->batch);
        return fail(g);
    }
    tess_tensor *t = new_tensor(g, TESS_KIND_INPUT, name);
    t->rank = 2;
    t->dim[0] = batch;
    t->dim[1] = length;
    if (!g->batch) {
        int64_t sequences = g->conf.tile_rows / length;
        g->batch = batch;
        g->tile_sequences = sequences < 1 ? 1 : sequences > batch ? batch : sequences;
    }
    return t;
}

/* ---- parameters ---- */

tess_tensor *tess_graph_find_param(const tess_graph *g, const char *name)
{
    for (int i = 0; i < g->params; i++)
        if (!strcmp(g->param[i]->name, name)) return g->param[i];
    return NULL;
}

/* Whole rows, nearly as many in each tile, of which a matrix that needs several takes a multiple of 64, what matrix
 * kernels like, or of 16 where its rows are so long that 64 are too many. */
static int64_t rows_of_tile(const tess_graph *g, int64_t rows, int64_t columns)
{
    int64_t fit = g->conf.tile_elements / columns;
    if (fit >= rows) return rows;
    int64_t unit = fit < 64 ? 16 : 64;
    fit = fit / unit * unit;
    if (fit < unit) return rows < unit ? rows : unit;
    int64_t tiles = (rows + fit - 1) / fit, even = ((rows + tiles - 1) / tiles + unit - 1) / unit * unit;
    return even < fit ? even : fit;
}

static void make_tiles(tess_tensor *p, int64_t tile_rows)
{
    tess_graph *g = p->g;
    bool copy = g->conf.dtype != TESS_F32 && p->rank == 2;
    p->tile_rows = tile_rows;
    p->tiles = (p->dim[0] + p->tile_rows - 1) / p->tile_rows;
    p->tile = tess_arena_get(g->arena, (size_t)p->tiles * sizeof *p->tile);
    for (int64_t j = 0; j < p->tiles; j++) {
        struct tess_param_tile *t = &p->tile[j];
        int64_t first, count;
        tess_param_rows(p, j, &first, &count);
        size_t n = (size_t)(count * p->dim[1]);
        t->master = tess_tile_new(4 * n, copy ? TESS_ROLE_MASTER : TESS_ROLE_WEIGHT, p->name);
        t->weight = copy ? tess_tile_new(n * tess_dtype_size(g->conf.dtype), TESS_ROLE_WEIGHT, p->name) : t->master;
        t->moment[0] = tess_tile_new(4 * n, TESS_ROLE_MOMENT, p->name);
        t->moment[1] = tess_tile_new(4 * n, TESS_ROLE_MOMENT, p->name);
        t->gradient = tess_tile_new(4 * n, TESS_ROLE_GRADIENT, p->name);
        t->norm = tess_tile_new(sizeof(double), TESS_ROLE_SCALAR, p->name);
    }
}

tess_tensor *tess_param(tess_graph *g, const char *name, int64_t rows, int64_t columns, tess_init init)
{
    tess_tensor *known = tess_graph_find_param(g, name);
    tess_tensor *shared = g->conf.share ? tess_graph_find_param(g->conf.share, name) : NULL;
    const tess_tensor *other = known ? known : shared;
    if (rows < 1 || columns < 1 || (other && (other->dim[0] != rows || other->dim[1] != columns))) {
        tess_error(TESS_INVALID, name,
                   "a parameter of shape (%lld,%lld), but it is (%lld,%lld) elsewhere (dimensions are "
                   "at least 1)",
                   (long long)rows, (long long)columns, (long long)(other ? other->dim[0] : 0),
                   (long long)(other ? other->dim[1] : 0));
        return fail(g);
    }
    if (known) return known;
    tess_tensor *p = new_tensor(g, TESS_KIND_PARAM, name);
    p->rank = columns > 1 ? 2 : 1;
    p->dim[0] = rows;
    p->dim[1] = columns;
    p->init = init;
    if (shared) {
        p->tile_rows = shared->tile_rows;
        p->tiles = shared->tiles;
        p->tile = shared->tile;
        p->storage = shared->storage;
    } else
        make_tiles(p, rows_of_tile(g, rows, columns));
    g->param = tess_realloc(g->param, (size_t)(g->params + 1) * sizeof *g->param);
    return g->param[g->params++] = p;
}

/* Ops that are there already keep to the cut of what they read. */
static bool is_read(const tess_tensor *t)
{
    for (int k = 0; k < t->g->nodes; k++)
        for (int i = 0; i < t->g->node[k]->inputs; i++)
            if (t->g->node[k]->in[i] == t) return true;
    return false;
}

void tess_param_cut_like(tess_tensor *vector, const tess_tensor *matrix)
{
    if (vector->kind != TESS_KIND_PARAM || vector->storage != vector || vector->dim[0] != matrix->dim[0] ||
        vector->tile_rows == matrix->tile_rows || is_read(vector))
        return;
    free_tiles(vector);
    make_tiles(vector, matrix->tile_rows);
}

int tess_graph_params(const tess_graph *g)
{
    return g->params;
}
tess_tensor *tess_graph_param(const tess_graph *g, int index)
{
    return g->param[index];
}
int64_t tess_param_tiles(const tess_tensor *p)
{
    return p->tiles;
}

int64_t tess_graph_param_elements(const tess_graph *g)
{
    int64_t n = 0;
    for (int i = 0; i < g->params; i++) n += g->param[i]->dim[0] * g->param[i]->dim[1];
    return n;
}

void tess_param_rows(const tess_tensor *p, int64_t tile, int64_t *first, int64_t *count)
{
    *first = tile * p->tile_rows;
    *count = p->dim[0] - *first < p->tile_rows ? p->dim[0] - *first : p->tile_rows;
}

/* ---- blocks and names ---- */

void tess_block(tess_graph *g, const char *name)
{
    g->block_name = tess_realloc(g->block_name, (size_t)(g->blocks + 1) * sizeof *g->block_name);
    g->block_name[g->blocks] = tess_arena_format(g->arena, "%s", name);
    g->block = ++g->blocks;
}

void tess_block_end(tess_graph *g)
{
    g->block = 0;
}

tess_tensor *tess_name(tess_tensor *t, const char *format, ...)
{
    if (!t) return NULL;
    char name[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(name, sizeof name, format, ap);
    va_end(ap);
    t->name = tess_arena_format(t->g->arena, "%s", name);
    return t;
}

const char *tess_tensor_name(const tess_tensor *t)
{
    return t->name;
}

int tess_tensor_shape(const tess_tensor *t, int64_t shape[3])
{
    memcpy(shape, t->dim, sizeof t->dim);
    return t->rank;
}

/* ---- nodes ---- */

static void describe(const tess_tensor *t, char *out, size_t room)
{
    int n = snprintf(out, room, "%s (", t->name);
    for (int d = 0; d < t->rank && (size_t)n < room; d++)
        n += snprintf(out + n, room - (size_t)n, d ? ",%lld" : "%lld", (long long)t->dim[d]);
    if ((size_t)n < room) snprintf(out + n, room - (size_t)n, ")");
}

tess_status tess_shape_error(const tess_node *n, const char *format, ...)
{
    char what[256], shapes[400] = "", one[128];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    for (int i = 0; i < n->inputs; i++) {
        if (!n->in[i]) continue;
        describe(n->in[i], one, sizeof one);
        size_t at = strlen(shapes);
        snprintf(shapes + at, sizeof shapes - at, "%s%s", at ? ", " : "", one);
    }
    return tess_error(TESS_INVALID, n->op->name, "%s: %s", shapes, what);
}

tess_status tess_same_shape(tess_node *n)
{
    const tess_tensor *x = n->in[0];
    if (x->rank != 3) return tess_shape_error(n, "x must be (B,T,C)");
    for (int i = 1; i < n->inputs; i++)
        if (n->in[i]->rank != 3 || memcmp(n->in[i]->dim, x->dim, sizeof x->dim))
            return tess_shape_error(n, "both must have the same shape");
    tess_set_shape(n, 3, x->dim[0], x->dim[1], x->dim[2]);
    return TESS_OK;
}

void tess_set_shape(tess_node *n, int rank, int64_t a, int64_t b, int64_t c)
{
    n->out->rank = rank;
    n->out->dim[0] = a;
    n->out->dim[1] = b;
    n->out->dim[2] = c;
}

tess_tensor *tess_node_add(const tess_op *op, tess_tensor *const *in, int inputs, const tess_node *attributes)
{
    tess_graph *g = in[0] ? in[0]->g : NULL;
    for (int i = 0; i < inputs && !g; i++)
        if (in[i]) g = in[i]->g;
    if (!in[0] || !g || g->failed) return NULL;
    tess_node *n = tess_arena_get(g->arena, sizeof *n);
    *n = *attributes;
    n->op = op;
    n->id = g->nodes;
    n->block = g->block;
    n->inputs = inputs;
    n->random = g->randoms++;
    memcpy(n->in, in, (size_t)inputs * sizeof *in);
    char name[256];
    if (n->block)
        snprintf(name, sizeof name, "%s.%s", g->block_name[n->block - 1], op->name);
    else
        snprintf(name, sizeof name, "%s", op->name);
    n->out = new_tensor(g, TESS_KIND_ACTIVATION, name);
    n->out->producer = n;
    if (op->infer(n) != TESS_OK) return fail(g);
    if ((g->nodes & (g->nodes - 1)) == 0)
        g->node = tess_realloc(g->node, (size_t)OR(2 * g->nodes, 1) * sizeof *g->node);
    g->node[g->nodes++] = n;
    return n->out;
}
