/* What families have in common: the keys that config.json of each of them may have, and how they describe networks. */
#include "models/networks/model/model.h"
#include <stdarg.h>
#include <string.h>

#define AT(member) offsetof(tess_common, member)
const tess_field tess_common_fields[] = {{"initializer_range", TESS_FIELD_TRAINING, AT(init), 0.02, 0, NULL},
                                         {"tie_word_embeddings", TESS_FIELD_BOOL, AT(tied), 1, 0, NULL},
                                         /* What would make it another network. */
                                         {"add_cross_attention", TESS_FIELD_ONLY, 0, 0, 0, "false"},
                                         {"is_encoder_decoder", TESS_FIELD_ONLY, 0, 0, 0, "false"},
                                         {"is_decoder", TESS_FIELD_ONLY, 0, 0, 0, "false"},
                                         {"cross_attention_hidden_size", TESS_FIELD_ONLY, 0, 0, 0, "null"},
                                         {"tie_encoder_decoder", TESS_FIELD_ONLY, 0, 0, 0, "false"},
                                         {"chunk_size_feed_forward", TESS_FIELD_ONLY, 0, 0, 0, "0"},
                                         {"pruned_heads", TESS_FIELD_ONLY, 0, 0, 0, "{}"},
                                         {"quantization_config", TESS_FIELD_ONLY, 0, 0, 0, "null"},
                                         {"rope_interleaved", TESS_FIELD_ONLY, 0, 0, 0, "false"},
                                         {"use_mrope", TESS_FIELD_ONLY, 0, 0, 0, "false"},
                                         {NULL, 0, 0, 0, 0, NULL}};
const char tess_common_ignored[] =
    /* Where it came from, and how a program that reads it holds it. */
    "_* unsloth_* architectures torch_dtype dtype transformers_version attn_implementation use_flash_attn "
    "use_flash_attention use_flash_attention_2 gradient_checkpointing torchscript use_bfloat16 tf_legacy_loss "
    "tokenizer_class task_specific_params auto_map transformers.js_config is_llama_config "
    "keys_to_ignore_at_inference neftune_noise_alpha "
    /* The tokenizer's, or of how it was trained: the library reads none of them. */
    "max_sequence_length model_max_length tokenizer_model_max_length tokenizer_padding_side "
    /* It is only the order of sums, in a library that made them piece by piece. */
    "pretraining_tp "
    /* What else a call gives back. */
    "use_cache return_dict output_attentions output_hidden_states output_scores "
    /* Tokens by their meaning, and names of classes: data is ids. */
    "bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id id2label label2id "
    "problem_type "
    "finetuning_task "
    /* Generation's, which older files carry. */
    "prefix max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature "
    "top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
    "bad_words_ids num_return_sequences return_dict_in_generate forced_bos_token_id forced_eos_token_id "
    "remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens";

tess_tensor *tess_embed(const tess_network *in, tess_tensor *words, tess_tensor *places)
{
    if (!in->positions) return tess_embedding(in->ids, words, places);
    return tess_add(tess_embedding(in->ids, words, NULL), tess_embedding(in->positions, places, NULL));
}

tess_tensor *tess_activate(tess_tensor *x, int64_t activation)
{
    if (activation == TESS_ACTIVATION_SILU) return tess_silu(x);
    return activation == TESS_ACTIVATION_RELU ? tess_relu(x) : tess_gelu(x, (tess_gelu_kind)activation);
}

/* The parameter NAME.PART. */
static tess_tensor *part_of(tess_graph *g, const char *name, const char *part, int64_t rows, int64_t columns,
                            tess_init init)
{
    char full[200];
    snprintf(full, sizeof full, "%s.%s", name, part);
    return tess_param(g, full, rows, columns, init);
}

/* Makes `text` of a format and what follows it. */
#define FORMAT(text, format)                                                                                           \
    char text[160];                                                                                                    \
    va_list list;                                                                                                      \
    va_start(list, format);                                                                                            \
    vsnprintf(text, sizeof text, format, list);                                                                        \
    va_end(list)

tess_tensor *tess_dense(tess_graph *g, tess_tensor *x, int64_t in, int64_t out, double deviation, tess_bias bias,
                        const char *name, ...)
{
    FORMAT(full, name);
    tess_tensor *b = bias == TESS_BIAS_BEFORE ? part_of(g, full, "bias", out, 1, TESS_ZERO) : NULL;
    tess_tensor *w = part_of(g, full, "weight", out, in, TESS_NORMAL((float)deviation));
    if (bias == TESS_BIAS_BEHIND) b = part_of(g, full, "bias", out, 1, TESS_ZERO);
    return tess_name(tess_linear(x, w, b), "%s", full);
}

tess_tensor *tess_norm(tess_graph *g, tess_tensor *x, int64_t width, double eps, const char *name, ...)
{
    FORMAT(full, name);
    tess_tensor *bias = part_of(g, full, "bias", width, 1, TESS_ZERO);
    return tess_layernorm(x, part_of(g, full, "weight", width, 1, TESS_ONE), bias, (float)eps);
}

tess_status tess_rates_check(const char *where, const tess_rate *rate, int count)
{
    for (int i = 0; i < count; i++)
        if (rate[i].p >= 1)
            return tess_error(TESS_INVALID, where, "%s: %g (expected 0 to below 1)", rate[i].name, rate[i].p);
    return TESS_OK;
}

tess_status tess_heads_check(const char *where, const char *width, int64_t wide, const char *heads, int64_t many)
{
    if (wide % many == 0) return TESS_OK;
    return tess_error(TESS_INVALID, where, "%s %lld is no multiple of %s %lld", width, (long long)wide, heads,
                      (long long)many);
}
