/* Mistral: a Llama whose queries may see no more than a window of keys. */
#include "decoder_impl.h"

struct mistral {
    tess_decoder decoder;
    int64_t window; /* keys that a query sees, its own included; 0: all before it */
};

#define AT(member) offsetof(struct mistral, member)
static const tess_field fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(decoder.common.vocab), 32000, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(decoder.inner), 14336, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(decoder.groups), 8, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(decoder.trained_positions), 131072, 1, NULL},
    {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 4096, 1, NULL},
    {NULL, 0, 0, 0, 0, NULL}};

/* In no longer sequences every query sees all keys before it. */
static tess_status fits(const void *numbers, int64_t length)
{
    const struct mistral *c = numbers;
    if (!c->window || length <= c->window) return TESS_OK;
    return tess_error(TESS_INVALID, "sequence length",
                      "%lld, but the model has sliding_window %lld (expected no more: attention has no windows yet)",
                      (long long)length, (long long)c->window);
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
    .numbers = sizeof(struct mistral),
    .check = tess_decoder_check,
    .fits = fits,
    .body = body,
    .head = tess_decoder_head,
    .bare = tess_decoder_bare,
    .extra = tess_decoder_extra,
};
