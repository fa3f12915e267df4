/* RoBERTa: BERT whose places count from behind the padding's id, with heads of its own making. */
#include "encoder_impl.h"
#include <string.h>

#define AT(member) offsetof(tess_encoder, member)
#define OWN                                                                                                            \
    {"vocab_size", TESS_FIELD_INT, AT(common.vocab), 50265, 1, NULL},                                                  \
    {                                                                                                                  \
        "pad_token_id", TESS_FIELD_INT, AT(pad), 1, 0, NULL                                                            \
    }
static const tess_field masked_fields[] = {OWN, {NULL, 0, 0, 0, 0, NULL}};
static const tess_field label_fields[] = {OWN, TESS_ENCODER_LABELS, {NULL, 0, 0, 0, 0, NULL}};

static int64_t first_position(const void *numbers)
{
    return ((const tess_encoder *)numbers)->pad + 1;
}

static tess_tensor *masked_body(const void *numbers, tess_graph *g, const tess_network *in)
{
    const tess_encoder *c = numbers;
    tess_tensor *x = tess_encoder_dense(c, g, "lm_head.dense", tess_encoder_body(c, g, in), c->width, c->width);
    return tess_encoder_norm(c, g, "lm_head.layer_norm", tess_gelu(x, TESS_GELU_ERF));
}
static tess_head masked_head(const void *numbers, tess_graph *g)
{
    return tess_encoder_vocabulary(numbers, g, "lm_head.bias");
}

static tess_tensor *label_body(const void *numbers, tess_graph *g, const tess_network *in)
{
    const tess_encoder *c = numbers;
    tess_tensor *x = tess_encoder_drop(c, tess_pick(tess_encoder_body(c, g, in), in->index)); // (B, 1, C)
    x = tess_encoder_dense(c, g, "classifier.dense", x, c->width, c->width);
    return tess_encoder_drop(c, tess_tanh(x, 1));
}
static tess_head label_head(const void *numbers, tess_graph *g)
{
    return tess_encoder_labels(numbers, g, "classifier.out_proj", ((const tess_encoder *)numbers)->labels);
}

/* Heads stand beside the body, which is what the prefix names. */
static bool bare(const char *name)
{
    return !strncmp(name, "lm_head.", 8) || !strncmp(name, "classifier.", 11);
}
/* Numbers of places, heads that the library was trained with beside this one, copies of the tied one. */
static bool extra(const char *name)
{
    return !strcmp(name, "embeddings.position_ids") || !strncmp(name, "pooler.", 7) || bare(name);
}
static bool fresh(const char *name)
{
    return !strncmp(name, "classifier.", 11);
}

const tess_family tess_family_roberta = {
    .type = "roberta",
    .architecture = "RobertaForMaskedLM",
    .prefix = "roberta.",
    .field = masked_fields,
    .shared = tess_encoder_fields,
    .numbers = sizeof(tess_encoder),
    .answers = TESS_ANSWERS_IN_PLACE,
    .segments = tess_encoder_types,
    .first_position = first_position,
    .check = tess_encoder_check,
    .body = masked_body,
    .head = masked_head,
    .bare = bare,
    .extra = extra,
};

const tess_family tess_family_roberta_label = {
    .type = "roberta",
    .architecture = "RobertaForSequenceClassification",
    .prefix = "roberta.",
    .field = label_fields,
    .shared = tess_encoder_fields,
    .numbers = sizeof(tess_encoder),
    .answers = TESS_ANSWERS_LABEL,
    .labels = tess_encoder_label_count,
    .segments = tess_encoder_types,
    .first_position = first_position,
    .check = tess_encoder_check,
    .body = label_body,
    .head = label_head,
    .bare = bare,
    .extra = extra,
    .fresh = fresh,
};
