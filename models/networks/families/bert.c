/* Encoders as Hugging Face describes them. BERT: BertForMaskedLM, a head over the vocabulary at each token,
 * BertForSequenceClassification, one over labels at the first, and BertForPreTraining, which has the former and, at the
 * first token, says whether the second of two texts follows the first. Megatron's BERT is the same with norms before
 * attention and mlp. Heads stand beside the body, which is what the prefix names; beside them older files have numbers
 * of places, heads that the library was trained with, and copies of the tied one. */
#include "models/networks/families/encoder_impl.h"

static tess_tensor *transform(const void *numbers, tess_graph *g, tess_tensor *x)
{
    const tess_encoder *c = numbers;
    x = tess_encoder_dense(c, g, "cls.predictions.transform.dense", x, c->width, c->width);
    return tess_norm(g, tess_activate(x, c->activation), c->width, c->eps, "cls.predictions.transform.LayerNorm");
}
static tess_head masked_head(const void *numbers, tess_graph *g)
{
    return tess_encoder_vocabulary(numbers, g, "cls.predictions.bias");
}

static tess_tensor *pool(const void *numbers, tess_graph *g, const tess_network *in, tess_tensor *x)
{
    const tess_encoder *c = numbers;
    x = tess_encoder_dense(c, g, "pooler.dense", tess_pick(x, in->index), c->width, c->width); // (B, 1, C)
    return tess_tanh(x, 1);
}
static tess_tensor *label_body(const tess_family *f, const void *numbers, tess_graph *g, const tess_network *in)
{
    return tess_encoder_drop(numbers, pool(numbers, g, in, tess_encoder_body(f, numbers, g, in)));
}
static tess_head label_head(const void *numbers, tess_graph *g)
{
    return tess_encoder_labels(numbers, g, "classifier", ((const tess_encoder *)numbers)->labels);
}
static tess_head follows_head(const void *numbers, tess_graph *g)
{
    return tess_encoder_labels(numbers, g, "cls.seq_relationship", 2); /* it does, it does not */
}

static const tess_field masked_fields[] = {{0}};
static const tess_field label_fields[] = {TESS_ENCODER_LABELS, {0}};
#define BERT                                                                                                           \
    .prefix = "bert.", .bare = "cls.* classifier.*", .extra = "embeddings.position_ids pooler.* cls.* classifier.*",   \
    TESS_ENCODER_FAMILY
#define FRESH "classifier.* pooler.* cls.seq_relationship.*"
#define MASKED                                                                                                         \
    BERT, .answers = TESS_ANSWERS_IN_PLACE, .body = tess_encoder_body, .transform = transform, .head = masked_head
#define BOTH                                                                                                           \
    BERT, .answers = TESS_ANSWERS_BOTH, .body = tess_encoder_body, .transform = transform, .head = masked_head,        \
          .label_rows = pool, .label_head = follows_head, .fresh = FRESH
#define LABEL                                                                                                          \
    BERT, .answers = TESS_ANSWERS_LABEL, .labels = offsetof(tess_encoder, labels), .body = label_body,                 \
          .head = label_head, .fresh = FRESH

const tess_family tess_family_bert = {
    .type = "bert", .architecture = "BertForMaskedLM", .field = masked_fields, MASKED};
const tess_family tess_family_bert_both = {
    .type = "bert", .architecture = "BertForPreTraining", .field = masked_fields, BOTH};
const tess_family tess_family_bert_label = {
    .type = "bert", .architecture = "BertForSequenceClassification", .field = label_fields, LABEL};

/* ---- Megatron's ---- */

#define OWN "classifier_dropout", TESS_FIELD_ONLY, 0, 0, 0, "null"
static const tess_field megatron_masked_fields[] = {{OWN}, {0}};
static const tess_field megatron_label_fields[] = {{OWN}, TESS_ENCODER_LABELS, {0}};
#define MEGATRON                                                                                                       \
    .type = "megatron-bert", .traits = &tess_encoder_norms_before,                                                     \
    .presets = "vocab_size 29056 hidden_size 1024 num_hidden_layers 24 num_attention_heads 16 intermediate_size 4096"

const tess_family tess_family_megatron_bert = {MEGATRON, .architecture = "MegatronBertForMaskedLM",
                                               .field = megatron_masked_fields, MASKED};
const tess_family tess_family_megatron_bert_both = {MEGATRON, .architecture = "MegatronBertForPreTraining",
                                                    .field = megatron_masked_fields, BOTH};
const tess_family tess_family_megatron_bert_label = {MEGATRON, .architecture = "MegatronBertForSequenceClassification",
                                                     .field = megatron_label_fields, LABEL};
