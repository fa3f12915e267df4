/* Qwen2 and 2.5: a Llama with biases on q, k and v alone. */
#include "decoder_impl.h"

#define AT(member) offsetof(tess_decoder, member)
static const tess_field fields[] = {{"vocab_size", TESS_FIELD_INT, AT(common.vocab), 151936, 1, NULL},
                                    {"intermediate_size", TESS_FIELD_INT, AT(inner), 22016, 1, NULL},
                                    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(groups), 32, 1, NULL},
                                    {"max_position_embeddings", TESS_FIELD_INT, AT(trained_positions), 32768, 1, NULL},
                                    {"use_sliding_window", TESS_FIELD_ONLY, 0, 0, 0, "false"},
                                    {"layer_types", TESS_FIELD_LAYERS, 0, 0, 0, "full_attention"},
                                    /* Of the windows that it has not. */
                                    {"sliding_window", TESS_FIELD_IGNORED, 0, 0, 0, NULL},
                                    {"max_window_layers", TESS_FIELD_IGNORED, 0, 0, 0, NULL},
                                    {NULL, 0, 0, 0, 0, NULL}};

static tess_tensor *body(const void *numbers, tess_graph *g, const tess_network *in)
{
    return tess_decoder_body(numbers, &(tess_decoder_traits){.qkv_bias = true}, g, in);
}

const tess_family tess_family_qwen2 = {
    .type = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .prefix = "model.",
    .field = fields,
    .shared = tess_decoder_fields,
    .numbers = sizeof(tess_decoder),
    .check = tess_decoder_check,
    .body = body,
    .head = tess_decoder_head,
    .bare = tess_decoder_bare,
    .extra = tess_decoder_extra,
};
