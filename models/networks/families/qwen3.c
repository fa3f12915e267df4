/* Qwen3: every head of q and k has a norm of its own; biases of attention where config.json asks for them. */
#include "decoder_impl.h"

struct qwen3 {
    tess_decoder decoder;
    int64_t attention_bias;
    int64_t use_window, full_layers; /* layers before the first that slides */
};

#define AT(member) offsetof(struct qwen3, member)
static const tess_field fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(decoder.common.vocab), 151936, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(decoder.inner), 22016, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(decoder.groups), 32, 1, NULL},
    {"head_dim", TESS_FIELD_OPTIONAL, AT(decoder.dim), 128, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(decoder.rotary.trained_positions), 32768, 1, NULL},
    {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
    {"use_sliding_window", TESS_FIELD_BOOL, AT(use_window), 0, 0, NULL},
    {"max_window_layers", TESS_FIELD_INT, AT(full_layers), 28, 0, NULL},
    {"sliding_window", TESS_FIELD_OPTIONAL, AT(decoder.window), 4096, 1, NULL},
    {"layer_types", TESS_FIELD_LAYERS, AT(decoder.sliding), 0, 0, TESS_DECODER_LAYER_TYPES},
    {NULL, 0, 0, 0, 0, NULL}};

/* Without use_sliding_window the rest says nothing; layer_types says what max_window_layers does. */
static void settle(void *numbers)
{
    struct qwen3 *c = numbers;
    if (!c->use_window) c->decoder.window = 0;
    tess_decoder_slide_from(&c->decoder, c->full_layers);
    c->full_layers = 0;
}

static tess_tensor *body(const void *numbers, tess_graph *g, const tess_network *in)
{
    const struct qwen3 *c = numbers;
    const tess_decoder_traits traits = {
        .qkv_bias = c->attention_bias, .out_bias = c->attention_bias, .head_norms = true};
    return tess_decoder_body(&c->decoder, &traits, g, in);
}

const tess_family tess_family_qwen3 = {
    .type = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .prefix = "model.",
    .field = fields,
    .shared = tess_decoder_fields,
    .rotary = tess_rotary_fields,
    .numbers = sizeof(struct qwen3),
    .settle = settle,
    .check = tess_decoder_check,
    .body = body,
    .head = tess_decoder_head,
    .bare = tess_decoder_bare,
    .extra = tess_decoder_extra,
};
