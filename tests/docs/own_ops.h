/* Ops of a program's own, of the public headers alone: along the sequence with a parameter (ema), element by element
 * with settings and two inputs (gated), and with a matrix of several tiles, an aux and scratch (mixed). */
#ifndef TESS_TESTS_OWN_OPS_H
#define TESS_TESTS_OWN_OPS_H
#include "graph/tessera_ops.h"
#include <string.h>

/* ---- ema: y_t = x_t + decay y_t-1 ---- */

static inline void ema_forward(const tess_call *c)
{
    const tess_operand *x = &c->in[0], *y = &c->out;
    const float *decay = (const float *)c->in[1].data;
    const int64_t C = x->columns, T = x->rows / c->sequences;
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t k = 0; k < C; k++) {
            const float before = r % T ? tess_load(y->data, (r - 1) * C + k, c->dtype) : 0;
            tess_store(y->data, r * C + k, c->dtype, tess_load(x->data, r * C + k, c->dtype) + decay[k] * before);
        }
}

static inline void ema_backward(const tess_call *c)
{
    const tess_operand *y = &c->out, *dy = &c->d_out, *dx = &c->d_in[0], *dd = &c->d_in[1];
    const float *decay = (const float *)c->in[1].data;
    const int64_t C = dy->columns, T = dy->rows / c->sequences;
    float *ddecay = (float *)dd->data, *g = (float *)c->scratch; /* (C): of y_t, from all that follows */
    if (!dd->add) memset(ddecay, 0, (size_t)C * sizeof *ddecay);
    for (int64_t r = dy->rows - 1; r >= 0; r--)
        for (int64_t k = 0; k < C; k++) {
            const bool last = r % T == T - 1;
            g[k] = tess_load(dy->data, r * C + k, c->dtype) + (last ? 0 : decay[k] * g[k]);
            tess_accumulate(dx->data, r * C + k, c->dtype, dx->add, g[k]);
            if (r % T) ddecay[k] += g[k] * tess_load(y->data, (r - 1) * C + k, c->dtype);
        }
}

static inline tess_status ema_shape(tess_shapes *s)
{
    if (s->in[1].rank != 1 || s->in[1].dim[0] != s->out.dim[2]) return tess_shapes_wrong(s, "decay must be (C)");
    s->scratch = (size_t)s->out.dim[2] * sizeof(float);
    return TESS_OK;
}

static inline tess_status ema_register(const tess_op **op)
{
    tess_op_conf conf = {};
    conf.name = "ema";
    conf.takes = "x, decay";
    conf.shape = ema_shape;
    conf.forward.cpu = ema_forward;
    conf.backward.cpu = ema_backward;
    conf.reads = TESS_READS_IN1 | TESS_READS_OUT;
    return tess_op_register(&conf, op);
}

/* ---- gated: y = a / (1 + sharp |b|), or a with b left out, times `times` ---- */

struct gated {
    float sharp;
    int times;
};

static inline void gated_forward(const tess_call *c)
{
    const struct gated *s = (const struct gated *)c->attributes;
    const int64_t n = c->out.rows * c->out.columns;
    for (int64_t i = 0; i < n; i++) {
        const float b = c->in[1].data ? tess_load(c->in[1].data, i, c->dtype) : 0;
        const float a = tess_load(c->in[0].data, i, c->dtype) * (float)s->times;
        tess_store(c->out.data, i, c->dtype, a / (1 + s->sharp * (b < 0 ? -b : b)));
    }
}

static inline void gated_backward(const tess_call *c)
{
    const struct gated *s = (const struct gated *)c->attributes;
    const tess_operand *da = &c->d_in[0], *db = &c->d_in[1];
    const int64_t n = c->d_out.rows * c->d_out.columns;
    for (int64_t i = 0; i < n; i++) {
        const float b = c->in[1].data ? tess_load(c->in[1].data, i, c->dtype) : 0;
        const float under = 1 / (1 + s->sharp * (b < 0 ? -b : b));
        const float d = tess_load(c->d_out.data, i, c->dtype) * (float)s->times * under;
        tess_accumulate(da->data, i, c->dtype, da->add, d);
        if (!db->data) continue;
        const float slope = s->sharp * (b < 0 ? under : -under);
        tess_accumulate(db->data, i, c->dtype, db->add, d * tess_load(c->in[0].data, i, c->dtype) * slope);
    }
}

static inline tess_status gated_register(const tess_op **op)
{
    tess_op_conf conf = {};
    conf.name = "gated";
    conf.takes = "a, b?";
    conf.attributes = sizeof(struct gated);
    conf.forward.cpu = gated_forward;
    conf.backward.cpu = gated_backward;
    conf.reads = TESS_READS_IN0 | TESS_READS_IN1;
    conf.by_rows = conf.by_columns = true;
    return tess_op_register(&conf, op);
}

/* ---- mixed: y = x + s (x m), with s = 1 / (2 + t), t being the row's place in its sequence; kept for backward ---- */

static inline void mixed_forward(const tess_call *c)
{
    const tess_operand *x = &c->in[0], *m = &c->in[1];
    const int64_t C = x->columns;
    float *sum = (float *)c->scratch, *s = (float *)c->aux.data;
    for (int64_t r = 0; r < x->rows; r++) {
        memset(sum, 0, (size_t)C * sizeof *sum);
        for (int64_t i = 0; i < C; i++) {
            const float v = tess_load(x->data, r * C + i, c->dtype);
            const void *row = tess_row(m, i);
            for (int64_t k = 0; k < C; k++) sum[k] += v * tess_load(row, k, m->dtype);
        }
        s[r] = 1 / (float)(2 + r % (x->rows / c->sequences));
        for (int64_t k = 0; k < C; k++)
            tess_store(c->out.data, r * C + k, c->dtype, tess_load(x->data, r * C + k, c->dtype) + s[r] * sum[k]);
    }
}

static inline void mixed_backward(const tess_call *c)
{
    const tess_operand *x = &c->in[0], *m = &c->in[1], *dx = &c->d_in[0], *dm = &c->d_in[1];
    const int64_t C = x->columns;
    const float *s = (const float *)c->aux.data;
    for (int64_t i = 0; i < C && !dm->add; i++) memset(tess_row(dm, i), 0, (size_t)C * sizeof(float));
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t i = 0; i < C; i++) {
            const float v = tess_load(x->data, r * C + i, c->dtype) * s[r];
            const void *row = tess_row(m, i);
            float *drow = (float *)tess_row(dm, i), d = 0;
            for (int64_t k = 0; k < C; k++) {
                const float g = tess_load(c->d_out.data, r * C + k, c->dtype);
                d += g * tess_load(row, k, m->dtype);
                drow[k] += g * v;
            }
            d = tess_load(c->d_out.data, r * C + i, c->dtype) + s[r] * d;
            tess_accumulate(dx->data, r * C + i, c->dtype, dx->add, d);
        }
}

static inline double mixed_forward_flops(const tess_call *c)
{
    return 2. * (double)c->in[0].rows * (double)c->in[1].rows * (double)c->in[1].columns;
}
static inline double mixed_backward_flops(const tess_call *c)
{
    return 2 * mixed_forward_flops(c);
}

static inline tess_status mixed_shape(tess_shapes *s)
{
    if (s->in[1].rank != 2 || s->in[1].dim[0] != s->out.dim[2] || s->in[1].dim[1] != s->out.dim[2])
        return tess_shapes_wrong(s, "m must be (%lld,%lld)", (long long)s->out.dim[2], (long long)s->out.dim[2]);
    s->aux = 1;
    s->scratch = (size_t)s->out.dim[2] * sizeof(float);
    return TESS_OK;
}

static inline tess_status mixed_register(const tess_op **op)
{
    tess_op_conf conf = {};
    conf.name = "mixed";
    conf.takes = "x, m";
    conf.shape = mixed_shape;
    conf.forward.cpu = mixed_forward;
    conf.forward.flops = mixed_forward_flops;
    conf.backward.cpu = mixed_backward;
    conf.backward.flops = mixed_backward_flops;
    conf.reads = TESS_READS_IN0 | TESS_READS_IN1 | TESS_READS_AUX;
    return tess_op_register(&conf, op);
}

#endif
