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
    {"max_position_embeddings", TESS_FIELD_INT, AT(trained_positions), 2048, 1, NULL},
    /* How positions turn; two spellings, of which the later one has the base inside. */
    {"rope_theta", TESS_FIELD_REAL, AT(rope_base), 10000, 1, NULL},
    {"rope_parameters", TESS_FIELD_OBJECT, 0, 0, 0, NULL},
    {"rope_scaling", TESS_FIELD_ALIAS, 0, 0, 0, "rope_parameters"},
    {"rope_parameters.rope_theta", TESS_FIELD_ALIAS, 0, 0, 0, "rope_theta"},
    {"rope_parameters.rope_type", TESS_FIELD_CHOICE, AT(rope_kind), TESS_ROPE_PLAIN, 0, "default linear llama3"},
    {"rope_parameters.type", TESS_FIELD_ALIAS, 0, 0, 0, "rope_parameters.rope_type"},
    {"rope_parameters.factor", TESS_FIELD_REAL, AT(rope_factor), 0, 0, NULL},
    {"rope_parameters.low_freq_factor", TESS_FIELD_REAL, AT(rope_low), 0, 0, NULL},
    {"rope_parameters.high_freq_factor", TESS_FIELD_REAL, AT(rope_high), 0, 0, NULL},
    {"rope_parameters.original_max_position_embeddings", TESS_FIELD_OPTIONAL, AT(rope_length), 0, 1, NULL},
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

static tess_status check_rope(const tess_decoder *c, const char *where)
{
    const tess_field *choice = tess_decoder_fields;
    char kind[32];
    while (strcmp(choice->name, "rope_parameters.rope_type")) choice++;
    tess_field_text(choice, c, kind);
    if (c->rope_kind != TESS_ROPE_PLAIN && !(c->rope_factor > 0))
        return tess_error(TESS_INVALID, where, "rope_parameters.factor: %g (rope_type %s expected one above 0)",
                          c->rope_factor, kind);
    if (c->rope_kind == TESS_ROPE_LLAMA3 && !(c->rope_low > 0 && c->rope_high > c->rope_low))
        return tess_error(TESS_INVALID, where,
                          "rope_parameters.low_freq_factor: %g, high_freq_factor: %g (rope_type %s expected both, the "
                          "first above 0, the second above the first)",
                          c->rope_low, c->rope_high, kind);
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
    return check_rope(c, where);
}

/* ---- the network ---- */

struct block {
    const tess_decoder *c;
    const tess_decoder_traits *traits;
    tess_graph *g;
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

static tess_tensor *norm(const struct block *b, const char *name, tess_tensor *x, int64_t width)
{
    return tess_rmsnorm(x, param(b, name, width, 1, TESS_ONE), (float)b->c->eps);
}

static tess_rope_conf rope_of(const tess_decoder *c)
{
    const int64_t length = c->rope_length ? c->rope_length : c->trained_positions;
    return (tess_rope_conf){
        .dim = dim_of(c),
        .base = (float)c->rope_base,
        .scaling = {(tess_rope_kind)c->rope_kind, c->rope_factor, c->rope_low, c->rope_high, (double)length}};
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
    q = tess_rope(q, rope_of(c));
    k = tess_rope(k, rope_of(c));
    tess_tensor *y = tess_attention(
        q, k, v,
        (tess_attention_conf){
            .heads = c->heads, .groups = groups_of(c), .dropout = (float)c->attention_dropout, .causal = true});
    return dense(b, "self_attn.o_proj", y, wide, c->width, b->traits->out_bias); // (B, T, C)
}

static tess_tensor *mlp(const struct block *b, tess_tensor *x)
{
    const tess_decoder *c = b->c;
    const bool bias = b->traits->mlp_bias;
    tess_tensor *gate = dense(b, "mlp.gate_proj", x, c->width, c->inner, bias); // (B, T, inner)
    tess_tensor *up = dense(b, "mlp.up_proj", x, c->width, c->inner, bias);
    return dense(b, "mlp.down_proj", tess_mul(tess_activate(gate, c->activation), up), c->inner, c->width, bias);
}

tess_tensor *tess_decoder_body(const tess_decoder *c, const tess_decoder_traits *traits, tess_graph *g,
                               tess_tensor *ids)
{
    struct block b = {c, traits, g, 0};
    tess_tensor *x = tess_embedding(
        ids, tess_param(g, "embed_tokens.weight", c->common.vocab, c->width, TESS_NORMAL((float)c->common.init)),
        NULL); // (B, T, C)
    for (; b.layer < c->common.layers; b.layer++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d", b.layer);
        tess_block(g, name);
        x = tess_add(x, attend(&b, norm(&b, "input_layernorm.weight", x, c->width)));
        x = tess_add(x, mlp(&b, norm(&b, "post_attention_layernorm.weight", x, c->width)));
    }
    tess_block_end(g);
    return tess_rmsnorm(x, tess_param(g, "norm.weight", c->width, 1, TESS_ONE), (float)c->eps);
}

tess_tensor *tess_decoder_head(const void *numbers, tess_graph *g)
{
    const tess_decoder *c = numbers;
    return tess_param(g, c->common.tied ? "embed_tokens.weight" : "lm_head.weight", c->common.vocab, c->width,
                      TESS_NORMAL((float)c->common.init));
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
