/* Families of decoders (decoder_impl.h): what each has in config.json beside the fields of all, with its own defaults,
 * and its traits. */
#include "models/networks/families/decoder_impl.h"

#define AT(member) offsetof(tess_decoder_config, member)
#define END                                                                                                            \
    {                                                                                                                  \
        NULL, 0, 0, 0, 0, NULL                                                                                         \
    }

/* ---- Llama, all of its versions: biases where config.json asks for them ---- */

static const tess_field llama[] = {{"vocab_size", TESS_FIELD_INT, AT(common.vocab), 32000, 1, NULL},
                                   {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
                                   {"mlp_bias", TESS_FIELD_BOOL, AT(mlp_bias), 0, 0, NULL},
                                   END};
const tess_family tess_family_llama = {.type = "llama",
                                       .architecture = "LlamaForCausalLM",
                                       .field = llama,
                                       .traits = &(const tess_decoder_traits){0},
                                       TESS_DECODER_FAMILY};

/* ---- Mistral: a Llama whose queries may see no more than a window of keys ---- */

static const tess_field mistral[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 32000, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(inner), 14336, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(groups), 8, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(rotary.trained_positions), 131072, 1, NULL},
    {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 4096, 1, NULL},
    END};
const tess_family tess_family_mistral = {.type = "mistral",
                                         .architecture = "MistralForCausalLM",
                                         .field = mistral,
                                         .traits = &(const tess_decoder_traits){0},
                                         TESS_DECODER_FAMILY};

/* ---- Mixtral: a Mistral whose mlps are experts ---- */

static const tess_field mixtral[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 32000, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(experts.inner), 14336, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(groups), 8, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(rotary.trained_positions), 131072, 1, NULL},
    {"rope_theta", TESS_FIELD_REAL, AT(rotary.base), 1e6, 1, NULL},
    {"rms_norm_eps", TESS_FIELD_REAL, AT(eps), 1e-5, 0, NULL},
    {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 0, 1, NULL},
    {"num_local_experts", TESS_FIELD_INT, AT(experts.count), 8, 1, NULL},
    {"num_experts", TESS_FIELD_ALIAS, 0, 0, 0, "num_local_experts"},
    {"num_experts_per_tok", TESS_FIELD_INT, AT(experts.chosen), 2, 1, NULL},
    {"output_router_logits", TESS_FIELD_BOOL, AT(experts.balanced), 0, 0, NULL},
    {"router_aux_loss_coef", TESS_FIELD_TRAINING, AT(experts.balance), 0.001, 0, NULL},
    {"router_jitter_noise", TESS_FIELD_TRAINING, AT(experts.jitter), 0, 0, NULL},
    END};
static const tess_decoder_traits mixtral_traits = {.count = "num_local_experts",
                                                   .normalised = true,
                                                   .router = "block_sparse_moe.gate",
                                                   .gate = "block_sparse_moe.experts.*.w1.weight",
                                                   .up = "block_sparse_moe.experts.*.w3.weight",
                                                   .down = "block_sparse_moe.experts.*.w2.weight"};
const tess_family tess_family_mixtral = {.type = "mixtral",
                                         .architecture = "MixtralForCausalLM",
                                         .field = mixtral,
                                         .traits = &mixtral_traits,
                                         TESS_DECODER_FAMILY};

/* ---- Qwen2 and 2.5: a Llama with biases on q, k and v alone ---- */

/* Those of Qwen3 too. */
#define QWEN                                                                                                           \
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 151936, 1, NULL},                                                 \
        {"max_position_embeddings", TESS_FIELD_INT, AT(rotary.trained_positions), 32768, 1, NULL},                     \
        {"use_sliding_window", TESS_FIELD_BOOL, AT(use_window), 0, 0, NULL},                                           \
    {                                                                                                                  \
        "sliding_window", TESS_FIELD_OPTIONAL, AT(window), 4096, 1, NULL                                               \
    }
/* Those of Qwen2 and of Qwen3 without experts. */
#define QWEN_DENSE                                                                                                     \
    QWEN, {"intermediate_size", TESS_FIELD_INT, AT(inner), 22016, 1, NULL},                                            \
        {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(groups), 32, 1, NULL},                                         \
        {"max_window_layers", TESS_FIELD_INT, AT(full_layers), 28, 0, NULL},                                           \
    {                                                                                                                  \
        "layer_types", TESS_FIELD_LAYERS, AT(sliding), 0, 0, TESS_DECODER_LAYER_TYPES                                  \
    }
static const tess_field qwen2[] = {QWEN_DENSE, END};
const tess_family tess_family_qwen2 = {.type = "qwen2",
                                       .architecture = "Qwen2ForCausalLM",
                                       .field = qwen2,
                                       .traits = &(const tess_decoder_traits){.qkv_bias = true, .asks_window = true},
                                       TESS_DECODER_FAMILY};

/* ---- Qwen3: every head of q and k has a norm of its own; biases of attention where config.json asks for them ---- */

static const tess_field qwen3[] = {QWEN_DENSE,
                                   {"head_dim", TESS_FIELD_OPTIONAL, AT(dim), 128, 1, NULL},
                                   {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
                                   END};
const tess_family tess_family_qwen3 = {.type = "qwen3",
                                       .architecture = "Qwen3ForCausalLM",
                                       .field = qwen3,
                                       .traits = &(const tess_decoder_traits){.head_norms = true, .asks_window = true},
                                       TESS_DECODER_FAMILY};

/* ---- Qwen3 with experts in the place of mlps, in all layers or in some ---- */

static const tess_field qwen3_moe[] = {
    QWEN,
    {"hidden_size", TESS_FIELD_INT, AT(width), 2048, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(inner), 6144, 1, NULL},
    {"num_hidden_layers", TESS_FIELD_INT, AT(common.layers), 24, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(groups), 4, 1, NULL},
    {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
    {"num_experts", TESS_FIELD_INT, AT(experts.count), 128, 1, NULL},
    {"num_local_experts", TESS_FIELD_ALIAS, 0, 0, 0, "num_experts"},
    {"num_experts_per_tok", TESS_FIELD_INT, AT(experts.chosen), 8, 1, NULL},
    {"moe_intermediate_size", TESS_FIELD_INT, AT(experts.inner), 768, 1, NULL},
    {"norm_topk_prob", TESS_FIELD_BOOL, AT(experts.normalised), 0, 0, NULL},
    {"decoder_sparse_step", TESS_FIELD_INT, AT(experts.every), 1, 1, NULL},
    {"mlp_only_layers", TESS_FIELD_LAYER_NUMBERS, AT(experts.dense), 0, 0, "without experts"},
    {"output_router_logits", TESS_FIELD_BOOL, AT(experts.balanced), 0, 0, NULL},
    {"router_aux_loss_coef", TESS_FIELD_TRAINING, AT(experts.balance), 0.001, 0, NULL},
    END};
static const char qwen3_moe_ignored[] = "max_window_layers"; /* of this family all slide, or none */
static const tess_decoder_traits qwen3_moe_traits = {.head_norms = true,
                                                     .asks_window = true,
                                                     .some_dense = true,
                                                     .count = "num_experts",
                                                     .router = "mlp.gate",
                                                     .gate = "mlp.experts.*.gate_proj.weight",
                                                     .up = "mlp.experts.*.up_proj.weight",
                                                     .down = "mlp.experts.*.down_proj.weight"};
const tess_family tess_family_qwen3_moe = {.type = "qwen3_moe",
                                           .architecture = "Qwen3MoeForCausalLM",
                                           .field = qwen3_moe,
                                           .ignored = qwen3_moe_ignored,
                                           .traits = &qwen3_moe_traits,
                                           TESS_DECODER_FAMILY};

/* ---- Qwen3.5's text: linear attention in three layers of four, a gate of what each head makes in the others ---- */

static const tess_field qwen3_5[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 248320, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(inner), 12288, 1, NULL},
    {"num_attention_heads", TESS_FIELD_INT, AT(heads), 16, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(groups), 4, 1, NULL},
    {"head_dim", TESS_FIELD_OPTIONAL, AT(dim), 256, 1, NULL},
    {"hidden_act", TESS_FIELD_ONLY, 0, 0, 0, "\"silu\""},
    {"max_position_embeddings", TESS_FIELD_INT, AT(rotary.trained_positions), 32768, 1, NULL},
    {"partial_rotary_factor", TESS_FIELD_REAL, AT(turning), 0.25, 0, NULL},
    {"rope_parameters.partial_rotary_factor", TESS_FIELD_ALIAS, 0, 0, 0, "partial_rotary_factor"},
    {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
    {"layer_types", TESS_FIELD_LAYERS, AT(linear.layers), 0, 0, "full_attention linear_attention"},
    {"full_attention_interval", TESS_FIELD_INT, AT(linear.every), 4, 1, NULL},
    {"linear_num_value_heads", TESS_FIELD_INT, AT(linear.heads), 32, 1, NULL},
    {"linear_num_key_heads", TESS_FIELD_INT, AT(linear.groups), 16, 1, NULL},
    {"linear_key_head_dim", TESS_FIELD_INT, AT(linear.dim), 128, 1, NULL},
    {"linear_value_head_dim", TESS_FIELD_INT, AT(linear.dim_v), 128, 1, NULL},
    {"linear_conv_kernel_dim", TESS_FIELD_INT, AT(linear.taps), 4, 1, NULL},
    {"attn_output_gate", TESS_FIELD_ONLY, 0, 0, 0, "true"},
    {"text_config", TESS_FIELD_OBJECT, 0, 0, 0, "itself"}, /* as published, beside what sees images */
    END};
/* A text's tokens have one place in all three of an image's dimensions. The library reads no mamba_ssm_dtype, nor the
 * layers that guess further tokens. */
static const char qwen3_5_ignored[] =
    "rope_parameters.mrope_section rope_parameters.mrope_interleaved mamba_ssm_dtype mtp_num_hidden_layers "
    "mtp_use_dedicated_embeddings mlp_only_layers vision_config image_token_id video_token_id vision_start_token_id "
    "vision_end_token_id";
static const tess_decoder_traits qwen3_5_traits = {.head_norms = true, .gains_from_one = true, .linear = true};
#define QWEN_3_5 .field = qwen3_5, .ignored = qwen3_5_ignored, .traits = &qwen3_5_traits, .channels = "*.conv1d.weight"
const tess_family tess_family_qwen3_5 = {
    .type = "qwen3_5_text", .architecture = "Qwen3_5ForCausalLM", QWEN_3_5, TESS_DECODER_FAMILY_OF("model.", " mtp.*")};
const tess_family tess_family_qwen3_5_published = {
    .type = "qwen3_5",
    .architecture = "Qwen3_5ForConditionalGeneration",
    QWEN_3_5,
    TESS_DECODER_FAMILY_OF("model.language_model.", " model.visual.* mtp.*")};

/* ---- gpt-oss: attention has sinks, every second layer slides, and all that experts and routers add has biases ---- */

static const tess_field gpt_oss[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 201088, 1, NULL},
    {"hidden_size", TESS_FIELD_INT, AT(width), 2880, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(experts.inner), 2880, 1, NULL},
    {"num_hidden_layers", TESS_FIELD_INT, AT(common.layers), 36, 1, NULL},
    {"num_attention_heads", TESS_FIELD_INT, AT(heads), 64, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(groups), 8, 1, NULL},
    {"head_dim", TESS_FIELD_OPTIONAL, AT(dim), 64, 1, NULL},
    {"hidden_act", TESS_FIELD_ONLY, 0, 0, 0, "\"silu\""},
    {"rms_norm_eps", TESS_FIELD_REAL, AT(eps), 1e-5, 0, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(rotary.trained_positions), 131072, 1, NULL},
    {"rope_theta", TESS_FIELD_REAL, AT(rotary.base), 150000, 1, NULL},
    {"rope_parameters.rope_type", TESS_FIELD_CHOICE, AT(rotary.kind), TESS_ROTARY_UNSAID, 0, TESS_ROTARY_KINDS},
    {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 1, 0, NULL},
    {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 128, 1, NULL},
    {"layer_types", TESS_FIELD_LAYERS, AT(sliding), 0, 0, TESS_DECODER_LAYER_TYPES},
    {"num_local_experts", TESS_FIELD_INT, AT(experts.count), 128, 2, NULL},
    {"num_experts", TESS_FIELD_ALIAS, 0, 0, 0, "num_local_experts"},
    {"num_experts_per_tok", TESS_FIELD_INT, AT(experts.chosen), 4, 1, NULL},
    {"swiglu_alpha", TESS_FIELD_REAL, AT(experts.sharp), 1.702, 0, NULL},
    {"swiglu_limit", TESS_FIELD_OPTIONAL_REAL, AT(experts.limit), 7, 0, NULL},
    {"output_router_logits", TESS_FIELD_BOOL, AT(experts.balanced), 0, 0, NULL},
    {"router_aux_loss_coef", TESS_FIELD_TRAINING, AT(experts.balance), 0.001, 0, NULL},
    {"quantization_config", TESS_FIELD_OBJECT, 0, 0, 0, NULL},
    {"quantization_config.quant_method", TESS_FIELD_ONLY, 0, 0, 0, "\"mxfp4\""},
    END};
/* The second and third say what num_experts_per_tok and original_max_position_embeddings do. */
static const char gpt_oss_ignored[] =
    "quantization_config.modules_to_not_convert experts_per_token initial_context_length";
static const tess_decoder_traits gpt_oss_traits = {.count = "num_local_experts",
                                                   .normalised = true,
                                                   .full_every = 2,
                                                   .sinks = true,
                                                   .router = "mlp.router",
                                                   .gate = "mlp.experts.gate_up_proj",
                                                   .down = "mlp.experts.down_proj"};
const tess_family tess_family_gpt_oss = {.type = "gpt_oss",
                                         .architecture = "GptOssForCausalLM",
                                         .field = gpt_oss,
                                         .ignored = gpt_oss_ignored,
                                         .traits = &gpt_oss_traits,
                                         .stacked = "*.mlp.experts.gate_up_proj *.mlp.experts.down_proj",
                                         TESS_DECODER_FAMILY};

/* ---- Phi-3, 3.5 and 4: a Llama whose q, k and v are one matrix, gate and up another ---- */

static const tess_field phi3[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 32064, 1, NULL},
    {"hidden_size", TESS_FIELD_INT, AT(width), 3072, 1, NULL},
    {"intermediate_size", TESS_FIELD_INT, AT(inner), 8192, 1, NULL},
    {"rms_norm_eps", TESS_FIELD_REAL, AT(eps), 1e-5, 0, NULL},
    {"hidden_act", TESS_FIELD_ONLY, 0, 0, 0, "\"silu\""},
    {"max_position_embeddings", TESS_FIELD_INT, AT(rotary.trained_positions), 4096, 1, NULL},
    {"original_max_position_embeddings", TESS_FIELD_INT, AT(rotary.length), 4096, 2, NULL},
    {"rope_parameters.original_max_position_embeddings", TESS_FIELD_ALIAS, 0, 0, 0, "original_max_position_embeddings"},
    {"rope_parameters.rope_type", TESS_FIELD_CHOICE, AT(rotary.kind), TESS_ROPE_PLAIN, 0, TESS_ROTARY_KINDS " su"},
    {"partial_rotary_factor", TESS_FIELD_REAL, AT(turning), 1, 0, NULL},
    {"rope_parameters.partial_rotary_factor", TESS_FIELD_ALIAS, 0, 0, 0, "partial_rotary_factor"},
    {"resid_pdrop", TESS_FIELD_TRAINING, AT(residual_dropout), 0, 0, NULL},
    {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 0, 1, NULL},
    {"attention_bias", TESS_FIELD_ONLY, 0, 0, 0, "false"},
    {"mlp_bias", TESS_FIELD_ONLY, 0, 0, 0, "false"},
    {"lm_head_bias", TESS_FIELD_ONLY, 0, 0, 0, "false"},
    {"full_attn_mod", TESS_FIELD_ONLY, 0, 0, 0, "1"},
    {"interpolate_factor", TESS_FIELD_ONLY, 0, 0, 0, "1"},
    END};
/* The library has never applied it. */
static const char phi3_ignored[] = "embd_pdrop";
const tess_family tess_family_phi3 = {.type = "phi3",
                                      .architecture = "Phi3ForCausalLM",
                                      .field = phi3,
                                      .ignored = phi3_ignored,
                                      .traits = &(const tess_decoder_traits){.fused = true},
                                      TESS_DECODER_FAMILY};

/* ---- Gemma 2: a Llama with norms behind attention and mlp too, whose logits are capped; every second layer slides
 * ---- */

/* Those of Gemma 3 too. */
#define GEMMA                                                                                                          \
    {"hidden_size", TESS_FIELD_INT, AT(width), 2304, 1, NULL},                                                         \
        {"intermediate_size", TESS_FIELD_INT, AT(inner), 9216, 1, NULL},                                               \
        {"num_hidden_layers", TESS_FIELD_INT, AT(common.layers), 26, 1, NULL},                                         \
        {"num_attention_heads", TESS_FIELD_INT, AT(heads), 8, 1, NULL},                                                \
        {"num_key_value_heads", TESS_FIELD_INT, AT(groups), 4, 1, NULL},                                               \
        {"head_dim", TESS_FIELD_INT, AT(dim), 256, 1, NULL},                                                           \
        {"hidden_activation", TESS_FIELD_ACTIVATION, AT(activation), TESS_ACTIVATION_GELU_TANH, 0, NULL},              \
        {"tie_word_embeddings", TESS_FIELD_BOOL, AT(common.tied), 1, 0, NULL},                                         \
        {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},                                           \
        {"query_pre_attn_scalar", TESS_FIELD_REAL, AT(query_scalar), 256, 0, NULL},                                    \
        {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 4096, 1, NULL},                                            \
        {"layer_types", TESS_FIELD_LAYERS, AT(sliding), 0, 0, TESS_DECODER_LAYER_TYPES},                               \
    {                                                                                                                  \
        "use_bidirectional_attention", TESS_FIELD_ONLY, 0, 0, 0, "false"                                               \
    }
static const tess_field gemma2[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 256000, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(rotary.trained_positions), 8192, 1, NULL},
    {"attn_logit_softcapping", TESS_FIELD_OPTIONAL_REAL, AT(attention_cap), 50, 0, NULL},
    {"final_logit_softcapping", TESS_FIELD_OPTIONAL_REAL, AT(logit_cap), 30, 0, NULL},
    {"sliding_window_size", TESS_FIELD_ALIAS, 0, 0, 0, "sliding_window"},
    GEMMA,
    END};
/* Older files carry the former beside hidden_activation; the latter is generation's. */
static const char gemma_ignored[] = "hidden_act cache_implementation";
static const tess_decoder_traits gemma2_traits = {
    .norms_behind = true, .gains_from_one = true, .scaled = true, .full_every = 2};
const tess_family tess_family_gemma2 = {.type = "gemma2",
                                        .architecture = "Gemma2ForCausalLM",
                                        .field = gemma2,
                                        .ignored = gemma_ignored,
                                        .traits = &gemma2_traits,
                                        TESS_DECODER_FAMILY};

/* ---- Gemma 3, as it reads text: norms of heads too; all layers but every sixth slide, and their positions turn by a
 * base of their own ---- */

/* Positions of layers that slide turn by a base of their own; those of the others are rope_parameters as elsewhere. */
#define POSITIONS_THAT_SLIDE(base)                                                                                     \
    {"rope_parameters.full_attention", TESS_FIELD_ALIAS, 0, 0, 0, "rope_parameters"},                                  \
        {"rope_parameters.sliding_attention", TESS_FIELD_OBJECT, 0, 0, 0, NULL},                                       \
        {"rope_parameters.sliding_attention.rope_type", TESS_FIELD_ONLY, 0, 0, 0, "\"default\""},                      \
    {                                                                                                                  \
        "rope_parameters.sliding_attention.rope_theta", TESS_FIELD_REAL, AT(sliding_base), base, 1, NULL               \
    }
static const tess_field gemma3[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 262208, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(rotary.trained_positions), 131072, 1, NULL},
    {"rope_theta", TESS_FIELD_REAL, AT(rotary.base), 1e6, 1, NULL},
    POSITIONS_THAT_SLIDE(10000),
    {"rope_local_base_freq", TESS_FIELD_ALIAS, 0, 0, 0, "rope_parameters.sliding_attention.rope_theta"},
    {"attn_logit_softcapping", TESS_FIELD_ONLY, 0, 0, 0, "null"}, /* the library never applies one */
    {"final_logit_softcapping", TESS_FIELD_OPTIONAL_REAL, AT(logit_cap), 0, 0, NULL},
    {"sliding_window_pattern", TESS_FIELD_INT, AT(full_every), 6, 1, NULL},
    GEMMA,
    END};
static const tess_decoder_traits gemma3_traits = {
    .head_norms = true, .norms_behind = true, .gains_from_one = true, .scaled = true, .full_every = 6};
const tess_family tess_family_gemma3 = {.type = "gemma3_text",
                                        .architecture = "Gemma3ForCausalLM",
                                        .field = gemma3,
                                        .ignored = gemma_ignored,
                                        .traits = &gemma3_traits,
                                        TESS_DECODER_FAMILY};

/* ---- OLMo 2: norms behind attention and mlp alone, and of all of q and of all of k ---- */

static const tess_field olmo2[] = {{"vocab_size", TESS_FIELD_INT, AT(common.vocab), 50304, 1, NULL},
                                   {"rms_norm_eps", TESS_FIELD_REAL, AT(eps), 1e-5, 0, NULL},
                                   {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
                                   END};
static const tess_decoder_traits olmo2_traits = {.whole_norms = true, .norms_behind_alone = true};
const tess_family tess_family_olmo2 = {
    .type = "olmo2", .architecture = "Olmo2ForCausalLM", .field = olmo2, .traits = &olmo2_traits, TESS_DECODER_FAMILY};

/* ---- OLMo 3: the same, and all layers but every fourth slide, with positions that nothing stretches ---- */

static const tess_field olmo3[] = {{"vocab_size", TESS_FIELD_INT, AT(common.vocab), 50304, 1, NULL},
                                   {"rms_norm_eps", TESS_FIELD_REAL, AT(eps), 1e-5, 0, NULL},
                                   {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
                                   {"rope_theta", TESS_FIELD_REAL, AT(rotary.base), 5e5, 1, NULL},
                                   POSITIONS_THAT_SLIDE(5e5),
                                   {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 4096, 1, NULL},
                                   {"layer_types", TESS_FIELD_LAYERS, AT(sliding), 0, 0, TESS_DECODER_LAYER_TYPES},
                                   END};
static const tess_decoder_traits olmo3_traits = {.whole_norms = true, .norms_behind_alone = true, .full_every = 4};
const tess_family tess_family_olmo3 = {
    .type = "olmo3", .architecture = "Olmo3ForCausalLM", .field = olmo3, .traits = &olmo3_traits, TESS_DECODER_FAMILY};

/* ---- SmolLM3: a Llama some of whose layers know no positions ---- */

static const tess_field smollm3[] = {
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 128256, 1, NULL},
    {"hidden_size", TESS_FIELD_INT, AT(width), 2048, 1, NULL},
    {"num_hidden_layers", TESS_FIELD_INT, AT(common.layers), 36, 1, NULL},
    {"num_attention_heads", TESS_FIELD_INT, AT(heads), 16, 1, NULL},
    {"num_key_value_heads", TESS_FIELD_OPTIONAL, AT(groups), 4, 1, NULL},
    {"max_position_embeddings", TESS_FIELD_INT, AT(rotary.trained_positions), 32768, 1, NULL},
    {"rope_theta", TESS_FIELD_REAL, AT(rotary.base), 2e6, 1, NULL},
    {"tie_word_embeddings", TESS_FIELD_BOOL, AT(common.tied), 1, 0, NULL},
    {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
    {"mlp_bias", TESS_FIELD_BOOL, AT(mlp_bias), 0, 0, NULL},
    {"use_sliding_window", TESS_FIELD_BOOL, AT(use_window), 0, 0, NULL},
    {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 0, 1, NULL},
    {"layer_types", TESS_FIELD_LAYERS, AT(sliding), 0, 0, TESS_DECODER_LAYER_TYPES},
    {"no_rope_layers", TESS_FIELD_LAYERS, AT(still), 0, 0, "1 0"},
    {"no_rope_layer_interval", TESS_FIELD_INT, AT(still_every), 4, 1, NULL},
    END};
static const char smollm3_ignored[] = "max_window_layers"; /* the library reads layer_types alone */
static const tess_decoder_traits smollm3_traits = {.asks_window = true, .still_slide = true};
const tess_family tess_family_smollm3 = {.type = "smollm3",
                                         .architecture = "SmolLM3ForCausalLM",
                                         .field = smollm3,
                                         .ignored = smollm3_ignored,
                                         .traits = &smollm3_traits,
                                         TESS_DECODER_FAMILY};

/* ---- Granite: a Llama with a factor of embeddings, of what a layer adds, of attention's logits, and of logits ---- */

static const tess_field granite[] = {{"vocab_size", TESS_FIELD_INT, AT(common.vocab), 32000, 1, NULL},
                                     {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
                                     {"mlp_bias", TESS_FIELD_BOOL, AT(mlp_bias), 0, 0, NULL},
                                     {"embedding_multiplier", TESS_FIELD_OPTIONAL_REAL, AT(embedding_by), 1, 0, NULL},
                                     {"residual_multiplier", TESS_FIELD_OPTIONAL_REAL, AT(residual_by), 1, 0, NULL},
                                     {"attention_multiplier", TESS_FIELD_OPTIONAL_REAL, AT(attention_by), 1, 0, NULL},
                                     {"logits_scaling", TESS_FIELD_OPTIONAL_REAL, AT(logits_over), 1, 0, NULL},
                                     END};
const tess_family tess_family_granite = {.type = "granite",
                                         .architecture = "GraniteForCausalLM",
                                         .field = granite,
                                         .traits = &(const tess_decoder_traits){0},
                                         TESS_DECODER_FAMILY};
