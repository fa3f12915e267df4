/* attention_node_impl: what the files of attention share: heads; its node, and the tasks of whole sequences and of
 * spans. */
#ifndef TESS_ATTENTION_NODE_IMPL_H
#define TESS_ATTENTION_NODE_IMPL_H
#include "graph/ops/lowering.h"

enum { Q, K, V, BOUNDS, BIAS, SINKS, INPUTS }; /* packed: K and V are NULL */

struct attributes {
    tess_attention_conf conf;
    int64_t dim;
    bool packed;
    int64_t head0, all_heads, all_groups; /* where heads are shared out; all_heads 0: they are not */
};

/* Checks that q, or q, k and v side by side, have c's heads and groups, and stores the elements of a head. */
static inline tess_status tess_attention_heads(const tess_node *n, tess_attention_conf *c, bool packed, int64_t *dim)
{
    const tess_tensor *q = n->in[Q];
    if (c->groups == 0) c->groups = c->heads;
    if (q->rank != 3 || c->heads < 1 || c->heads > q->dim[2] || c->groups < 1 || c->heads % c->groups)
        return tess_shape_error(
            n, "%lld heads in %lld groups (inputs must be (B,T,C), heads a multiple of groups, and no more than C)",
            (long long)c->heads, (long long)c->groups);
    const int64_t parts = packed ? c->heads + 2 * c->groups : c->heads;
    if (q->dim[2] % parts) return tess_shape_error(n, "a row must hold %lld heads of equal size", (long long)parts);
    *dim = q->dim[2] / parts;
    return TESS_OK;
}

/* Returns the argument of the task of row tile i, of whole sequences. */
static inline tess_attention_arg *tess_attention_arg_of(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *at = n->attributes;
    const tess_attention_conf *c = &at->conf;
    const int64_t queries = n->out->dim[1], keys = at->packed ? queries : n->in[K]->dim[1];
    return TESS_ARG(L, tess_attention_arg, .rows = tess_rows(L, n->out, i), .sequence = queries,
                    .keys = keys == queries ? 0 : keys, .heads = c->heads, .groups = c->groups, .dim = at->dim,
                    .window = c->window < queries ? c->window : 0, .buckets = n->in[BIAS] ? n->in[BIAS]->dim[0] : 0,
                    .reach = c->reach, .scale = c->scale, .dropout = c->dropout, .cap = c->cap, .causal = c->causal,
                    .packed = at->packed, .by_head = c->by_head, .bounded = n->in[BOUNDS] != NULL,
                    .row0 = tess_first_row(L, n->out, i), .op = n->random, .head0 = at->head0,
                    .all_heads = at->all_heads);
}

/* Checks the sinks, if there are any. */
tess_status tess_sinks_check(const tess_node *n, int64_t heads);
/* Emit the tasks that put sinks into what attention made, and find their gradient; without sinks they emit nothing. */
void tess_sinks_put(tess_lower *L, const tess_node *n, const tess_attention_arg *a, tess_use y, tess_use lse);
void tess_sinks_back(tess_lower *L, const tess_node *n, const tess_attention_arg *a, tess_use dy, tess_use y,
                     tess_use lse);

/* The forward and backward of row tile i, which is a span of a sequence. */
void tess_spans_forward(tess_lower *L, const tess_node *n, int i);
void tess_spans_backward(tess_lower *L, const tess_node *n, int i);

#endif
