/* Mixtral: a Mistral whose mlps are experts. */
#include "decoder_impl.h"

struct mixtral {
    tess_decoder decoder;
    tess_experts experts;
    double jitter;
};

#define AT(member) offsetof(struct mixtral, member)
static const tess_field fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(decoder.common.vocab), 32000, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(experts.inner), 14336, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(decoder.groups), 8, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(decoder.rotary.trained_positions), 131072, 1, NULL},
    {"rope_theta", TESS_FIELD_REAL, AT(decoder.rotary.base), 1e6, 1, NULL},
    {"rms_norm_eps", TESS_FIELD_REAL, AT(decoder.eps), 1e-5, 0, NULL},
    {"sliding_window", TESS_FIELD_OPTIONAL, AT(decoder.window), 0, 1, NULL},
    {"num_local_experts", TESS_FIELD_INT, AT(experts.count), 8, 1, NULL},
    {"num_experts", TESS_FIELD_ALIAS, 0, 0, 0, "num_local_experts"},
    {"num_experts_per_tok", TESS_FIELD_INT, AT(experts.chosen), 2, 1, NULL},
    {"output_router_logits", TESS_FIELD_BOOL, AT(experts.balanced), 0, 0, NULL},
    {"router_aux_loss_coef", TESS_FIELD_TRAINING, AT(experts.balance), 0.001, 0, NULL},
    {"router_jitter_noise", TESS_FIELD_TRAINING, AT(jitter), 0, 0, NULL},
    {NULL, 0, 0, 0, 0, NULL}};

/* All layers slide, where one does. */
static void settle(void *numbers)
{
    struct mixtral *c = numbers;
    c->experts.normalised = true;
    tess_decoder_slide_from(&c->decoder, 0);
}

static tess_status check(const void *numbers, const char *where)
{
    const struct mixtral *c = numbers;
    if (c->jitter > 0)
        return tess_error(TESS_INVALID, where, "router_jitter_noise: %g (expected 0: routers see their input as it is)",
                          c->jitter);
    TESS_TRY(tess_experts_check(&c->experts, "num_local_experts", where));
    return tess_decoder_check(numbers, where);
}

static tess_tensor *body(const void *numbers, tess_graph *g, const tess_network *in)
{
    const struct mixtral *c = numbers;
    const tess_expert_traits experts = {.experts = &c->experts,
                                        .router = "block_sparse_moe.gate.weight",
                                        .gate = "block_sparse_moe.experts.*.w1.weight",
                                        .up = "block_sparse_moe.experts.*.w3.weight",
                                        .down = "block_sparse_moe.experts.*.w2.weight"};
    return tess_decoder_body(&c->decoder, &(tess_decoder_traits){.experts = &experts}, g, in);
}

const tess_family tess_family_mixtral = {
    .type = "mixtral",
    .architecture = "MixtralForCausalLM",
    .prefix = "model.",
    .field = fields,
    .shared = tess_decoder_fields,
    .rotary = tess_rotary_fields,
    .numbers = sizeof(struct mixtral),
    .settle = settle,
    .check = check,
    .body = body,
    .head = tess_decoder_head,
    .bare = tess_decoder_bare,
    .extra = tess_decoder_extra,
};
