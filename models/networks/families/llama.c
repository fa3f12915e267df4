/* Llama, all of its versions: biases where config.json asks for them. */
#include "decoder_impl.h"

struct llama {
    tess_decoder decoder;
    int64_t attention_bias, mlp_bias;
};

#define AT(member) offsetof(struct llama, member)
static const tess_field fields[] = {{"vocab_size", TESS_FIELD_INT, AT(decoder.common.vocab), 32000, 1, NULL},
                                    {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
                                    {"mlp_bias", TESS_FIELD_BOOL, AT(mlp_bias), 0, 0, NULL},
                                    /* Only the order of sums, in a library that made them piece by piece. */
                                    {"pretraining_tp", TESS_FIELD_IGNORED, 0, 0, 0, NULL},
                                    {NULL, 0, 0, 0, 0, NULL}};

static tess_tensor *body(const void *numbers, tess_graph *g, const tess_network *in)
{
    const struct llama *c = numbers;
    const tess_decoder_traits traits = {
        .qkv_bias = c->attention_bias, .out_bias = c->attention_bias, .mlp_bias = c->mlp_bias};
    return tess_decoder_body(&c->decoder, &traits, g, in);
}

const tess_family tess_family_llama = {
    .type = "llama",
    .architecture = "LlamaForCausalLM",
    .prefix = "model.",
    .field = fields,
    .shared = tess_decoder_fields,
    .rotary = tess_rotary_fields,
    .numbers = sizeof(struct llama),
    .check = tess_decoder_check,
    .body = body,
    .head = tess_decoder_head,
    .bare = tess_decoder_bare,
    .extra = tess_decoder_extra,
};
