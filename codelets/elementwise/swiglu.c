/* swiglu: silu of the first half of each row times the second half; with a limit of pairs of neighbours. */
#include "codelets/shared/parts.h"

static const float over_ln2 = 1.44269504f;

/* Pairs (gate, up): y = gate sigmoid(sharp gate) (up + 1). What is beyond the limit has no gradient; a NaN is not. */
TESS_INLINE void clamped_forward(const tess_swiglu_arg *a, const void *x, void *y, tess_dtype t)
{
    const float sharp = -over_ln2 * a->sharp, limit = a->limit;
#pragma omp simd
    for (int64_t i = 0; i < a->rows * a->width; i++) {
        float gate = tess_load(x, 2 * i, t), up = tess_load(x, 2 * i + 1, t), unused;
        gate = gate > limit ? limit : gate;
        up = up > limit ? limit : up < -limit ? -limit : up;
        tess_store(y, i, t, gate * tess_sigmoidf(sharp * gate, &unused) * (up + 1));
    }
}
TESS_INLINE void clamped_backward(const tess_swiglu_arg *a, const void *dy, const void *x, void *dx, tess_dtype t)
{
    const float sharp = -over_ln2 * a->sharp, by = a->sharp, limit = a->limit;
    const bool acc = a->acc;
#pragma omp simd
    for (int64_t i = 0; i < a->rows * a->width; i++) {
        const float d = tess_load(dy, i, t), g = tess_load(x, 2 * i, t), u = tess_load(x, 2 * i + 1, t);
        const float gate = g > limit ? limit : g, up = u > limit ? limit : u < -limit ? -limit : u;
        float slope;
        const float y = tess_sigmoidf(sharp * gate, &slope), dgate = d * (up + 1) * (y + by * gate * slope);
        tess_accumulate(dx, 2 * i, t, acc, g > limit ? 0 : dgate);
        tess_accumulate(dx, 2 * i + 1, t, acc, u > limit || u < -limit ? 0 : d * (gate * y));
    }
}

/* x (rows, 2 width), y (rows, width) */
TESS_INLINE void swiglu_forward(const tess_work *w, tess_dtype t)
{
    const tess_swiglu_arg *a = w->arg;
    if (a->limit > 0) {
        clamped_forward(a, w->buf[0].ptr, w->buf[1].ptr, t);
        return;
    }
    for (int64_t r = 0; r < a->rows; r++) {
        const void *gate = tess_at(w->buf[0].ptr, 2 * r * a->width, t), *up = tess_at(gate, a->width, t);
        void *y = tess_at_mut(w->buf[1].ptr, r * a->width, t);
#pragma omp simd
        for (int64_t i = 0; i < a->width; i++) {
            const float x = tess_load(gate, i, t);
            float unused;
            tess_store(y, i, t, x * tess_sigmoidf(-over_ln2 * x, &unused) * tess_load(up, i, t));
        }
    }
}

/* dy (rows, width), x, dx (rows, 2 width) */
TESS_INLINE void swiglu_backward(const tess_work *w, tess_dtype t)
{
    const tess_swiglu_arg *a = w->arg;
    const bool acc = a->acc;
    if (a->limit > 0) {
        clamped_backward(a, w->buf[0].ptr, w->buf[1].ptr, w->buf[2].ptr, t);
        return;
    }
    for (int64_t r = 0; r < a->rows; r++) {
        const void *dy = tess_at(w->buf[0].ptr, r * a->width, t);
        const void *gate = tess_at(w->buf[1].ptr, 2 * r * a->width, t), *up = tess_at(gate, a->width, t);
        void *dgate = tess_at_mut(w->buf[2].ptr, 2 * r * a->width, t), *dup = tess_at_mut(dgate, a->width, t);
#pragma omp simd
        for (int64_t i = 0; i < a->width; i++) {
            const float x = tess_load(gate, i, t), d = tess_load(dy, i, t);
            float slope, y = tess_sigmoidf(-over_ln2 * x, &slope);
            tess_accumulate(dgate, i, t, acc, d * tess_load(up, i, t) * (y + x * slope));
            tess_accumulate(dup, i, t, acc, d * (x * y));
        }
    }
}

/* By rows; of the forward pass' buffers the first, of the backward pass' all but the first have two widths. */
TESS_INLINE int64_t cut_rows(const tess_work *w, int64_t k, tess_dtype t, tess_part_task *c, const int64_t *widths)
{
    const tess_swiglu_arg *a = w->arg;
    const int64_t rows = tess_part_rows(a->width), first = k * rows;
    if (c) {
        tess_part_task_begin(c, w);
        c->arg.swiglu = *a;
        c->arg.swiglu.rows = a->rows - first < rows ? a->rows - first : rows;
        for (unsigned i = 0; i < w->nbuf; i++) tess_part_task_skip(c, i, widths[i] * first * a->width, t);
    }
    return tess_parts_of(a->rows, rows);
}
static inline int64_t cut_forward(const tess_work *w, int64_t k, tess_dtype t, tess_part_task *c)
{
    return cut_rows(w, k, t, c, (const int64_t[]){2, 1});
}
static inline int64_t cut_backward(const tess_work *w, int64_t k, tess_dtype t, tess_part_task *c)
{
    return cut_rows(w, k, t, c, (const int64_t[]){1, 2, 2});
}

TESS_REAL_CUT(swiglu_forward, cut_forward)
TESS_REAL_CUT(swiglu_backward, cut_backward)
