/* linear_gelu: a linear and the gelu behind it in one task; and a gelu's slope in the task of dx = dy w of the linear
 * behind it, whose dx then needs no tile. Here they are the bodies of linear.c and gelu.c one after the other, with the
 * same bits; a GPU has both in the product's epilogue. */
#include "vector.h"

/* Another codelet's body, on these of the task's buffers. */
static void run(const tess_work *w, const tess_codelet *cl, const void *arg, const tess_view *buf, unsigned nbuf)
{
    tess_work part = *w;
    part.arg = arg, part.buf = buf, part.nbuf = nbuf;
    cl->cpu(&part);
}

/* x (rows,in), w (out,in), pre (rows,out), y (rows,out)[, b (out)] */
TESS_INLINE void linear_gelu_forward(const tess_work *w, tess_dtype t)
{
    const tess_linear_gelu_arg *a = w->arg;
    const tess_view *b = w->buf, linear[] = {b[0], b[1], b[2], b[a->linear.bias ? 4 : 0]};
    run(w, &tess_linear_forward[t], &a->linear, linear, a->linear.bias ? 4 : 3);
    run(w, &tess_gelu_forward[t], &a->gelu, b + 2, 2);
}
static tess_cost linear_gelu_forward_cost(const void *arg, tess_dtype t)
{
    const tess_linear_gelu_arg *a = arg;
    const double map = (double)a->gelu.n * (double)tess_dtype_size(t);
    tess_cost c = tess_linear_forward[t].cost(&a->linear);
    c.bytes += map;
    c.passes = 2 * map;
    return c;
}
static int64_t linear_gelu_forward_parts(const tess_codelet *cl, const void *arg)
{
    const tess_linear_gelu_arg *a = arg;
    return tess_linear_forward[cl->dtype].parts(&tess_linear_forward[cl->dtype], &a->linear);
}
TESS_PART_COST(linear_gelu_forward)

/* dy (rows,out), w (out,in), pre (rows,in), dpre (rows,in), which holds the gradient of gelu's output meanwhile */
TESS_INLINE void gelu_linear_backward(const tess_work *w, tess_dtype t)
{
    const tess_linear_gelu_arg *a = w->arg;
    const tess_view *b = w->buf;
    run(w, &tess_linear_backward_input[t], &a->linear, (tess_view[]){b[0], b[1], b[3]}, 3);
    run(w, &tess_gelu_backward[t], &a->gelu, (tess_view[]){b[3], b[2], b[3]}, 3);
}
static tess_cost gelu_linear_backward_cost(const void *arg, tess_dtype t)
{
    const tess_linear_gelu_arg *a = arg;
    const double map = (double)a->gelu.n * (double)tess_dtype_size(t);
    tess_cost c = tess_linear_backward_input[t].cost(&a->linear);
    c.bytes += map;
    c.passes = 3 * map;
    return c;
}
static int64_t gelu_linear_backward_parts(const tess_codelet *cl, const void *arg)
{
    const tess_linear_gelu_arg *a = arg;
    return tess_linear_backward_input[cl->dtype].parts(&tess_linear_backward_input[cl->dtype], &a->linear);
}
TESS_PART_COST(gelu_linear_backward)
