/* Qwen3: every head of q and k has a norm of its own; biases of attention where config.json asks for them. */
#include "decoder_impl.h"

struct qwen3 {
    tess_decoder decoder;
    int64_t attention_bias;
};

#define AT(member) offsetof(struct qwen3, member)
static const tess_field fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(decoder.common.vocab), 151936, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(decoder.inner), 22016, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(decoder.groups), 32, 1, NULL},
    {"head_dim", TESS_FIELD_OPTIONAL, AT(decoder.dim), 128, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(decoder.trained_positions), 32768, 1, NULL},
    {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
    {"use_sliding_window", TESS_FIELD_ONLY, 0, 0, 0, "false"},
    {"layer_types", TESS_FIELD_LAYERS, 0, 0, 0, "full_attention"},
    /* Of the windows that it has not. */
    {"sliding_window", TESS_FIELD_IGNORED, 0, 0, 0, NULL},
    {"max_window_layers", TESS_FIELD_IGNORED, 0, 0, 0, NULL},
    {NULL, 0, 0, 0, 0, NULL}};

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
    .numbers = sizeof(struct qwen3),
    .check = tess_decoder_check,
    .body = body,
    .head = tess_decoder_head,
    .bare = tess_decoder_bare,
    .extra = tess_decoder_extra,
};
