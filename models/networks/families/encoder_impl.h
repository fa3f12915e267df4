/* Encoders as BERT is one: every token sees all others of its sequence, norms come behind attention and mlp, and what
 * learns is a head over masked tokens or over the first token of each sequence. A family says in its own file how its
 * config.json, its positions and its heads are called. */
#ifndef TESS_ENCODER_IMPL_H
#define TESS_ENCODER_IMPL_H
#include "model.h"

/* What the struct of such a family begins with; in the order of tess_encoder_fields. */
typedef struct tess_encoder {
    tess_common common;
    int64_t width, inner, heads, activation, types, pad, labels;
    double eps, hidden_dropout, attention_dropout, classifier_dropout; /* the last below 0: as hidden */
} tess_encoder;
extern const tess_field tess_encoder_fields[];
/* The field of a classifier's labels, for a family's own table. */
#define TESS_ENCODER_LABELS                                                                                            \
    {"id2label", TESS_FIELD_MEMBERS, offsetof(tess_encoder, labels), 2, 2, NULL},                                      \
    {                                                                                                                  \
        "problem_type", TESS_FIELD_ONLY, 0, 0, 0, "\"single_label_classification\""                                    \
    }

/* For tess_family: its numbers are a tess_encoder. */
tess_status tess_encoder_check(const void *numbers, const char *where) TESS_NODISCARD;
/* Returns of how many kinds tokens are. */
int64_t tess_encoder_types(const void *numbers);
/* Returns how many labels there are. */
int64_t tess_encoder_label_count(const void *numbers);
/* Returns the rows of all tokens, (B,T,C). */
tess_tensor *tess_encoder_body(const tess_encoder *c, tess_graph *g, const tess_network *in);

/* x (B,T,in) times the matrix NAME.weight, plus NAME.bias: (B,T,out). */
tess_tensor *tess_encoder_dense(const tess_encoder *c, tess_graph *g, const char *name, tess_tensor *x, int64_t in,
                                int64_t out);
/* The layernorm NAME.weight, NAME.bias. */
tess_tensor *tess_encoder_norm(const tess_encoder *c, tess_graph *g, const char *name, tess_tensor *x);
/* Dropout before a classifier. */
tess_tensor *tess_encoder_drop(const tess_encoder *c, tess_tensor *x);
/* The head over the vocabulary: the embedding again, with a bias of this name. */
tess_head tess_encoder_vocabulary(const tess_encoder *c, tess_graph *g, const char *bias);
/* A head over so many labels: NAME.weight, NAME.bias. */
tess_head tess_encoder_labels(const tess_encoder *c, tess_graph *g, const char *name, int64_t labels);

#endif
