/* A loss that a program computes, with numbers beside it, and what its states become. */
#include "graph/generic/generic_impl.h"
#include <string.h>

static void loss_forward(tess_lower *L, const tess_node *n, int i)
{
    if (i > 0) return;
    const bool gradient = tess_trains(L) && tess_wants_gradient(L, n->in[0]);
    const int64_t numbers = tess_numbers(L);
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
    a.in[0].t = tess_dtype_of(L, n->in[1]);
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
