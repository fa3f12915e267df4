/* Building a graph: tensors and nodes in one arena, shapes checked as ops are added, the first error kept. */
#include "graph/describe/param.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* What is less is sooner there by one message over the network than by that and another within the machine
 * (tests/bench/results/simulated.md). */
enum { NEAR_BYTES = 1 << 20 };

#define OR(value, otherwise) ((value) != 0 ? (value) : (otherwise))

tess_graph *tess_graph_new(const tess_graph_conf *conf)
{
    static const tess_graph_conf preset;
    tess_graph *g = tess_alloc(sizeof *g);
    if (!conf) conf = &preset;
    g->conf = *conf;
    g->conf.tile_rows = OR(conf->tile_rows, 1024);
    g->conf.tile_elements = OR(conf->tile_elements, 5 << 19);
    g->conf.loss_rows = OR(conf->loss_rows, 512);
    g->conf.loss_align = OR(conf->loss_align, 1);
    g->conf.grid.data = OR(conf->grid.data, 1);
    g->conf.grid.group = OR(conf->grid.group, g->conf.grid.data);
    g->conf.grid.sequence = OR(conf->grid.sequence, 1);
    g->conf.grid.pipeline = OR(conf->grid.pipeline, 1);
    g->conf.grid.tensor = OR(conf->grid.tensor, 1);
    if (g->conf.grid.pipeline == 1) g->conf.grid.schedule = TESS_1F1B;
    g->conf.grid.interleave = g->conf.grid.schedule == TESS_ZB_V ? 2 : OR(conf->grid.interleave, 1);
    g->near = tess_ranks_near();
    g->near_bytes = NEAR_BYTES;
    g->arena = tess_arena_new();
    if (conf->share) {
        g->owned = conf->share->owned; /* and who owns what */
        g->sharer = conf->share->sharers;
        conf->share->sharers = g;
    }
    if (tess_check_conf(conf) != TESS_OK)
        tess_graph_fail(g);
    else if (conf->grid.states) {
        g->state_part = tess_arena_get(g->arena, (size_t)g->conf.grid.data * sizeof *g->state_part);
        g->state_parts = tess_shares_sum(conf->grid.states, g->conf.grid.data, g->state_part);
    }
    return g;
}

void tess_graph_set_near(tess_graph *g, int near, int64_t bytes)
{
    g->near = near;
    g->near_bytes = bytes;
}

static tess_tensor *new_tensor(tess_graph *g, tess_kind kind, const char *name)
{
    TESS_ASSERT(!g->tensor_split); /* its nodes are this rank's part by now */
    tess_tensor *t = tess_arena_get(g->arena, sizeof *t);
    t->g = g;
    t->kind = kind;
    t->id = g->tensors;
    t->name = tess_arena_format(g->arena, "%s", name);
    if ((g->tensors & (g->tensors - 1)) == 0)
        g->tensor = tess_realloc(g->tensor, (size_t)OR(2 * g->tensors, 1) * sizeof *g->tensor);
    return g->tensor[g->tensors++] = t;
}

/* May something be added to the graph? */
static bool open_for(tess_graph *g, const char *name)
{
    if (!g)
        tess_error(TESS_INVALID, name ? name : "graph", "its graph is NULL");
    else if (g->failed)
        tess_error_restore(g->error);
    else if (!name)
        tess_error(TESS_INVALID, "graph", "a tensor's name is NULL");
    else if (g->tensor_split)
        tess_error(TESS_INVALID, name,
                   "the graph was sharded over ranks before (describe all of it before the first step)");
    else
        return true;
    if (g) tess_graph_fail(g);
    return false;
}

static tess_tensor *input_of(tess_graph *g, const char *name, int64_t batch, int64_t length)
{
    tess_tensor *t = new_tensor(g, TESS_KIND_INPUT, name);
    t->rank = 2;
    t->ids = tess_arena_get(g->arena, sizeof *t->ids);
    t->ids->least = INT32_MIN;
    t->ids->most = INT32_MAX;
    t->dim[0] = batch;
    t->dim[1] = length;
    return t;
}

tess_tensor *tess_input_whole(tess_graph *g, const char *name, int64_t length)
{
    if (!open_for(g, name)) return NULL;
    if (length >= 1 && length <= TESS_MOST_ROWS) return input_of(g, name, 1, length);
    tess_error(TESS_INVALID, name, "an input of %lld values (at least 1, at most 2^30)", (long long)length);
    return tess_graph_fail(g);
}

tess_tensor *tess_input(tess_graph *g, const char *name, int64_t batch, int64_t length)
{
    if (!open_for(g, name)) return NULL;
    if (batch < 1 || length < 1 || batch > TESS_MOST_ROWS || length > TESS_MOST_ROWS / batch ||
        (g->batch && g->batch != batch)) {
        tess_error(TESS_INVALID, name,
                   "an input of shape (%lld,%lld) in a graph whose batch is %lld (both dimensions are "
                   "at least 1, their product at most 2^30, and all inputs have the same batch)",
                   (long long)batch, (long long)length, (long long)g->batch);
        return tess_graph_fail(g);
    }
    if (!g->batch) {
        int64_t sequences = g->conf.tile_rows / length;
        g->batch = batch;
        g->tile_sequences = sequences < 1 || g->conf.grid.sequence > 1 ? 1 : sequences > batch ? batch : sequences;
    }
    return input_of(g, name, batch, length);
}

/* ---- parameters ---- */

tess_tensor *tess_graph_find_param(const tess_graph *g, const char *name)
{
    if (!g || !name) return NULL;
    for (int i = 0; i < g->params; i++)
        if (!strcmp(g->param[i]->name, name)) return g->param[i];
    return NULL;
}

/* Tiles have whole rows, nearly as many in each. A matrix of several tiles takes a multiple of 64 rows, which kernels
 * prefer, or of 16 if its rows are so long that 64 are too many. */
int64_t tess_rows_of_tile(const tess_graph *g, int64_t rows, int64_t columns)
{
    int64_t fit = g->conf.tile_elements / columns;
    if (g->conf.stripes > 1 && rows * columns >= (1 << 18) && columns > 1) {
        const int64_t stripe = (rows + g->conf.stripes - 1) / g->conf.stripes;
        fit = fit < stripe ? fit : (stripe + 63) / 64 * 64;
    }
    if (fit >= rows) return rows;
    int64_t unit = fit < 64 ? 16 : 64;
    fit = fit / unit * unit;
    if (fit < unit) return rows < unit ? rows : unit;
    int64_t tiles = (rows + fit - 1) / fit, even = ((rows + tiles - 1) / tiles + unit - 1) / unit * unit;
    return even < fit ? even : fit;
}

/* The same for each of several matrices that are one below the other. There are many: one that is up to four times as
 * large as a tile should be stays whole, and a larger one has tiles of as many rows each, the most that divide it. */
enum { MEMBER_TILES = 4 };
static int64_t rows_of_member_tile(const tess_graph *g, int64_t rows, int64_t columns)
{
    const int64_t fit = tess_rows_of_tile(g, rows, columns);
    int64_t most = 1;
    if (rows <= MEMBER_TILES * g->conf.tile_elements / columns) return rows;
    for (int64_t k = 1; k * k <= rows; k++) {
        if (rows % k) continue;
        if (k <= fit && k > most) most = k;
        if (rows / k <= fit && rows / k > most) most = rows / k;
    }
    return 8 * most < fit ? rows : most;
}

static void cut(tess_tensor *p, int64_t tile_rows)
{
    p->cut->tile_rows = tile_rows;
    p->cut->tiles = (p->dim[0] + p->cut->tile_rows - 1) / p->cut->tile_rows;
}

/* A new one: its tiles are not too large, nor too many. */
static tess_status check_param(tess_graph *g, const char *name, int64_t rows, int64_t columns, int64_t height)
{
    const int64_t most = (int64_t)1 << 40;
    if (rows > most || columns > most || !tess_fits_tile(height, columns))
        return tess_error(TESS_INVALID, name, "a parameter of shape (%lld,%lld) has rows too long for a tile of %s",
                          (long long)rows, (long long)columns, tess_human_bytes((double)TESS_TILE_MOST));
    g->tiles_declared += (rows + height - 1) / height;
    if (g->tiles_declared <= TESS_MOST_TILES) return TESS_OK;
    return tess_error(TESS_INVALID, name,
                      "with it the parameters have %lld tiles, at most %d are allowed (raise tile_elements)",
                      (long long)g->tiles_declared, TESS_MOST_TILES);
}

/* One of `members` matrices, `rows` in all. */
static tess_tensor *add_param(tess_graph *g, const char *name, int64_t members, int64_t rows, int64_t columns, int rank,
                              tess_init init)
{
    if (!open_for(g, name)) return NULL;
    tess_tensor *known = tess_graph_find_param(g, name);
    tess_tensor *shared = g->conf.share ? tess_graph_find_param(g->conf.share, name) : NULL;
    const tess_tensor *other = known ? known : shared;
    if (rows < 1 || columns < 1) {
        tess_error(TESS_INVALID, name, "a parameter of shape (%lld,%lld) (dimensions are at least 1)", (long long)rows,
                   (long long)columns);
        return tess_graph_fail(g);
    }
    if (other && (other->cut->whole[0] != rows || other->cut->whole[1] != columns || other->cut->members != members)) {
        tess_error(TESS_INVALID, name, "a parameter of shape (%lld,%lld), but it is (%lld,%lld) %s", (long long)rows,
                   (long long)columns, (long long)other->cut->whole[0], (long long)other->cut->whole[1],
                   known ? "already (a name has one shape)" : "in the graph whose parameters this one shares");
        return tess_graph_fail(g);
    }
    if (known) return known;
    const bool small = rows <= (int64_t)1 << 40 && columns <= (int64_t)1 << 40; /* else it is refused */
    const int64_t height = !small        ? 1
                           : members > 1 ? rows_of_member_tile(g, rows / members, columns)
                                         : tess_rows_of_tile(g, rows, columns);
    if (!other && check_param(g, name, rows, columns, height) != TESS_OK) return tess_graph_fail(g);
    tess_tensor *p = new_tensor(g, TESS_KIND_PARAM, name);
    p->rank = rank;
    p->cut = tess_arena_get(g->arena, sizeof *p->cut);
    p->held = tess_arena_get(g->arena, sizeof *p->held);
    p->held->storage = p;
    p->dim[0] = p->cut->whole[0] = rows;
    p->dim[1] = p->cut->whole[1] = columns;
    p->cut->members = members;
    p->held->init = init;
    if (shared) {
        p->cut->tile_rows = shared->cut->tile_rows;
        p->cut->tiles = shared->cut->tiles;
        p->held->storage = shared->held->storage;
    } else
        cut(p, height);
    g->param = tess_realloc(g->param, (size_t)(g->params + 1) * sizeof *g->param);
    return g->param[g->params++] = p;
}

tess_tensor *tess_param(tess_graph *g, const char *name, int64_t rows, int64_t columns, tess_init init)
{
    return add_param(g, name, 1, rows, columns, columns > 1 ? 2 : 1, init);
}

tess_tensor *tess_matrix(tess_graph *g, const char *name, int64_t rows, int64_t columns, tess_init init)
{
    return add_param(g, name, 1, rows, columns, 2, init);
}

tess_tensor *tess_param_stack(tess_graph *g, const char *name, int64_t members, int64_t rows, int64_t columns,
                              tess_init init)
{
    int64_t all;
    if (members >= 1 && rows >= 1 && !__builtin_mul_overflow(members, rows, &all))
        return add_param(g, name, members, all, columns, columns > 1 ? 2 : 1, init);
    if (!open_for(g, name)) return NULL;
    tess_error(TESS_INVALID, name,
               "a stack of %lld matrices of shape (%lld,%lld) (there is at least one, and dimensions are at "
               "least 1)",
               (long long)members, (long long)rows, (long long)columns);
    return tess_graph_fail(g);
}

int64_t tess_param_members(const tess_tensor *p)
{
    return p->cut->members;
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
    if (!matrix || vector->g != matrix->g || matrix->kind != TESS_KIND_PARAM || vector->kind != TESS_KIND_PARAM ||
        vector->held->storage != vector || vector->held->tile || vector->dim[0] != matrix->dim[0] ||
        vector->cut->tile_rows == matrix->cut->tile_rows || is_read(vector))
        return;
    cut(vector, matrix->cut->tile_rows);
}

tess_status tess_param_freeze(tess_tensor *p)
{
    if (!p || p->kind != TESS_KIND_PARAM)
        return tess_error(TESS_INVALID, p ? p->name : "tess_param_freeze", "is no parameter");
    if (p->held->storage->held->tile && !tess_is_frozen(p))
        return tess_error(TESS_INVALID, p->name, "comes too late to be frozen (before the first step of its graph)");
    p->held->storage->held->frozen = true;
    return TESS_OK;
}

bool tess_param_multiplies(const tess_tensor *p)
{
    const tess_graph *g = p->g;
    if (p->rank != 2) return false;
    for (int k = 0; k < g->nodes; k++)
        for (int i = 0; i < g->node[k]->inputs; i++)
            if (g->node[k]->in[i] == p && (i != 1 || !g->node[k]->op->quantized)) return false;
    return true;
}

bool tess_param_quantize(tess_tensor *p, tess_dtype as)
{
    struct tess_param *h = p->held->storage->held;
    if (!h->frozen || !tess_param_multiplies(p) || p->dim[1] % TESS_QUANTIZED_BLOCK) return false;
    if (!h->tile) h->quantized = as;
    return h->quantized == as;
}

tess_dtype tess_quantized(const tess_tensor *p)
{
    return p->held->quantized;
}

bool tess_param_is_state(const tess_tensor *p)
{
    return p && p->kind == TESS_KIND_PARAM && tess_is_state(p);
}

bool tess_param_frozen(const tess_tensor *p)
{
    return p && p->kind == TESS_KIND_PARAM && tess_is_frozen(p);
}

tess_dtype tess_param_dtype(const tess_tensor *p)
{
    return tess_is_frozen(p) && tess_param_narrows(p) ? p->g->conf.dtype : TESS_F32;
}

int tess_graph_params(const tess_graph *g)
{
    return g ? g->params : 0;
}
tess_tensor *tess_graph_param(const tess_graph *g, int index)
{
    return g && index >= 0 && index < g->params ? g->param[index] : NULL;
}
int64_t tess_param_tiles(const tess_tensor *p)
{
    return p->cut->tiles;
}

const char *tess_graph_unsplit(const tess_graph *g)
{
    return g->unsplit;
}

int64_t tess_loss_rows(const tess_graph *g)
{
    return g->conf.loss_rows;
}

int64_t tess_loss_align(const tess_graph *g)
{
    return g->conf.loss_align;
}

int64_t tess_graph_trained_elements(const tess_graph *g)
{
    int64_t n = 0;
    for (int i = 0; g && i < g->params; i++)
        if (!tess_is_frozen(g->param[i]) && !tess_is_state(g->param[i]))
            n += g->param[i]->cut->whole[0] * g->param[i]->cut->whole[1];
    return n;
}

int64_t tess_graph_param_elements(const tess_graph *g)
{
    int64_t n = 0;
    for (int i = 0; g && i < g->params; i++) n += g->param[i]->cut->whole[0] * g->param[i]->cut->whole[1];
    return n;
}

void tess_param_rows(const tess_tensor *p, int64_t tile, int64_t *first, int64_t *count)
{
    *first = tile * p->cut->tile_rows;
    *count = p->dim[0] - *first < p->cut->tile_rows ? p->dim[0] - *first : p->cut->tile_rows;
}

/* ---- blocks and names ---- */

void tess_block(tess_graph *g, const char *name)
{
    if (!open_for(g, name)) return;
    g->block_name = tess_realloc(g->block_name, (size_t)(g->blocks + 1) * sizeof *g->block_name);
    g->block_name[g->blocks] = tess_arena_format(g->arena, "%s", name);
    g->block = ++g->blocks;
}

void tess_block_end(tess_graph *g)
{
    if (g) g->block = 0;
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
    return t ? t->name : "NULL";
}

int tess_tensor_shape(const tess_tensor *t, int64_t shape[3])
{
    if (!t) return 0;
    memcpy(shape, t->dim, sizeof t->dim);
    if (t->kind == TESS_KIND_PARAM) memcpy(shape, t->cut->whole, sizeof t->cut->whole);
    return t->rank;
}

/* ---- nodes ---- */

void tess_graph_on_linear(tess_graph *g, tess_linear_hook hook, void *context)
{
    g->linear_hook = hook;
    g->linear_context = context;
}

tess_tensor *tess_linear_beside(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *y)
{
    const tess_graph *g = y ? y->g : NULL;
    return g && g->linear_hook ? g->linear_hook(g->linear_context, x, w, bias, y) : y;
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

tess_tensor *tess_node_add(const tess_op *op, tess_tensor *const *in, int inputs, const void *attributes, size_t bytes)
{
    tess_graph *g = tess_check_inputs(op, in, inputs);
    return g ? tess_node_add_to(g, op, in, inputs, attributes, bytes) : NULL;
}

bool tess_graph_uses(const tess_graph *g, const char *op)
{
    for (int k = 0; k < g->nodes; k++)
        if (!strcmp(g->node[k]->op->name, op)) return true;
    return false;
}

const char *tess_graph_slow(const tess_graph *g, char *said, size_t room)
{
    for (int k = 0; k < g->nodes; k++) {
        const tess_op *op = g->node[k]->op;
        if (op->slow && op->slow(g->node[k], g->conf.dtype, said, room)) return op->name;
    }
    return NULL;
}

tess_tensor *tess_node_add_to(tess_graph *g, const tess_op *op, tess_tensor *const *in, int inputs,
                              const void *attributes, size_t bytes)
{
    if (!open_for(g, op->name)) return NULL;
    tess_node *n = tess_arena_get(g->arena, sizeof *n);
    if (bytes) n->attributes = memcpy(tess_arena_get(g->arena, bytes), attributes, bytes);
    n->op = op;
    n->id = g->nodes;
    n->block = g->block;
    n->fp8 = g->conf.fp8 && g->block;
    n->inputs = inputs;
    n->random = g->randoms++;
    if (inputs) memcpy(n->in, in, (size_t)inputs * sizeof *in);
    char name[256];
    if (n->block)
        snprintf(name, sizeof name, "%s.%s", g->block_name[n->block - 1], op->name);
    else
        snprintf(name, sizeof name, "%s", op->name);
    n->out = new_tensor(g, TESS_KIND_ACTIVATION, name);
    n->out->producer = n;
    if (op->infer(n) != TESS_OK || tess_check_sizes(n) != TESS_OK) return tess_graph_fail(g);
    if ((g->nodes & (g->nodes - 1)) == 0)
        g->node = tess_realloc(g->node, (size_t)OR(2 * g->nodes, 1) * sizeof *g->node);
    g->node[g->nodes++] = n;
    return n->out;
}
