/* tessera.h: experts. Each row of activations chooses some of several feed-forward networks, by a router:
 *
 *     tess_tensor *logits = tess_linear(x, router, NULL);               // (B, T, experts)
 *     tess_tensor *weights = tess_route(logits, 2, true, NULL);         // (B, T, 2)
 *     tess_tensor *places = tess_dispatch(x, weights);                  // (B, T*2, C), sorted by expert
 *     tess_tensor *y = tess_relu(tess_expert_linear(places, weights, w1));
 *     y = tess_combine(tess_expert_linear(y, weights, w2), weights);    // (B, T, C)
 *
 * An expert takes as many rows as choose it. Where experts rest on disk, a step reads only those that its rows chose.
 */
#ifndef TESSERA_MOE_H
#define TESSERA_MOE_H
#include "graph/tessera_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds a parameter that is a stack of matrices of one shape, one below the other: (members * rows, columns). Each of
 * its tiles belongs to one member. */
tess_tensor *tess_param_stack(tess_graph *g, const char *name, int64_t members, int64_t rows, int64_t columns,
                              tess_init init);
/* Returns the weights of the `chosen` experts with the largest softmax over logits (B, T, experts), (B, T, chosen);
 * with `normalised` they are divided by their sum. Rows that `bounds` (tess_attention_conf, or NULL) marks as padding
 * choose none. */
tess_tensor *tess_route(tess_tensor *logits, int64_t chosen, bool normalised, tess_tensor *bounds);
/* Returns each row of x once for each expert that it chose, sorted by expert: (B, T*chosen, C). */
tess_tensor *tess_dispatch(tess_tensor *x, tess_tensor *weights);
/* Returns each of these rows times the matrix of its expert, transposed; w is a stack of matrices (out, C). */
tess_tensor *tess_expert_linear(tess_tensor *x, tess_tensor *weights, tess_tensor *w);
/* Returns for each row the sum of its experts' results by their weights, (B, T, C). */
tess_tensor *tess_combine(tess_tensor *x, tess_tensor *weights);

/* Returns the counts of a router's choices, added to the counts `before` of an earlier router (or NULL). Only
 * tess_balanced reads them. */
tess_tensor *tess_balance(tess_tensor *logits, tess_tensor *weights, tess_tensor *before);
/* Returns a loss plus, in a step that trains, `weight` times the auxiliary loss of load balancing: experts * sum over
 * experts of (its choices a row) * (its mean softmax), over the rows of a micro-batch and all routers in `statistics`.
 * All micro-batches count alike. `targets` are the loss's own. */
tess_tensor *tess_balanced(tess_tensor *loss, tess_tensor *statistics, tess_tensor *targets, float weight);

#ifdef __cplusplus
}
#endif

#endif
