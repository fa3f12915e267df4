/* Tensors of any rank: inputs, parameters and constants, and how a generic op becomes a node. */
#include "graph/generic/generic_impl.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int64_t tess_dims_size(const tess_dims *d)
{
    int64_t n = 1;
    for (int k = 0; k < d->rank; k++) n *= d->dim[k];
    return n;
}

tess_dims tess_nd_dims(const tess_tensor *t)
{
    tess_dims d = {.rank = t->nd->rank};
    memcpy(d.dim, t->nd->dim, sizeof d.dim);
    return d;
}

tess_element tess_nd_element(const tess_tensor *t)
{
    return t->nd->element;
}

tess_nd tess_nd_of(tess_element e, const tess_dims *d, int at, int64_t times)
{
    tess_nd nd = {.element = e, .rank = d->rank, .at = at, .times = times, .fixed = e != TESS_REAL};
    memcpy(nd.dim, d->dim, sizeof nd.dim);
    return nd;
}

/* ---- mistakes ---- */

static size_t describe(const tess_tensor *t, char *out, size_t room)
{
    size_t n = (size_t)snprintf(out, room, "%s (", t ? t->name : "NULL");
    for (int d = 0; t && t->nd && d < t->nd->rank && n < room; d++)
        n += (size_t)snprintf(out + n, room - n, d ? ",%lld" : "%lld", (long long)t->nd->dim[d]);
    if (n < room) n += (size_t)snprintf(out + n, room - n, ")");
    return n;
}

tess_tensor *tess_nd_wrong(const char *op, tess_tensor *const *in, int inputs, const char *format, ...)
{
    char what[256], shapes[400] = "";
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    for (int k = 0; k < inputs; k++) {
        const size_t at = strlen(shapes);
        if (k) snprintf(shapes + at, sizeof shapes - at, ", ");
        describe(in[k], shapes + strlen(shapes), sizeof shapes - strlen(shapes));
    }
    tess_error(TESS_INVALID, op, "%s: %s", shapes, what);
    return tess_check_refuse(in, inputs);
}

bool tess_nd_are(const char *op, tess_tensor *const *in, int inputs)
{
    for (int k = 0; k < inputs; k++) {
        if (!in[k]) {
            tess_check_refuse(in, inputs);
            return false;
        }
        if (in[k]->nd && in[k]->g == in[0]->g) continue;
        tess_nd_wrong(op, in, inputs, in[k]->nd ? "they are of two graphs" : "one is no tensor of any rank");
        return false;
    }
    return true;
}

/* ---- nodes ---- */

tess_status tess_nd_infer(tess_node *n)
{
    const tess_nd *nd = n->attributes;
    int64_t size = 1;
    n->out->nd = nd;
    for (int d = 0; d < nd->rank; d++)
        if (nd->dim[d] < 1 || __builtin_mul_overflow(size, nd->dim[d], &size) || size > (int64_t)1 << 40)
            return tess_error(TESS_INVALID, n->op->name, "the result has a dimension of %lld, or too many elements",
                              (long long)nd->dim[d]);
    if (nd->at >= 0) size /= n->out->g->batch;
    tess_set_shape(n, 3, nd->at >= 0 ? n->out->g->batch : 1, 1, size);
    return TESS_OK;
}

tess_tensor *tess_nd_node(tess_graph *g, const tess_op *op, tess_tensor *const *in, int inputs, const void *attributes,
                          size_t bytes)
{
    return tess_node_add_to(g, op, in, inputs, attributes, bytes);
}

static bool is_plain(tess_graph *g, const char *name, const tess_dims *d)
{
    if (!g) return true; /* what follows says so */
    if (d->rank >= 0 && d->rank <= TESS_RANK_MOST) return true;
    tess_error(TESS_INVALID, name, "%d dimensions (at most %d)", d->rank, TESS_RANK_MOST);
    tess_graph_fail(g);
    return false;
}

static tess_tensor *with(tess_tensor *t, tess_nd nd)
{
    if (!t) return NULL;
    tess_nd *kept = tess_arena_get(t->g->arena, sizeof *kept);
    *kept = nd;
    t->nd = kept;
    return t;
}

tess_tensor *tess_nd_input(tess_graph *g, const char *name, tess_element e, tess_dims d)
{
    if (!is_plain(g, name, &d)) return NULL;
    if (d.rank < 1 || d.dim[0] < 1) {
        tess_error(TESS_INVALID, name, "an input has a first dimension of samples");
        return g ? tess_graph_fail(g) : NULL;
    }
    return with(tess_input(g, name, d.dim[0], tess_dims_size(&d) / d.dim[0]), tess_nd_of(e, &d, 0, 1));
}

tess_tensor *tess_nd_input_whole(tess_graph *g, const char *name, tess_element e, tess_dims d)
{
    if (!is_plain(g, name, &d)) return NULL;
    tess_nd nd = tess_nd_of(e, &d, -1, 0);
    nd.fixed = true;
    return with(tess_input_whole(g, name, tess_dims_size(&d)), nd);
}

tess_tensor *tess_nd_param(tess_graph *g, const char *name, tess_dims d, tess_init init, bool turned)
{
    if (!is_plain(g, name, &d)) return NULL;
    const int64_t rows = d.rank ? d.dim[0] : 1;
    tess_nd nd = tess_nd_of(TESS_REAL, &d, -1, 0);
    nd.turned = turned;
    return with(tess_param(g, name, rows, rows ? tess_dims_size(&d) / rows : 0, init), nd);
}

bool tess_param_turned(const tess_tensor *p)
{
    return p && p->nd && p->nd->turned;
}

tess_tensor *tess_nd_state(tess_graph *g, const char *name, tess_dims d)
{
    tess_tensor *t = tess_nd_param(g, name, d, TESS_ZERO, false);
    if (t) t->held->is_state = true;
    return t;
}

/* ---- constants ---- */

enum { USUAL_ELEMENTS = 1 << 18 }; /* of a row tile */

struct data_attributes {
    tess_nd nd;
    const void *data;
};

static void data_forward(tess_lower *L, const tess_node *n, int i)
{
    const struct data_attributes *a = n->attributes;
    bool acc;
    if (i > 0) return;
    TESS_EMIT(L, tess_any_data, TESS_ARG(L, tess_any_data_arg, a->data, tess_value_bytes(L, n->out, i)),
              tess_nd_out(L, n, i, &acc));
}

static const tess_op data_op = {
    .name = "constant", .takes = "", .infer = tess_nd_infer, .forward = data_forward, .no_gradient = true};

tess_tensor *tess_nd_data(tess_graph *g, const char *name, tess_element e, tess_dims d, const void *data)
{
    if (!is_plain(g, name, &d)) return NULL;
    struct data_attributes a = {.nd = tess_nd_of(e, &d, -1, 0)};
    a.nd.fixed = true;
    tess_tensor *t = tess_nd_node(g, &data_op, NULL, 0, &a, sizeof a);
    if (!t) return NULL;
    const size_t bytes = (size_t)tess_dims_size(&d) * sizeof(float);
    ((struct data_attributes *)t->producer->attributes)->data = memcpy(tess_arena_get(g->arena, bytes), data, bytes);
    return tess_name(t, "%s", name);
}

/* ---- the cut ---- */

static void mark(const tess_graph *g, const tess_tensor *t, bool *wanted)
{
    if (t && t->g == g) tess_lower_mark(t, wanted);
}

void tess_nd_ends(tess_graph *g, tess_tensor *const *these, int n, tess_tensor *const *those, int more)
{
    TESS_FREED bool *wanted = tess_alloc((size_t)g->nodes + 1);
    int nodes = 0;
    for (int k = 0; k < n + more; k++) {
        tess_tensor *end = k < n ? these[k] : those[k - n];
        mark(g, end, wanted);
        if (end) end->ends = true;
    }
    for (int k = 0; k < g->nodes; k++)
        if (wanted[k]) (g->node[nodes] = g->node[k])->id = nodes, nodes++;
    g->nodes = nodes;
}

void tess_nd_cut(tess_tensor *output, tess_tensor *other, int64_t samples)
{
    int64_t most = 1, length = 0, s = samples;
    if (!output) return;
    tess_graph *g = output->g;
    bool *wanted = tess_alloc((size_t)g->nodes + 1);
    mark(g, output, wanted), mark(g, other, wanted);
    if (!g->batch) g->batch = 1; /* no input counts samples */
    for (int k = 0; k < g->nodes; k++) {
        const tess_tensor *t = g->node[k]->out;
        if (!wanted[k] || tess_is_whole(t) || t->kind == TESS_KIND_LOSS) continue;
        const int64_t n = t->dim[1] * t->dim[2];
        if (!t->nd && t->dim[1] > length) length = t->dim[1];
        if (n > most) most = n;
    }
    free(wanted);
    if (!s) s = (USUAL_ELEMENTS + most - 1) / most;
    if (!samples && length && g->conf.tile_rows / length > s) s = g->conf.tile_rows / length;
    g->tile_sequences = s < 1 ? 1 : s > g->batch ? g->batch : s;
}
