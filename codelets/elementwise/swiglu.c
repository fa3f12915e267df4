/* swiglu: silu of the first half of each row times the second half. */
#include "codelets/shared/parts.h"

static const float over_ln2 = 1.44269504f;

/* x (rows, 2 width), y (rows, width) */
TESS_INLINE void swiglu_forward(const tess_work *w, tess_dtype t)
{
    const tess_swiglu_arg *a = w->arg;
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
