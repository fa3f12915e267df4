/* expert_linear: linear, for the places of one expert among the places of all experts; the order says how many it has.
 * The matrix of an expert that no row chose is not read. */
#include "codelets/experts/order_impl.h"
#include "codelets/products/mm.h"
#include "codelets/shared/vector.h"
#include <math.h>

/* The expert's places, from `first` on, are the rows of a linear. */
typedef struct places {
    const int32_t *offset; /* of the order */
    int64_t first;
    tess_linear_arg linear;
} places;
static places places_of(const tess_work *w)
{
    const tess_expert_arg *a = w->arg;
    places p = {.offset = w->buf[2].ptr, .linear = a->linear};
    p.first = p.offset[a->expert] - p.offset[a->first];
    p.linear.rows = p.offset[a->expert + 1] - p.offset[a->expert];
    return p;
}

/* Zeros in the columns of the places that no row has. */
TESS_INLINE void clear_rest(const tess_expert_arg *a, const int32_t *offset, void *y, int64_t ld, int64_t col,
                            int64_t width, tess_dtype t)
{
    for (int64_t p = offset[a->end] - offset[a->first]; p < a->choices && a->rest; p++)
        memset(tess_at_mut(y, p * ld + col, t), 0, (size_t)width * tess_dtype_size(t));
}

/* The library compiles a kernel for each number of rows that it sees, which takes milliseconds, and an expert has
 * another one each time. So a product has a multiple of 32 of them, and what is left goes through scratch, filled up to
 * a power of two. */
enum { ROWS = 32 };
size_t tess_expert_scratch(int64_t in, int64_t out)
{
    return (size_t)(ROWS * (in + out)) * sizeof(float);
}

/* A is (m,k), C (m,n); `to` is C's dtype. */
TESS_INLINE void multiply(const tess_mm *d, const void *a, const void *b, void *c, tess_dtype t, tess_dtype to,
                          float *scratch)
{
    tess_mm part = *d;
    const int64_t whole = d->m / ROWS * ROWS, left = d->m - whole;
    part.m = whole;
    if (whole) tess_mm_run(&part, a, b, c);
    if (!left) return;
    for (part.m = 1; part.m < left;) part.m *= 2;
    void *rows = scratch + ROWS * d->n;
    for (int64_t r = 0; r < part.m; r++) {
        void *row = tess_at_mut(rows, r * d->k, t);
        const size_t bytes = (size_t)d->k * tess_dtype_size(t);
        if (r < left)
            memcpy(row, tess_at(a, (whole + r) * d->lda, t), bytes);
        else
            memset(row, 0, bytes);
    }
    part.lda = d->k, part.ldc = d->n, part.out = TESS_F32, part.acc = false;
    tess_mm_run(&part, rows, b, scratch);
    for (int64_t r = 0; r < left; r++) {
        void *row = tess_at_mut(c, (whole + r) * d->ldc, to);
#pragma omp simd
        for (int64_t i = 0; i < d->n; i++) tess_accumulate(row, i, to, d->acc, scratch[r * d->n + i]);
    }
}

/* Every expert is as likely as another: that is what cost and parts go by. */
static double rows_of(const tess_expert_arg *a)
{
    return (double)a->choices / (double)(a->end - a->first);
}
static tess_linear_arg likely(const void *arg)
{
    tess_linear_arg l = ((const tess_expert_arg *)arg)->linear;
    l.rows = (int64_t)ceil(rows_of(arg));
    return l;
}
#define LIKELY_PARTS(op, product)                                                                                      \
    static int64_t op##_parts(const tess_codelet *cl, const void *arg)                                                 \
    {                                                                                                                  \
        const tess_linear_arg l = likely(arg);                                                                         \
        return tess_mm_parts(product(&l, cl->dtype));                                                                  \
    }
LIKELY_PARTS(expert_linear_forward, tess_mm_forward)
LIKELY_PARTS(expert_linear_backward_input, tess_mm_input)
LIKELY_PARTS(expert_linear_backward_weight, tess_mm_weight)

static tess_cost expert_cost(const tess_expert_arg *a, tess_dtype t, double params)
{
    const double rows = rows_of(a), in = (double)a->linear.in, out = (double)a->linear.out;
    return (tess_cost){.flops = 2 * rows * in * out,
                       .bytes = (double)tess_dtype_size(t) * rows * (in + out) + params * in * out};
}

/* x (choices,in), w (out,in), order, y (choices,ld), scratch */
TESS_INLINE void expert_linear_forward(const tess_work *w, tess_dtype t)
{
    const tess_expert_arg *a = w->arg;
    const places p = places_of(w);
    const tess_linear_arg *l = &p.linear;
    clear_rest(a, p.offset, w->buf[3].ptr, l->ld, l->col, l->out, t);
    if (l->rows == 0) return;
    const tess_mm d = tess_mm_forward(l, t);
    multiply(&d, tess_at(w->buf[0].ptr, p.first * l->in, t), w->buf[1].ptr,
             tess_at_mut(w->buf[3].ptr, p.first * l->ld + l->col, t), t, t, w->buf[4].ptr);
}
static tess_cost expert_linear_forward_cost(const void *arg, tess_dtype t)
{
    return expert_cost(arg, t, (double)tess_dtype_size(t));
}
TESS_PART_COST(expert_linear_forward)

/* dy (choices,ld), w (out,in), order, dx += (choices,in), scratch */
TESS_INLINE void expert_linear_backward_input(const tess_work *w, tess_dtype t)
{
    const tess_expert_arg *a = w->arg;
    const places p = places_of(w);
    const tess_linear_arg *l = &p.linear;
    const tess_dtype to = l->sum ? TESS_F32 : t;
    if (!l->acc) clear_rest(a, p.offset, w->buf[3].ptr, l->in, 0, l->in, to);
    if (l->rows == 0) return;
    const tess_mm d = tess_mm_input(l, t);
    multiply(&d, tess_at(w->buf[0].ptr, p.first * l->ld + l->col, t), w->buf[1].ptr,
             tess_at_mut(w->buf[3].ptr, p.first * l->in, to), t, to, w->buf[4].ptr);
}
static tess_cost expert_linear_backward_input_cost(const void *arg, tess_dtype t)
{
    return expert_cost(arg, t, (double)tess_dtype_size(t));
}
TESS_PART_COST(expert_linear_backward_input)

/* dy (choices,ld), x (choices,in), order, dw += (out,in): zeros where no row chose the expert. */
TESS_INLINE void expert_linear_backward_weight(const tess_work *w, tess_dtype t)
{
    const places p = places_of(w);
    const tess_linear_arg *l = &p.linear;
    if (l->rows == 0) {
        if (!l->acc) memset(w->buf[3].ptr, 0, (size_t)(l->out * l->in) * sizeof(float));
        return;
    }
    const tess_mm d = tess_mm_weight(l, t);
    tess_mm_run(&d, tess_at(w->buf[0].ptr, p.first * l->ld + l->col, t), tess_at(w->buf[1].ptr, p.first * l->in, t),
                w->buf[3].ptr);
}
static tess_cost expert_linear_backward_weight_cost(const void *arg, tess_dtype t)
{
    const tess_expert_arg *a = arg;
    return expert_cost(a, t, a->linear.acc ? 8 : 4);
}
TESS_PART_COST(expert_linear_backward_weight)
