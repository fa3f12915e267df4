/* tessera.h: more than a first network needs: ops of the program's own, experts, and generation with a KV cache. All of
 * it may still change. */
#ifndef TESSERA_OPS_H
#define TESSERA_OPS_H
#include "graph/tessera_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ops of the program's own --------------------------------------------------------------------------------------
 *
 * The library plans them, shards them over ranks, recomputes them and saves their parameters as it does with its own
 * ops. docs/examples/own-op.c is a program that has one; docs/add-an-op.md describes what an op may be.
 *
 *     static const tess_op *op;
 *     TESS_TRY(tess_op_register(&(tess_op_conf){.name = "square",
 *                                               .takes = "x",
 *                                               .forward = {.cpu = square},
 *                                               .backward = {.cpu = square_backward},
 *                                               .reads = TESS_READS_IN0, // dx = 2 x dy needs x
 *                                               .by_columns = true},
 *                               &op));
 *     x = tess_apply(op, &x, 1, NULL); // among tess_linear and its kin
 */

typedef struct tess_op tess_op;
typedef struct tess_node tess_node;

/* A shape: (B, T, C) of activations, (B, T) of indices, (rows, columns) or (rows) of a parameter. Rank 0 stands for an
 * input that is left out. */
typedef struct tess_shape {
    int rank;
    int64_t dim[3];
} tess_shape;

/* The argument of a shape function: it reads `attributes` and `in`, and sets the rest. */
typedef struct tess_shapes {
    const void *attributes;
    tess_shape in[TESS_CALL_INPUTS];
    tess_shape out;        /* (B, T, C) with the B of the inputs; preset to the shape of the first activation */
    int64_t aux;           /* floats that forward leaves for backward, for each row of the output; preset to 0 */
    size_t scratch;        /* bytes of scratch for each task; preset to 0 */
    const tess_node *node; /* private to the library */
} tess_shapes;
/* Records an error with the op, all shapes and the formatted text, and returns TESS_INVALID. */
tess_status tess_shapes_wrong(const tess_shapes *s, const char *format, ...) TESS_PRINTF(2, 3);

/* The functions of one direction. */
typedef struct tess_op_functions {
    tess_function cpu;
    tess_function cuda;                  /* NULL: a GPU's tiles are copied to RAM for the CPU, and back */
    double (*flops)(const tess_call *c); /* returns the flops of its matrix products, for plans; operands then have no
                                            data. NULL: it has no products */
} tess_op_functions;

/* What backward reads besides d_out; they are combined with |. It finds NULL where the data of anything else would be.
 */
enum {
    TESS_READS_IN0 = 1,
    TESS_READS_IN1 = 2,
    TESS_READS_IN2 = 4,
    TESS_READS_IN3 = 8,
    TESS_READS_IN4 = 16,
    TESS_READS_OUT = 256,
    TESS_READS_AUX = 512,       /* the floats that forward left */
    TESS_READS_GRADIENTS = 1024 /* d_out alone, said so that nothing seems forgotten */
};

typedef struct tess_op_conf {
    const char *name;  /* up to 32 small letters, digits and _; not the name of an op of the library */
    const char *takes; /* the names of its inputs, at most 5, for messages: "x, gain, bias?"; one with ? may be NULL */
    size_t attributes; /* bytes of a node's settings, a struct of numbers; 0: it has none */
    /* Checks shapes and attributes, and sets the output's shape. NULL: all activations have the same shape, and so has
     * the output. */
    tess_status (*shape)(tess_shapes *s);
    tess_op_functions forward, backward; /* backward.cpu NULL: no gradient passes through the op */
    unsigned reads;                      /* what backward reads, TESS_READS_IN0 | ... */
    unsigned dtypes; /* dtypes of graphs that its functions know, 1 << TESS_F32 | ...; 0: all three */
    bool by_rows;    /* each row of the output depends on that row of the activations alone; else sequences that are
                        longer than a tile are gathered for the op, on one of the ranks that share them */
    bool by_columns; /* each column of the output depends on that column of the activations alone, so that tensor
                        parallelism can shard the columns; false where it has a parameter */
} tess_op_conf;

/* Registers an op until the process ends, before or after tess_start, and stores it in *op. The description is copied;
 * the same one again stores the same op. A description that contradicts itself is TESS_INVALID. */
tess_status tess_op_register(const tess_op_conf *conf, const tess_op **op) TESS_NODISCARD;
/* Adds an op to the graph of its inputs, and returns its output. There are as many inputs as `takes` names, NULL for
 * those that are left out; `attributes` is copied. */
tess_tensor *tess_apply(const tess_op *op, tess_tensor *const *in, int inputs, const void *attributes);

/* ---- heads of several parts ----------------------------------------------------------------------------------------
 */

/* Which elements of each head of a tensor are taken: of `dim` the `n` behind the first `first`. */
typedef struct tess_run_of {
    int64_t dim, first, n;
} tess_run_of;
/* Returns `heads` heads of `dim` elements: those taken of x's, then those of z's, unless that is NULL, then zeros. One
 * head of x or z is shared by all. */
tess_tensor *tess_strips(tess_tensor *x, tess_run_of of_x, tess_tensor *z, tess_run_of of_z, int64_t heads,
                         int64_t dim);

/* ---- experts -------------------------------------------------------------------------------------------------------
 *
 * Each row of activations chooses some of several feed-forward networks, by a router:
 *
 *     tess_tensor *logits = tess_linear(x, router, NULL);               // (B, T, experts)
 *     tess_tensor *weights = tess_route(logits, 2, true, NULL);         // (B, T, 2)
 *     tess_tensor *places = tess_dispatch(x, weights);                  // (B, T*2, C), sorted by expert
 *     tess_tensor *y = tess_relu(tess_expert_linear(places, weights, w1));
 *     y = tess_combine(tess_expert_linear(y, weights, w2), weights);    // (B, T, C)
 *
 * An expert takes as many rows as choose it. Where experts rest on disk, a step reads only those that its rows chose.
 */

/* Adds a parameter that is a stack of matrices of one shape, one below the other: (members * rows, columns). Each of
 * its tiles belongs to one member. */
tess_tensor *tess_param_stack(tess_graph *g, const char *name, int64_t members, int64_t rows, int64_t columns,
                              tess_init init);
/* Returns the weights of the `chosen` experts with the largest softmax over logits (B, T, experts), (B, T, chosen);
 * with `normalised` they are divided by their sum. Rows that `bounds` (tess_attention_conf, or NULL) marks as padding
 * choose none. */
tess_tensor *tess_route(tess_tensor *logits, int64_t chosen, bool normalised, tess_tensor *bounds);
typedef struct tess_route_conf {
    int64_t chosen;       /* experts of a row */
    int64_t groups, kept; /* experts side by side are equal groups, and it chooses among those of the `kept` groups
                             whose two largest are largest together; 0: among all */
    bool normalised;
    float scale; /* a factor of the weights; 0: 1 */
} tess_route_conf;
/* Returns the same of scores: an expert's weight is the sigmoid of its logit, and those are chosen whose weight plus
 * their element of `bias` is largest, a frozen parameter (experts). Without a bias it is of softmax. */
tess_tensor *tess_route_scored(tess_tensor *logits, tess_tensor *bias, tess_tensor *bounds, tess_route_conf conf);
/* Returns each row of x once for each expert that it chose, sorted by expert: (B, T*chosen, C). */
tess_tensor *tess_dispatch(tess_tensor *x, tess_tensor *weights);
/* Returns each of these rows times the matrix of its expert, transposed; w is a stack of matrices (out, C). */
tess_tensor *tess_expert_linear(tess_tensor *x, tess_tensor *weights, tess_tensor *w);
/* Returns each of these rows plus the row of its expert in a parameter (experts, C). */
tess_tensor *tess_expert_bias(tess_tensor *x, tess_tensor *weights, tess_tensor *bias);
/* Returns for each row the sum of its experts' results by their weights, (B, T, C). */
tess_tensor *tess_combine(tess_tensor *x, tess_tensor *weights);

/* Returns the counts of a router's choices, added to the counts `before` of an earlier router (or NULL). Only
 * tess_balanced reads them. */
tess_tensor *tess_balance(tess_tensor *logits, tess_tensor *weights, tess_tensor *before);
/* Returns a loss plus, in a step that trains, `weight` times the auxiliary loss of load balancing: experts * sum over
 * experts of (its choices a row) * (its mean softmax), over the rows of a micro-batch and all routers in `statistics`.
 * All micro-batches count alike. `targets` are the loss's own. */
tess_tensor *tess_balanced(tess_tensor *loss, tess_tensor *statistics, tess_tensor *targets, float weight);

/* ---- another model's say ------------------------------------------------------------------------------------------
 */

enum { TESS_MOST_LIKELIEST = 1024 };
typedef struct tess_distill_conf {
    int64_t top;       /* tokens that the teacher has for a place */
    float temperature; /* by which logits are divided */
    float weight;      /* of the teacher's loss, above 0; the labels' has the rest to 1 */
} tess_distill_conf;
/* Returns a loss: of targets, as tess_cross_entropy_capped has it, and of what a teacher says of the places that have
 * one, the Kullback-Leibler divergence from its shares to the model's, with all logits divided by the temperature,
 * times the square of that. `soft` (B, 2 top T) is an input of the teacher's tokens of each place, and then the bits of
 * their shares, floats that add up to 1. */
tess_tensor *tess_distill(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets, tess_tensor *soft,
                          float cap, const tess_distill_conf *conf);
/* Returns the `count` largest logits of each row (B,T,2 + 2 count) among the first `vocab` columns: the largest, the
 * sum of exp(logit - largest) over all of them, the logits from the largest on, and their columns. */
tess_tensor *tess_likeliest(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets, float cap,
                            int64_t count, int64_t vocab);

/* ---- preferences ---------------------------------------------------------------------------------------------------
 *
 * A loss of pairs of sequences, which lie one behind the other, the chosen one first:
 *
 *     tess_tensor *scores = tess_scores(x, table, NULL, next, 0);                         // (B, 1, 2)
 *     const tess_preference_conf dpo = {TESS_PREFERENCE_DPO, .beta = 0.1f};
 *     tess_tensor *loss = tess_preference(scores, reference, &dpo);
 *
 * It is the mean over all pairs of a step, whose micro-batches have as many each. KTO's is of single sequences. */

/* Returns of each sequence the sum of the log-probabilities of its targets, and their number, in fp32: what
 * tess_cross_entropy_capped takes, for whole sequences. It may be a step's output, too. */
tess_tensor *tess_scores(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets, float cap);
/* Returns a loss of pairs. `reference` (B, 1) is an input of sums of log-probabilities, the bits of floats, for the
 * kinds that compare with another model's; KTO's is (B, 3), with k, and 1 of a good sequence or 0; else NULL. A step
 * reports beside it, as means over pairs: whether the chosen one has the larger reward, by how much, and the two
 * rewards. */
tess_tensor *tess_preference(tess_tensor *scores, tess_tensor *reference, const tess_preference_conf *conf);

/* ---- generation ----------------------------------------------------------------------------------------------------
 *
 * A KV cache holds the keys and values of B sequences from step to step, for each attention of a network in tiles of
 * `block` places:
 *
 *     tess_cache *c = tess_cache_new(&(tess_cache_conf){.dtype = TESS_BF16, .sequences = B, .block = 256});
 *     tess_cache_view(c, 1);                      // graphs described from here on see places 0 to 255
 *     ... the network for (B, T) tokens, whose tess_attention_conf has .cache and .bounds; tess_step_new ...
 *     TESS_TRY(tess_cache_ready(c, 1));           // after tess_start
 *     ... feed the tokens and their bounds; tess_step_run; the next tokens; and so on ...
 *     tess_cache_view(c, 2);                      // for the next block, another graph
 *
 * With a cache, `bounds` (B, 2T) of an attention are places: the first that each query sees, and the query's own plus
 * one. Rows of a step lie in the last block that its graph sees, at places that follow each other and are the same in
 * all sequences; a shorter sequence has padding in front, which no query sees. An attention with a window keeps no more
 * tiles than the window reaches back. */

typedef struct tess_cache_conf {
    tess_dtype dtype;  /* of the graphs that use it */
    int64_t sequences; /* B */
    int64_t block;     /* places of a tile, a multiple of 16 */
    uint64_t at_once;  /* the most bytes of the cache's tiles that one task reads; 0: 8 MiB */
} tess_cache_conf;
/* Makes an empty cache. The caller frees it after the graphs that use it. */
tess_cache *tess_cache_new(const tess_cache_conf *conf);
/* Frees a cache; NULL is allowed. */
void tess_cache_free(tess_cache *c);
/* Sets how many blocks the graphs that are described from now on see. */
void tess_cache_view(tess_cache *c, int64_t blocks);
/* Fills those of the first `blocks` blocks with zeros that hold nothing yet. It comes after tess_start. */
tess_status tess_cache_ready(tess_cache *c, int64_t blocks) TESS_NODISCARD;
/* Puts k and v (B, K, groups*dim) into the cache, row i at place i, for an attention with k and v NULL: the n-th such
 * attention sees the keys and values of the n-th call. Returns (B, 1, 1), which depends on k, on v and on `behind`, the
 * result of the previous call (NULL in the first). The last result is the output of the step that fills the cache. */
tess_tensor *tess_cached(tess_cache *c, tess_tensor *k, tess_tensor *v, int64_t heads, tess_tensor *behind);

#ifdef __cplusplus
}
#endif

#endif
