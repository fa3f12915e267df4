/* What the ops over routed rows share: an order of some rows, of which one goes nowhere, and an expert without rows. */
#ifndef TESS_TESTS_EXPERTS_H
#define TESS_TESTS_EXPERTS_H
#include "codelets/experts/order_impl.h"
#include "tests/ops/ops.h"
#include <stdlib.h>

struct experts {
    int64_t rows, experts, chosen;
};
static const struct experts experts_kinds[] = {{7, 3, 2}, {33, 5, 1}, {70, 40, 8}, {1, 1, 1}};
enum { EXPERTS_KINDS = sizeof experts_kinds / sizeof *experts_kinds };

static inline int64_t experts_order_size(const struct experts *k)
{
    return k->experts + 1 + 3 * k->rows * k->chosen;
}

/* Fills an order: row 3 is padding, expert 1 has no rows unless it must. */
static inline tess_order experts_order(const struct experts *k, int32_t *to)
{
    const int64_t choices = k->rows * k->chosen;
    const tess_order o = tess_order_at(to, k->experts, choices);
    for (int64_t r = 0; r < k->rows; r++) {
        int32_t next = (int32_t)(fabs(op_roll()) * (double)k->experts) % (int32_t)k->experts;
        for (int64_t s = 0; s < k->chosen; s++) {
            if (next == 1 && k->chosen < k->experts) next = 2 % (int32_t)k->experts;
            o.expert[r * k->chosen + s] = r == 3 ? -1 : next;
            next = (next + 1) % (int32_t)k->experts;
        }
    }
    int32_t at = 0;
    for (int64_t e = 0; e < k->experts; e++) {
        o.offset[e] = at;
        for (int64_t i = 0; i < choices; i++)
            if (o.expert[i] == e) o.choice[o.place[i] = at++] = (int32_t)i;
    }
    o.offset[k->experts] = at;
    for (int64_t i = 0; i < choices; i++)
        if (o.expert[i] < 0) o.place[i] = -1;
    for (int64_t p = at; p < choices; p++) o.choice[p] = -1;
    return o;
}
static inline tess_order experts_put_order(const struct experts *k)
{
    return experts_order(k, op_raw("order", experts_order_size(k), TESS_I32));
}

/* The network's: a feed-forward network of four experts. */
static inline tess_tensor *experts_net(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *logits = tess_linear(x, op_param(g, layer, "router", 4, 20, TESS_NORMAL(0.7f)), NULL);
    tess_tensor *weights = tess_route(logits, 2, layer == 0, NULL), *places = tess_dispatch(x, weights);
    char name[32];
    snprintf(name, sizeof name, "%d.w1", layer);
    tess_tensor *y = tess_expert_linear(places, weights, tess_param_stack(g, name, 4, 28, 20, TESS_NORMAL(0.4f)));
    snprintf(name, sizeof name, "%d.w2", layer);
    y = tess_expert_linear(tess_silu(y), weights, tess_param_stack(g, name, 4, 20, 28, TESS_NORMAL(0.4f)));
    if (layer) y = tess_expert_bias(y, weights, op_param(g, layer, "bias", 4, 20, TESS_NORMAL(0.4f)));
    return tess_combine(y, weights);
}
#endif
