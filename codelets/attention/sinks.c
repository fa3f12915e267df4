/* sinks: a learned logit of each head, which takes part in attention's softmax and has no value. It changes what
 * attention made without it:
 *
 *     y sigmoid(lse - sink)     log(exp(lse) + exp(sink))     dsink = -sum over rows of exp(sink - lse) (dy y)
 *
 * With these y and lse attention's backward finds its probabilities and its delta, and needs to know no more. A query
 * that sees no key has lse = infinity, and keeps it. */
#include "codelets/shared/parts.h"

/* sinks f32 (all), y (rows, heads*dim), lse f32 (rows, heads) */
TESS_INLINE void sinks_forward_part(const tess_work *w, int64_t k, tess_dtype t)
{
    const tess_sinks_arg *a = w->arg;
    const float *sink = (const float *)w->buf[0].ptr + a->head0;
    float *lse = w->buf[2].ptr;
    const int64_t rows = tess_part_rows(a->heads * a->dim), end = least((k + 1) * rows, a->rows) * a->heads;
    for (int64_t i = k * rows * a->heads; i < end; i++) {
        const float s = sink[i % a->heads], by = 1 / (1 + expf(s - lse[i]));
        void *y = tess_at_mut(w->buf[1].ptr, i * a->dim, t);
        lse[i] = fmaxf(lse[i], s) + log1pf(expf(-fabsf(lse[i] - s)));
#pragma omp simd
        for (int64_t d = 0; d < a->dim; d++) tess_store(y, d, t, tess_load(y, d, t) * by);
    }
}
TESS_PART_BODIES(sinks_forward_part)
static int64_t sinks_forward_parts(const tess_codelet *cl, const void *arg)
{
    const tess_sinks_arg *a = arg;
    (void)cl;
    return tess_parts_of(a->rows, tess_part_rows(a->heads * a->dim));
}
TESS_INLINE void sinks_forward(const tess_work *w, tess_dtype t)
{
    tess_parts_run(sinks_forward_parts(NULL, w->arg), TESS_PART_BODY(sinks_forward_part, t), (void *)w);
}

/* dy, y, lse, sinks, dsinks f32 += (all) */
TESS_INLINE void sinks_backward_part(const tess_work *w, int64_t head, tess_dtype t)
{
    const tess_sinks_arg *a = w->arg;
    const float *lse = w->buf[2].ptr, sink = ((const float *)w->buf[3].ptr)[a->head0 + head];
    float *dsink = (float *)w->buf[4].ptr + a->head0 + head;
    double sum = 0;
    for (int64_t i = head; i < a->rows * a->heads; i += a->heads) {
        const void *dy = tess_at(w->buf[0].ptr, i * a->dim, t), *y = tess_at(w->buf[1].ptr, i * a->dim, t);
        float lane[TESS_LANES] = {0};
        TESS_EACH(d, l, a->dim, lane[l] += tess_load(dy, d, t) * tess_load(y, d, t));
        sum -= (double)(expf(sink - lse[i]) * tess_sum16(lane));
    }
    *dsink = (a->acc ? *dsink : 0) + (float)sum;
}
TESS_PART_BODIES(sinks_backward_part)
static int64_t sinks_backward_parts(const tess_codelet *cl, const void *arg)
{
    (void)cl;
    return ((const tess_sinks_arg *)arg)->heads;
}
TESS_INLINE void sinks_backward(const tess_work *w, tess_dtype t)
{
    const tess_sinks_arg *a = w->arg;
    if (!a->acc && a->heads < a->all) memset(w->buf[4].ptr, 0, (size_t)a->all * sizeof(float));
    tess_parts_run(a->heads, TESS_PART_BODY(sinks_backward_part, t), (void *)w);
}

#define CODELETS(op) TESS_REAL_BODIES(op) TESS_CODELETS(op, op, .parts = op##_parts)
CODELETS(sinks_forward)
CODELETS(sinks_backward)
