/* route: who is chosen, with what weight, and where; equal logits, padding, what is no number. */
#include "tests/ops/experts.h"

static int is_chosen(const tess_order *o, int64_t chosen, int64_t r, int64_t e)
{
    for (int64_t s = 0; s < chosen; s++)
        if (o->expert[r * chosen + s] == e) return (int)s;
    return -1;
}

/* The weights of a row in double, and its order. */
static void expect(const struct experts *k, const double *logits, int64_t r, bool normalised, bool padding, double *w,
                   int32_t *expert)
{
    double whole = 0;
    for (int64_t s = 0; s < k->chosen; s++) {
        int64_t best = -1;
        for (int64_t e = 0; e < k->experts; e++) {
            bool taken = false;
            for (int64_t b = 0; b < s; b++) taken |= expert[r * k->chosen + b] == e;
            if (!taken && (best < 0 || logits[r * k->experts + e] > logits[r * k->experts + best])) best = e;
        }
        expert[r * k->chosen + s] = (int32_t)best;
    }
    for (int64_t e = 0; e < k->experts; e++) {
        bool counts = !normalised;
        for (int64_t s = 0; s < k->chosen; s++) counts |= expert[r * k->chosen + s] == e;
        if (counts) whole += exp(logits[r * k->experts + e]);
    }
    for (int64_t s = 0; s < k->chosen; s++) {
        w[r * k->chosen + s] = padding ? 0 : exp(logits[r * k->experts + expert[r * k->chosen + s]]) / whole;
        if (padding) expert[r * k->chosen + s] = -1;
    }
}

static void forward(const struct experts *k, tess_dtype t, bool normalised, bool bounded)
{
    const int64_t choices = k->rows * k->chosen, n = experts_order_size(k),
                  before = bounded ? 9 : 0; /* in a sequence */
    double *logits = op_zeros(k->rows * k->experts);
    for (int64_t i = 0; i < k->rows * k->experts; i++) logits[i] = 2 * op_roll();
    for (int64_t e = 1; e < k->experts; e++) logits[e] = logits[0]; /* all of row 0 are equal */
    op_given("logits", k->rows * k->experts, t, logits);
    double *w = op_out("weights", choices, t, false), *want = op_out("order", n, TESS_I32, false);
    int32_t *order = tess_alloc((size_t)n * sizeof *order);
    const tess_order o = tess_order_at(order, k->experts, choices);
    for (int64_t r = 0; r < k->rows; r++) expect(k, logits, r, normalised, bounded && r == 3, w, o.expert);
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
    for (int64_t i = 0; i < n; i++) want[i] = order[i];
    free(order);
    if (bounded) {
        const int64_t all = k->rows + before;
        int32_t *bounds = op_raw("bounds", 2 * all, TESS_I32);
        for (int64_t r = 0; r < all; r++) bounds[r] = 0, bounds[all + r] = r == before + 3 ? 0 : 5;
    }
    op_run(&tess_route_forward[t], &(tess_route_arg){.rows = k->rows,
                                                     .experts = k->experts,
                                                     .chosen = k->chosen,
                                                     .sequence = k->rows + before,
                                                     .place = before,
                                                     .normalised = normalised,
                                                     .bounded = bounded});
}

static void backward(const struct experts *k, tess_dtype t, bool normalised, bool acc)
{
    double *dw = op_in("dweights", k->rows * k->chosen, t, 1), *logits = op_in("logits", k->rows * k->experts, t, 1);
    const tess_order o = experts_put_order(k);
    double *dx = op_out("dlogits", k->rows * k->experts, t, acc);
    for (int64_t r = 0; r < k->rows; r++) {
        double whole = 0, mean = 0;
        if (o.expert[r * k->chosen] < 0) continue;
        for (int64_t e = 0; e < k->experts; e++)
            if (!normalised || is_chosen(&o, k->chosen, r, e) >= 0) whole += exp(logits[r * k->experts + e]);
        for (int64_t s = 0; s < k->chosen; s++)
            mean += exp(logits[r * k->experts + o.expert[r * k->chosen + s]]) / whole * dw[r * k->chosen + s];
        for (int64_t e = 0; e < k->experts; e++) {
            const int s = is_chosen(&o, k->chosen, r, e);
            if (normalised && s < 0) continue;
            dx[r * k->experts + e] +=
                exp(logits[r * k->experts + e]) / whole * ((s < 0 ? 0 : dw[r * k->chosen + s]) - mean);
        }
    }
    op_run(&tess_route_backward[t], &(tess_route_arg){.rows = k->rows,
                                                      .experts = k->experts,
                                                      .chosen = k->chosen,
                                                      .sequence = k->rows,
                                                      .normalised = normalised,
                                                      .acc = acc});
}

/* A logit that is no number is chosen last, and makes weights that are none. */
static void not_a_number(tess_dtype t)
{
    double logits[] = {1, NAN, 3, 2}, *w;
    op_given("logits", 4, t, logits);
    w = op_out("weights", 1, t, false);
    w[0] = NAN;
    double *order = op_out("order", 8, TESS_I32, false);
    static const int32_t want[8] = {0, 0, 0, 1, 1, 2, 0, 0};
    for (int i = 0; i < 8; i++) order[i] = want[i];
    op_run(&tess_route_forward[t], &(tess_route_arg){.rows = 1, .experts = 4, .chosen = 1, .sequence = 1});
}

OP_TASKS(route)
{
    OP_EACH(t)
    {
        for (int k = 0; k < EXPERTS_KINDS; k++)
            for (int how = 0; how < 4; how++) {
                forward(&experts_kinds[k], t, how % 2, how / 2 && experts_kinds[k].rows > 3);
                backward(&experts_kinds[k], t, how % 2, how / 2);
            }
        not_a_number(t);
    }
}

OP_NET(route)
{
    return experts_net(g, x, layer);
}
