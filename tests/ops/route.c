/* route: who is chosen, with what weight, and where; equal logits, padding, what is no number. */
#include "tests/ops/experts.h"

static int is_chosen(const tess_order *o, int64_t chosen, int64_t r, int64_t e)
{
    for (int64_t s = 0; s < chosen; s++)
        if (o->expert[r * chosen + s] == e) return (int)s;
    return -1;
}

/* How weights come of logits. */
struct how {
    bool normalised, scored;
    int64_t groups, kept; /* of scores */
    float scale;
};

static double share_of(const struct how *h, double logit)
{
    return h->scored ? 1 / (1 + exp(-logit)) : exp(logit);
}

/* Expert e of a row is in a group with fewer than `kept` better ones: these have a larger pair, or the same earlier. */
static bool is_kept(const struct experts *k, const struct how *h, const double *rank, int64_t e)
{
    double pair[64];
    int64_t better = 0;
    const int64_t each = h->groups ? k->experts / h->groups : k->experts, mine = e / each;
    for (int64_t g = 0; g < h->groups; g++) {
        pair[g] = -INFINITY;
        for (int64_t i = g * each; i < (g + 1) * each; i++)
            for (int64_t j = g * each; j < i; j++) pair[g] = fmax(pair[g], rank[i] + rank[j]);
    }
    for (int64_t g = 0; g < h->groups; g++) better += pair[g] > pair[mine] || (pair[g] == pair[mine] && g < mine);
    return !h->groups || better < h->kept;
}

/* The weights of a row in double, and its order. */
static void expect(const struct experts *k, const struct how *h, const double *row, const double *bias, bool padding,
                   double *w, int32_t *expert)
{
    double whole = 0, *rank = op_zeros(k->experts);
    for (int64_t e = 0; e < k->experts; e++) rank[e] = share_of(h, row[e]) + (h->scored ? bias[e] : 0);
    for (int64_t s = 0; s < k->chosen; s++) {
        int64_t best = -1;
        for (int64_t e = 0; e < k->experts; e++) {
            bool taken = !is_kept(k, h, rank, e);
            for (int64_t b = 0; b < s; b++) taken |= expert[b] == e;
            if (!taken && (best < 0 || rank[e] > rank[best])) best = e;
        }
        expert[s] = (int32_t)best;
    }
    for (int64_t e = 0; e < k->experts; e++) {
        bool counts = !h->normalised;
        for (int64_t s = 0; s < k->chosen; s++) counts |= expert[s] == e;
        if (counts) whole += share_of(h, row[e]);
    }
    if (h->scored && !h->normalised) whole = 1;
    for (int64_t s = 0; s < k->chosen; s++) {
        w[s] = padding ? 0 : share_of(h, row[expert[s]]) / whole * (h->scale != 0 ? (double)h->scale : 1);
        if (padding) expert[s] = -1;
    }
}

static void forward(const struct experts *k, tess_dtype t, const struct how *h, bool bounded)
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
    double *bias = op_zeros(k->experts);
    for (int64_t e = 0; e < k->experts && k->experts > 3; e++) bias[e] = 0.3 * op_roll();
    if (h->scored) op_given("bias", k->experts, TESS_F32, bias);
    for (int64_t r = 0; r < k->rows; r++)
        expect(k, h, logits + r * k->experts, bias, bounded && r == 3, w + r * k->chosen, o.expert + r * k->chosen);
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
                                                     .groups = h->groups,
                                                     .kept = h->kept,
                                                     .scale = h->scale,
                                                     .scored = h->scored,
                                                     .normalised = h->normalised,
                                                     .bounded = bounded});
}

static void backward(const struct experts *k, tess_dtype t, const struct how *h, bool acc)
{
    double *dw = op_in("dweights", k->rows * k->chosen, t, 1), *logits = op_in("logits", k->rows * k->experts, t, 1);
    const tess_order o = experts_put_order(k);
    double *dx = op_out("dlogits", k->rows * k->experts, t, acc);
    for (int64_t r = 0; r < k->rows; r++) {
        double whole = 0, mean = 0;
        if (o.expert[r * k->chosen] < 0) continue;
        for (int64_t e = 0; e < k->experts; e++)
            if (!h->normalised || is_chosen(&o, k->chosen, r, e) >= 0) whole += share_of(h, logits[r * k->experts + e]);
        for (int64_t s = 0; s < k->chosen; s++)
            mean += share_of(h, logits[r * k->experts + o.expert[r * k->chosen + s]]) / whole * dw[r * k->chosen + s];
        if (h->scored && !h->normalised) whole = 1, mean = 0;
        for (int64_t e = 0; e < k->experts; e++) {
            const int s = is_chosen(&o, k->chosen, r, e);
            const double share = share_of(h, logits[r * k->experts + e]);
            if ((h->normalised || h->scored) && s < 0) continue;
            dx[r * k->experts + e] += share / whole * (h->scored ? 1 - share : 1) *
                                      (h->scale != 0 ? (double)h->scale : 1) *
                                      ((s < 0 ? 0 : dw[r * k->chosen + s]) - mean);
        }
    }
    op_run(&tess_route_backward[t], &(tess_route_arg){.rows = k->rows,
                                                      .experts = k->experts,
                                                      .chosen = k->chosen,
                                                      .sequence = k->rows,
                                                      .scale = h->scale,
                                                      .scored = h->scored,
                                                      .normalised = h->normalised,
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
                struct how h = {.normalised = how % 2};
                const bool groups = experts_kinds[k].experts == 40;
                forward(&experts_kinds[k], t, &h, how / 2 && experts_kinds[k].rows > 3);
                backward(&experts_kinds[k], t, &h, how / 2);
                h.scored = true, h.scale = how / 2 ? 2.5f : 0, h.groups = groups ? 8 : 0, h.kept = groups ? 3 : 0;
                forward(&experts_kinds[k], t, &h, how / 2 && experts_kinds[k].rows > 3);
                backward(&experts_kinds[k], t, &h, how / 2);
            }
        not_a_number(t);
    }
}

OP_NET(route)
{
    if (layer == 0) return experts_net(g, x, layer);
    tess_tensor *bias = OP_PARAM("bias", 6, 1, TESS_NORMAL(0.3f));
    if (tess_param_freeze(bias) != TESS_OK) return NULL;
    tess_tensor *w = tess_route_scored(tess_linear(x, OP_PARAM("router", 6, 20, TESS_NORMAL(0.7f)), NULL), bias, NULL,
                                       (tess_route_conf){2, 3, 2, true, 2.5f});
    tess_tensor *y = tess_expert_linear(tess_dispatch(x, w), w, tess_param_stack(g, "w", 6, 20, 20, TESS_NORMAL(0.4f)));
    return tess_combine(y, w);
}
