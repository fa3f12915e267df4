/* The network of decoder_impl.h, and what its families have in common in config.json. */
#include "models/networks/families/decoder_impl.h"
#include <math.h>

#define AT(member) offsetof(tess_decoder_config, member)
const tess_field tess_decoder_fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 0, 1, NULL},
    {"hidden_size", TESS_FIELD_INT, AT(width), 4096, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(inner), 11008, 1, NULL},
    {"num_hidden_layers", TESS_FIELD_INT, AT(common.layers), 32, 1, NULL},
    {"num_attention_heads", TESS_FIELD_INT, AT(heads), 32, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(groups), 0, 1, NULL},
    {"head_dim", TESS_FIELD_OPTIONAL, AT(dim), 0, 1, NULL},
    {"hidden_act", TESS_FIELD_ACTIVATION, AT(activation), TESS_ACTIVATION_SILU, 0, NULL},
    {"rms_norm_eps", TESS_FIELD_REAL, AT(eps), 1e-6, 0, NULL},
    {"attention_dropout", TESS_FIELD_TRAINING, AT(attention_dropout), 0, 0, NULL},
    {"tie_word_embeddings", TESS_FIELD_BOOL, AT(common.tied), 0, 0, NULL},
    {"rope_parameters.partial_rotary_factor", TESS_FIELD_ONLY, 0, 0, 0, "1.0"},
    {0}};

static int64_t groups_of(const tess_decoder_config *c)
{
    return c->groups ? c->groups : c->heads;
}
static int64_t dim_of(const tess_decoder_config *c)
{
    return c->dim ? c->dim : c->width / c->heads;
}

/* Elements of a head that turn. */
static int64_t turning_of(const tess_decoder_config *c)
{
    if (c->latent.turning) return c->latent.turning;
    return c->turning > 0 ? (int64_t)((double)dim_of(c) * c->turning) : dim_of(c);
}

static tess_status check_linear(const tess_decoder_config *c, const char *where)
{
    const struct {
        const char *name;
        int64_t is, least, most;
    } number[] = {{"num_hidden_layers", c->common.layers, 1, TESS_MOST_LAYERS},
                  {"linear_key_head_dim", c->linear.dim, 1, TESS_DELTA_WIDEST},
                  {"linear_value_head_dim", c->linear.dim_v, 1, TESS_DELTA_WIDEST},
                  {"linear_conv_kernel_dim", c->linear.taps, 2, TESS_DELTA_TAPS}};
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        if (number[i].is < number[i].least || number[i].is > number[i].most)
            return tess_error(TESS_INVALID, where, "%s: %lld (expected %lld to %lld)", number[i].name,
                              (long long)number[i].is, (long long)number[i].least, (long long)number[i].most);
    return tess_heads_check(where, "linear_num_value_heads", c->linear.heads, "linear_num_key_heads", c->linear.groups);
}

/* Windows, and which layers have them. */
static tess_status check_windows(const tess_decoder_config *c, const char *where)
{
    if (c->common.layers > TESS_MOST_LAYERS && c->window)
        return tess_error(TESS_INVALID, where, "num_hidden_layers: %lld (expected at most %d where layers slide)",
                          (long long)c->common.layers, TESS_MOST_LAYERS);
    for (int64_t k = 0; k < TESS_MOST_LAYERS && k < c->common.layers && !c->window; k++)
        if (tess_layer_second(&c->sliding, k))
            return tess_error(TESS_INVALID, where,
                              "layer_types: layer %lld is sliding_attention, but windows are off (expected "
                              "sliding_window, and use_sliding_window where the family has it)",
                              (long long)k);
    return TESS_OK;
}

static tess_status check_experts(const tess_decoder_config *c, const tess_decoder_traits *t, const char *where)
{
    if (t->some_dense && c->common.layers > TESS_MOST_LAYERS)
        return tess_error(TESS_INVALID, where, "num_hidden_layers: %lld (expected at most %d)",
                          (long long)c->common.layers, TESS_MOST_LAYERS);
    if (c->experts.jitter > 0)
        return tess_error(TESS_INVALID, where, "router_jitter_noise: %g (expected 0: routers see their input as it is)",
                          c->experts.jitter);
    const int64_t groups = c->experts.groups, each = groups ? c->experts.count / groups : 0;
    if (groups && (groups > TESS_ROUTE_GROUPS || c->experts.count % groups || each < 2))
        return tess_error(TESS_INVALID, where,
                          "n_group: %lld (expected at most %d equal groups, of two or more of %s %lld)",
                          (long long)groups, TESS_ROUTE_GROUPS, t->count, (long long)c->experts.count);
    if (groups && (c->experts.kept > groups || c->experts.kept * each < c->experts.chosen))
        return tess_error(
            TESS_INVALID, where,
            "topk_group: %lld (expected at most n_group %lld, with all %lld experts of a token among them)",
            (long long)c->experts.kept, (long long)groups, (long long)c->experts.chosen);
    if (c->experts.chosen <= c->experts.count) return TESS_OK;
    return tess_error(TESS_INVALID, where, "num_experts_per_tok: %lld (expected at most %s, which is %lld)",
                      (long long)c->experts.chosen, t->count, (long long)c->experts.count);
}

static tess_status check_heads(const tess_decoder_config *c, const char *where)
{
    if (!c->dim && c->width % c->heads)
        return tess_error(TESS_INVALID, where,
                          "hidden_size %lld is no multiple of num_attention_heads %lld (or say head_dim)",
                          (long long)c->width, (long long)c->heads);
    TESS_TRY(tess_heads_check(where, "num_attention_heads", c->heads, "num_key_value_heads", groups_of(c)));
    if (c->turning > 0 && (c->turning > 1 || turning_of(c) < 2 || turning_of(c) % 2))
        return tess_error(TESS_INVALID, where,
                          "partial_rotary_factor: %g (expected a share of a head's %lld elements that is an even "
                          "number of them)",
                          c->turning, (long long)dim_of(c));
    if (!c->dim && dim_of(c) % 2)
        return tess_error(
            TESS_INVALID, where,
            "hidden_size %lld over num_attention_heads %lld makes heads of %lld (expected an even number: "
            "positions turn pairs)",
            (long long)c->width, (long long)c->heads, (long long)dim_of(c));
    if (dim_of(c) % 2)
        return tess_error(TESS_INVALID, where, "head_dim: %lld (expected an even number: positions turn pairs)",
                          (long long)dim_of(c));
    return TESS_OK;
}

static tess_status check_latent(const tess_decoder_config *c, const char *where)
{
    if (groups_of(c) != c->heads)
        return tess_error(TESS_INVALID, where,
                          "num_key_value_heads: %lld (expected num_attention_heads, which is %lld)",
                          (long long)c->groups, (long long)c->heads);
    if (c->latent.turning % 2)
        return tess_error(TESS_INVALID, where, "qk_rope_head_dim: %lld (expected an even number: positions turn pairs)",
                          (long long)c->latent.turning);
    return TESS_OK;
}

tess_status tess_decoder_check(const tess_family *f, const void *numbers, const char *where)
{
    const tess_decoder_config *c = numbers;
    const tess_decoder_traits *t = f->traits;
    TESS_TRY(check_experts(c, t, where));
    if (c->rotary.kind == TESS_ROTARY_UNSAID)
        return tess_error(TESS_INVALID, where,
                          "rope_parameters.rope_type: none (expected one to be named, as \"yarn\" or \"default\")");
    if (t->count && !t->up && !(c->experts.limit > 0))
        return tess_error(TESS_INVALID, where, "swiglu_limit: null (expected a number above 0)");
    if (t->scaled && !(c->query_scalar > 0))
        return tess_error(TESS_INVALID, where, "query_pre_attn_scalar: %g (expected above 0)", c->query_scalar);
    if (t->linear) TESS_TRY(check_linear(c, where));
    TESS_TRY((t->latent ? check_latent : check_heads)(c, where));
    const tess_rate rates[] = {{"attention_dropout", c->attention_dropout}, {"resid_pdrop", c->residual_dropout}};
    TESS_TRY(tess_rates_check(where, rates, 2));
    TESS_TRY(check_windows(c, where));
    return tess_rotary_check(&c->rotary, turning_of(c), where);
}

static bool slides_where_none_is_named(const tess_decoder_config *c, const tess_decoder_traits *t, int64_t layer)
{
    const int64_t every = c->full_every ? c->full_every : t->full_every;
    if (t->still_slide) return tess_layer_second(&c->still, layer);
    return layer >= c->full_layers && (!every || (layer + 1) % every);
}

/* Without use_sliding_window the rest says nothing; layer_types says what max_window_layers does. */
void tess_decoder_settle(const tess_family *f, void *numbers)
{
    tess_decoder_config *c = numbers;
    const tess_decoder_traits *t = f->traits;
    const int64_t layers = c->common.layers < TESS_MOST_LAYERS ? c->common.layers : TESS_MOST_LAYERS;
    if (t->fused && (c->rotary.kind == TESS_ROTARY_SU || c->rotary.kind == TESS_ROPE_YARN))
        c->rotary.kind = TESS_ROPE_LONG; /* as such files first called it */
    if (t->asks_window && !c->use_window) c->window = 0;
    for (int64_t k = 0; k < layers && c->still_every && !c->still.given; k++)
        if ((k + 1) % c->still_every == 0) tess_layer_set(&c->still, k);
    for (int64_t k = 0; k < layers && !c->sliding.given && (c->window || t->full_every); k++)
        if (slides_where_none_is_named(c, t, k)) tess_layer_set(&c->sliding, k);
    for (int64_t k = 0; k < layers && c->linear.every && !c->linear.layers.given; k++)
        if ((k + 1) % c->linear.every) tess_layer_set(&c->linear.layers, k);
    for (int64_t k = 0; k < layers && c->experts.every; k++)
        if ((k + 1) % c->experts.every) tess_layer_set(&c->experts.dense, k);
    for (int64_t k = 0; k < layers && k < c->experts.behind; k++) tess_layer_set(&c->experts.dense, k);
    c->full_layers = c->full_every = c->still_every = c->experts.behind = c->linear.every = 0;
    c->experts.every = 1;
    c->experts.normalised |= t->normalised;
}

/* ---- the network ---- */

struct block {
    const tess_decoder_config *c;
    const tess_decoder_traits *traits;
    tess_graph *g;
    const tess_network *in;
    int layer;
};

/* x (B,T,in) -> (B,T,out) */
static tess_tensor *dense(const struct block *b, const char *name, tess_tensor *x, int64_t in, int64_t out, bool bias)
{
    return tess_dense(b->g, x, in, out, b->c->common.init, bias ? TESS_BIAS_BEHIND : TESS_NO_BIAS, "layers.%d.%s",
                      b->layer, name);
}

/* The rmsnorm NAME of x, in the layer, or behind all of them. */
static tess_tensor *norm(const struct block *b, const char *name, tess_tensor *x, int64_t width)
{
    char full[128];
    const bool shifted = b->traits->gains_from_one;
    snprintf(full, sizeof full, "layers.%d.%s", b->layer, name);
    tess_tensor *gain =
        tess_param(b->g, b->layer < b->c->common.layers ? full : name, width, 1, shifted ? TESS_ZERO : TESS_ONE);
    return shifted ? tess_rmsnorm_shifted(x, gain, 1, (float)b->c->eps) : tess_rmsnorm(x, gain, (float)b->c->eps);
}

static bool slides(const struct block *b)
{
    return b->c->window && tess_layer_second(&b->c->sliding, b->layer);
}

static tess_attention_conf attention_of(const struct block *b)
{
    const tess_decoder_config *c = b->c;
    char sinks[64];
    snprintf(sinks, sizeof sinks, "layers.%d.self_attn.sinks", b->layer);
    return (tess_attention_conf){
        .heads = c->heads,
        .groups = groups_of(c),
        .scale = (float)(b->traits->scaled ? 1 / sqrt(c->query_scalar) : c->attention_by),
        .dropout = (float)c->attention_dropout,
        .causal = true,
        .window = slides(b) ? c->window : 0,
        .cap = (float)c->attention_cap,
        .bounds = b->in->bounds,
        .sinks = b->traits->sinks ? tess_param(b->g, sinks, c->heads, 1, TESS_NORMAL((float)c->common.init)) : NULL,
        .cache = b->in->cache};
}

/* q, k and v side by side, as one matrix makes them. */
static tess_tensor *attend_fused(const struct block *b, tess_tensor *x, tess_rope_conf turns)
{
    const tess_decoder_config *c = b->c;
    turns.turning = c->heads + groups_of(c);
    turns.of = turns.turning + groups_of(c);
    tess_tensor *qkv = dense(b, "self_attn.qkv_proj", x, c->width, turns.of * dim_of(c), false);
    return tess_attention_packed(tess_rope(qkv, turns), attention_of(b));
}

/* Elements of each head of q and its gate, one behind the other. */
static tess_tensor *part_of(const struct block *b, tess_tensor *both, int64_t first)
{
    const int64_t D = dim_of(b->c);
    return tess_strips(both, (tess_run_of){2 * D, first, D}, NULL, (tess_run_of){0}, b->c->heads, D);
}

static tess_tensor *attend_apart(const struct block *b, tess_tensor *x, tess_rope_conf turns)
{
    const tess_decoder_config *c = b->c;
    const bool bias = b->traits->qkv_bias || c->attention_bias;
    const int64_t D = dim_of(c), wide = c->heads * D, narrow = groups_of(c) * D;
    const bool gates = b->traits->linear; /* each head of q lies before its gate */
    tess_tensor *both = dense(b, "self_attn.q_proj", x, c->width, gates ? 2 * wide : wide, bias);
    tess_tensor *q = gates ? part_of(b, both, 0) : both;                      // (B, T, heads*D)
    tess_tensor *k = dense(b, "self_attn.k_proj", x, c->width, narrow, bias); // (B, T, groups*D)
    tess_tensor *v = dense(b, "self_attn.v_proj", x, c->width, narrow, bias);
    if (b->traits->head_norms || b->traits->whole_norms) {
        q = norm(b, "self_attn.q_norm.weight", q, b->traits->head_norms ? D : wide);
        k = norm(b, "self_attn.k_norm.weight", k, b->traits->head_norms ? D : narrow);
    }
    const bool still = tess_layer_second(&c->still, b->layer);
    tess_tensor *y =
        tess_attention(still ? q : tess_rope(q, turns), still ? k : tess_rope(k, turns), v, attention_of(b));
    return gates ? tess_mul(y, tess_sigmoid(part_of(b, both, D))) : y;
}

/* A parameter of linear attention. */
static tess_tensor *of_linear(const struct block *b, const char *name, int64_t rows, int64_t columns, tess_init init)
{
    char full[128];
    snprintf(full, sizeof full, "layers.%d.linear_attn.%s", b->layer, name);
    return tess_param(b->g, full, rows, columns, init);
}

static tess_tensor *attend_linear(const struct block *b, tess_tensor *x)
{
    const tess_decoder_config *c = b->c;
    const int64_t heads = c->linear.heads, all = heads * c->linear.dim_v;
    const int64_t channels = 2 * c->linear.groups * c->linear.dim + all;
    tess_tensor *qkv = dense(b, "linear_attn.in_proj_qkv", x, c->width, channels, false);
    tess_tensor *z = dense(b, "linear_attn.in_proj_z", x, c->width, all, false); // (B, T, heads*dim_v)
    tess_tensor *beta = dense(b, "linear_attn.in_proj_b", x, c->width, heads, false);
    tess_tensor *fade = dense(b, "linear_attn.in_proj_a", x, c->width, heads, false);
    tess_tensor *taps = of_linear(b, "conv1d.weight", channels, c->linear.taps, TESS_NORMAL((float)c->common.init));
    tess_tensor *logs = of_linear(b, "A_log", heads, 1, TESS_UNIFORM(2.77f)); /* of 1/16 to 16 */
    const tess_delta_conf conf = {.heads = heads,
                                  .groups = c->linear.groups,
                                  .dim = c->linear.dim,
                                  .bounds = b->in->bounds,
                                  .cache = b->in->cache};
    tess_tensor *y = tess_delta_rule(qkv, taps, beta, fade, logs, of_linear(b, "dt_bias", heads, 1, TESS_ONE), conf);
    y = tess_rmsnorm(y, of_linear(b, "norm.weight", c->linear.dim_v, 1, TESS_ONE), (float)c->eps);
    return dense(b, "linear_attn.out_proj", tess_mul(y, tess_silu(z)), all, c->width, false); // (B, T, C)
}

/* A norm of what heads are made of, whose eps no field says. */
static tess_tensor *latent_norm(const struct block *b, const char *name, tess_tensor *x, int64_t width)
{
    char full[128];
    snprintf(full, sizeof full, "layers.%d.self_attn.%s.weight", b->layer, name);
    return tess_rmsnorm(x, tess_param(b->g, full, width, 1, TESS_ONE), 1e-6f);
}

/* Heads of q, and those of k and v, are made of fewer numbers than they have, and what turns in k is the same in all
 * heads. To attention all are as wide as the widest, with zeros behind. A cache has whole heads too: of the few numbers
 * it would hold an eightieth in DeepSeek-V3, and every step would make all heads again. */
static tess_tensor *attend_latent(const struct block *b, tess_tensor *x, tess_rope_conf turns)
{
    const tess_decoder_config *c = b->c;
    const int64_t H = c->heads, still = c->latent.still, turning = c->latent.turning, V = c->latent.values,
                  D = still + turning, wide = D > V ? D : V, rank = c->latent.keys, made = c->latent.queries;
    tess_tensor *q = x;
    if (made)
        q = latent_norm(b, "q_a_layernorm", dense(b, "self_attn.q_a_proj", x, c->width, made, c->attention_bias), made);
    q = dense(b, made ? "self_attn.q_b_proj" : "self_attn.q_proj", q, made ? made : c->width, H * D, false);
    tess_tensor *few = dense(b, "self_attn.kv_a_proj_with_mqa", x, c->width, rank + turning, c->attention_bias);
    turns.last = true, turns.neighbours = c->latent.neighbours;
    turns.dim = D, q = tess_rope(q, turns);                  // (B, T, H*D)
    turns.dim = rank + turning, few = tess_rope(few, turns); // (B, T, rank + turning)
    const tess_run_of none = {0}, turned = {rank + turning, rank, turning};
    tess_tensor *kv = tess_strips(few, (tess_run_of){rank + turning, 0, rank}, NULL, none, 1, rank);
    kv = dense(b, "self_attn.kv_b_proj", latent_norm(b, "kv_a_layernorm", kv, rank), rank, H * (still + V), false);
    tess_tensor *k = tess_strips(kv, (tess_run_of){still + V, 0, still}, few, turned, H, wide);
    tess_tensor *v = tess_strips(kv, (tess_run_of){still + V, still, V}, NULL, none, H, wide);
    if (wide > D) q = tess_strips(q, (tess_run_of){D, 0, D}, NULL, none, H, wide);
    tess_attention_conf conf = attention_of(b);
    conf.groups = H, conf.scale = (float)(tess_rotary_sharper(&c->rotary) / sqrt((double)D));
    tess_tensor *y = tess_attention(q, k, v, conf);
    if (wide > V) y = tess_strips(y, (tess_run_of){wide, 0, V}, NULL, none, H, V);
    return dense(b, "self_attn.o_proj", y, H * V, c->width, c->attention_bias); // (B, T, C)
}

static tess_tensor *attend(const struct block *b, tess_tensor *x)
{
    const tess_decoder_config *c = b->c;
    if (tess_layer_second(&c->linear.layers, b->layer)) return attend_linear(b, x);
    tess_rope_conf turns = tess_rotary_of(&c->rotary, dim_of(c), turning_of(c), b->in);
    if (slides(b) && c->sliding_base > 0) {
        turns.base = (float)c->sliding_base;
        turns.scaling = (tess_rope_scaling){TESS_ROPE_PLAIN};
    }
    if (b->traits->latent) return attend_latent(b, x, turns);
    tess_tensor *y = (b->traits->fused ? attend_fused : attend_apart)(b, x, turns);
    return dense(b, "self_attn.o_proj", y, c->heads * dim_of(c), c->width, c->attention_bias); // (B, T, C)
}

/* One matrix of each expert, (rows, columns), for those rows that go through it. */
static tess_tensor *expert(const struct block *b, const char *name, tess_tensor *x, tess_tensor *weights, int64_t rows,
                           int64_t columns)
{
    char full[128];
    snprintf(full, sizeof full, "layers.%d.%s", b->layer, name);
    tess_tensor *stack =
        tess_param_stack(b->g, full, b->c->experts.count, rows, columns, TESS_NORMAL((float)b->c->common.init));
    tess_tensor *y = tess_expert_linear(x, weights, stack);
    if (b->traits->up) return y;
    snprintf(full, sizeof full, "layers.%d.%s_bias", b->layer, name);
    return tess_expert_bias(y, weights, tess_param(b->g, full, b->c->experts.count, rows, TESS_ZERO));
}

/* What experts make between their matrices: (B, T*k, inner). */
static tess_tensor *gated(const struct block *b, tess_tensor *places, tess_tensor *weights)
{
    const tess_decoder_config *c = b->c;
    const int64_t width = c->width, inner = c->experts.inner;
    if (!b->traits->up)
        return tess_swiglu_clamped(expert(b, b->traits->gate, places, weights, 2 * inner, width),
                                   (float)c->experts.sharp, (float)c->experts.limit);
    tess_tensor *gate = expert(b, b->traits->gate, places, weights, inner, width);
    tess_tensor *up = expert(b, b->traits->up, places, weights, inner, width);
    return tess_mul(tess_activate(gate, c->activation), up);
}

/* A gated MLP, whose three matrices are NAME.gate_proj, NAME.up_proj and NAME.down_proj. */
static tess_tensor *gated_mlp(const struct block *b, const char *name, tess_tensor *x, int64_t inner)
{
    const tess_decoder_config *c = b->c;
    char full[3][64];
    static const char *const part[] = {"gate", "up", "down"};
    for (int k = 0; k < 3; k++) snprintf(full[k], sizeof full[k], "%s.%s_proj", name, part[k]);
    tess_tensor *gate = dense(b, full[0], x, c->width, inner, c->mlp_bias); // (B, T, inner)
    tess_tensor *up = dense(b, full[1], x, c->width, inner, c->mlp_bias);
    return dense(b, full[2], tess_mul(tess_activate(gate, c->activation), up), inner, c->width, c->mlp_bias);
}

/* The weights of the experts that each row chooses. */
static tess_tensor *route(const struct block *b, tess_tensor *logits)
{
    const tess_decoder_config *c = b->c;
    const tess_route_conf conf = {.chosen = c->experts.chosen,
                                  .groups = c->experts.groups,
                                  .kept = c->experts.kept,
                                  .normalised = c->experts.normalised,
                                  .scale = (float)c->experts.scale};
    if (!b->traits->bias) return tess_route_scored(logits, NULL, b->in->bounds, conf);
    char full[128];
    snprintf(full, sizeof full, "layers.%d.%s", b->layer, b->traits->bias);
    tess_tensor *bias = tess_param(b->g, full, c->experts.count, 1, TESS_ZERO);
    if (tess_param_freeze(bias) != TESS_OK) return NULL; /* its owner moves it by how many rows an expert has */
    return tess_route_scored(logits, bias, b->in->bounds, conf);
}

/* Experts in the place of an MLP: each is a gated MLP, and a row passes through c->experts.chosen of them. */
static tess_tensor *experts(const struct block *b, tess_tensor *x)
{
    const tess_decoder_config *c = b->c;
    const tess_decoder_traits *t = b->traits;
    tess_tensor *logits = dense(b, t->router, x, c->width, c->experts.count, !t->up); // (B, T, E)
    tess_tensor *weights = route(b, logits);                                          // (B, T, k)
    if (b->in->routed && c->experts.balanced) {
        b->in->routed->statistics = tess_balance(logits, weights, b->in->routed->statistics);
        b->in->routed->weight = c->experts.balance;
    }
    tess_tensor *places = tess_dispatch(x, weights);                                       // (B, T*k, C)
    tess_tensor *y = gated(b, places, weights);                                            // (B, T*k, inner)
    y = tess_combine(expert(b, t->down, y, weights, c->width, c->experts.inner), weights); // (B, T, C)
    if (!c->experts.shared) return y;
    return tess_add(y, gated_mlp(b, "mlp.shared_experts", x, c->experts.shared * c->experts.inner));
}

static tess_tensor *mlp(const struct block *b, tess_tensor *x)
{
    const tess_decoder_config *c = b->c;
    if (b->traits->count && !tess_layer_second(&c->experts.dense, b->layer)) return experts(b, x);
    if (b->traits->fused)
        return dense(b, "mlp.down_proj", tess_swiglu(dense(b, "mlp.gate_up_proj", x, c->width, 2 * c->inner, false)),
                     c->inner, c->width, false);
    return gated_mlp(b, "mlp", x, c->inner);
}

/* What attention or the mlp makes of x, whose norm is `before`; `behind` is its result's, where there is one. */
static tess_tensor *around(const struct block *b, tess_tensor *(*inner)(const struct block *, tess_tensor *),
                           tess_tensor *x, const char *before, const char *behind)
{
    const int64_t width = b->c->width;
    const tess_decoder_traits *t = b->traits;
    tess_tensor *y = inner(b, t->norms_behind_alone ? x : norm(b, before, x, width));
    if (t->norms_behind || t->norms_behind_alone) y = norm(b, behind, y, width);
    y = tess_dropout(y, (float)b->c->residual_dropout);
    return tess_add(x, b->c->residual_by > 0 ? tess_scaled(y, (float)b->c->residual_by) : y);
}

tess_tensor *tess_decoder_body(const tess_family *f, const void *numbers, tess_graph *g, const tess_network *in)
{
    const tess_decoder_config *c = numbers;
    const tess_decoder_traits *traits = f->traits;
    struct block b = {c, traits, g, in, 0};
    tess_tensor *table =
        tess_param(g, "embed_tokens.weight", c->common.vocab, c->width, TESS_NORMAL((float)c->common.init));
    const double by = traits->scaled ? sqrt((double)c->width) : c->embedding_by;
    tess_tensor *x =
        by > 0 ? tess_embedding_scaled(in->ids, table, (float)by) : tess_embedding(in->ids, table, NULL); // (B, T, C)
    for (; b.layer < c->common.layers; b.layer++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d", b.layer);
        tess_block(g, name);
        x = around(&b, attend, x, "input_layernorm.weight", "post_attention_layernorm.weight");
        x = around(&b, mlp, x,
                   traits->norms_behind ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight",
                   "post_feedforward_layernorm.weight");
    }
    tess_block_end(g);
    return norm(&b, "norm.weight", x, c->width);
}

/* A factor of the rows is one of the logits. */
tess_tensor *tess_decoder_transform(const void *numbers, tess_graph *g, tess_tensor *x)
{
    const tess_decoder_config *c = numbers;
    (void)g;
    return c->logits_over > 0 ? tess_scaled(x, (float)(1 / c->logits_over)) : x;
}

tess_head tess_decoder_head(const void *numbers, tess_graph *g)
{
    const tess_decoder_config *c = numbers;
    const char *name = c->common.tied ? "embed_tokens.weight" : "lm_head.weight";
    return (tess_head){.weight = tess_param(g, name, c->common.vocab, c->width, TESS_NORMAL((float)c->common.init)),
                       .cap = (float)c->logit_cap};
}
