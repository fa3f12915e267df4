/* Encoders as BERT is one: every token sees all others of its sequence, norms come behind attention and mlp (or before
 * them), and what learns is a head over masked tokens or over the first token of each sequence. A family says in its
 * own file how its config.json, its positions and its heads are called. */
#ifndef TESS_ENCODER_IMPL_H
#define TESS_ENCODER_IMPL_H
#include "models/networks/families/families.h"

/* The numbers of such a family. */
typedef struct tess_encoder {
    tess_common common;
    int64_t width, inner, heads, activation, types, pad, labels;
    double eps, hidden_dropout, attention_dropout, classifier_dropout; /* the last below 0: as hidden */
} tess_encoder;
extern const tess_field tess_encoder_fields[];
/* Traits of a family whose norms come before attention and mlp, and behind the last layer; the others have none. */
extern const bool tess_encoder_norms_before;
extern const char tess_encoder_ignored[];
/* The field of a classifier's labels, for a family's own table. */
#define TESS_ENCODER_LABELS                                                                                            \
    {"id2label", TESS_FIELD_MEMBERS, offsetof(tess_encoder, labels), 2, 2, NULL},                                      \
    {                                                                                                                  \
        "problem_type", TESS_FIELD_ONLY, 0, 0, 0, "\"single_label_classification\""                                    \
    }
/* What the tess_family of each of them has. */
#define TESS_ENCODER_FAMILY                                                                                            \
    .shared = tess_encoder_fields, .ignored = tess_encoder_ignored, .numbers = sizeof(tess_encoder),                   \
    .segments = offsetof(tess_encoder, types), .check = tess_encoder_check
tess_status tess_encoder_check(const tess_family *f, const void *numbers, const char *where) TESS_NODISCARD;
/* Makes the rows of all tokens, (B,T,C). */
tess_tensor *tess_encoder_body(const tess_family *f, const void *numbers, tess_graph *g, const tess_network *in);
/* Multiplies x (B,T,in) by the matrix NAME.weight and adds NAME.bias: (B,T,out). */
tess_tensor *tess_encoder_dense(const tess_encoder *c, tess_graph *g, const char *name, tess_tensor *x, int64_t in,
                                int64_t out);
/* Drops elements before a classifier. */
tess_tensor *tess_encoder_drop(const tess_encoder *c, tess_tensor *x);
/* Makes the head over the vocabulary: the embedding again, with a bias of this name. */
tess_head tess_encoder_vocabulary(const tess_encoder *c, tess_graph *g, const char *bias);
/* Makes a head over `labels` labels: NAME.weight, NAME.bias. */
tess_head tess_encoder_labels(const tess_encoder *c, tess_graph *g, const char *name, int64_t labels);

#endif
