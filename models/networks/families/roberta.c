/* RoBERTa: a BERT whose places count from behind the padding's id, with heads of its own making (encoder_impl.h). */
#include "models/networks/families/encoder_impl.h"

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
#define OWN        "pad_token_id", TESS_FIELD_INT, AT(pad), 1, 0, NULL
static const tess_field roberta_masked_fields[] = {{OWN}, {0}};
static const tess_field roberta_label_fields[] = {{OWN}, TESS_ENCODER_LABELS, {0}};
#define ROBERTA                                                                                                        \
    .type = "roberta", .presets = "vocab_size 50265", .prefix = "roberta.", .behind = AT(pad),                         \
    .bare = "lm_head.* classifier.*", .extra = "embeddings.position_ids pooler.* lm_head.* classifier.*",              \
    TESS_ENCODER_FAMILY

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
