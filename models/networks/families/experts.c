/* Experts in the place of an mlp, see decoder_impl.h: each is a gated mlp, of which a row goes through a few. */
#include "decoder_impl.h"

tess_status tess_experts_check(const tess_experts *e, const char *count, const char *where)
{
    if (e->chosen <= e->count) return TESS_OK;
    return tess_error(TESS_INVALID, where, "num_experts_per_tok: %lld (expected at most %s, which is %lld)",
                      (long long)e->chosen, count, (long long)e->count);
}

/* One matrix of each expert, (rows, columns), whose name in files has its number for the star. */
static tess_tensor *stack(const tess_decoder *c, const tess_experts *e, tess_graph *g, int layer, const char *name,
                          int64_t rows, int64_t columns)
{
    char full[128];
    snprintf(full, sizeof full, "layers.%d.%s", layer, name);
    return tess_param_stack(g, full, e->count, rows, columns, TESS_NORMAL((float)c->common.init));
}

tess_tensor *tess_experts_mlp(const tess_decoder *c, const tess_expert_traits *traits, tess_graph *g,
                              const tess_network *in, int layer, tess_tensor *x)
{
    const tess_experts *e = traits->experts;
    char name[128];
    snprintf(name, sizeof name, "layers.%d.%s", layer, traits->router);
    tess_tensor *router = tess_param(g, name, e->count, c->width, TESS_NORMAL((float)c->common.init));
    tess_tensor *logits = tess_name(tess_linear(x, router, NULL), "layers.%d.%s", layer, traits->router); // (B, T, E)
    tess_tensor *weights = tess_route(logits, e->chosen, e->normalised, in->bounds);                      // (B, T, k)
    if (in->routed && e->balanced) {
        in->routed->statistics = tess_balance(logits, weights, in->routed->statistics);
        in->routed->weight = e->balance;
    }
    tess_tensor *places = tess_dispatch(x, weights); // (B, T*k, C)
    tess_tensor *gate = tess_expert_linear(places, weights, stack(c, e, g, layer, traits->gate, e->inner, c->width));
    tess_tensor *up = tess_expert_linear(places, weights, stack(c, e, g, layer, traits->up, e->inner, c->width));
    tess_tensor *y = tess_mul(tess_activate(gate, c->activation), up); // (B, T*k, inner)
    y = tess_expert_linear(y, weights, stack(c, e, g, layer, traits->down, c->width, e->inner));
    return tess_combine(y, weights); // (B, T, C)
}
