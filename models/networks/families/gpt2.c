/* GPT-2 as Hugging Face describes it: learned positions, layernorm before attention and mlp, the head tied to the
 * embedding. Weights that the library stores as Conv1D, (in, out), are ours transposed. */
#include "models/networks/families/families.h"
#include <math.h>

struct gpt2 {
    tess_common common;
    int64_t width, heads, inner, activation;
    int64_t scale_attention, scale_by_layer;
    double residual_dropout, embedding_dropout, attention_dropout, eps;
};

#define AT(member) offsetof(struct gpt2, member)
static const tess_field fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 50257, 1, NULL},
    {"n_positions", TESS_FIELD_INT, AT(common.positions), 1024, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_ALIAS, 0, 0, 0, "n_positions"},
    {"n_embd", TESS_FIELD_INT, AT(width), 768, 1, NULL},
    {"hidden_size", TESS_FIELD_ALIAS, 0, 0, 0, "n_embd"},
    {"n_layer", TESS_FIELD_INT, AT(common.layers), 12, 1, NULL},
    {"num_hidden_layers", TESS_FIELD_ALIAS, 0, 0, 0, "n_layer"},
    {"n_head", TESS_FIELD_INT, AT(heads), 12, 1, NULL},
    {"num_attention_heads", TESS_FIELD_ALIAS, 0, 0, 0, "n_head"},
    {"n_inner", TESS_FIELD_OPTIONAL, AT(inner), 0, 1, NULL},
    {"activation_function", TESS_FIELD_ACTIVATION, AT(activation), TESS_ACTIVATION_GELU_TANH, 0, NULL},
    {"resid_pdrop", TESS_FIELD_TRAINING, AT(residual_dropout), 0.1, 0, NULL},
    {"embd_pdrop", TESS_FIELD_TRAINING, AT(embedding_dropout), 0.1, 0, NULL},
    {"attn_pdrop", TESS_FIELD_TRAINING, AT(attention_dropout), 0.1, 0, NULL},
    {"layer_norm_epsilon", TESS_FIELD_REAL, AT(eps), 1e-5, 0, NULL},
    {"scale_attn_weights", TESS_FIELD_BOOL, AT(scale_attention), 1, 0, NULL},
    {"scale_attn_by_inverse_layer_idx", TESS_FIELD_BOOL, AT(scale_by_layer), 0, 0, NULL},
    {0}};
/* The first is only the order of operations in half precision, where ours is fp32 anyway. */
static const char ignored[] =
    "reorder_and_upcast_attn n_ctx summary_type summary_use_proj summary_activation summary_proj_to_labels "
    "summary_first_dropout output_past";

static tess_status check(const tess_family *f, const void *numbers, const char *where)
{
    const struct gpt2 *c = numbers;
    const tess_rate rates[] = {{"resid_pdrop", c->residual_dropout},
                               {"embd_pdrop", c->embedding_dropout},
                               {"attn_pdrop", c->attention_dropout}};
    (void)f;
    TESS_TRY(tess_heads_check(where, "n_embd", c->width, "n_head", c->heads));
    return tess_rates_check(where, rates, 3);
}

static tess_tensor *norm(const struct gpt2 *c, tess_graph *g, int layer, const char *name, tess_tensor *x)
{
    return tess_norm(g, x, c->width, c->eps, "h.%d.%s", layer, name);
}

/* x (B,T,in) -> (B,T,out) */
static tess_tensor *dense(tess_graph *g, int layer, const char *name, tess_tensor *x, int64_t in, int64_t out,
                          double std)
{
    return tess_dense(g, x, in, out, std, TESS_BIAS_BEFORE, "h.%d.%s", layer, name);
}

static tess_tensor *block(const struct gpt2 *c, tess_graph *g, int layer, tess_tensor *x, const tess_network *in)
{
    int64_t C = c->width, inner = c->inner ? c->inner : 4 * C;
    double residual_std = c->common.init / sqrt(2.0 * (double)c->common.layers);
    float scale = c->scale_attention ? 1 / sqrtf((float)(C / c->heads)) : 1;
    if (c->scale_by_layer) scale /= (float)(layer + 1);
    tess_attention_conf attention = {.heads = c->heads,
                                     .scale = scale,
                                     .dropout = (float)c->attention_dropout,
                                     .causal = true,
                                     .bounds = in->bounds,
                                     .cache = in->cache};

    tess_tensor *y =
        dense(g, layer, "attn.c_attn", norm(c, g, layer, "ln_1", x), C, 3 * C, c->common.init); // (B, T, 3C)
    y = tess_attention_packed(y, attention);                                                    // (B, T, C)
    y = dense(g, layer, "attn.c_proj", y, C, C, residual_std);
    x = tess_add(x, tess_dropout(y, (float)c->residual_dropout));
    y = dense(g, layer, "mlp.c_fc", norm(c, g, layer, "ln_2", x), C, inner, c->common.init); // (B, T, 4C)
    y = tess_activate(y, c->activation);
    y = dense(g, layer, "mlp.c_proj", y, inner, C, residual_std); // (B, T, C)
    return tess_add(x, tess_dropout(y, (float)c->residual_dropout));
}

static tess_tensor *body(const tess_family *f, const void *numbers, tess_graph *g, const tess_network *in)
{
    const struct gpt2 *c = numbers;
    (void)f;
    tess_tensor *wte = tess_param(g, "wte.weight", c->common.vocab, c->width, TESS_NORMAL((float)c->common.init));
    tess_tensor *wpe = tess_param(g, "wpe.weight", c->common.positions, c->width, TESS_NORMAL((float)c->common.init));
    tess_tensor *x = tess_dropout(tess_embed(in, wte, wpe), (float)c->embedding_dropout); // (B, T, C)
    for (int layer = 0; layer < c->common.layers; layer++) {
        char name[32];
        snprintf(name, sizeof name, "h.%d", layer);
        tess_block(g, name);
        x = block(c, g, layer, x, in);
    }
    tess_block_end(g);
    return tess_norm(g, x, c->width, c->eps, "ln_f");
}

static tess_head head(const void *numbers, tess_graph *g)
{
    const struct gpt2 *c = numbers;
    const char *name = c->common.tied ? "wte.weight" : "lm_head.weight";
    return (tess_head){.weight = tess_param(g, name, c->common.vocab, c->width, TESS_NORMAL((float)c->common.init))};
}

/* The head stands beside the body, which is what the prefix names. Older files carry causal masks, and a copy of the
 * tied head. */
const tess_family tess_family_gpt2 = {
    .type = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .prefix = "transformer.",
    .field = fields,
    .ignored = ignored,
    .numbers = sizeof(struct gpt2),
    .check = check,
    .body = body,
    .head = head,
    .transposed = "*.c_attn.weight *.c_proj.weight *.c_fc.weight",
    .bare = "lm_head.weight",
    .extra = "*.attn.bias *.attn.masked_bias lm_head.weight",
};
