/* Families of decoders (decoder_impl.h): what each has in config.json beside the fields of all, its defaults of these,
 * and its traits. */
#include "models/networks/families/decoder_impl.h"

#define AT(member)  offsetof(tess_decoder_config, member)
#define TRAITS(...) (&(const tess_decoder_traits){__VA_ARGS__})
/* A family of this kind, whose own fields have its name; behind its traits comes what it has beside what all have. */
#define DECODER(name, type_, architecture_, presets_, traits_, ...)                                                    \
    const tess_family tess_family_##name = {.type = type_,                                                             \
                                            .architecture = architecture_,                                             \
                                            .field = name,                                                             \
                                            .presets = presets_,                                                       \
                                            .traits = traits_,                                                         \
                                            TESS_DECODER_FAMILY,                                                       \
                                            __VA_ARGS__}

/* ---- Llama, all of its versions: biases where config.json asks for them ---- */

static const tess_field llama[] = {{"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
                                   {"mlp_bias", TESS_FIELD_BOOL, AT(mlp_bias), 0, 0, NULL},
                                   {0}};
DECODER(llama, "llama", "LlamaForCausalLM", "vocab_size 32000", TRAITS());

/* ---- Mistral: a Llama whose queries may see no more than a window of keys ---- */

static const tess_field mistral[] = {{"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 4096, 1, NULL}, {0}};
DECODER(mistral, "mistral", "MistralForCausalLM",
        "vocab_size 32000 intermediate_size 14336 num_key_value_heads 8 max_position_embeddings 131072", TRAITS());

/* ---- Mixtral: a Mistral whose mlps are experts ---- */

static const tess_field mixtral[] = {{"intermediate_size", TESS_FIELD_INT, AT(experts.inner), 14336, 1, NULL},
                                     {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 0, 1, NULL},
                                     {"num_local_experts", TESS_FIELD_INT, AT(experts.count), 8, 1, NULL},
                                     {"num_experts", TESS_FIELD_ALIAS, 0, 0, 0, "num_local_experts"},
                                     {"num_experts_per_tok", TESS_FIELD_INT, AT(experts.chosen), 2, 1, NULL},
                                     {"output_router_logits", TESS_FIELD_BOOL, AT(experts.balanced), 0, 0, NULL},
                                     {"router_aux_loss_coef", TESS_FIELD_TRAINING, AT(experts.balance), 0.001, 0, NULL},
                                     {"router_jitter_noise", TESS_FIELD_TRAINING, AT(experts.jitter), 0, 0, NULL},
                                     {0}};
DECODER(mixtral, "mixtral", "MixtralForCausalLM",
        "vocab_size 32000 num_key_value_heads 8 max_position_embeddings 131072 rope_theta 1e6 rms_norm_eps 1e-5",
        TRAITS(.count = "num_local_experts", .normalised = true, .router = "block_sparse_moe.gate",
               .gate = "block_sparse_moe.experts.*.w1.weight", .up = "block_sparse_moe.experts.*.w3.weight",
               .down = "block_sparse_moe.experts.*.w2.weight"));

/* ---- Qwen2 and 2.5: a Llama with biases on q, k and v alone ---- */

/* Those of Qwen3 too. */
#define QWEN                                                                                                           \
    {"use_sliding_window", TESS_FIELD_BOOL, AT(use_window), 0, 0, NULL},                                               \
    {                                                                                                                  \
        "sliding_window", TESS_FIELD_OPTIONAL, AT(window), 4096, 1, NULL                                               \
    }
#define QWEN_PRESETS "vocab_size 151936 max_position_embeddings 32768"
/* Those of Qwen2 and of Qwen3 without experts. */
#define QWEN_DENSE                                                                                                     \
    QWEN, {"max_window_layers", TESS_FIELD_INT, AT(full_layers), 28, 0, NULL},                                         \
    {                                                                                                                  \
        "layer_types", TESS_FIELD_LAYERS, AT(sliding), 0, 0, TESS_DECODER_LAYER_TYPES                                  \
    }
#define QWEN_DENSE_PRESETS QWEN_PRESETS " intermediate_size 22016 num_key_value_heads 32"
static const tess_field qwen2[] = {QWEN_DENSE, {0}};
DECODER(qwen2, "qwen2", "Qwen2ForCausalLM", QWEN_DENSE_PRESETS, TRAITS(.qkv_bias = true, .asks_window = true));

/* ---- Qwen3: every head of q and k has a norm of its own; biases of attention where config.json asks for them ---- */

static const tess_field qwen3[] = {
    QWEN_DENSE, {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL}, {0}};
DECODER(qwen3, "qwen3", "Qwen3ForCausalLM", QWEN_DENSE_PRESETS " head_dim 128",
        TRAITS(.head_norms = true, .asks_window = true));

/* ---- Qwen3 with experts in the place of mlps, in all layers or in some ---- */

static const tess_field qwen3_moe[] = {
    QWEN,
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
    {0}};
/* Of this family all layers slide, or none. */
DECODER(qwen3_moe, "qwen3_moe", "Qwen3MoeForCausalLM",
        QWEN_PRESETS " hidden_size 2048 intermediate_size 6144 num_hidden_layers 24 num_key_value_heads 4",
        TRAITS(.head_norms = true, .asks_window = true, .some_dense = true, .count = "num_experts",
               .router = "mlp.gate", .gate = "mlp.experts.*.gate_proj.weight", .up = "mlp.experts.*.up_proj.weight",
               .down = "mlp.experts.*.down_proj.weight"),
        .ignored = "max_window_layers");

/* ---- Qwen3.5's text: linear attention in three layers of four, a gate of what each head makes in the others ---- */

static const tess_field qwen3_5[] = {
    {"hidden_act", TESS_FIELD_ONLY, 0, 0, 0, "\"silu\""},
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
    {0}};
/* A text's tokens have one place in all three of an image's dimensions. The library reads no mamba_ssm_dtype, nor the
 * layers that guess further tokens. */
static const char qwen3_5_ignored[] =
    "rope_parameters.mrope_section rope_parameters.mrope_interleaved mamba_ssm_dtype mtp_num_hidden_layers "
    "mtp_use_dedicated_embeddings mlp_only_layers vision_config image_token_id video_token_id vision_start_token_id "
    "vision_end_token_id";
#define QWEN_3_5                                                                                                       \
    .presets = "vocab_size 248320 intermediate_size 12288 num_attention_heads 16 num_key_value_heads 4 head_dim 256 "  \
               "max_position_embeddings 32768",                                                                        \
    .field = qwen3_5, .ignored = qwen3_5_ignored,                                                                      \
    .traits = TRAITS(.head_norms = true, .gains_from_one = true, .linear = true), .channels = "*.conv1d.weight"
const tess_family tess_family_qwen3_5 = {
    .type = "qwen3_5_text", .architecture = "Qwen3_5ForCausalLM", QWEN_3_5, TESS_DECODER_FAMILY_OF("model.", " mtp.*")};
const tess_family tess_family_qwen3_5_published = {
    .type = "qwen3_5",
    .architecture = "Qwen3_5ForConditionalGeneration",
    QWEN_3_5,
    TESS_DECODER_FAMILY_OF("model.language_model.", " model.visual.* mtp.*")};

/* ---- gpt-oss: attention has sinks, every second layer slides, and all that experts and routers add has biases ---- */

static const tess_field gpt_oss[] = {
    {"intermediate_size", TESS_FIELD_INT, AT(experts.inner), 2880, 1, NULL},
    {"hidden_act", TESS_FIELD_ONLY, 0, 0, 0, "\"silu\""},
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
    {0}};
/* The second and third say what num_experts_per_tok and original_max_position_embeddings do. */
DECODER(gpt_oss, "gpt_oss", "GptOssForCausalLM",
        "vocab_size 201088 hidden_size 2880 num_hidden_layers 36 num_attention_heads 64 num_key_value_heads 8 "
        "head_dim 64 rms_norm_eps 1e-5 max_position_embeddings 131072 rope_theta 150000",
        TRAITS(.count = "num_local_experts", .normalised = true, .full_every = 2, .sinks = true, .router = "mlp.router",
               .gate = "mlp.experts.gate_up_proj", .down = "mlp.experts.down_proj"),
        .ignored = "quantization_config.modules_to_not_convert experts_per_token initial_context_length",
        .stacked = "*.mlp.experts.gate_up_proj *.mlp.experts.down_proj");

/* ---- Phi-3, 3.5 and 4: a Llama whose q, k and v are one matrix, gate and up another ---- */

static const tess_field phi3[] = {
    {"hidden_act", TESS_FIELD_ONLY, 0, 0, 0, "\"silu\""},
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
    {0}};
/* The library has never applied it. */
DECODER(phi3, "phi3", "Phi3ForCausalLM",
        "vocab_size 32064 hidden_size 3072 intermediate_size 8192 rms_norm_eps 1e-5 max_position_embeddings 4096",
        TRAITS(.fused = true), .ignored = "embd_pdrop");

/* ---- Gemma 2: a Llama with norms behind attention and mlp too, whose logits are capped; every second layer slides
 * ---- */

/* Those of Gemma 3 too. */
#define GEMMA                                                                                                          \
    {"num_key_value_heads", TESS_FIELD_INT, AT(groups), 4, 1, NULL},                                                   \
        {"head_dim", TESS_FIELD_INT, AT(dim), 256, 1, NULL},                                                           \
        {"hidden_activation", TESS_FIELD_ACTIVATION, AT(activation), TESS_ACTIVATION_GELU_TANH, 0, NULL},              \
        {"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},                                           \
        {"query_pre_attn_scalar", TESS_FIELD_REAL, AT(query_scalar), 256, 0, NULL},                                    \
        {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 4096, 1, NULL},                                            \
        {"layer_types", TESS_FIELD_LAYERS, AT(sliding), 0, 0, TESS_DECODER_LAYER_TYPES},                               \
    {                                                                                                                  \
        "use_bidirectional_attention", TESS_FIELD_ONLY, 0, 0, 0, "false"                                               \
    }
#define GEMMA_PRESETS                                                                                                  \
    "hidden_size 2304 intermediate_size 9216 num_hidden_layers 26 num_attention_heads 8 tie_word_embeddings 1 "
static const tess_field gemma2[] = {
    {"attn_logit_softcapping", TESS_FIELD_OPTIONAL_REAL, AT(attention_cap), 50, 0, NULL},
    {"final_logit_softcapping", TESS_FIELD_OPTIONAL_REAL, AT(logit_cap), 30, 0, NULL},
    {"sliding_window_size", TESS_FIELD_ALIAS, 0, 0, 0, "sliding_window"},
    GEMMA,
    {0}};
/* Older files carry the former beside hidden_activation; the latter is generation's. */
static const char gemma_ignored[] = "hidden_act cache_implementation";
DECODER(gemma2, "gemma2", "Gemma2ForCausalLM", GEMMA_PRESETS "vocab_size 256000 max_position_embeddings 8192",
        TRAITS(.norms_behind = true, .gains_from_one = true, .scaled = true, .full_every = 2),
        .ignored = gemma_ignored);

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
    POSITIONS_THAT_SLIDE(10000),
    {"rope_local_base_freq", TESS_FIELD_ALIAS, 0, 0, 0, "rope_parameters.sliding_attention.rope_theta"},
    {"attn_logit_softcapping", TESS_FIELD_ONLY, 0, 0, 0, "null"}, /* the library never applies one */
    {"final_logit_softcapping", TESS_FIELD_OPTIONAL_REAL, AT(logit_cap), 0, 0, NULL},
    {"sliding_window_pattern", TESS_FIELD_INT, AT(full_every), 6, 1, NULL},
    GEMMA,
    {0}};
DECODER(gemma3, "gemma3_text", "Gemma3ForCausalLM",
        GEMMA_PRESETS "vocab_size 262208 max_position_embeddings 131072 rope_theta 1e6",
        TRAITS(.head_norms = true, .norms_behind = true, .gains_from_one = true, .scaled = true, .full_every = 6),
        .ignored = gemma_ignored);

/* ---- OLMo 2: norms behind attention and mlp alone, and of all of q and of all of k ---- */

static const tess_field olmo2[] = {{"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL}, {0}};
DECODER(olmo2, "olmo2", "Olmo2ForCausalLM", "vocab_size 50304 rms_norm_eps 1e-5",
        TRAITS(.whole_norms = true, .norms_behind_alone = true));

/* ---- OLMo 3: the same, and all layers but every fourth slide, with positions that nothing stretches ---- */

static const tess_field olmo3[] = {{"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
                                   POSITIONS_THAT_SLIDE(5e5),
                                   {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 4096, 1, NULL},
                                   {"layer_types", TESS_FIELD_LAYERS, AT(sliding), 0, 0, TESS_DECODER_LAYER_TYPES},
                                   {0}};
DECODER(olmo3, "olmo3", "Olmo3ForCausalLM", "vocab_size 50304 rms_norm_eps 1e-5 rope_theta 5e5",
        TRAITS(.whole_norms = true, .norms_behind_alone = true, .full_every = 4));

/* ---- SmolLM3: a Llama some of whose layers know no positions ---- */

static const tess_field smollm3[] = {{"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
                                     {"mlp_bias", TESS_FIELD_BOOL, AT(mlp_bias), 0, 0, NULL},
                                     {"use_sliding_window", TESS_FIELD_BOOL, AT(use_window), 0, 0, NULL},
                                     {"sliding_window", TESS_FIELD_OPTIONAL, AT(window), 0, 1, NULL},
                                     {"layer_types", TESS_FIELD_LAYERS, AT(sliding), 0, 0, TESS_DECODER_LAYER_TYPES},
                                     {"no_rope_layers", TESS_FIELD_LAYERS, AT(still), 0, 0, "1 0"},
                                     {"no_rope_layer_interval", TESS_FIELD_INT, AT(still_every), 4, 1, NULL},
                                     {0}};
/* The library reads layer_types alone. */
DECODER(smollm3, "smollm3", "SmolLM3ForCausalLM",
        "vocab_size 128256 hidden_size 2048 num_hidden_layers 36 num_attention_heads 16 num_key_value_heads 4 "
        "max_position_embeddings 32768 rope_theta 2e6 tie_word_embeddings 1",
        TRAITS(.asks_window = true, .still_slide = true), .ignored = "max_window_layers");

/* ---- Granite: a Llama with a factor of embeddings, of what a layer adds, of attention's logits, and of logits ---- */

static const tess_field granite[] = {{"attention_bias", TESS_FIELD_BOOL, AT(attention_bias), 0, 0, NULL},
                                     {"mlp_bias", TESS_FIELD_BOOL, AT(mlp_bias), 0, 0, NULL},
                                     {"embedding_multiplier", TESS_FIELD_OPTIONAL_REAL, AT(embedding_by), 1, 0, NULL},
                                     {"residual_multiplier", TESS_FIELD_OPTIONAL_REAL, AT(residual_by), 1, 0, NULL},
                                     {"attention_multiplier", TESS_FIELD_OPTIONAL_REAL, AT(attention_by), 1, 0, NULL},
                                     {"logits_scaling", TESS_FIELD_OPTIONAL_REAL, AT(logits_over), 1, 0, NULL},
                                     {0}};
DECODER(granite, "granite", "GraniteForCausalLM", "vocab_size 32000", TRAITS());

/* ---- DeepSeek-V3, and R1: latent attention, experts chosen by scores from some groups, and others that all rows pass
 * through. Its published files have one more block, which guesses a further token: that is not trained. ---- */

static const tess_field deepseek_v3[] = {
    {"moe_intermediate_size", TESS_FIELD_INT, AT(experts.inner), 2048, 1, NULL},
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
    {0}};
/* The first two follow from others, and the library adds no loss of experts. */
DECODER(deepseek_v3, "deepseek_v3", "DeepseekV3ForCausalLM",
        "vocab_size 129280 hidden_size 7168 intermediate_size 18432 num_hidden_layers 61 num_attention_heads 128 "
        "max_position_embeddings 4096",
        TRAITS(.latent = true, .some_dense = true, .count = "n_routed_experts", .router = "mlp.gate",
               .bias = "mlp.gate.e_score_correction_bias", .gate = "mlp.experts.*.gate_proj.weight",
               .up = "mlp.experts.*.up_proj.weight", .down = "mlp.experts.*.down_proj.weight"),
        .ignored = "head_dim qk_head_dim ep_size aux_loss_alpha seq_aux output_router_logits "
                   "quantization_config.activation_scheme quantization_config.modules_to_not_convert "
                   "quantization_config.scale_fmt",
        .further = AT(further), .wide = "*.e_score_correction_bias");
