/* T5 as Hugging Face describes it, in both versions: an encoder, and a decoder that reads it. Norms divide by the root
 * of the mean square, matrices have no bias, and what is known of positions is a bias of logits by their distance, one
 * table for all layers of each side. The first version has a mlp with relu and a head that is the embedding, scaled;
 * the second a gated one and a head of its own. */
#include "models/networks/families/families.h"
#include <math.h>

struct t5 {
    tess_common common;
    int64_t width, dim, inner, heads, decoder_layers, buckets, reach, mlp, scaled;
    double dropout, eps, factor;
};
enum { MLP_RELU, MLP_GATED_GELU, MLP_GATED_SILU };

#define AT(member) offsetof(struct t5, member)
static const tess_field fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 32128, 1, NULL},
    {"d_model", TESS_FIELD_INT, AT(width), 512, 1, NULL},
    {"hidden_size", TESS_FIELD_ALIAS, 0, 0, 0, "d_model"},
    {"d_kv", TESS_FIELD_INT, AT(dim), 64, 1, NULL},
    {"d_ff", TESS_FIELD_INT, AT(inner), 2048, 1, NULL},
    {"num_layers", TESS_FIELD_INT, AT(common.layers), 6, 1, NULL},
    {"num_hidden_layers", TESS_FIELD_ALIAS, 0, 0, 0, "num_layers"},
    {"num_decoder_layers", TESS_FIELD_OPTIONAL, AT(decoder_layers), 0, 1, NULL},
    {"num_heads", TESS_FIELD_INT, AT(heads), 8, 2, NULL}, /* of one the table of biases would be a vector */
    {"num_attention_heads", TESS_FIELD_ALIAS, 0, 0, 0, "num_heads"},
    {"relative_attention_num_buckets", TESS_FIELD_INT, AT(buckets), 32, 8, NULL},
    {"relative_attention_max_distance", TESS_FIELD_INT, AT(reach), 128, 9, NULL},
    {"dropout_rate", TESS_FIELD_TRAINING, AT(dropout), 0.1, 0, NULL},
    {"layer_norm_epsilon", TESS_FIELD_REAL, AT(eps), 1e-6, 0, NULL},
    {"initializer_factor", TESS_FIELD_TRAINING, AT(factor), 1, 0, NULL},
    {"feed_forward_proj", TESS_FIELD_CHOICE, AT(mlp), MLP_RELU, 0, "relu gated-gelu gated-silu"},
    {"scale_decoder_outputs", TESS_FIELD_BOOL, AT(scaled), 1, 0, NULL},
    {"is_encoder_decoder", TESS_FIELD_ONLY, 0, 0, 0, "true"},
    {0}};
/* The first two feed_forward_proj says already; of other heads, and a limit that nothing has. */
static const char ignored[] = "dense_act_fn is_gated_act classifier_dropout n_positions output_past";

static tess_status check(const tess_family *f, const void *numbers, const char *where)
{
    const struct t5 *c = numbers;
    (void)f;
    TESS_TRY(tess_rates_check(where, &(tess_rate){"dropout_rate", c->dropout}, 1));
    if (c->buckets > TESS_MOST_BUCKETS || c->reach <= c->buckets)
        return tess_error(TESS_INVALID, where,
                          "relative_attention_num_buckets: %lld, relative_attention_max_distance: %lld (expected at "
                          "most %d buckets, and fewer than the distance)",
                          (long long)c->buckets, (long long)c->reach, TESS_MOST_BUCKETS);
    return TESS_OK;
}

/* One of the two halves of the network while it is described. */
struct side {
    const struct t5 *c;
    tess_graph *g;
    const char *name;     /* "encoder" or "decoder" */
    tess_tensor *bias;    /* of its own attention, by distance */
    tess_tensor *bounds;  /* of its own attention */
    tess_tensor *memory;  /* of the decoder: the encoder's output, (B, T, C); NULL: the cache has its keys and values */
    tess_tensor *visible; /* the places of the encoder's output that each row of the decoder may attend to */
    tess_cache *cache;    /* of the decoder */
    bool causal;
};

static tess_tensor *param(const struct side *s, const char *block, const char *name, int64_t rows, int64_t columns,
                          double std)
{
    char full[160];
    snprintf(full, sizeof full, "%s.%s.weight", block, name);
    return tess_param(s->g, full, rows, columns, TESS_NORMAL((float)(s->c->factor * std)));
}

/* Multiplies x (B,T,in) by a matrix of a block: (B,T,out). */
static tess_tensor *dense(const struct side *s, const char *block, const char *name, tess_tensor *x, int64_t in,
                          int64_t out)
{
    return tess_linear(x, param(s, block, name, out, in, 1 / sqrt((double)in)), NULL);
}

static tess_tensor *norm(const struct side *s, const char *name, tess_tensor *x)
{
    char full[160];
    snprintf(full, sizeof full, "%s.weight", name);
    return tess_rmsnorm(
        x, tess_param(s->g, full, s->c->width, 1, TESS_LITERAL(tess_init){TESS_INIT_FILL, (float)s->c->factor}),
        (float)s->c->eps);
}

static tess_tensor *dropped(const struct side *s, tess_tensor *x)
{
    return tess_dropout(x, (float)s->c->dropout);
}

/* x (B,T,C) and `from` (B,K,C), where k and v come from, NULL: a cache has them. (B,T,C). */
static tess_tensor *attend(const struct side *s, const char *block, const char *name, tess_tensor *x, tess_tensor *from,
                           tess_attention_conf conf)
{
    const struct t5 *c = s->c;
    const int64_t C = c->width, wide = c->heads * c->dim;
    char at[128];
    snprintf(at, sizeof at, "%s.%s", block, name);
    tess_tensor *q = tess_linear(x, param(s, at, "q", wide, C, 1 / sqrt((double)(C * c->dim))), NULL);
    tess_tensor *k = from ? dense(s, at, "k", from, C, wide) : NULL;
    tess_tensor *v = from ? dense(s, at, "v", from, C, wide) : NULL;
    conf.heads = c->heads;
    conf.scale = 1;
    conf.dropout = (float)c->dropout;
    tess_tensor *y = tess_attention(q, k, v, conf); // (B, T, heads*D)
    return dense(s, at, "o", y, wide, C);
}

static tess_tensor *mlp(const struct side *s, const char *block, tess_tensor *x)
{
    const struct t5 *c = s->c;
    tess_tensor *y;
    if (c->mlp == MLP_RELU) {
        y = tess_relu(dense(s, block, "wi", x, c->width, c->inner)); // (B, T, inner)
    } else {
        tess_tensor *gate = dense(s, block, "wi_0", x, c->width, c->inner);
        tess_tensor *up = dense(s, block, "wi_1", x, c->width, c->inner);
        y = tess_mul(c->mlp == MLP_GATED_GELU ? tess_gelu(gate, TESS_GELU_TANH) : tess_silu(gate), up);
    }
    return dense(s, block, "wo", dropped(s, y), c->inner, c->width);
}

static tess_tensor *block(const struct side *s, int64_t layer, tess_tensor *x)
{
    const tess_attention_conf own = {
        .causal = s->causal, .bounds = s->bounds, .bias = s->bias, .reach = s->c->reach, .cache = s->cache};
    char at[64], name[96];
    int part = 0;
    snprintf(at, sizeof at, "%s.block.%lld", s->name, (long long)layer);
    tess_block(s->g, at);
    snprintf(at, sizeof at, "%s.block.%lld.layer", s->name, (long long)layer);

    snprintf(name, sizeof name, "%s.%d.layer_norm", at, part);
    tess_tensor *h = norm(s, name, x);
    snprintf(name, sizeof name, "%s.%d", at, part++);
    x = tess_add(x, dropped(s, attend(s, name, "SelfAttention", h, h, own)));
    if (s->memory || s->cache) {
        snprintf(name, sizeof name, "%s.%d.layer_norm", at, part);
        h = norm(s, name, x);
        snprintf(name, sizeof name, "%s.%d", at, part++);
        const tess_attention_conf across = {.bounds = s->visible, .cache = s->cache};
        x = tess_add(x, dropped(s, attend(s, name, "EncDecAttention", h, s->memory, across)));
    }
    snprintf(name, sizeof name, "%s.%d.layer_norm", at, part);
    h = norm(s, name, x);
    snprintf(name, sizeof name, "%s.%d.DenseReluDense", at, part);
    return tess_add(x, dropped(s, mlp(s, name, h)));
}

/* ids (B,T) to rows (B,T,C). */
static tess_tensor *run(struct side *s, tess_tensor *ids, tess_tensor *table, int64_t layers)
{
    char name[128];
    snprintf(name, sizeof name, "%s.block.0.layer.0.SelfAttention", s->name);
    s->bias = param(s, name, "relative_attention_bias", s->c->buckets, s->c->heads, 1 / sqrt((double)s->c->width));
    tess_tensor *x = dropped(s, tess_embedding(ids, table, NULL)); // (B, T, C)
    for (int64_t layer = 0; layer < layers; layer++) x = block(s, layer, x);
    tess_block_end(s->g);
    snprintf(name, sizeof name, "%s.final_layer_norm", s->name);
    return dropped(s, norm(s, name, x));
}

/* Keys and values of what the encoder made, for all layers of the decoder: those steps that generate read them. */
static tess_tensor *keep(const struct side *decoder, tess_tensor *memory, tess_cache *cache, int64_t layers)
{
    const struct t5 *c = decoder->c;
    const int64_t C = c->width, wide = c->heads * c->dim;
    tess_tensor *last = NULL;
    for (int64_t layer = 0; layer < layers; layer++) {
        char at[128];
        snprintf(at, sizeof at, "decoder.block.%lld.layer.1.EncDecAttention", (long long)layer);
        tess_tensor *k = dense(decoder, at, "k", memory, C, wide);
        tess_tensor *v = dense(decoder, at, "v", memory, C, wide);
        last = tess_cached(cache, k, v, c->heads, last);
    }
    return last;
}

static tess_tensor *body(const tess_family *f, const void *numbers, tess_graph *g, const tess_network *in)
{
    const struct t5 *c = numbers;
    (void)f;
    const int64_t layers = c->decoder_layers ? c->decoder_layers : c->common.layers;
    tess_tensor *table = tess_param(g, "shared.weight", c->common.vocab, c->width, TESS_NORMAL((float)c->factor));
    struct side encoder = {.c = c, .g = g, .name = "encoder", .bounds = in->bounds};
    struct side decoder = {.c = c, .g = g, .name = "decoder", .visible = in->visible, .causal = true};
    if (!in->decodes) decoder.memory = run(&encoder, in->ids, table, c->common.layers); // (B, T, C)
    if (in->encodes) return keep(&decoder, decoder.memory, in->cache, layers);
    if (in->decodes) decoder.cache = in->cache, decoder.bounds = in->bounds;
    tess_tensor *x = run(&decoder, in->decodes ? in->ids : in->decoder_ids, table, layers);
    return c->common.tied && c->scaled ? tess_scaled(x, (float)(1 / sqrt((double)c->width))) : x;
}

static tess_head head(const void *numbers, tess_graph *g)
{
    const struct t5 *c = numbers;
    const char *name = c->common.tied ? "shared.weight" : "lm_head.weight";
    return (tess_head){.weight = tess_param(g, name, c->common.vocab, c->width, TESS_NORMAL((float)c->factor))};
}

/* There is no prefix. Files have copies of the embedding, and a bias that the first layer of attention across once had.
 */
const tess_family tess_family_t5 = {
    .type = "t5",
    .architecture = "T5ForConditionalGeneration",
    .prefix = "",
    .field = fields,
    .ignored = ignored,
    .numbers = sizeof(struct t5),
    .answers = TESS_ANSWERS_DECODER,
    .check = check,
    .body = body,
    .head = head,
    .extra = "encoder.embed_tokens.weight decoder.embed_tokens.weight lm_head.weight "
             "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
};
