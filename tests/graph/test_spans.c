/* Spans of sequences: losses and gradients are those of whole sequences, and the same bits wherever they are made. */
#define CHECK_MAIN
#include "tests/docs/own_ops.h"
#include "tests/graph/params.h"
#include <math.h>

enum { B = 2, T = 600, C = 64, V = 97, HEADS = 4, SPAN = 256 }; /* spans of 256, 256 and 88 rows */

/* How attention looks. */
struct look {
    const char *name;
    tess_attention_conf conf;
    bool packed, rope, bounded;
    tess_status (*own)(const tess_op **op); /* an op of a program's */
    bool experts;
    int buckets; /* of a bias by distance */
    bool sinks;
    bool picks; /* a row of each sequence for the loss */
};
static const struct look looks[] = {
    {.name = "packed", .conf = {.heads = HEADS, .causal = true}, .packed = true},
    {.name = "by head", .conf = {.heads = HEADS, .causal = true, .by_head = true}, .packed = true},
    {.name = "groups", .conf = {.heads = HEADS, .groups = 2, .causal = true}, .rope = true},
    {.name = "window", .conf = {.heads = HEADS, .groups = 1, .causal = true, .window = 300}, .packed = true},
    {.name = "narrow window", .conf = {.heads = HEADS, .causal = true, .window = 40}, .rope = true},
    {.name = "both ways", .conf = {.heads = HEADS}},
    {.name = "capped", .conf = {.heads = HEADS, .causal = true, .cap = 5}, .packed = true},
    {.name = "bounds", .conf = {.heads = HEADS, .causal = true}, .packed = true, .bounded = true},
    {.name = "bounds both ways", .conf = {.heads = HEADS, .groups = 2}, .bounded = true},
    {.name = "dropout", .conf = {.heads = HEADS, .causal = true, .dropout = 0.2f}, .packed = true},
    {.name = "bias", .conf = {.heads = HEADS, .causal = true, .reach = 200}, .buckets = 16},
    {.name = "bias both ways", .conf = {.heads = HEADS, .reach = 100}, .bounded = true, .buckets = 12},
    {.name = "sinks",
     .conf = {.heads = HEADS, .groups = 2, .causal = true, .window = 300},
     .packed = true,
     .sinks = true},
    {.name = "sinks and bounds", .conf = {.heads = HEADS}, .bounded = true, .sinks = true},
    {.name = "experts", .conf = {.heads = HEADS, .causal = true}, .packed = true, .experts = true},
    {.name = "experts, bounds",
     .conf = {.heads = HEADS, .causal = true},
     .packed = true,
     .experts = true,
     .bounded = true},
    {.name = "own by rows", .conf = {.heads = HEADS, .causal = true}, .packed = true, .own = gated_register},
    {.name = "own along the sequence", .conf = {.heads = HEADS, .causal = true}, .packed = true, .own = ema_register},
    {.name = "pick", .conf = {.heads = HEADS}, .packed = true, .bounded = true, .picks = true},
};

struct net {
    tess_graph *g;
    tess_tensor *ids, *targets, *bounds, *place, *statistics, *loss;
};

static tess_tensor *weight(tess_graph *g, int layer, const char *name, int64_t rows, int64_t columns)
{
    char full[32];
    snprintf(full, sizeof full, "%d.%s", layer, name);
    return tess_param(g, full, rows, columns, columns > 1 ? TESS_NORMAL(0.15f) : TESS_ONE);
}

static tess_tensor *attend(const struct net *n, tess_tensor *x, int layer, const struct look *l)
{
    tess_graph *g = n->g;
    tess_attention_conf c = l->conf;
    const int64_t narrow = (c.groups ? c.groups : HEADS) * (C / HEADS);
    c.bounds = l->bounded ? n->bounds : NULL;
    if (l->buckets) c.bias = tess_param(g, "bias", l->buckets, HEADS, TESS_NORMAL(0.5f));
    if (l->sinks) c.sinks = tess_param(g, layer ? "1.sinks" : "0.sinks", HEADS, 1, TESS_NORMAL(1));
    if (l->packed) return tess_attention_packed(tess_linear(x, weight(g, layer, "qkv", C + 2 * narrow, C), NULL), c);
    tess_tensor *q = tess_linear(x, weight(g, layer, "q", C, C), NULL);
    tess_tensor *k = tess_linear(x, weight(g, layer, "k", narrow, C), NULL);
    tess_tensor *v = tess_linear(x, weight(g, layer, "v", narrow, C), NULL);
    if (l->rope) q = tess_rope(q, (tess_rope_conf){.dim = C / HEADS});
    if (l->rope) k = tess_rope(k, (tess_rope_conf){.dim = C / HEADS});
    return tess_attention(q, k, v, c);
}

static tess_tensor *apply(const struct look *l, tess_tensor *x, tess_tensor *beside, const void *attributes)
{
    const tess_op *op;
    OK(l->own(&op));
    return tess_apply(op, (tess_tensor *[]){x, beside}, 2, attributes);
}

/* Two of five experts a row, in the place of an mlp. */
static tess_tensor *choose(struct net *n, tess_tensor *x, int layer, const struct look *l)
{
    enum { EXPERTS = 5 };
    tess_tensor *stack[2], *logits = tess_linear(x, weight(n->g, layer, "router", EXPERTS, C), NULL);
    tess_tensor *weights = tess_route(logits, 2, true, l->bounded ? n->bounds : NULL);
    for (int k = 0; k < 2; k++) {
        char name[32];
        snprintf(name, sizeof name, "%d.*.%s", layer, k ? "out" : "in");
        stack[k] = tess_param_stack(n->g, name, EXPERTS, k ? C : 2 * C, k ? 2 * C : C, TESS_NORMAL(0.15f));
    }
    n->statistics = tess_balance(logits, weights, n->statistics);
    tess_tensor *y = tess_silu(tess_expert_linear(tess_dispatch(x, weights), weights, stack[0]));
    return tess_combine(tess_expert_linear(y, weights, stack[1]), weights);
}

static void net_make(struct net *n, const tess_graph_conf *conf, const struct look *l)
{
    tess_graph *g = n->g = tess_graph_new(conf);
    n->statistics = NULL;
    n->ids = tess_input(g, "ids", B, T);
    n->targets = tess_input(g, "targets", B, l->picks ? 1 : T);
    n->place = l->picks ? tess_input(g, "place", B, 1) : NULL;
    n->bounds = l->bounded ? tess_input(g, "bounds", B, 2 * T) : NULL;
    tess_tensor *table = tess_param(g, "table", V, C, TESS_NORMAL(0.5f));
    tess_tensor *x = tess_embedding(n->ids, table, tess_param(g, "positions", T, C, TESS_NORMAL(0.5f)));
    for (int layer = 0; layer < 2; layer++) {
        tess_block(g, layer ? "second" : "first");
        tess_tensor *y = tess_rmsnorm(x, weight(g, layer, "norm", C, 1), 1e-5f);
        y = attend(n, y, layer, l);
        x = tess_add(x, tess_dropout(tess_linear(y, weight(g, layer, "proj", C, C), NULL), 0.1f));
        if (l->experts) {
            x = tess_add(x, choose(n, x, layer, l));
            continue;
        }
        y = tess_gelu(tess_linear(x, weight(g, layer, "in", 2 * C, C), NULL), TESS_GELU_TANH);
        if (l->own == gated_register) y = apply(l, y, y, &(struct gated){.sharp = 0.5f, .times = 1});
        if (l->own == ema_register) y = apply(l, y, weight(g, layer, "decay", 2 * C, 1), NULL);
        x = tess_add(x, tess_linear(y, weight(g, layer, "out", C, 2 * C), NULL));
    }
    tess_block_end(g);
    if (l->picks) x = tess_gelu(tess_pick(x, n->place), TESS_GELU_TANH);
    n->loss = tess_cross_entropy(x, table, NULL, n->targets);
    if (n->statistics) n->loss = tess_balanced(n->loss, n->statistics, n->targets, 0.5f);
}

static void net_feed(const struct net *n, tess_step *s)
{
    static int32_t ids[2 * B * T], targets[2 * B * T], bounds[2 * B * 2 * T];
    uint32_t r = 7;
    for (int i = 0; i < 2 * B * T; i++) {
        ids[i] = (int32_t)((r = r * 1664525u + 1013904223u) >> 8) % V;
        targets[i] = i % 11 == 3 ? -100 : (int32_t)((r = r * 1664525u + 1013904223u) >> 8) % V;
    }
    /* Two documents, the first of which ends within a span; then rows that nobody sees, and that see nothing. */
    for (int s2 = 0; s2 < 2 * B; s2++)
        for (int t = 0; t < T; t++) {
            const int edge = 310 + 7 * s2, end = 580;
            bounds[s2 * 2 * T + t] = t < edge ? 0 : edge;
            bounds[s2 * 2 * T + T + t] = t < edge ? edge : t < end ? end : 0;
            if (n->bounds && t >= end) targets[s2 * T + t] = -100;
        }
    OK(tess_step_feed(s, n->ids, ids));
    OK(tess_step_feed(s, n->targets, targets));
    if (n->place) OK(tess_step_feed(s, n->place, (int32_t[2 * B]){T - 21, 0, 255, 256}));
    if (n->bounds) OK(tess_step_feed(s, n->bounds, bounds));
}

/* The loss, and all gradients one after the other, which the caller frees. */
static float *gradients(const tess_graph_conf *conf, const struct look *l, const tess_step_conf *of, double *loss)
{
    struct net n;
    tess_step *s;
    tess_step_result r = {0};
    tess_step_conf c = *of;
    net_make(&n, conf, l);
    c.train = c.keep_gradients = true, c.micro = 2;
    OK(tess_step_new(n.loss, &c, &s));
    OK(tess_graph_init(n.g, 5));
    net_feed(&n, s);
    OK(tess_step_run(s, &(tess_step_input){.seed = 3}, &r));
    *loss = r.loss;
    float *all = tess_alloc((size_t)tess_graph_param_elements(n.g) * sizeof *all), *at = all;
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        OK(tess_step_gradient(s, tess_graph_param(n.g, k), at));
        at += elements_of(tess_graph_param(n.g, k));
    }
    tess_step_free(s);
    tess_graph_free(n.g);
    return all;
}

/* Relative distance in norm of the gradients of each parameter. */
static void compare(const float *a, const float *b, const struct look *l, double most)
{
    struct net n;
    net_make(&n, &(tess_graph_conf){0}, l);
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        const tess_tensor *p = tess_graph_param(n.g, k);
        double off = 0, size = 0;
        for (int64_t i = 0; i < elements_of(p); i++, a++, b++) {
            off += ((double)*a - *b) * ((double)*a - *b);
            size += (double)*b * *b;
        }
        if (!(sqrt(off / size) < most))
            CHECK_SAY("%s: gradients of %s %g apart", l->name, tess_tensor_name(p), sqrt(off / size));
    }
    tess_graph_free(n.g);
}

TEST(spans_are_as_whole_sequences)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (size_t k = 0; k < sizeof looks / sizeof *looks; k++)
        for (int half = 0; half < 2; half++) {
            const tess_graph_conf whole = {.dtype = half ? TESS_BF16 : TESS_F32, .tile_rows = B * T},
                                  cut = {.dtype = whole.dtype, .tile_rows = SPAN};
            double loss[2];
            float *one = gradients(&whole, &looks[k], &(tess_step_conf){0}, &loss[0]);
            float *many = gradients(&cut, &looks[k], &(tess_step_conf){0}, &loss[1]);
            CHECK_NEAR(loss[1], loss[0], (half ? 1e-3 : 1e-6) * loss[0]);
            compare(many, one, &looks[k], half ? 2e-2 : 1e-5);
            free(one), free(many);
        }
    tess_stop();
}
