/* The network of encoder_impl.h, and what its families have in common in config.json. */
#include "models/networks/families/encoder_impl.h"

#define AT(member) offsetof(tess_encoder, member)
const tess_field tess_encoder_fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 30522, 1, NULL},
    {"hidden_size", TESS_FIELD_INT, AT(width), 768, 1, NULL},
    {"num_hidden_layers", TESS_FIELD_INT, AT(common.layers), 12, 1, NULL},
    {"num_attention_heads", TESS_FIELD_INT, AT(heads), 12, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(inner), 3072, 1, NULL},
    {"hidden_act", TESS_FIELD_ACTIVATION, AT(activation), TESS_ACTIVATION_GELU, 0, NULL},
    {"hidden_dropout_prob", TESS_FIELD_TRAINING, AT(hidden_dropout), 0.1, 0, NULL},
    {"attention_probs_dropout_prob", TESS_FIELD_TRAINING, AT(attention_dropout), 0.1, 0, NULL},
    {"classifier_dropout", TESS_FIELD_TRAINING_OR_NULL, AT(classifier_dropout), -1, 0, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(common.positions), 512, 1, NULL},
    {"type_vocab_size", TESS_FIELD_INT, AT(types), 2, 1, NULL},
    {"layer_norm_eps", TESS_FIELD_REAL, AT(eps), 1e-12, 0, NULL},
    {"pad_token_id", TESS_FIELD_OPTIONAL, AT(pad), 0, 0, NULL},
    {"tie_word_embeddings", TESS_FIELD_ONLY, 0, 0, 0, "true"},
    {"position_embedding_type", TESS_FIELD_ONLY, 0, 0, 0, "\"absolute\""},
    {0}};
/* Fields left over from the program that the first models came from; they are not read. */
const char tess_encoder_ignored[] =
    "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type";

tess_status tess_encoder_check(const tess_family *f, const void *numbers, const char *where)
{
    const tess_encoder *c = numbers;
    const tess_rate rates[] = {{"hidden_dropout_prob", c->hidden_dropout},
                               {"attention_probs_dropout_prob", c->attention_dropout},
                               {"classifier_dropout", c->classifier_dropout}};
    (void)f;
    TESS_TRY(tess_heads_check(where, "hidden_size", c->width, "num_attention_heads", c->heads));
    return tess_rates_check(where, rates, 3);
}

tess_tensor *tess_encoder_dense(const tess_encoder *c, tess_graph *g, const char *name, tess_tensor *x, int64_t in,
                                int64_t out)
{
    return tess_dense(g, x, in, out, c->common.init, TESS_BIAS_BEHIND, "%s", name);
}

tess_tensor *tess_encoder_drop(const tess_encoder *c, tess_tensor *x)
{
    return tess_dropout(x, (float)(c->classifier_dropout < 0 ? c->hidden_dropout : c->classifier_dropout));
}

const bool tess_encoder_norms_before = true;

/* A layer on its way: `before`, its norms come before attention and mlp. */
struct layer {
    const tess_encoder *c;
    tess_graph *g;
    char name[64];
    bool before;
};

/* Token, place and kind of segment, each a row of its own table. */
static tess_tensor *embed(const tess_encoder *c, tess_graph *g, const tess_network *in, bool before)
{
    const tess_init init = TESS_NORMAL((float)c->common.init);
    tess_tensor *words = tess_param(g, "embeddings.word_embeddings.weight", c->common.vocab, c->width, init);
    tess_tensor *places = tess_param(g, "embeddings.position_embeddings.weight", c->common.positions, c->width, init);
    tess_tensor *types = tess_param(g, "embeddings.token_type_embeddings.weight", c->types, c->width, init);
    tess_tensor *x = tess_embed(in, words, places); // (B, T, C)
    x = tess_add(x, tess_embedding(in->segments, types, NULL));
    if (!before) x = tess_norm(g, x, c->width, c->eps, "embeddings.LayerNorm");
    return tess_dropout(x, (float)c->hidden_dropout);
}

/* What attention or the mlp reads: x, or its norm NAME. */
static tess_tensor *enter(const struct layer *l, const char *name, tess_tensor *x)
{
    return l->before ? tess_norm(l->g, x, l->c->width, l->c->eps, "%s.%s", l->name, name) : x;
}

/* The matrix NAME of what was made of x, dropped, added to x, and the norm of the sum. */
static tess_tensor *join(const struct layer *l, const char *name, tess_tensor *x, tess_tensor *y, int64_t inner)
{
    const tess_encoder *c = l->c;
    y = tess_dense(l->g, y, inner, c->width, c->common.init, TESS_BIAS_BEHIND, "%s.%s.dense", l->name, name);
    y = tess_add(tess_dropout(y, (float)c->hidden_dropout), x);
    return l->before ? y : tess_norm(l->g, y, c->width, c->eps, "%s.%s.LayerNorm", l->name, name);
}

static tess_tensor *attend(const struct layer *l, tess_tensor *x, tess_tensor *bounds)
{
    static const char *const part[] = {"query", "key", "value"};
    const tess_encoder *c = l->c;
    tess_tensor *p[3];
    for (int k = 0; k < 3; k++) // (B, T, C)
        p[k] = tess_dense(l->g, x, c->width, c->width, c->common.init, TESS_BIAS_BEHIND, "%s.attention.self.%s",
                          l->name, part[k]);
    const tess_attention_conf conf = {.heads = c->heads, .dropout = (float)c->attention_dropout, .bounds = bounds};
    return tess_attention(p[0], p[1], p[2], conf);
}

tess_tensor *tess_encoder_body(const tess_family *f, const void *numbers, tess_graph *g, const tess_network *in)
{
    const tess_encoder *c = numbers;
    struct layer l = {.c = c, .g = g, .before = f->traits != NULL};
    tess_tensor *x = embed(c, g, in, l.before);
    for (int64_t k = 0; k < c->common.layers; k++) {
        snprintf(l.name, sizeof l.name, "encoder.layer.%lld", (long long)k);
        tess_block(g, l.name);
        x = join(&l, "attention.output", x, attend(&l, enter(&l, "attention.ln", x), in->bounds), c->width);
        tess_tensor *y = tess_dense(g, enter(&l, "ln", x), c->width, c->inner, c->common.init, TESS_BIAS_BEHIND,
                                    "%s.intermediate.dense", l.name); // (B, T, inner)
        x = join(&l, "output", x, tess_activate(y, c->activation), c->inner);
    }
    tess_block_end(g);
    return l.before ? tess_norm(g, x, c->width, c->eps, "encoder.ln") : x;
}

tess_head tess_encoder_vocabulary(const tess_encoder *c, tess_graph *g, const char *bias)
{
    tess_tensor *words = tess_param(g, "embeddings.word_embeddings.weight", c->common.vocab, c->width, TESS_ZERO);
    return (tess_head){.weight = words, .bias = tess_param(g, bias, c->common.vocab, 1, TESS_ZERO)};
}

tess_head tess_encoder_labels(const tess_encoder *c, tess_graph *g, const char *name, int64_t labels)
{
    char weight[64], bias[64];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    return (tess_head){.weight = tess_param(g, weight, labels, c->width, TESS_NORMAL((float)c->common.init)),
                       .bias = tess_param(g, bias, labels, 1, TESS_ZERO)};
}
