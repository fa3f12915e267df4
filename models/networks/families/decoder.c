/* The network of decoder_impl.h, and what its families have in common in config.json and in files. */
#include "decoder_impl.h"
#include <string.h>

#define AT(member) offsetof(tess_decoder, member)
const tess_field tess_decoder_fields[] = {
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
    {NULL, 0, 0, 0, 0, NULL}};

static int64_t groups_of(const tess_decoder *c)
{
    return c->groups ? c->groups : c->heads;
}
static int64_t dim_of(const tess_decoder *c)
{
    return c->dim ? c->dim : c->width / c->heads;
}

/* Windows, and which layers have them. */
static tess_status check_windows(const tess_decoder *c, const char *where)
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

tess_status tess_decoder_check(const void *numbers, const char *where)
{
    const tess_decoder *c = numbers;
    if (!c->dim && c->width % c->heads)
        return tess_error(TESS_INVALID, where,
                          "hidden_size %lld is no multiple of num_attention_heads %lld (or say head_dim)",
                          (long long)c->width, (long long)c->heads);
    if (c->heads % groups_of(c))
        return tess_error(TESS_INVALID, where, "num_attention_heads %lld is no multiple of num_key_value_heads %lld",
                          (long long)c->heads, (long long)c->groups);
    if (!c->dim && dim_of(c) % 2)
        return tess_error(
            TESS_INVALID, where,
            "hidden_size %lld over num_attention_heads %lld makes heads of %lld (expected an even number: "
            "positions turn pairs)",
            (long long)c->width, (long long)c->heads, (long long)dim_of(c));
    if (dim_of(c) % 2)
        return tess_error(TESS_INVALID, where, "head_dim: %lld (expected an even number: positions turn pairs)",
                          (long long)dim_of(c));
    if (c->attention_dropout >= 1)
        return tess_error(TESS_INVALID, where, "attention_dropout: %g (expected 0 to below 1)", c->attention_dropout);
    TESS_TRY(check_windows(c, where));
    return tess_rotary_check(&c->rotary, where);
}

void tess_decoder_slide_from(tess_decoder *c, int64_t first)
{
    for (int64_t k = first; k < c->common.layers && k < TESS_MOST_LAYERS && c->window && !c->sliding.given; k++)
        tess_layer_set(&c->sliding, k);
}

/* ---- the network ---- */

struct block {
    const tess_decoder *c;
    const tess_decoder_traits *traits;
    tess_graph *g;
    const tess_network *in;
    int layer;
};

static tess_tensor *param(const struct block *b, const char *name, int64_t rows, int64_t columns, tess_init init)
{
    char full[128];
    snprintf(full, sizeof full, "layers.%d.%s", b->layer, name);
    return tess_param(b->g, full, rows, columns, init);
}

/* x (B,T,in) -> (B,T,out) */
static tess_tensor *dense(const struct block *b, const char *name, tess_tensor *x, int64_t in, int64_t out, bool bias)
{
    char weight[64], vector[64];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(vector, sizeof vector, "%s.bias", name);
    tess_tensor *w = param(b, weight, out, in, TESS_NORMAL((float)b->c->common.init));
    tess_tensor *y = tess_linear(x, w, bias ? param(b, vector, out, 1, TESS_ZERO) : NULL);
    return tess_name(y, "layers.%d.%s", b->layer, name);
}

static tess_tensor *norm_by(const struct block *b, tess_tensor *x, tess_tensor *gain)
{
    const float eps = (float)b->c->eps;
    return b->traits->gains_from_one ? tess_rmsnorm_shifted(x, gain, 1, eps) : tess_rmsnorm(x, gain, eps);
}

static tess_init first_gain(const struct block *b)
{
    return b->traits->gains_from_one ? TESS_ZERO : TESS_ONE;
}

static tess_tensor *norm(const struct block *b, const char *name, tess_tensor *x, int64_t width)
{
    return norm_by(b, x, param(b, name, width, 1, first_gain(b)));
}

static tess_tensor *attend(const struct block *b, tess_tensor *x)
{
    const tess_decoder *c = b->c;
    const int64_t D = dim_of(c), wide = c->heads * D, narrow = groups_of(c) * D;
    tess_tensor *q = dense(b, "self_attn.q_proj", x, c->width, wide, b->traits->qkv_bias);   // (B, T, heads*D)
    tess_tensor *k = dense(b, "self_attn.k_proj", x, c->width, narrow, b->traits->qkv_bias); // (B, T, groups*D)
    tess_tensor *v = dense(b, "self_attn.v_proj", x, c->width, narrow, b->traits->qkv_bias);
    if (b->traits->head_norms) {
        q = norm(b, "self_attn.q_norm.weight", q, D);
        k = norm(b, "self_attn.k_norm.weight", k, D);
    }
    tess_rope_conf turns = tess_rotary_of(&c->rotary, D, D);
    turns.places = b->in->positions;
    q = tess_rope(q, turns);
    k = tess_rope(k, turns);
    const bool slides = c->window && tess_layer_second(&c->sliding, b->layer);
    const tess_attention_conf conf = {.heads = c->heads,
                                      .groups = groups_of(c),
                                      .scale = b->traits->scale,
                                      .dropout = (float)c->attention_dropout,
                                      .causal = true,
                                      .window = slides ? c->window : 0,
                                      .cap = b->traits->cap,
                                      .bounds = b->in->bounds,
                                      .cache = b->in->cache};
    tess_tensor *y = tess_attention(q, k, v, conf);
    return dense(b, "self_attn.o_proj", y, wide, c->width, b->traits->out_bias); // (B, T, C)
}

static tess_tensor *mlp(const struct block *b, tess_tensor *x)
{
    const tess_decoder *c = b->c;
    const bool bias = b->traits->mlp_bias;
    if (b->traits->experts && !(b->traits->dense && tess_layer_second(b->traits->dense, b->layer)))
        return tess_experts_mlp(c, b->traits->experts, b->g, b->in, b->layer, x);
    tess_tensor *gate = dense(b, "mlp.gate_proj", x, c->width, c->inner, bias); // (B, T, inner)
    tess_tensor *up = dense(b, "mlp.up_proj", x, c->width, c->inner, bias);
    return dense(b, "mlp.down_proj", tess_mul(tess_activate(gate, c->activation), up), c->inner, c->width, bias);
}

/* What attention or the mlp makes of x, whose norm is `before`; `behind` is its result's, where there is one. */
static tess_tensor *around(const struct block *b, tess_tensor *(*inner)(const struct block *, tess_tensor *),
                           tess_tensor *x, const char *before, const char *behind)
{
    const int64_t width = b->c->width;
    tess_tensor *y = inner(b, norm(b, before, x, width));
    return tess_add(x, b->traits->norms_behind ? norm(b, behind, y, width) : y);
}

tess_tensor *tess_decoder_body(const tess_decoder *c, const tess_decoder_traits *traits, tess_graph *g,
                               const tess_network *in)
{
    struct block b = {c, traits, g, in, 0};
    tess_tensor *table =
        tess_param(g, "embed_tokens.weight", c->common.vocab, c->width, TESS_NORMAL((float)c->common.init));
    tess_tensor *x = traits->embedding_scale > 0 ? tess_embedding_scaled(in->ids, table, traits->embedding_scale)
                                                 : tess_embedding(in->ids, table, NULL); // (B, T, C)
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
    return norm_by(&b, x, tess_param(g, "norm.weight", c->width, 1, first_gain(&b)));
}

tess_head tess_decoder_head(const void *numbers, tess_graph *g)
{
    const tess_decoder *c = numbers;
    const char *name = c->common.tied ? "embed_tokens.weight" : "lm_head.weight";
    return (tess_head){.weight = tess_param(g, name, c->common.vocab, c->width, TESS_NORMAL((float)c->common.init))};
}

/* ---- files ---- */

/* The head stands beside the body, which is what the prefix names. */
bool tess_decoder_bare(const char *name)
{
    return !strcmp(name, "lm_head.weight");
}

/* The speeds at which positions turn, which older files carry, and a copy of the tied head. */
bool tess_decoder_extra(const char *name)
{
    static const char end[] = ".rotary_emb.inv_freq";
    const size_t n = strlen(name), m = sizeof end - 1;
    return (n >= m && !strcmp(name + n - m, end)) || !strcmp(name, "lm_head.weight");
}
