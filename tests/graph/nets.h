/* Small networks that between them use every op, for tests of the graph room. */
#ifndef TESS_TESTS_NETS_H
#define TESS_TESTS_NETS_H
#include "tests/graph/params.h"

enum { B = 3, T = 37, C = 20, V = 101 }; /* odd on purpose: nothing divides */
enum { NET_BATCHES = 18 };               /* of B samples, that there are */

struct net {
    tess_graph *g;
    tess_tensor *ids, *targets, *loss;
    int32_t id[NET_BATCHES * B * T], target[NET_BATCHES * B * T];
};

typedef tess_tensor *(*net_body)(tess_graph *g, tess_tensor *x, int layer);

static tess_tensor *net_param(tess_graph *g, int layer, const char *name, int64_t rows, int64_t columns, tess_init init)
{
    char full[64];
    snprintf(full, sizeof full, "%d.%s", layer, name);
    return tess_param(g, full, rows, columns, init);
}
#define PARAM(name, rows, columns, init) net_param(g, layer, name, rows, columns, init)

static int net_layers = 3;

/* embedding -> body, net_layers times, each in a block -> head tied to the embedding */
static void net_make(struct net *n, const tess_graph_conf *conf, net_body body)
{
    n->g = tess_graph_new(conf);
    n->ids = tess_input(n->g, "ids", B, T);
    n->targets = tess_input(n->g, "targets", B, T);
    tess_tensor *table = tess_param(n->g, "table", V, C, TESS_NORMAL(0.2f));
    tess_tensor *positions = tess_param(n->g, "positions", T + 3, C, TESS_NORMAL(0.3f));
    tess_tensor *x = tess_embedding(n->ids, table, positions);
    for (int layer = 0; layer < net_layers; layer++) {
        char name[16];
        snprintf(name, sizeof name, "block%d", layer);
        tess_block(n->g, name);
        x = body(n->g, x, layer);
    }
    tess_block_end(n->g);
    n->loss = tess_cross_entropy(x, table, NULL, n->targets);
    uint32_t r = 12345;
    for (int i = 0; i < NET_BATCHES * B * T; i++) {
        n->id[i] = (int32_t)((r = r * 1664525u + 1013904223u) >> 8) % V;
        n->target[i] = i % 11 == 3 ? -100 : (int32_t)((r = r * 1664525u + 1013904223u) >> 8) % V;
    }
}

/* A net with a step of its loss. */
static inline tess_step *net_step(struct net *n, const tess_graph_conf *conf, net_body body, const tess_step_conf *of)
{
    tess_step *s = NULL;
    net_make(n, conf, body);
    OK(tess_step_new(n->loss, of, &s));
    return s;
}

static inline void net_free(struct net *n, tess_step *s)
{
    tess_step_free(s);
    tess_graph_free(n->g);
}

/* layernorm, packed attention, gelu mlp, dropout, residuals */
static inline tess_tensor *net_gpt(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *y = tess_layernorm(x, PARAM("ln1.g", C, 1, TESS_ONE), PARAM("ln1.b", C, 1, TESS_ZERO), 1e-5f);
    y = tess_linear(y, PARAM("qkv.w", 3 * C, C, TESS_NORMAL(0.3f)), PARAM("qkv.b", 3 * C, 1, TESS_NORMAL(0.1f)));
    y = tess_attention_packed(y, (tess_attention_conf){.heads = 5, .causal = true, .dropout = 0.1f});
    y = tess_linear(y, PARAM("proj.w", C, C, TESS_NORMAL(0.3f)), PARAM("proj.b", C, 1, TESS_ZERO));
    x = tess_add(x, tess_dropout(y, 0.2f));
    y = tess_layernorm(x, PARAM("ln2.g", C, 1, TESS_ONE), PARAM("ln2.b", C, 1, TESS_ZERO), 1e-5f);
    y = tess_linear(y, PARAM("fc.w", 67, C, TESS_NORMAL(0.3f)), PARAM("fc.b", 67, 1, TESS_ZERO));
    y = tess_gelu(y, layer % 2 ? TESS_GELU_ERF : TESS_GELU_TANH);
    y = tess_linear(y, PARAM("out.w", C, 67, TESS_NORMAL(0.2f)), NULL);
    return tess_add(tess_dropout(y, 0.2f), x);
}

/* rmsnorm, rotary, grouped bidirectional attention, gated mlp */
static inline tess_tensor *net_llama(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *n = tess_rmsnorm(x, PARAM("n1", C, 1, TESS_ONE), 1e-5f);
    tess_tensor *q = tess_linear(n, PARAM("q", C, C, TESS_NORMAL(0.3f)), NULL);
    tess_tensor *k = tess_linear(n, PARAM("k", C / 2, C, TESS_NORMAL(0.3f)), NULL);
    tess_tensor *v = tess_linear(n, PARAM("v", C / 2, C, TESS_NORMAL(0.3f)), NULL);
    q = tess_rope(q, (tess_rope_conf){.dim = 10, .rotary = 6});
    k = tess_rope(k, (tess_rope_conf){.dim = 10, .rotary = 6, .neighbours = false});
    tess_tensor *y = tess_attention(q, k, v, (tess_attention_conf){.heads = 2, .groups = 1, .causal = layer != 1});
    x = tess_add(x, tess_linear(y, PARAM("o", C, C, TESS_NORMAL(0.3f)), NULL));
    n = tess_rmsnorm(x, PARAM("n2", C, 1, TESS_ONE), 1e-5f);
    tess_tensor *gate = tess_gelu(tess_linear(n, PARAM("gate", 33, C, TESS_NORMAL(0.3f)), NULL), TESS_GELU_ERF);
    tess_tensor *up = tess_linear(n, PARAM("up", 33, C, TESS_NORMAL(0.3f)), NULL);
    return tess_add(x, tess_linear(tess_mul(gate, up), PARAM("down", C, 33, TESS_NORMAL(0.3f)), NULL));
}

/* Gradients that are shared, passed on twice, and added to in every order. */
static inline tess_tensor *net_tangle(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *a = tess_linear(x, PARAM("a", C, C, TESS_NORMAL(0.3f)), NULL);
    tess_tensor *b = tess_gelu(a, TESS_GELU_TANH);
    tess_tensor *c = tess_add(a, b); /* a is read before and after */
    tess_tensor *d = tess_add(c, c); /* the same twice */
    tess_tensor *e = tess_mul(b, b);
    tess_tensor *f = tess_add(tess_add(d, e), tess_add(x, a));
    tess_tensor *q = tess_linear(f, PARAM("q", C, C, TESS_NORMAL(0.2f)), PARAM("qb", C, 1, TESS_ZERO));
    tess_tensor *y = tess_attention(q, q, f, (tess_attention_conf){.heads = 4, .causal = true});
    return tess_rmsnorm(tess_add(y, q), PARAM("n", C, 1, TESS_ONE), 1e-6f);
}

/* A matrix in one tile, where tiles may be so large, of which more than 16 data ranks have slices; the others are
 * small. */
enum { NET_WIDE = 1024 };
static int64_t net_wide_rows = 1152;
static inline tess_tensor *net_wide(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *y = tess_linear(x, PARAM("up", NET_WIDE, C, TESS_NORMAL(0.3f)), NULL);
    y = tess_linear(tess_gelu(y, TESS_GELU_TANH), PARAM("wide", net_wide_rows, NET_WIDE, TESS_NORMAL(0.03f)),
                    PARAM("wide.b", net_wide_rows, 1, TESS_ZERO));
    return tess_add(x, tess_linear(y, PARAM("down", C, net_wide_rows, TESS_NORMAL(0.03f)), NULL));
}

/* micro micro-batches through `step`. */
static inline double net_run(struct net *n, tess_step *s, int64_t step, float lr)
{
    tess_step_result r = {0};
    OK(tess_step_feed(s, n->ids, n->id));
    OK(tess_step_feed(s, n->targets, n->target));
    OK(tess_step_run(s, &(tess_step_input){.step = step, .seed = 7, .lr = lr, .keep_weights = lr == 0}, &r));
    return r.loss;
}

#endif
