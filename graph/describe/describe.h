/* A graph while it is described, and what a program may get wrong in it. */
#ifndef TESS_DESCRIBE_H
#define TESS_DESCRIBE_H
#include "graph/describe/node.h"

enum {
    TESS_MOST_ROWS = 1 << 30,   /* tokens of a micro-batch */
    TESS_MOST_TILES = 1 << 21,  /* of all parameters: tags have room for them */
    TESS_MOST_PLACES = 1 << 28, /* tensors x row tiles x micro-batches: entries of a table */
};

struct tess_graph {
    tess_graph_conf conf;
    /* The number of consecutive ranks that share a machine, the same everywhere (0, 1: none, or unknown). All-gathers
     * of tiles of at least near_bytes cross the network once a machine, and reductions of tiles of twice that size sum
     * up within each machine first. */
    int near;
    int64_t near_bytes;
    tess_arena *arena;
    tess_tensor **tensor;
    tess_node **node;
    tess_tensor **param;
    int tensors, nodes, params;
    int64_t batch, tile_sequences; /* sequences of a micro-batch, of a row tile */
    int block, blocks;
    const char **block_name;
    bool failed;
    char error[512];
    tess_linear_hook linear_hook; /* NULL: a linear is as the program describes it */
    void *linear_context;
    uint32_t randoms;             /* streams of random numbers that nodes have */
    tess_cache *cache;            /* the KV cache of its attention, or NULL */
    tess_step *pending;           /* the step whose late updates of these parameters are due, or NULL */
    tess_step *runs;              /* the step whose runs are under way, or NULL   */
    bool apart;                   /* ranks have made local steps since their last sum */
    int param_tiles;              /* tiles of all parameters */
    int64_t tiles_declared;       /* an upper bound on these tiles */
    bool tensor_split;            /* its nodes are this rank's part (tensor_parallel.c) */
    int *cut;                     /* [chunk of a pipeline]: the last block before it; NULL: it is yet to be made */
    const char *unsplit;          /* the matrices that could not be sharded, and why, or NULL */
    unsigned session;             /* the session in which its parameters were filled */
    bool on_disk;                 /* the homes of some of its tiles are on disk */
    int maps;                     /* pieces that the program has mapped or borrowed */
    tess_step *steps;             /* the list of its steps */
    tess_graph *sharers, *sharer; /* the list of graphs that share its parameters; the next in the list it is in */
    int64_t *state_part;          /* [data]: of what a stage shards, of state_parts; NULL: all have as much */
    int64_t state_parts;
    bool owned;            /* places of the data dimension own the experts, some each; then */
    bool rows_go;          /* rows go to them, in place of weights to the rows */
    int64_t expert_micros; /* micro-batches of a place in a step; 0: rows cannot go */
    const char *going;     /* what goes, as a run says it, or NULL */
};

/* The values that an input may have, and the op that says so. */
struct tess_range {
    int64_t least, most;
    const char *because;
};

/* ---- building (graph.c) ---- */

/* Sets `near` and `near_bytes` for pretended ranks; a new graph has the values that the ranks found out. */
void tess_graph_set_near(tess_graph *g, int near, int64_t bytes);

/* Returns the rows of a parameter's tile, for a matrix of that shape. */
int64_t tess_rows_of_tile(const tess_graph *g, int64_t rows, int64_t columns);

/* ---- mistakes (check.c) ---- */

/* Makes the graph remember its first error, so that later ops return NULL; returns NULL. */
void *tess_graph_fail(tess_graph *g);
/* Adds an input of `length` values that has no samples. */
tess_tensor *tess_input_whole(tess_graph *g, const char *name, int64_t length);
/* Returns the error that made the output of tess_step_new NULL. */
tess_status tess_check_null_output(void) TESS_NODISCARD;
/* Forgets that error. */
void tess_check_forget(void);
/* Checks the settings of a graph. */
tess_status tess_check_conf(const tess_graph_conf *c) TESS_NODISCARD;
/* Checks that a node would have all its inputs, from one graph. Returns that graph, or NULL. */
tess_graph *tess_check_inputs(const tess_op *op, tess_tensor *const *in, int inputs);
/* Makes the graph of such inputs fail with the error recorded last; returns NULL. */
void *tess_check_refuse(tess_tensor *const *in, int inputs);
/* Checks, once infer has set the shape, that no size overflows. */
tess_status tess_check_sizes(const tess_node *n) TESS_NODISCARD;
/* Checks values that an input is fed. */
tess_status tess_check_ids(const tess_tensor *input, const int32_t *values, int64_t n) TESS_NODISCARD;

#endif
