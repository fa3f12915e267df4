/* swiglu: y (B,T,C) = silu(a) b, where x (B,T,2C) has the rows of a and b side by side; or a sigmoid(sharp a) (b + 1),
 * both held within a limit, where they take turns. */
#include "graph/ops/lowering.h"
#include <math.h>

struct attributes {
    float sharp, limit; /* limit 0: the former */
};

enum { RUN = 64 }; /* columns that ranks of a tensor have together where the width divides so */

static tess_status infer(tess_node *n)
{
    const tess_tensor *x = n->in[0];
    const struct attributes *at = n->attributes;
    if (!(at->limit >= 0) || !isfinite(at->sharp))
        return tess_shape_error(n, "the limit is %g and the factor %g (expected a limit above 0, and a finite factor)",
                                (double)at->limit, (double)at->sharp);
    if (x->rank != 3 || x->dim[2] % 2) return tess_shape_error(n, "the last axis must be even: two halves");
    tess_set_shape(n, 3, x->dim[0], x->dim[1], x->dim[2] / 2);
    return TESS_OK;
}

static tess_swiglu_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *at = n->attributes;
    return TESS_ARG(L, tess_swiglu_arg, .rows = tess_rows(L, n->out, i), .width = tess_width(n->out),
                    .sharp = at->sharp, .limit = at->limit);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    TESS_EMIT(L, &tess_swiglu_forward[tess_real(L)], arg(L, n, i), tess_in(L, n->in[0], i), tess_out(L, n->out, i));
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_swiglu_arg *a = arg(L, n, i);
    const tess_use dx = tess_grad_write(L, n->in[0], i, &a->acc);
    TESS_EMIT(L, &tess_swiglu_backward[tess_real(L)], a, tess_grad_read(L, n->out, i), tess_in(L, n->in[0], i), dx);
}

/* A run of columns of each half, or of pairs. */
static int64_t units(const tess_node *n, bool *exact)
{
    *exact = true;
    return tess_width(n->out) % RUN ? tess_width(n->out) : tess_width(n->out) / RUN;
}

static int beside(const tess_node *n, int64_t units, int64_t width[TESS_MOST_BESIDE])
{
    if (((const struct attributes *)n->attributes)->limit > 0) return 1;
    width[0] = width[1] = tess_width(n->out) / units;
    return 2;
}

const tess_op tess_op_swiglu = {
    .name = "swiglu",
    .takes = "x",
    .reads = TESS_READS_IN0,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .units = {units, beside},
    .by_rows = true,
};

tess_tensor *tess_swiglu(tess_tensor *x)
{
    return tess_node_add(&tess_op_swiglu, &x, 1, &(struct attributes){0}, sizeof(struct attributes));
}

tess_tensor *tess_swiglu_clamped(tess_tensor *x, float sharp, float limit)
{
    if (limit == 0) limit = NAN; /* which would be the other */
    return tess_node_add(&tess_op_swiglu, &x, 1, &(struct attributes){sharp, limit}, sizeof(struct attributes));
}
