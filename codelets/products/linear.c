/* linear: y = x w^T + b, on one tile of w: `out` rows of it make columns [col, col + out) of y. The tiles of a wide
 * layer add up in dx, in an order that the graph fixes; dw and db belong to their tile alone.
 */
#include "codelets/products/few_rows_impl.h"
#include "codelets/products/mm.h"
#include "codelets/shared/parts.h"

static tess_cost linear_cost(const tess_linear_arg *a, tess_dtype t, double params, double result)
{
    const double size = (double)tess_dtype_size(t);
    const double rows = (double)a->rows, in = (double)a->in, out = (double)a->out;
    const bool few = tess_is_quantized(a->w);
    const double w = few ? (double)tess_dtype_bytes(a->w, a->in * a->out) : params * in * out;
    return (tess_cost){.flops = 2 * rows * in * out,
                       .bytes = size * rows * (in + out) + w + result,
                       .passes = few ? w + size * in * out : 0,
                       .rows = rows};
}

static int64_t linear_forward_parts(const tess_codelet *cl, const void *arg)
{
    return ((const tess_linear_arg *)arg)->few ? 1 : tess_mm_parts(tess_mm_forward(arg, cl->dtype));
}

static void few(const tess_linear_arg *a, const tess_work *w, tess_dtype t)
{
    const float *bias = a->bias ? w->buf[3].ptr : NULL;
    (t == TESS_BF16 ? few_rows_bf16 : few_rows_f32)(a, w->buf[0].ptr, w->buf[1].ptr, bias, w->buf[2].ptr);
}
/* A few rows of w at a time, as the values that its codes stand for. */
static void few_of_codes(const tess_linear_arg *a, const tess_work *w, tess_dtype t)
{
    tess_linear_arg part = *a;
    tess_view of[4];
    memcpy(of, w->buf, (a->bias ? 4 : 3) * sizeof *of);
    tess_work some = *w;
    of[1].ptr = tess_mm_room((size_t)a->in * tess_dtype_size(t), 16, &part.out), some.buf = of;
    for (int64_t i = 0; i < a->out; i += part.out) {
        part.out = least(part.out, a->out - i), part.col = a->col + i;
        tess_quantize_read(of[1].ptr, t, (const char *)w->buf[1].ptr + tess_dtype_bytes(a->w, i * a->in), a->w,
                           part.out * a->in);
        if (a->bias) of[3].ptr = (float *)w->buf[3].ptr + i;
        few(&part, &some, t);
    }
}

/* x (rows,in), w (out,in), y (rows,ld)[, b (out)] */
TESS_INLINE void linear_forward(const tess_work *w, tess_dtype t)
{
    const tess_linear_arg *a = w->arg;
    if (a->few && t != TESS_F16) { /* which is widened for its products anyway */
        (tess_is_quantized(a->w) ? few_of_codes : few)(a, w, t);
        return;
    }
    tess_mm d = tess_mm_forward(a, t);
    tess_idle idle;
    d.bias = a->bias ? w->buf[3].ptr : NULL;
    d.idle = tess_idle_find(w, 0, a->rows, &idle);
    tess_mm_run(&d, w->buf[0].ptr, w->buf[1].ptr, tess_at_mut(w->buf[2].ptr, a->col, t));
}
static tess_cost linear_forward_cost(const void *arg, tess_dtype t)
{
    return linear_cost(arg, t, (double)tess_dtype_size(t), 0);
}
TESS_PART_COST(linear_forward)

static int64_t linear_backward_input_parts(const tess_codelet *cl, const void *arg)
{
    return tess_mm_parts(tess_mm_input(arg, cl->dtype));
}

/* dy (rows,ld), w (out,in), dx += (rows,in): dx = dy w */
TESS_INLINE void linear_backward_input(const tess_work *w, tess_dtype t)
{
    const tess_linear_arg *a = w->arg;
    tess_mm d = tess_mm_input(a, t);
    tess_idle idle;
    d.idle = tess_idle_find(w, 0, a->rows, &idle);
    tess_mm_run(&d, tess_at(w->buf[0].ptr, a->col, t), w->buf[1].ptr, w->buf[2].ptr);
}
static tess_cost linear_backward_input_cost(const void *arg, tess_dtype t)
{
    const tess_linear_arg *a = arg;
    const double size = (double)tess_dtype_size(t), result = a->sum ? sizeof(float) : size;
    return linear_cost(a, t, size, a->acc ? result * (double)(a->rows * a->in) : 0);
}
TESS_PART_COST(linear_backward_input)

/* db (out) [+]= the sums of dy's columns, down the rows in their order; a part has STRIP of them. */
enum { STRIP = 128 };
typedef struct columns {
    const tess_linear_arg *a;
    float *db;
    const void *dy;
} columns;
TESS_INLINE void sum_strip(void *of, int64_t k, tess_dtype t)
{
    const columns *s = of;
    const tess_linear_arg *a = s->a;
    const int64_t c = k * STRIP, n = a->out - c < STRIP ? a->out - c : STRIP;
    float sum[STRIP] = {0};
    for (int64_t r = 0; r < a->rows; r++) {
        const void *row = tess_at(s->dy, r * a->ld + c, t);
#pragma omp simd
        for (int64_t j = 0; j < n; j++) sum[j] += tess_load(row, j, t);
    }
    for (int64_t j = 0; j < n; j++) tess_accumulate(s->db, c + j, TESS_F32, a->acc_bias, sum[j]);
}
TESS_PART_BODIES(sum_strip)
TESS_INLINE void sum_columns(float *db, const void *dy, const tess_linear_arg *a, tess_dtype t)
{
    columns s = {a, db, dy};
    tess_parts_run(tess_parts_of(a->out, STRIP), TESS_PART_BODY(sum_strip, t), &s);
}
static int64_t linear_backward_weight_parts(const tess_codelet *cl, const void *arg)
{
    return tess_mm_parts(tess_mm_weight(arg, cl->dtype));
}

/* dy (rows,ld), x (rows,in), dw += (out,in)[, db += (out)]: dw = dy^T x */
TESS_INLINE void linear_backward_weight(const tess_work *w, tess_dtype t)
{
    const tess_linear_arg *a = w->arg;
    const void *dy = tess_at(w->buf[0].ptr, a->col, t);
    tess_mm d = tess_mm_weight(a, t);
    tess_idle idle;
    d.idle = tess_idle_find(w, a->row, a->rows, &idle);
    tess_mm_run(&d, dy, tess_at(w->buf[1].ptr, a->row * a->in, t), w->buf[2].ptr);
    if (a->bias) sum_columns(w->buf[3].ptr, dy, a, t);
}
static tess_cost linear_backward_weight_cost(const void *arg, tess_dtype t)
{
    const tess_linear_arg *a = arg;
    return linear_cost(a, t, a->acc ? 8 : 4, 0);
}
TESS_PART_COST(linear_backward_weight)

/* dy (rows,ld), db += (out) */
TESS_INLINE void linear_backward_bias(const tess_work *w, tess_dtype t)
{
    const tess_linear_arg *a = w->arg;
    sum_columns(w->buf[1].ptr, tess_at(w->buf[0].ptr, a->col, t), a, t);
}
static tess_cost linear_backward_bias_cost(const void *arg, tess_dtype t)
{
    const tess_linear_arg *a = arg;
    return (tess_cost){.bytes = (double)(tess_dtype_size(t) * (size_t)(a->rows * a->out))};
}
static int64_t linear_backward_bias_parts(const tess_codelet *cl, const void *arg)
{
    (void)cl;
    return tess_parts_of(((const tess_linear_arg *)arg)->out, STRIP);
}
TESS_PART_COST(linear_backward_bias)
