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
    /* Ranks in a row that share a machine, the same everywhere (0, 1: none, or it is not known). What goes to all of
     * its ranks in tiles of at least so many bytes goes there once, and so does the sum of what comes from them in
     * tiles of twice as many. */
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
    uint32_t randoms;             /* streams given out */
    tess_cache *cache;            /* that its attention has; NULL: none */
    tess_step *pending;           /* whose updates of these parameters are yet to come */
    int param_tiles;              /* of all parameters */
    int64_t tiles_declared;       /* that they will have, or a bit more */
    bool tensor_split;            /* its nodes are this rank's part (tensor_parallel.c) */
    const char *unsplit;          /* what could not be shared out, and why; NULL: nothing */
    unsigned session;             /* in which its parameters got what they hold */
    bool on_disk;                 /* some of its tiles are placed there */
    int maps;                     /* pieces that the program has its hands on */
    tess_step *steps;             /* all that were made of it */
    tess_graph *sharers, *sharer; /* those that share this one's parameters; the next that shares with it */
};

/* The values that an input's ops can take, and what says so. */
struct tess_range {
    int64_t least, most;
    const char *because;
};

/* ---- building (graph.c) ---- */

/* Sets, for ranks that are not there, how many of them in a row share a machine, and from how many bytes of a tile on
 * that counts; a new graph has what the ranks found out. */
void tess_graph_set_near(tess_graph *g, int near, int64_t bytes);

/* Leaves this rank its part of every node (tensor_parallel.c). */
void tess_tensor_split(tess_graph *g);
/* Hands its ranks some rows each of what none of them has a part of (divide.c). */
void tess_tensor_divide(tess_graph *g);
/* Puts a node of one input in at place `at`; its output is as the input, but for what the caller changes. */
tess_node *tess_node_insert(tess_graph *g, int at, const tess_op *op, tess_tensor *in, int block);
/* Makes the tiles of parameters that have none yet (ready.c). */
void tess_graph_ready(tess_graph *g);
/* Returns the rows of a parameter's tile, for a matrix of that shape. */
int64_t tess_rows_of_tile(const tess_graph *g, int64_t rows, int64_t columns);

/* The ends of a region whose columns ranks share out (enter_leave.c); tensor_parallel.c puts them in. */
extern const tess_op tess_op_enter, tess_op_leave;

/* ---- mistakes (check.c) ---- */

/* The graph remembers its first error, and what is built on top of it is NULL; returns NULL. */
void *tess_graph_fail(tess_graph *g);
/* Adds an input of so many values that has no samples. */
tess_tensor *tess_input_whole(tess_graph *g, const char *name, int64_t length);
/* Returns the error that made the output NULL which tess_step_new is given. */
tess_status tess_check_null_output(void) TESS_NODISCARD;
/* Forgets it. */
void tess_check_forget(void);
tess_status tess_check_conf(const tess_graph_conf *c) TESS_NODISCARD;
/* Checks the inputs that a node would have: none lacks, all are of one graph, which it returns; else NULL. */
tess_graph *tess_check_inputs(const tess_op *op, tess_tensor *const *in, int inputs);
/* The graph of such inputs fails of what was recorded; returns NULL. */
void *tess_check_refuse(tess_tensor *const *in, int inputs);
/* Checks, once infer has set the shape, that no size overflows. */
tess_status tess_check_sizes(const tess_node *n) TESS_NODISCARD;
/* Checks values that an input is fed. */
tess_status tess_check_ids(const tess_tensor *input, const int32_t *values, int64_t n) TESS_NODISCARD;
/* Checks that a pipeline has a block for each of its chunks (pipeline.c). */
tess_status tess_pipeline_check(const tess_graph *g) TESS_NODISCARD;
/* Sets which sections of the pipeline use each parameter, [tensor][section] (pipeline.c). */
void tess_pipeline_users(const tess_graph *g, bool *const *uses);

/* ---- before a run (session.c) ---- */

/* Checks that StarPU runs, with the disk where tiles are placed there. What the graph held in an earlier session is
 * gone then. */
tess_status tess_check_session(tess_graph *g) TESS_NODISCARD;
/* Checks that the parameters which a step uses were drawn or loaded. */
tess_status tess_check_params(const tess_graph *g, const bool *used) TESS_NODISCARD;

/* ---- a graph and its steps (step.c) ---- */

/* The steps of a graph that goes know that it is gone. */
void tess_steps_orphan(tess_graph *g);
/* The steps forget what they did in an earlier session. */
void tess_steps_forget(tess_graph *g);
/* Makes the updates of g's parameters that are yet to come, unless they are those of `but`. */
tess_status tess_settle(tess_graph *g, const tess_step *but) TESS_NODISCARD;

#endif
