/* What an op is: the tensors of its node, and what it says of itself to the passes. */
#ifndef TESS_NODE_H
#define TESS_NODE_H
#include "codelets/generic.h"
#include "graph/graph.h"
#include "graph/tessera_ops.h"

enum { TESS_MOST_INPUTS = 7, TESS_MOST_BESIDE = 4 };

typedef struct tess_lower tess_lower;

/* ---- tensors and nodes ---- */

typedef enum tess_kind { TESS_KIND_INPUT, TESS_KIND_PARAM, TESS_KIND_ACTIVATION, TESS_KIND_LOSS } tess_kind;

/* How a parameter is cut into tiles of rows, and which part of it this rank has. */
typedef struct tess_param_cut {
    int64_t whole[2]; /* (rows, columns) on all ranks together */
    int64_t tile_rows, tiles;
    int64_t members;               /* matrices of a stack, which share no tile; 1: it is a single matrix */
    bool split;                    /* it is sharded over the tensor dimension; else all ranks have the same */
    int64_t first_tile, all_tiles; /* for a table that is sharded by tiles: this rank's first tile, and all tiles */
} tess_param_cut;

/* The dimensions of a tensor of any rank, in which its tiles are dense; to the engine it is (B, 1, C). */
typedef struct tess_nd {
    tess_element element;
    int rank;
    int64_t dim[TESS_RANK_MOST];
    int at;        /* the dimension in which samples lie outermost; -1: it is whole, one tile a micro-batch */
    int64_t times; /* elements of that dimension for each sample */
    bool fixed;    /* no gradient passes through it */
    bool turned;   /* a parameter that the describing framework has transposed */
    bool narrow;   /* its floats have the graph's dtype; else they have 4 bytes */
} tess_nd;

struct tess_tensor {
    tess_graph *g;
    const char *name;
    tess_kind kind;
    int id; /* its index in the graph */
    int rank;
    int64_t dim[3];          /* (B, T, C), (B, T), (rows, columns), (rows): the shape of this rank's part */
    tess_node *producer;     /* NULL for inputs and parameters */
    float noise;             /* of an input: of the embeddings of its ids (tess_embedding_noise) */
    struct tess_range *ids;  /* of an input: the values that ops over it can take */
    bool ends;               /* a step may end with it */
    bool wide;               /* of an activation: it has fp32, whatever the graph has */
    bool apart;              /* ranks of the tensor dimension have parts of it, or of its gradient */
    bool divided;            /* of each row tile they have some rows each; of a parameter: each finds a part of its
                                gradient */
    tess_param_cut *cut;     /* of a parameter, as is: */
    struct tess_param *held; /* what it is made of at run time (param.h) */
    const tess_nd *nd;       /* NULL: it is (B, T, C) */
};

struct tess_node {
    const struct tess_op *op;
    int id, block; /* block 0: none */
    bool cut;      /* this rank computes a part of it */
    bool fp8;      /* of a linear: what it multiplies is rounded to 8 bits */
    int inputs;
    tess_tensor *in[TESS_MOST_INPUTS], *out;
    tess_tensor *elsewhere; /* an input that the first rank of the tensor dimension alone has; NULL: none */
    void *attributes;       /* the op's own */
    uint32_t random;        /* the node's stream of random numbers */
};

/* ---- the description of an op ---- */

/* The columns of its inputs that an op's columns depend on. They decide how tensor parallelism shards the op. */
typedef enum tess_columns {
    TESS_COLUMNS_ALL,    /* all of them: each rank computes the whole op */
    TESS_COLUMNS_SAME,   /* the same ones: each rank computes its own columns */
    TESS_COLUMNS_MATRIX, /* in[1]'s rows make them, and in[1]'s columns take in[0]'s: a rank can have some rows of the
                            matrix, with as many of the bias in[2], if there is one, or some columns */
} tess_columns;

/* With TESS_COLUMNS_SAME: the units of columns that are not divided, such as heads. All zeros: a column is a unit. */
typedef struct tess_units {
    /* Returns how many units there are. With *exact the number must be this one, else it may be any divisor. */
    int64_t (*count)(const tess_node *n, bool *exact);
    /* Returns how many tensors in[0] holds side by side, and sets how many columns of each are one of `units`. NULL:
     * one tensor. */
    int (*beside)(const tess_node *n, int64_t units, int64_t width[TESS_MOST_BESIDE]);
    /* Makes the node that of the units [first, end) alone. */
    void (*keep)(tess_node *n, int64_t units, int64_t first, int64_t end);
} tess_units;

/* How a tensor is sharded over the tensor dimension: along one dimension, which consists of several runs side by side,
 * each rank has a part of each run. A tensor (B, T, C) has dimensions 0 to 2. */
typedef struct tess_split {
    int dim, runs;
    int64_t length[TESS_MOST_BESIDE]; /* the lengths of the runs on all ranks */
} tess_split;
/* Returns whether both are the same. */
static inline bool tess_split_equal(const tess_split *a, const tess_split *b)
{
    bool same = a->dim == b->dim && a->runs == b->runs;
    for (int k = 0; k < a->runs && same; k++) same = a->length[k] == b->length[k];
    return same;
}

typedef enum tess_has {
    TESS_HAS_ALL,  /* replicated; its gradient is a partial sum on each rank */
    TESS_HAS_SOME, /* sharded */
    TESS_HAS_SUM,  /* a partial sum on each rank */
} tess_has;
/* How the tensors of a sharded node are distributed: its output at 0, and its inputs from 1 on. */
typedef struct tess_splits {
    tess_has has[TESS_MOST_INPUTS + 1];
    tess_split of[TESS_MOST_INPUTS + 1];
    int64_t divides; /* the number of units divides this too; 0: no such limit */
    int runs;        /* if sharding fails: a number of runs side by side that might do */
} tess_splits;
/* The units [first, end) of `units`. */
typedef struct tess_portion {
    int64_t units, first, end;
} tess_portion;
static inline int64_t tess_portion_of(const tess_portion *s, int64_t length)
{
    return length / s->units * (s->end - s->first);
}
/* Stores how a node's tensors are distributed if the tensor at `slot` is sharded as `is`. Returns NULL, or the reason
 * why that is impossible. */
typedef const char *(*tess_splitting)(const tess_node *n, int slot, const tess_split *is, tess_splits *s);

/* A task of `first`, and one of `second` whose use 0 is what the first task writes as its use 2, can be one of `both`.
 * That task has the uses of the first with those of the second put in at place 3, or at 2 where it is not `kept`. */
typedef struct tess_fusion {
    tess_codelet *first, *second, *both; /* by dtype */
    bool kept;                           /* what is between them is written all the same */
    size_t bytes;                        /* of the argument of `both`, which `join` makes of theirs; */
    void (*join)(void *arg, const void *first, const void *second); /* NULL: it is the second's */
    /* A GPU's bits of `both` are its own where matrices have 16 bits, and the first is of this op: both values are made
     * by one task, forward and again. NULL: they are those of the two, one after the other. */
    const struct tess_op *own_bits;
} tess_fusion;

/* The numbers that a rank sends for each token in attention under context parallelism, forward and backward. */
typedef struct tess_sends {
    double heads;      /* with an all-to-all of heads; less than 0: that is impossible */
    double keys, sums; /* with ring attention: keys and values, and their gradients in fp32 */
    bool causal;       /* late rows have more work than early ones */
} tess_sends;

struct tess_op {
    const char *name;
    const char *takes;         /* the names of its inputs: "x, w, bias?"; an input with a mark may be NULL */
    unsigned reads;            /* the tensors that backward reads; no others are recomputed for it */
    unsigned reads_for_params; /* the subset that only gradients of parameters need */
    /* Checks the shapes of the inputs and sets the output's. */
    tess_status (*infer)(tess_node *n);
    /* Emits the tasks of row tile i. */
    void (*forward)(tess_lower *L, const tess_node *n, int i);
    /* Emits the tasks that read the gradient of the output's row tile i and write the inputs' gradients. NULL: forward
     * has emitted them, or there are none (no_gradient). */
    void (*backward)(tess_lower *L, const tess_node *n, int i);
    bool no_gradient;
    tess_columns columns;
    tess_units units;
    /* Of tensors of any rank, where NULL is all of them: */
    tess_splitting split;
    void (*keep)(tess_node *n, const tess_splits *s, const tess_portion *of); /* its tensors have their sizes by then */
    /* Returns the k-th of the output's dimensions that come from a parameter; -1: there are no more. */
    int (*begins)(const tess_node *n, int k);
    int table;        /* the input whose rows ranks may share out by tiles; 0: none */
    int table_bias;   /* the input that has an element for each of these rows; 0: none */
    bool table_parts; /* with some of the rows the op makes a part of its result, and the parts add up */
    int stack;        /* the input that is a stack of matrices, replicated on all ranks; 0: none */
    int replicated;   /* with TESS_COLUMNS_SAME: the parameter that all ranks have, and find a part of its gradient; 0:
                         none */
    unsigned times;   /* bit i: input i is a matrix that it multiplies by */
    bool by_rows;     /* a row of the output depends on the same row of the inputs alone */
    bool by_places;   /* it is not by_rows, as ops of experts, but works on spans of sequences */
    bool quantized;   /* the matrix in[1] may be quantized */
    bool may_wait;    /* gradients of its parameters need its inputs and its output's gradient alone, and so may come
                         later */
    bool own;         /* it is a program's op, which sees rows of padding too */
    int bounds;       /* the input with the bounds of what a row sees, if the op requires one; 0: none */
    tess_sends (*sends)(const tess_node *n, int ranks, int tensor); /* it looks along the sequence, and takes spans */
    int targets;                /* of a loss: the input whose values that are not negative count; 0: micro-batches do */
    int numbers;                /* of a loss: the input whose numbers are summed beside it; 0: there is none */
    bool counts_hits;           /* of a loss: where it is evaluated, targets that have the largest logit are counted */
    int reports;                /* of a loss: how many numbers it makes beside itself */
    const tess_fusion *fusions; /* with what comes before it; zeros end them */
    /* Says of what a GPU takes many times as long as its like, in a graph of that dtype. NULL: nothing does. */
    bool (*slow)(const tess_node *n, tess_dtype t, char *said, size_t room);
    /* Between what all ranks of the tensor dimension have and the parts of each: its input's name is its output's. */
    bool enters, leaves;
};
#define TESS_OP(name) extern const tess_op tess_op_##name;
#include "graph/ops.def"

/* ---- what an op calls to check its shapes ---- */

/* Adds a node of `op` over the inputs, with a copy of its attributes. Returns NULL if an input is NULL or infer fails.
 */
tess_tensor *tess_node_add(const tess_op *op, tess_tensor *const *in, int inputs, const void *attributes, size_t bytes);
/* Adds a node that may have no inputs. */
tess_tensor *tess_node_add_to(tess_graph *g, const tess_op *op, tess_tensor *const *in, int inputs,
                              const void *attributes, size_t bytes);
/* Returns y, or the tensor that the program's hook puts in its place (tess_graph_on_linear). */
tess_tensor *tess_linear_beside(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *y);
/* For infer: "linear: x (4,37,64), w (100,32): <what>", with the shapes of all inputs. */
tess_status tess_shape_error(const tess_node *n, const char *format, ...) TESS_PRINTF(2, 3);
/* The infer of elementwise ops: all inputs are (B,T,C), and the output is. */
tess_status tess_same_shape(tess_node *n);
/* Sets the output's shape. */
void tess_set_shape(tess_node *n, int rank, int64_t a, int64_t b, int64_t c);
/* Limits an input's values to `least` to `most`; `because` names the op for messages. */
void tess_limit_ids(tess_tensor *input, int64_t least, int64_t most, const char *because);
/* Cuts a vector at the same rows as a matrix, unless an op reads it already. */
void tess_param_cut_like(tess_tensor *vector, const tess_tensor *matrix);
/* Returns whether an fp32 tile of that shape is small enough. */
bool tess_fits_tile(int64_t rows, int64_t columns);
enum { TESS_MOST_USES = 1 << 16 }; /* the most tiles that a task uses */
/* Returns how many rows of logits exist at the same time. */
int64_t tess_loss_rows(const tess_graph *g);
/* Returns the alignment of rows of logits, in elements. */
int64_t tess_loss_align(const tess_graph *g);
/* Returns whether a tensor has one tile for a micro-batch, not one for each row tile. */
static inline bool tess_is_whole(const tess_tensor *t)
{
    return t->nd && t->nd->at < 0;
}
static inline int64_t tess_width(const tess_tensor *t)
{
    return t->rank == 3 ? t->dim[2] : 1;
}
static inline bool tess_is_param(const tess_tensor *t, int64_t rows, int64_t columns)
{
    return t->kind == TESS_KIND_PARAM && t->dim[0] == rows && t->dim[1] == columns;
}

#endif
