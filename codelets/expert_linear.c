/* expert_linear: linear, for the places of one expert among those of all; how many they are, its order says. A tile of
 * a matrix that nobody chose is not looked at. */
#include "mm_impl.h"
#include "order_impl.h"
#include "vector_impl.h"

static tess_order order_of(const tess_work *w, const tess_expert_arg *a)
{
    return tess_order_at(w->buf[2].ptr, a->experts, a->choices);
}

/* Zeros in the columns of the places that no row has. */
TESS_INLINE void clear_rest(const tess_expert_arg *a, const tess_order *o, void *y, int64_t ld, int64_t col,
                            int64_t width, tess_dtype t)
{
    for (int64_t p = o->offset[a->experts]; p < a->choices && a->rest; p++)
        memset(tess_at_mut(y, p * ld + col, t), 0, (size_t)width * tess_dtype_size(t));
}

/* Every expert is as likely as another. */
static tess_cost expert_cost(const tess_expert_arg *a, tess_dtype t, double params)
{
    const double rows = (double)a->choices / (double)a->experts, in = (double)a->linear.in, out = (double)a->linear.out;
    return (tess_cost){.flops = 2 * rows * in * out,
                       .bytes = (double)tess_dtype_size(t) * rows * (in + out) + params * in * out};
}

/* x (choices,in), w (out,in), order, y (choices,ld) */
TESS_INLINE void expert_linear_forward(const tess_work *w, tess_dtype t)
{
    const tess_expert_arg *a = w->arg;
    const tess_linear_arg *l = &a->linear;
    const tess_order o = order_of(w, a);
    const int64_t first = o.offset[a->expert], rows = o.offset[a->expert + 1] - first;
    clear_rest(a, &o, w->buf[3].ptr, l->ld, l->col, l->out, t);
    if (rows == 0) return;
    const tess_mm d = {
        .m = rows, .n = l->out, .k = l->in, .lda = l->in, .ldb = l->in, .ldc = l->ld, .in = t, .out = t, .tb = true};
    tess_mm_run(&d, tess_at(w->buf[0].ptr, first * l->in, t), w->buf[1].ptr,
                tess_at_mut(w->buf[3].ptr, first * l->ld + l->col, t));
}
static tess_cost expert_linear_forward_cost(const void *arg, tess_dtype t)
{
    return expert_cost(arg, t, (double)tess_dtype_size(t));
}
TESS_REAL_COST(expert_linear_forward)

/* dy (choices,ld), w (out,in), order, dx += (choices,in) */
TESS_INLINE void expert_linear_backward_input(const tess_work *w, tess_dtype t)
{
    const tess_expert_arg *a = w->arg;
    const tess_linear_arg *l = &a->linear;
    const tess_order o = order_of(w, a);
    const int64_t first = o.offset[a->expert], rows = o.offset[a->expert + 1] - first;
    const tess_dtype to = l->sum ? TESS_F32 : t;
    if (!l->acc) clear_rest(a, &o, w->buf[3].ptr, l->in, 0, l->in, to);
    if (rows == 0) return;
    const tess_mm d = {.m = rows,
                       .n = l->in,
                       .k = l->out,
                       .lda = l->ld,
                       .ldb = l->in,
                       .ldc = l->in,
                       .in = t,
                       .out = to,
                       .acc = l->acc};
    tess_mm_run(&d, tess_at(w->buf[0].ptr, first * l->ld + l->col, t), w->buf[1].ptr,
                tess_at_mut(w->buf[3].ptr, first * l->in, to));
}
static tess_cost expert_linear_backward_input_cost(const void *arg, tess_dtype t)
{
    return expert_cost(arg, t, (double)tess_dtype_size(t));
}
TESS_REAL_COST(expert_linear_backward_input)

/* dy (choices,ld), x (choices,in), order, dw += (out,in): zeros where nobody chose it. */
TESS_INLINE void expert_linear_backward_weight(const tess_work *w, tess_dtype t)
{
    const tess_expert_arg *a = w->arg;
    const tess_linear_arg *l = &a->linear;
    const tess_order o = order_of(w, a);
    const int64_t first = o.offset[a->expert], rows = o.offset[a->expert + 1] - first;
    if (rows == 0) {
        if (!l->acc) memset(w->buf[3].ptr, 0, (size_t)(l->out * l->in) * sizeof(float));
        return;
    }
    const tess_mm d = {.m = l->out,
                       .n = l->in,
                       .k = rows,
                       .lda = l->ld,
                       .ldb = l->in,
                       .ldc = l->in,
                       .in = t,
                       .out = TESS_F32,
                       .ta = true,
                       .acc = l->acc};
    tess_mm_run(&d, tess_at(w->buf[0].ptr, first * l->ld + l->col, t), tess_at(w->buf[1].ptr, first * l->in, t),
                w->buf[3].ptr);
}
static tess_cost expert_linear_backward_weight_cost(const void *arg, tess_dtype t)
{
    const tess_expert_arg *a = arg;
    return expert_cost(a, t, a->linear.acc ? 8 : 4);
}
TESS_REAL_COST(expert_linear_backward_weight)
