/* What families have in common: the keys that config.json of each of them may have, and activation functions. */
#include "model.h"

#define AT(member) offsetof(tess_common, member)
#define IGNORED(name)                                                                                                  \
    {                                                                                                                  \
        name, TESS_FIELD_IGNORED, 0, 0, 0, NULL                                                                        \
    }
#define ONLY(name, json)                                                                                               \
    {                                                                                                                  \
        name, TESS_FIELD_ONLY, 0, 0, 0, json                                                                           \
    }
const tess_field tess_common_fields[] = {{"initializer_range", TESS_FIELD_TRAINING, AT(init), 0.02, 0, NULL},
                                         {"tie_word_embeddings", TESS_FIELD_BOOL, AT(tied), 1, 0, NULL},
                                         /* What would make it another network. */
                                         ONLY("add_cross_attention", "false"),
                                         ONLY("is_encoder_decoder", "false"),
                                         ONLY("is_decoder", "false"),
                                         ONLY("cross_attention_hidden_size", "null"),
                                         ONLY("tie_encoder_decoder", "false"),
                                         ONLY("chunk_size_feed_forward", "0"),
                                         ONLY("pruned_heads", "{}"),
                                         /* Where it came from, and how a program that reads it holds it. */
                                         IGNORED("architectures"),
                                         IGNORED("torch_dtype"),
                                         IGNORED("dtype"),
                                         IGNORED("transformers_version"),
                                         IGNORED("_name_or_path"),
                                         IGNORED("_commit_hash"),
                                         IGNORED("attn_implementation"),
                                         IGNORED("_attn_implementation"),
                                         IGNORED("_attn_implementation_autoset"),
                                         IGNORED("gradient_checkpointing"),
                                         IGNORED("torchscript"),
                                         IGNORED("use_bfloat16"),
                                         IGNORED("tf_legacy_loss"),
                                         IGNORED("tokenizer_class"),
                                         IGNORED("task_specific_params"),
                                         /* What else a call gives back. */
                                         IGNORED("use_cache"),
                                         IGNORED("return_dict"),
                                         IGNORED("output_attentions"),
                                         IGNORED("output_hidden_states"),
                                         IGNORED("output_scores"),
                                         /* Tokens by their meaning, and names of classes: data is ids. */
                                         IGNORED("bos_token_id"),
                                         IGNORED("eos_token_id"),
                                         IGNORED("pad_token_id"),
                                         IGNORED("sep_token_id"),
                                         IGNORED("decoder_start_token_id"),
                                         IGNORED("id2label"),
                                         IGNORED("label2id"),
                                         IGNORED("problem_type"),
                                         IGNORED("finetuning_task"),
                                         /* Generation's, which older files carry. */
                                         IGNORED("prefix"),
                                         IGNORED("max_length"),
                                         IGNORED("min_length"),
                                         IGNORED("do_sample"),
                                         IGNORED("early_stopping"),
                                         IGNORED("num_beams"),
                                         IGNORED("num_beam_groups"),
                                         IGNORED("diversity_penalty"),
                                         IGNORED("temperature"),
                                         IGNORED("top_k"),
                                         IGNORED("top_p"),
                                         IGNORED("typical_p"),
                                         IGNORED("repetition_penalty"),
                                         IGNORED("length_penalty"),
                                         IGNORED("no_repeat_ngram_size"),
                                         IGNORED("encoder_no_repeat_ngram_size"),
                                         IGNORED("bad_words_ids"),
                                         IGNORED("num_return_sequences"),
                                         IGNORED("return_dict_in_generate"),
                                         IGNORED("forced_bos_token_id"),
                                         IGNORED("forced_eos_token_id"),
                                         IGNORED("remove_invalid_values"),
                                         IGNORED("exponential_decay_length_penalty"),
                                         IGNORED("suppress_tokens"),
                                         IGNORED("begin_suppress_tokens"),
                                         {NULL, 0, 0, 0, 0, NULL}};

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
