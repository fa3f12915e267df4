/* attention_impl: what the files of attention share: its node, and the tasks of whole sequences and of spans. */
#ifndef TESS_GRAPH_ATTENTION_IMPL_H
#define TESS_GRAPH_ATTENTION_IMPL_H
#include "lowering.h"

enum { Q, K, V, BOUNDS, BIAS, INPUTS }; /* packed: K and V are NULL */

struct attributes {
    tess_attention_conf conf;
    int64_t dim;
    bool packed;
    int64_t head0, all_heads; /* where heads are shared out; all_heads 0: they are not */
};

/* Returns the argument of the task of row tile i, of whole sequences. */
tess_attention_arg *tess_attention_arg_of(tess_lower *L, const tess_node *n, int i);

/* The forward and backward of row tile i, which is a span of a sequence. */
void tess_spans_forward(tess_lower *L, const tess_node *n, int i);
void tess_spans_backward(tess_lower *L, const tess_node *n, int i);

#endif
