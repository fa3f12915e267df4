/* linear_gelu: a linear and the gelu behind it in one task; and a gelu's slope in the task of dx = dy w of the linear
 * behind it, whose dx then needs no tile. Here they are the bodies of linear.c and gelu.c one after the other, with the
 * same bits; a GPU has both in the product's epilogue. */
#include "codelets/shared/vector.h"

/* Another codelet's body, on these of the task's buffers. */
static void run(const tess_work *w, const tess_codelet *cl, const void *arg, const tess_view *buf, unsigned nbuf)
{
    tess_work part = *w;
    part.arg = arg, part.buf = buf, part.nbuf = nbuf;
    cl->cpu(&part);
}

/* Cost and parts are those of the linear; the map adds its bytes, and `passes` over them. */
static tess_cost cost_of(const tess_codelet *linear, const tess_linear_gelu_arg *a, double passes, tess_dtype t)
{
    const double map = (double)a->gelu.n * (double)tess_dtype_size(t);
    tess_cost c = linear->cost(&a->linear);
    c.bytes += map;
    c.passes += passes * map;
    return c;
}
static int64_t parts_of(const tess_codelet *linear, const tess_linear_gelu_arg *a)
{
    return linear->parts(linear, &a->linear);
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
    return cost_of(&tess_linear_forward[t], arg, 2, t);
}
static int64_t linear_gelu_forward_parts(const tess_codelet *cl, const void *arg)
{
    return parts_of(&tess_linear_forward[cl->dtype], arg);
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
    return cost_of(&tess_linear_backward_input[t], arg, 3, t);
}
static int64_t gelu_linear_backward_parts(const tess_codelet *cl, const void *arg)
{
    return parts_of(&tess_linear_backward_input[cl->dtype], arg);
}
TESS_PART_COST(gelu_linear_backward)
