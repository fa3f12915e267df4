/* GPT-NeoX, as Pythia is: layernorm, rotary positions on a share of each head, and blocks whose attention and mlp both
 * read what comes in, unless config.json has them one behind the other. */
#include "models/networks/families/rotary_impl.h"

struct gpt_neox {
    tess_common common;
    tess_rotary rotary;
    int64_t width, heads, inner, activation;
    int64_t parallel, attention_bias;
    double turning; /* share of a head that turns */
    double hidden_dropout, attention_dropout, eps;
};

#define AT(member) offsetof(struct gpt_neox, member)
static const tess_field fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 50432, 1, NULL},
    {"hidden_size", TESS_FIELD_INT, AT(width), 6144, 1, NULL},
    {"num_hidden_layers", TESS_FIELD_INT, AT(common.layers), 44, 1, NULL},
    {"num_attention_heads", TESS_FIELD_INT, AT(heads), 64, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(inner), 24576, 1, NULL},
    {"hidden_act", TESS_FIELD_ACTIVATION, AT(activation), TESS_ACTIVATION_GELU, 0, NULL},
    {"rotary_pct", TESS_FIELD_REAL, AT(turning), 0.25, 0, NULL},
    {"partial_rotary_factor", TESS_FIELD_ALIAS, 0, 0, 0, "rotary_pct"},
    {"rope_parameters.partial_rotary_factor", TESS_FIELD_ALIAS, 0, 0, 0, "rotary_pct"},
    {"rotary_emb_base", TESS_FIELD_ALIAS, 0, 0, 0, "rope_theta"},
    {"attention_dropout", TESS_FIELD_TRAINING, AT(attention_dropout), 0, 0, NULL},
    {"hidden_dropout", TESS_FIELD_TRAINING, AT(hidden_dropout), 0, 0, NULL},
    {"layer_norm_eps", TESS_FIELD_REAL, AT(eps), 1e-5, 0, NULL},
    {"use_parallel_residual", TESS_FIELD_BOOL, AT(parallel), 1, 0, NULL},
    {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 1, 0, NULL},
    {"tie_word_embeddings", TESS_FIELD_BOOL, AT(common.tied), 0, 0, NULL},
    {0}};
/* It is a decoder either way, and has no classifier; the last two the library has never read, in the oldest files. */
static const char ignored[] = "is_decoder classifier_dropout attention_probs_dropout_prob hidden_dropout_prob";

static int64_t dim_of(const struct gpt_neox *c)
{
    return c->width / c->heads;
}
/* Elements of a head that turn. */
static int64_t turning_of(const struct gpt_neox *c)
{
    return (int64_t)((double)dim_of(c) * c->turning);
}

static tess_status check(const tess_family *f, const void *numbers, const char *where)
{
    const struct gpt_neox *c = numbers;
    const tess_rate rates[] = {{"attention_dropout", c->attention_dropout}, {"hidden_dropout", c->hidden_dropout}};
    (void)f;
    TESS_TRY(tess_heads_check(where, "hidden_size", c->width, "num_attention_heads", c->heads));
    if (!(c->turning > 0 && c->turning <= 1) || turning_of(c) < 2 || turning_of(c) % 2)
        return tess_error(TESS_INVALID, where,
                          "rotary_pct: %g (expected a share of a head's %lld elements that is an even number of them)",
                          c->turning, (long long)dim_of(c));
    TESS_TRY(tess_rates_check(where, rates, 2));
    return tess_rotary_check(&c->rotary, turning_of(c), where);
}

/* ---- the network ---- */

static tess_tensor *norm(const struct gpt_neox *c, tess_graph *g, int layer, const char *name, tess_tensor *x)
{
    return tess_norm(g, x, c->width, c->eps, "layers.%d.%s", layer, name);
}

/* x (B,T,in) -> (B,T,out) */
static tess_tensor *dense(const struct gpt_neox *c, tess_graph *g, int layer, const char *name, tess_tensor *x,
                          int64_t in, int64_t out, bool bias)
{
    return tess_dense(g, x, in, out, c->common.init, bias ? TESS_BIAS_BEHIND : TESS_NO_BIAS, "layers.%d.%s", layer,
                      name);
}

/* Rows of query_key_value are a head's q, k and v, head after head. */
static tess_tensor *attend(const struct gpt_neox *c, tess_graph *g, const tess_network *in, int layer, tess_tensor *x)
{
    const tess_attention_conf conf = {.heads = c->heads,
                                      .dropout = (float)c->attention_dropout,
                                      .causal = true,
                                      .by_head = true,
                                      .bounds = in->bounds,
                                      .cache = in->cache};
    tess_rope_conf rope = tess_rotary_of(&c->rotary, dim_of(c), turning_of(c), in);
    rope.of = 3, rope.turning = 2;
    tess_tensor *y = dense(c, g, layer, "attention.query_key_value", x, c->width, 3 * c->width, c->attention_bias);
    y = tess_attention_packed(tess_rope(y, rope), conf); // (B, T, C)
    y = dense(c, g, layer, "attention.dense", y, c->width, c->width, c->attention_bias);
    return tess_dropout(y, (float)c->hidden_dropout);
}

static tess_tensor *mlp(const struct gpt_neox *c, tess_graph *g, int layer, tess_tensor *x)
{
    tess_tensor *y = dense(c, g, layer, "mlp.dense_h_to_4h", x, c->width, c->inner, true); // (B, T, inner)
    y = dense(c, g, layer, "mlp.dense_4h_to_h", tess_activate(y, c->activation), c->inner, c->width, true);
    return tess_dropout(y, (float)c->hidden_dropout);
}

static tess_tensor *body(const tess_family *f, const void *numbers, tess_graph *g, const tess_network *in)
{
    const struct gpt_neox *c = numbers;
    (void)f;
    tess_tensor *table =
        tess_param(g, "embed_in.weight", c->common.vocab, c->width, TESS_NORMAL((float)c->common.init));
    tess_tensor *x = tess_dropout(tess_embedding(in->ids, table, NULL), (float)c->hidden_dropout); // (B, T, C)
    for (int layer = 0; layer < c->common.layers; layer++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d", layer);
        tess_block(g, name);
        tess_tensor *y = attend(c, g, in, layer, norm(c, g, layer, "input_layernorm", x));
        if (c->parallel) {
            y = tess_add(mlp(c, g, layer, norm(c, g, layer, "post_attention_layernorm", x)), y);
            x = tess_add(y, x);
        } else {
            x = tess_add(y, x);
            x = tess_add(mlp(c, g, layer, norm(c, g, layer, "post_attention_layernorm", x)), x);
        }
    }
    tess_block_end(g);
    return tess_norm(g, x, c->width, c->eps, "final_layer_norm");
}

static tess_head head(const void *numbers, tess_graph *g)
{
    const struct gpt_neox *c = numbers;
    const char *name = c->common.tied ? "embed_in.weight" : "embed_out.weight";
    return (tess_head){.weight = tess_param(g, name, c->common.vocab, c->width, TESS_NORMAL((float)c->common.init))};
}

/* The head stands beside the body, which is what the prefix names. Older files carry causal masks, the speeds at which
 * positions turn, and a copy of the tied head. */
const tess_family tess_family_gpt_neox = {
    .type = "gpt_neox",
    .architecture = "GPTNeoXForCausalLM",
    .prefix = "gpt_neox.",
    .field = fields,
    .ignored = ignored,
    .rotary = tess_rotary_fields,
    .numbers = sizeof(struct gpt_neox),
    .check = check,
    .body = body,
    .head = head,
    .bare = "embed_out.weight",
    .extra = "*.attention.bias *.attention.masked_bias *.rotary_emb.inv_freq embed_out.weight",
};
