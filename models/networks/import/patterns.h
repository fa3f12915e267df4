/* What nodes of a graph.json are together (import_patterns.c), and the fast op that it is (fast.c). */
#ifndef TESS_PATTERNS_H
#define TESS_PATTERNS_H
#include "models/networks/import/build.h"

typedef enum pattern_kind {
    PATTERN_LAYERNORM,
    PATTERN_RMSNORM,
    PATTERN_ATTENTION,
    PATTERN_LINEAR,
    PATTERN_LOOKUP,
    PATTERN_CROSS_ENTROPY
} pattern_kind;
/* Values by number, -1: there is none. Of attention x, w and bias are q, k and v, whose dimensions at[..] are samples
 * and heads in the result's order, then rows and what a head has. */
typedef struct pattern {
    pattern_kind kind;
    int x, w, bias, targets, at[3][4];
    double number;       /* eps, or what scores are multiplied by */
    int32_t other;       /* of targets: the one below 0 that does not count; 0: all do */
    bool causal, turned; /* turned: the result has a head's elements before its rows */
} pattern;

bool tess_pattern_norm(const tess_import *n, int v, pattern *p);
bool tess_pattern_attention(const tess_import *n, const node *of, pattern *p);
bool tess_pattern_linear(const tess_import *n, int v, pattern *p);
bool tess_pattern_lookup(const tess_import *n, const node *of, pattern *p);
bool tess_pattern_cross_entropy(const tess_import *n, pattern *p);

/* Makes the node's value what a fast op makes, where it is a pattern that one has. */
tess_status tess_fast_node(building *b, const node *of) TESS_NODISCARD;
/* Stores the loss as cross-entropy; NULL: it is another. */
tess_status tess_fast_loss(building *b, tess_tensor **loss) TESS_NODISCARD;

#endif
