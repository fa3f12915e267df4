/* Encoders as Hugging Face describes them. BERT: BertForMaskedLM, a head over the vocabulary at each token,
 * BertForSequenceClassification, one over labels at the first, and BertForPreTraining, which has the former and, at the
 * first token, says whether the second of two texts follows the first. RoBERTa: BERT whose places count from behind the
 * padding's id, with heads of its own making. Heads stand beside the body, which is what the prefix names; beside them
 * older files have numbers of places, heads that the library was trained with, and copies of the tied one. */
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

static const tess_field masked_fields[] = {{NULL, 0, 0, 0, 0, NULL}};
static const tess_field label_fields[] = {TESS_ENCODER_LABELS, {NULL, 0, 0, 0, 0, NULL}};
#define BERT                                                                                                           \
    .type = "bert", .prefix = "bert.", .bare = "cls.* classifier.*",                                                   \
    .extra = "embeddings.position_ids pooler.* cls.* classifier.*", TESS_ENCODER_FAMILY
#define FRESH "classifier.* pooler.* cls.seq_relationship.*"

const tess_family tess_family_bert = {.architecture = "BertForMaskedLM",
                                      .field = masked_fields,
                                      .answers = TESS_ANSWERS_IN_PLACE,
                                      .body = tess_encoder_body,
                                      .transform = transform,
                                      .head = masked_head,
                                      BERT};
const tess_family tess_family_bert_both = {.architecture = "BertForPreTraining",
                                           .field = masked_fields,
                                           .answers = TESS_ANSWERS_BOTH,
                                           .body = tess_encoder_body,
                                           .transform = transform,
                                           .head = masked_head,
                                           .label_rows = pool,
                                           .label_head = follows_head,
                                           .fresh = FRESH,
                                           BERT};
const tess_family tess_family_bert_label = {.architecture = "BertForSequenceClassification",
                                            .field = label_fields,
                                            .answers = TESS_ANSWERS_LABEL,
                                            .labels = offsetof(tess_encoder, labels),
                                            .body = label_body,
                                            .head = label_head,
                                            .fresh = FRESH,
                                            BERT};

/* ---- RoBERTa ---- */

static tess_tensor *roberta_masked_body(const tess_family *f, const void *numbers, tess_graph *g,
                                        const tess_network *in)
{
    const tess_encoder *c = numbers;
    tess_tensor *x = tess_encoder_body(f, c, g, in);
    x = tess_gelu(tess_encoder_dense(c, g, "lm_head.dense", x, c->width, c->width), TESS_GELU_ERF);
    return tess_norm(g, x, c->width, c->eps, "lm_head.layer_norm");
}
static tess_head roberta_masked_head(const void *numbers, tess_graph *g)
{
    return tess_encoder_vocabulary(numbers, g, "lm_head.bias");
}
static tess_tensor *roberta_label_body(const tess_family *f, const void *numbers, tess_graph *g, const tess_network *in)
{
    const tess_encoder *c = numbers;
    tess_tensor *x = tess_encoder_drop(c, tess_pick(tess_encoder_body(f, c, g, in), in->index)); // (B, 1, C)
    x = tess_encoder_dense(c, g, "classifier.dense", x, c->width, c->width);
    return tess_encoder_drop(c, tess_tanh(x, 1));
}
static tess_head roberta_label_head(const void *numbers, tess_graph *g)
{
    return tess_encoder_labels(numbers, g, "classifier.out_proj", ((const tess_encoder *)numbers)->labels);
}

#define AT(member) offsetof(tess_encoder, member)
#define OWN                                                                                                            \
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 50265, 1, NULL},                                                  \
    {                                                                                                                  \
        "pad_token_id", TESS_FIELD_INT, AT(pad), 1, 0, NULL                                                            \
    }
static const tess_field roberta_masked_fields[] = {OWN, {NULL, 0, 0, 0, 0, NULL}};
static const tess_field roberta_label_fields[] = {OWN, TESS_ENCODER_LABELS, {NULL, 0, 0, 0, 0, NULL}};
#define ROBERTA                                                                                                        \
    .type = "roberta", .prefix = "roberta.", .behind = AT(pad), .bare = "lm_head.* classifier.*",                      \
    .extra = "embeddings.position_ids pooler.* lm_head.* classifier.*", TESS_ENCODER_FAMILY

const tess_family tess_family_roberta = {.architecture = "RobertaForMaskedLM",
                                         .field = roberta_masked_fields,
                                         .answers = TESS_ANSWERS_IN_PLACE,
                                         .body = roberta_masked_body,
                                         .head = roberta_masked_head,
                                         ROBERTA};
const tess_family tess_family_roberta_label = {.architecture = "RobertaForSequenceClassification",
                                               .field = roberta_label_fields,
                                               .answers = TESS_ANSWERS_LABEL,
                                               .labels = AT(labels),
                                               .body = roberta_label_body,
                                               .head = roberta_label_head,
                                               .fresh = "classifier.*",
                                               ROBERTA};
