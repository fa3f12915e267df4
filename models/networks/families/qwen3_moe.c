/* Qwen3 with experts in the place of mlps, in all layers or in some: every head of q and k has a norm of its own. */
#include "decoder_impl.h"

struct qwen3_moe {
    tess_decoder decoder;
    tess_experts experts;
    int64_t attention_bias, use_window;
    int64_t every;     /* the last of so many layers has experts, */
    tess_layers dense; /* but for these */
};

#define AT(member) offsetof(struct qwen3_moe, member)
static const tess_field fields[] = {
    {"vocab_size", TESS_FIELD_INT, AT(decoder.common.vocab), 151936, 1, NULL},
    {"hidden_size", TESS_FIELD_INT, AT(decoder.width), 2048, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(decoder.inner), 6144, 1, NULL},
    {"num_hidden_layers", TESS_FIELD_INT, AT(decoder.common.layers), 24, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(decoder.groups), 4, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(decoder.rotary.trained_positions), 32768, 1, NULL},
    {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
    {"use_sliding_window", TESS_FIELD_BOOL, AT(use_window), 0, 0, NULL},
    {"sliding_window", TESS_FIELD_OPTIONAL, AT(decoder.window), 4096, 1, NULL},
    {"max_window_layers", TESS_FIELD_IGNORED, 0, 0, 0, NULL}, /* of this family all slide, or none */
    {"num_experts", TESS_FIELD_INT, AT(experts.count), 128, 1, NULL},
    {"num_local_experts", TESS_FIELD_ALIAS, 0, 0, 0, "num_experts"},
    {"num_experts_per_tok", TESS_FIELD_INT, AT(experts.chosen), 8, 1, NULL},
    {"moe_intermediate_size", TESS_FIELD_INT, AT(experts.inner), 768, 1, NULL},
    {"norm_topk_prob", TESS_FIELD_BOOL, AT(experts.normalised), 0, 0, NULL},
    {"decoder_sparse_step", TESS_FIELD_INT, AT(every), 1, 1, NULL},
    {"mlp_only_layers", TESS_FIELD_LAYER_NUMBERS, AT(dense), 0, 0, "without experts"},
    {"output_router_logits", TESS_FIELD_BOOL, AT(experts.balanced), 0, 0, NULL},
    {"router_aux_loss_coef", TESS_FIELD_TRAINING, AT(experts.balance), 0.001, 0, NULL},
    {NULL, 0, 0, 0, 0, NULL}};

static void settle(void *numbers)
{
    struct qwen3_moe *c = numbers;
    if (!c->use_window) c->decoder.window = 0;
    tess_decoder_slide_from(&c->decoder, 0);
    for (int64_t k = 0; k < c->decoder.common.layers && k < TESS_MOST_LAYERS; k++)
        if ((k + 1) % c->every) tess_layer_set(&c->dense, k);
    c->every = 1;
}

static tess_status check(const void *numbers, const char *where)
{
    const struct qwen3_moe *c = numbers;
    if (c->decoder.common.layers > TESS_MOST_LAYERS)
        return tess_error(TESS_INVALID, where, "num_hidden_layers: %lld (expected at most %d)",
                          (long long)c->decoder.common.layers, TESS_MOST_LAYERS);
    TESS_TRY(tess_experts_check(&c->experts, "num_experts", where));
    return tess_decoder_check(numbers, where);
}

static tess_tensor *body(const void *numbers, tess_graph *g, const tess_network *in)
{
    const struct qwen3_moe *c = numbers;
    const tess_expert_traits experts = {.experts = &c->experts,
                                        .router = "mlp.gate.weight",
                                        .gate = "mlp.experts.*.gate_proj.weight",
                                        .up = "mlp.experts.*.up_proj.weight",
                                        .down = "mlp.experts.*.down_proj.weight"};
    const tess_decoder_traits traits = {.qkv_bias = c->attention_bias,
                                        .out_bias = c->attention_bias,
                                        .head_norms = true,
                                        .experts = &experts,
                                        .dense = &c->dense};
    return tess_decoder_body(&c->decoder, &traits, g, in);
}

const tess_family tess_family_qwen3_moe = {
    .type = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .prefix = "model.",
    .field = fields,
    .shared = tess_decoder_fields,
    .rotary = tess_rotary_fields,
    .numbers = sizeof(struct qwen3_moe),
    .settle = settle,
    .check = check,
    .body = body,
    .head = tess_decoder_head,
    .bare = tess_decoder_bare,
    .extra = tess_decoder_extra,
};
