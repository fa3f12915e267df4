/* Tensors of any rank: inputs, parameters and constants, and how a generic op becomes a node. */
#include "any_impl.h"
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
    if (g->conf.dtype == TESS_F32 && d->rank >= 0 && d->rank <= TESS_RANK_MOST) return true;
    tess_error(TESS_INVALID, name, "%d dimensions in a graph of %s (at most %d, and fp32)", d->rank,
               tess_dtype_name(g->conf.dtype), TESS_RANK_MOST);
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

tess_tensor *tess_nd_param(tess_graph *g, const char *name, tess_dims d, tess_init init)
{
    if (!is_plain(g, name, &d)) return NULL;
    const int64_t rows = d.rank ? d.dim[0] : 1;
    return with(tess_param(g, name, rows, rows ? tess_dims_size(&d) / rows : 0, init),
                tess_nd_of(TESS_REAL, &d, -1, 0));
}

tess_tensor *tess_nd_state(tess_graph *g, const char *name, tess_dims d)
{
    tess_tensor *t = tess_nd_param(g, name, d, TESS_ZERO);
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

/* ---- the loss ---- */

static void loss_forward(tess_lower *L, const tess_node *n, int i)
{
    if (i > 0) return;
    const bool gradient = tess_trains(L) && tess_wants_gradient(L, n->in[0]);
    const int64_t numbers = tess_numbers_of(n->out);
    tess_use use[4] = {tess_in(L, n->in[0], i)};
    unsigned uses = 1;
    bool acc = false;
    if (numbers) use[uses++] = tess_in(L, n->in[1], i);
    use[uses++] = tess_loss_out(L);
    if (gradient) use[uses++] = tess_grad_write(L, n->in[0], i, &acc);
    TESS_ASSERT(!acc);
    tess_emit(L, tess_any_loss, TESS_ARG(L, tess_any_loss_arg, numbers, gradient), use, uses);
}

static tess_status infer_loss(tess_node *n)
{
    n->out->kind = TESS_KIND_LOSS;
    tess_set_shape(n, 0, 0, 0, 0);
    return TESS_OK;
}

static const tess_op loss_op = {
    .name = "any_loss", .takes = "x, beside?", .infer = infer_loss, .forward = loss_forward, .numbers = 1};

static bool is_number(const tess_tensor *x)
{
    return x->nd->rank == 0 && x->nd->element == TESS_REAL && x->kind == TESS_KIND_ACTIVATION;
}

tess_tensor *tess_nd_loss(tess_tensor *x, tess_tensor *beside)
{
    tess_tensor *in[] = {x, beside};
    if (!tess_nd_are("loss", in, beside ? 2 : 1)) return NULL;
    if (!is_number(x)) return tess_nd_wrong("loss", &x, 1, "a loss is a float32 of shape () that an op has made");
    if (beside && (beside->nd->rank != 1 || beside->nd->element != TESS_REAL || beside->kind != TESS_KIND_ACTIVATION))
        return tess_nd_wrong("loss", in, 2, "what is beside a loss is a vector of floats that an op has made");
    if (beside && !(in[1] = tess_nd_join(beside))) return NULL;
    return tess_node_add(&loss_op, in, 2, NULL, 0);
}

/* ---- what a state becomes ---- */

/* It passes the loss on, whose gradient by the state is said to be the value: so the step adds it up over micro-batches
 * and ranks, in the order that gradients have, and with the factor of a mean. */
static void keep_forward(tess_lower *L, const tess_node *n, int i)
{
    if (i == 0) L->value[n->out->id][tess_lower_place(L, n->out, i)] = tess_in(L, n->in[0], i).tile;
}

static void keep_backward(tess_lower *L, const tess_node *n, int i)
{
    static const tess_fn_step steps[] = {{.fn = TESS_FN_load, .of = {0, -1, -1}},
                                         {.fn = TESS_FN_load, .of = {1, -1, -1}, .at = 1},
                                         {.fn = TESS_FN_mul, .of = {0, 1, -1}}};
    static const tess_formula times = {3, 2, steps};
    if (i > 0) return;
    tess_grad_pass(L, n->out, n->in[0], i);
    if (!tess_wants_gradient(L, n->in[2])) return;
    const tess_strides line = {.by = {1}};
    tess_any_map_arg a = {.rank = 1, .operands = 2, .in = {line}, .out = line, .formula = &times};
    a.dim[0] = tess_nd_tile_of(L, n->in[2], i).size;
    const tess_use value = tess_nd_read(L, n, 1, i), scale = tess_grad_read(L, n->out, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[2], i, false);
    a.acc = g.acc;
    tess_nd_emit_map(L, &a, (tess_use[]){value, scale, g.use});
    tess_nd_grad_end(L, &g);
}

static const tess_op keep_op = {.name = "any_keep",
                                .takes = "loss, value, state",
                                .reads = TESS_READS_IN1,
                                .infer = tess_nd_infer,
                                .forward = keep_forward,
                                .backward = keep_backward};

tess_tensor *tess_nd_keep(tess_tensor *loss, tess_tensor *value, tess_tensor *state)
{
    tess_tensor *in[] = {loss, value, state};
    if (!tess_nd_are("keep", in, 3)) return NULL;
    const tess_dims is = tess_nd_dims(value), was = tess_nd_dims(state);
    if (!is_number(loss) || !tess_param_is_state(state) || value->nd->element != TESS_REAL || is.rank != was.rank ||
        memcmp(is.dim, was.dim, (size_t)is.rank * sizeof *is.dim) != 0)
        return tess_nd_wrong("keep", in, 3, "it takes a float of rank 0, and a float value of a state's shape");
    if (!(in[1] = tess_nd_join(value))) return NULL;
    return tess_nd_node(loss->g, &keep_op, in, 3, loss->nd, sizeof *loss->nd);
}

/* ---- the cut ---- */

void tess_nd_cut(tess_graph *g, int64_t samples)
{
    int64_t most = 1, s = samples;
    if (!g) return;
    if (!g->batch) g->batch = 1; /* no input counts samples */
    for (int k = 0; k < g->tensors; k++) {
        const tess_tensor *t = g->tensor[k];
        if (!t->nd || t->nd->at < 0) continue;
        const tess_dims d = tess_nd_dims(t);
        const int64_t n = tess_dims_size(&d) / g->batch;
        if (n > most) most = n;
    }
    if (!s) s = (USUAL_ELEMENTS + most - 1) / most;
    g->tile_sequences = s < 1 ? 1 : s > g->batch ? g->batch : s;
}
