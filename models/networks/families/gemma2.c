/* Gemma 2: a Llama with norms behind attention and mlp too, whose logits are capped, and every second layer of which
 * slides. */
#include "decoder_impl.h"
#include <math.h>

struct gemma2 {
    tess_decoder decoder;
    int64_t attention_bias;
    double query_scalar, attention_cap, logit_cap; /* caps 0: none */
};

#define AT(member) offsetof(struct gemma2, member)
static const tess_field fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(decoder.common.vocab), 256000, 1, NULL},
    {"hidden_size", TESS_FIELD_INT, AT(decoder.width), 2304, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(decoder.inner), 9216, 1, NULL},
    {"num_hidden_layers", TESS_FIELD_INT, AT(decoder.common.layers), 26, 1, NULL},
    {"num_attention_heads", TESS_FIELD_INT, AT(decoder.heads), 8, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_INT, AT(decoder.groups), 4, 1, NULL},
    {"head_dim", TESS_FIELD_INT, AT(decoder.dim), 256, 1, NULL},
    {"hidden_activation", TESS_FIELD_ACTIVATION, AT(decoder.activation), TESS_ACTIVATION_GELU_TANH, 0, NULL},
    {"hidden_act", TESS_FIELD_IGNORED, 0, 0, 0, NULL}, /* which older files carry beside it */
    {"max_position_embeddings", TESS_FIELD_INT, AT(decoder.rotary.trained_positions), 8192, 1, NULL},
    {"tie_word_embeddings", TESS_FIELD_BOOL, AT(decoder.common.tied), 1, 0, NULL},
    {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
    {"query_pre_attn_scalar", TESS_FIELD_REAL, AT(query_scalar), 256, 0, NULL},
    {"attn_logit_softcapping", TESS_FIELD_OPTIONAL_REAL, AT(attention_cap), 50, 0, NULL},
    {"final_logit_softcapping", TESS_FIELD_OPTIONAL_REAL, AT(logit_cap), 30, 0, NULL},
    {"sliding_window", TESS_FIELD_OPTIONAL, AT(decoder.window), 4096, 1, NULL},
    {"sliding_window_size", TESS_FIELD_ALIAS, 0, 0, 0, "sliding_window"},
    {"layer_types", TESS_FIELD_LAYERS, AT(decoder.sliding), 0, 0, TESS_DECODER_LAYER_TYPES},
    {"use_bidirectional_attention", TESS_FIELD_ONLY, 0, 0, 0, "false"},
    {"cache_implementation", TESS_FIELD_IGNORED, 0, 0, 0, NULL}, /* of generation */
    {NULL, 0, 0, 0, 0, NULL}};

/* Every second layer slides, from the first on. */
static void settle(void *numbers)
{
    struct gemma2 *c = numbers;
    for (int64_t k = 0; k < c->decoder.common.layers && k < TESS_MOST_LAYERS && !c->decoder.sliding.given; k += 2)
        tess_layer_set(&c->decoder.sliding, k);
}

static tess_status check(const void *numbers, const char *where)
{
    const struct gemma2 *c = numbers;
    if (!(c->query_scalar > 0))
        return tess_error(TESS_INVALID, where, "query_pre_attn_scalar: %g (expected above 0)", c->query_scalar);
    return tess_decoder_check(numbers, where);
}

static tess_tensor *body(const void *numbers, tess_graph *g, const tess_network *in)
{
    const struct gemma2 *c = numbers;
    const tess_decoder_traits traits = {.qkv_bias = c->attention_bias,
                                        .out_bias = c->attention_bias,
                                        .norms_behind = true,
                                        .gains_from_one = true,
                                        .scale = (float)(1 / sqrt(c->query_scalar)),
                                        .cap = (float)c->attention_cap,
                                        .embedding_scale = (float)sqrt((double)c->decoder.width)};
    return tess_decoder_body(&c->decoder, &traits, g, in);
}

static tess_head head(const void *numbers, tess_graph *g)
{
    tess_head h = tess_decoder_head(numbers, g);
    h.cap = (float)((const struct gemma2 *)numbers)->logit_cap;
    return h;
}

const tess_family tess_family_gemma2 = {
    .type = "gemma2",
    .architecture = "Gemma2ForCausalLM",
    .prefix = "model.",
    .field = fields,
    .shared = tess_decoder_fields,
    .rotary = tess_rotary_fields,
    .numbers = sizeof(struct gemma2),
    .settle = settle,
    .check = check,
    .body = body,
    .head = head,
    .bare = tess_decoder_bare,
    .extra = tess_decoder_extra,
};
