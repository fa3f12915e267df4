/* Mistral: a Llama whose queries may see no more than a window of keys. */
#include "decoder_impl.h"

#define AT(member) offsetof(tess_decoder, member)
static const tess_field fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 32000, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(inner), 14336, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(groups), 8, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(rotary.trained_positions), 131072, 1, NULL},
    {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 4096, 1, NULL},
    {NULL, 0, 0, 0, 0, NULL}};

/* All layers slide. */
static void settle(void *numbers)
{
    tess_decoder_slide_from(numbers, 0);
}

static tess_tensor *body(const void *numbers, tess_graph *g, const tess_network *in)
{
    return tess_decoder_body(numbers, &(tess_decoder_traits){0}, g, in);
}

const tess_family tess_family_mistral = {
    .type = "mistral",
    .architecture = "MistralForCausalLM",
    .prefix = "model.",
    .field = fields,
    .shared = tess_decoder_fields,
    .rotary = tess_rotary_fields,
    .numbers = sizeof(tess_decoder),
    .settle = settle,
    .check = tess_decoder_check,
    .body = body,
    .head = tess_decoder_head,
    .bare = tess_decoder_bare,
    .extra = tess_decoder_extra,
};
