/* DeepSeek-V3, and R1: latent attention, experts chosen by scores from some groups, and others that all rows pass
 * through. Its published files have one more block, which guesses a further token: that is not trained. */
#include "models/networks/families/decoder_impl.h"

#define AT(member) offsetof(tess_decoder_config, member)
static const tess_field deepseek_v3[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 129280, 1, NULL},
    {"hidden_size", TESS_FIELD_INT, AT(width), 7168, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(inner), 18432, 1, NULL},
    {"moe_intermediate_size", TESS_FIELD_INT, AT(experts.inner), 2048, 1, NULL},
    {"num_hidden_layers", TESS_FIELD_INT, AT(common.layers), 61, 1, NULL},
    {"num_attention_heads", TESS_FIELD_INT, AT(heads), 128, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(rotary.trained_positions), 4096, 1, NULL},
    {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
    {"q_lora_rank", TESS_FIELD_OPTIONAL, AT(latent.queries), 1536, 1, NULL},
    {"kv_lora_rank", TESS_FIELD_INT, AT(latent.keys), 512, 1, NULL},
    {"qk_nope_head_dim", TESS_FIELD_INT, AT(latent.still), 128, 1, NULL},
    {"qk_rope_head_dim", TESS_FIELD_INT, AT(latent.turning), 64, 2, NULL},
    {"v_head_dim", TESS_FIELD_INT, AT(latent.values), 128, 1, NULL},
    {"rope_interleave", TESS_FIELD_BOOL, AT(latent.neighbours), 1, 0, NULL},
    {"n_routed_experts", TESS_FIELD_INT, AT(experts.count), 256, 1, NULL},
    {"num_local_experts", TESS_FIELD_ALIAS, 0, 0, 0, "n_routed_experts"},
    {"num_experts", TESS_FIELD_ALIAS, 0, 0, 0, "n_routed_experts"},
    {"num_experts_per_tok", TESS_FIELD_INT, AT(experts.chosen), 8, 1, NULL},
    {"n_shared_experts", TESS_FIELD_INT, AT(experts.shared), 1, 1, NULL},
    {"n_group", TESS_FIELD_INT, AT(experts.groups), 8, 1, NULL},
    {"topk_group", TESS_FIELD_INT, AT(experts.kept), 4, 1, NULL},
    {"norm_topk_prob", TESS_FIELD_BOOL, AT(experts.normalised), 1, 0, NULL},
    {"routed_scaling_factor", TESS_FIELD_OPTIONAL_REAL, AT(experts.scale), 2.5, 0, NULL},
    {"first_k_dense_replace", TESS_FIELD_INT, AT(experts.behind), 3, 0, NULL},
    {"moe_layer_freq", TESS_FIELD_ONLY, 0, 0, 0, "1"},
    {"scoring_func", TESS_FIELD_ONLY, 0, 0, 0, "\"sigmoid\""},
    {"topk_method", TESS_FIELD_ONLY, 0, 0, 0, "\"noaux_tc\""},
    {"num_nextn_predict_layers", TESS_FIELD_INT, AT(further), 1, 0, NULL},
    {"num_mtp_layers", TESS_FIELD_ALIAS, 0, 0, 0, "num_nextn_predict_layers"},
    {"quantization_config", TESS_FIELD_OBJECT, 0, 0, 0, NULL},
    {"quantization_config.quant_method", TESS_FIELD_ONLY, 0, 0, 0, "\"fp8\""},
    {"quantization_config.fmt", TESS_FIELD_ONLY, 0, 0, 0, "\"e4m3\""},
    {"quantization_config.weight_block_size", TESS_FIELD_ONLY, 0, 0, 0, "[128, 128]"},
    {NULL, 0, 0, 0, 0, NULL}};
/* The first two follow from others, and the library adds no loss of experts. */
static const char deepseek_v3_ignored[] =
    "head_dim qk_head_dim ep_size aux_loss_alpha seq_aux output_router_logits quantization_config.activation_scheme "
    "quantization_config.modules_to_not_convert quantization_config.scale_fmt";
static const tess_decoder_traits deepseek_v3_traits = {.latent = true,
                                                       .some_dense = true,
                                                       .count = "n_routed_experts",
                                                       .router = "mlp.gate",
                                                       .bias = "mlp.gate.e_score_correction_bias",
                                                       .gate = "mlp.experts.*.gate_proj.weight",
                                                       .up = "mlp.experts.*.up_proj.weight",
                                                       .down = "mlp.experts.*.down_proj.weight"};
const tess_family tess_family_deepseek_v3 = {.type = "deepseek_v3",
                                             .architecture = "DeepseekV3ForCausalLM",
                                             .field = deepseek_v3,
                                             .ignored = deepseek_v3_ignored,
                                             .traits = &deepseek_v3_traits,
                                             .further = AT(further),
                                             .wide = "*.e_score_correction_bias",
                                             TESS_DECODER_FAMILY};
