/* BERT as Hugging Face describes it: BertForMaskedLM, a head over the vocabulary at each token,
 * BertForSequenceClassification, one over labels at the first, and BertForPreTraining, which has the former and, at the
 * first token, says whether the second of two texts follows the first. */
#include "encoder_impl.h"
#include <string.h>

static const tess_field masked_fields[] = {{NULL, 0, 0, 0, 0, NULL}};
static const tess_field label_fields[] = {TESS_ENCODER_LABELS, {NULL, 0, 0, 0, 0, NULL}};

static tess_tensor *body(const void *numbers, tess_graph *g, const tess_network *in)
{
    return tess_encoder_body(numbers, g, in);
}

static tess_tensor *transform(const void *numbers, tess_graph *g, tess_tensor *x)
{
    const tess_encoder *c = numbers;
    x = tess_encoder_dense(c, g, "cls.predictions.transform.dense", x, c->width, c->width);
    return tess_encoder_norm(c, g, "cls.predictions.transform.LayerNorm", tess_activate(x, c->activation));
}
static tess_head masked_head(const void *numbers, tess_graph *g)
{
    return tess_encoder_vocabulary(numbers, g, "cls.predictions.bias");
}

static tess_tensor *pool(const tess_encoder *c, tess_graph *g, const tess_network *in, tess_tensor *x)
{
    x = tess_encoder_dense(c, g, "pooler.dense", tess_pick(x, in->index), c->width, c->width); // (B, 1, C)
    return tess_tanh(x, 1);
}

static tess_tensor *label_body(const void *numbers, tess_graph *g, const tess_network *in)
{
    const tess_encoder *c = numbers;
    return tess_encoder_drop(c, pool(c, g, in, tess_encoder_body(c, g, in)));
}
static tess_head label_head(const void *numbers, tess_graph *g)
{
    return tess_encoder_labels(numbers, g, "classifier", ((const tess_encoder *)numbers)->labels);
}

static tess_tensor *follows_rows(const void *numbers, tess_graph *g, const tess_network *in, tess_tensor *x)
{
    return pool(numbers, g, in, x);
}
static tess_head follows_head(const void *numbers, tess_graph *g)
{
    return tess_encoder_labels(numbers, g, "cls.seq_relationship", 2);
}
static int64_t follows_labels(const void *numbers)
{
    (void)numbers;
    return 2; /* it does, it does not */
}

/* Heads stand beside the body, which is what the prefix names. */
static bool bare(const char *name)
{
    return !strncmp(name, "cls.", 4) || !strncmp(name, "classifier.", 11);
}
/* Numbers of places, and of what the library was trained with beside this head: others, and copies of the tied one. */
static bool extra(const char *name)
{
    return !strcmp(name, "embeddings.position_ids") || !strncmp(name, "pooler.", 7) || bare(name);
}
static bool fresh(const char *name)
{
    return !strncmp(name, "classifier.", 11) || !strncmp(name, "pooler.", 7) ||
           !strncmp(name, "cls.seq_relationship.", 21);
}

const tess_family tess_family_bert = {
    .type = "bert",
    .architecture = "BertForMaskedLM",
    .prefix = "bert.",
    .field = masked_fields,
    .shared = tess_encoder_fields,
    .numbers = sizeof(tess_encoder),
    .answers = TESS_ANSWERS_IN_PLACE,
    .segments = tess_encoder_types,
    .check = tess_encoder_check,
    .body = body,
    .transform = transform,
    .head = masked_head,
    .bare = bare,
    .extra = extra,
};

const tess_family tess_family_bert_both = {
    .type = "bert",
    .architecture = "BertForPreTraining",
    .prefix = "bert.",
    .field = masked_fields,
    .shared = tess_encoder_fields,
    .numbers = sizeof(tess_encoder),
    .answers = TESS_ANSWERS_BOTH,
    .labels = follows_labels,
    .segments = tess_encoder_types,
    .check = tess_encoder_check,
    .body = body,
    .transform = transform,
    .head = masked_head,
    .label_rows = follows_rows,
    .label_head = follows_head,
    .bare = bare,
    .extra = extra,
    .fresh = fresh,
};

const tess_family tess_family_bert_label = {
    .type = "bert",
    .architecture = "BertForSequenceClassification",
    .prefix = "bert.",
    .field = label_fields,
    .shared = tess_encoder_fields,
    .numbers = sizeof(tess_encoder),
    .answers = TESS_ANSWERS_LABEL,
    .labels = tess_encoder_label_count,
    .segments = tess_encoder_types,
    .check = tess_encoder_check,
    .body = label_body,
    .head = label_head,
    .bare = bare,
    .extra = extra,
    .fresh = fresh,
};
