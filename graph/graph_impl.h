/* The inside of the graph room: nodes, the ops' table, and what an op's lowering may call. */
#ifndef TESS_GRAPH_IMPL_H
#define TESS_GRAPH_IMPL_H
#include "graph.h"

enum { TESS_MAX_INPUTS = 4, TESS_MOST_BESIDE = 4 };

typedef struct tess_node tess_node;
typedef struct tess_lower tess_lower;

/* What a backward rule reads of the forward pass, besides gradients. */
enum { TESS_READS_IN0 = 1, TESS_READS_IN1 = 2, TESS_READS_IN2 = 4, TESS_READS_OUT = 16, TESS_READS_AUX = 32 };

/* Which columns of its inputs an op's columns come from. It decides how ranks of the tensor dimension share its work.
 */
typedef enum tess_columns {
    TESS_COLUMNS_ALL,    /* any of them: each rank does all of the op */
    TESS_COLUMNS_SAME,   /* the same ones: a rank that has some of them does those */
    TESS_COLUMNS_MATRIX, /* in[1], whose rows are the output's columns and whose columns are those of in[0]: a rank can
                            have some rows of it or some columns, and the same rows of the bias in[2], if there is one
                          */
} tess_columns;

/* For TESS_COLUMNS_SAME, where not any run of columns can be had alone; all zeros where any can. */
typedef struct tess_units {
    /* How many units of columns there are, each of which stays together. With *exact the number is this one, else any
     * that divides it does. */
    int64_t (*count)(const tess_node *n, bool *exact);
    /* in[0] holds several tensors side by side: says how many columns of each belong to one of so many units, and
     * returns how many tensors. NULL, or 1: it holds one. */
    int (*beside)(const tess_node *n, int64_t units, int64_t width[TESS_MOST_BESIDE]);
    /* The node is now that of the units [first, end) alone. */
    void (*keep)(tess_node *n, int64_t units, int64_t first, int64_t end);
} tess_units;

/* A task of `first` and the task of `second` behind it, whose first use is what the first task writes with its use
 * number 2, can be one of `both`. Its uses are those of the first, in whose place 3 those of the second are put in. */
typedef struct tess_fusion {
    tess_codelet *first, *second, *both; /* by dtype */
    bool kept;                           /* what is between the two is written too */
    size_t bytes;                        /* of the one task's argument, which `join` makes of the two */
    void (*join)(void *arg, const void *first, const void *second);
} tess_fusion;

/* An op, in graph/ops/<name>.c. */
typedef struct tess_op {
    const char *name;
    const char *takes; /* "x, w, bias?": its inputs; those with a mark may be NULL */
    unsigned reads;    /* what backward reads of the forward pass: the rest is not computed again for it */
    /* Checks the shapes of the inputs and sets the output's. */
    tess_status (*infer)(tess_node *n);
    /* Emits the tasks of row tile i. */
    void (*forward)(tess_lower *L, const tess_node *n, int i);
    /* Emits those that find the output's gradient and leave the inputs'. NULL: forward did it. */
    void (*backward)(tess_lower *L, const tess_node *n, int i);
    tess_columns columns;
    tess_units units;
    int table;                  /* the input that ranks may share out by tiles of rows; 0: none */
    int table_bias;             /* the input that has an element for each of its rows; 0: none */
    bool table_parts;           /* with some rows of it the op makes a part of its result, and all parts add up */
    int targets;                /* of a loss: the input whose values from 0 on are counted */
    const tess_fusion *fusions; /* with what is before it; ended by zeros */
} tess_op;
#define TESS_OP(name) extern const tess_op tess_op_##name;
#include "ops.def"
extern const tess_op tess_op_enter, tess_op_leave; /* tensor_parallel.c puts them in */

typedef enum tess_kind { TESS_KIND_INPUT, TESS_KIND_PARAM, TESS_KIND_ACTIVATION, TESS_KIND_LOSS } tess_kind;

/* What an optimizer's update changes: rows of a parameter's tile, all of them or, where ranks share the states out, a
 * slice. In fp32 the weight is the master. */
struct tess_state {
    int64_t tile, row, rows;
    int64_t at;           /* elements of the tile before it */
    tess_tile *master;    /* NULL: it is in the tile's weight */
    tess_tile *weight;    /* where weights are gathered: what rests between uses; else NULL */
    tess_tile *moment[2]; /* of this slice alone, as are: */
    tess_tile *sum;       /* the gradient of all micro-batches: the tile's own where nothing is sliced */
    tess_tile *norm;      /* an exact sum of squares */
    bool counts;          /* that enters the global norm on this rank */
    bool begun[3];        /* master and moments were written, if only in part */
};

/* A row block of a parameter. */
struct tess_param_tile {
    tess_tile *weight; /* NULL: gathered when it is used */
    tess_tile *gradient;
    int64_t first_state, states; /* of the parameter's */
    int index;                   /* among the tiles of all parameters */
    bool filled;                 /* the weight was written */
};

/* Rows that a rank has of a parameter: `rows` of its own from `local` on are those from `global` on. */
struct tess_segment {
    int64_t local, global, rows;
};
/* A piece of a parameter, and where it is: elements `at` of a state. */
struct tess_held {
    tess_piece piece;
    int64_t state, at;
};

struct tess_tensor {
    tess_graph *g;
    const char *name;
    tess_kind kind;
    int id; /* place in the graph */
    int rank;
    int64_t dim[3];      /* (B, T, C), (B, T), (rows, columns), (rows): what this rank has of them */
    tess_node *producer; /* NULL for inputs and parameters */
    /* inputs: the values that the ops over them can take, and what says so */
    int64_t least, most;
    const char *because;
    /* parameters */
    tess_init init;
    int64_t whole[2];               /* (rows, columns) on all ranks together */
    struct tess_segment segment[3]; /* of the rows, where they are shared out */
    int segments;
    int64_t col0;                  /* the first column */
    int64_t first_tile, all_tiles; /* of a table that is shared out by tiles */
    bool split;                    /* over the ranks of the tensor dimension; else all have the same */
    bool leads;                    /* only the first of them has it */
    struct tess_held *held;
    int64_t pieces;
    int64_t tile_rows, tiles;
    struct tess_param_tile *tile; /* NULL before tess_graph_ready */
    struct tess_state *state;     /* this rank's */
    int64_t states;
    bool absent; /* no node of this rank's pipeline stage uses it: no tile is here */
    bool shared; /* nodes of several stages do; states are at `home`, the first of them */
    int home, stages;
    bool *user;           /* [stage] */
    bool copy;            /* the weight is a bf16 copy of a master */
    bool sliced;          /* over the ranks of the data dimension */
    bool gathered;        /* the weight too */
    bool stale;           /* masters were written, and not rounded since */
    tess_tensor *storage; /* the parameter of another graph whose tiles these are; itself otherwise */
};

struct tess_node {
    const tess_op *op;
    int id, block; /* block 0: none */
    bool cut;      /* this rank computes a part of it */
    int inputs;
    tess_tensor *in[TESS_MAX_INPUTS], *out;
    void *attributes; /* the op's own */
    uint32_t random;  /* this op's stream of random numbers */
};

struct tess_graph {
    tess_graph_conf conf;
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
    uint32_t randoms;             /* streams given out */
    tess_step *pending;           /* whose updates of these parameters are yet to come */
    int param_tiles;              /* of all parameters */
    int64_t tiles_declared;       /* that they will have, or a bit more */
    bool tensor_split;            /* tensor_parallel.c was here */
    const char *unsplit;          /* what it could not share out, and why; NULL: nothing */
    unsigned session;             /* in which its parameters got what they hold */
    bool on_disk;                 /* some of its tiles are placed there */
    int maps;                     /* pieces that the program has its hands on */
    tess_step *steps;             /* all that were made of it */
    tess_graph *sharers, *sharer; /* those that share this one's parameters; the next that shares with it */
};

/* ---- what a program may get wrong (check.c) ---- */

enum {
    TESS_MOST_ROWS = 1 << 30,   /* tokens of a micro-batch */
    TESS_MOST_USES = 1 << 16,   /* tiles of one task */
    TESS_MOST_TILES = 1 << 21,  /* of all parameters: tags have room for them */
    TESS_MOST_PLACES = 1 << 28, /* tensors x row tiles x micro-batches: entries of a table */
};

/* The graph remembers its first error; what is built on top of it is NULL. */
void *tess_graph_fail(tess_graph *g);
/* Why tess_step_new is given NULL. */
tess_status tess_check_null_output(void) TESS_NODISCARD;
void tess_check_forget(void);
tess_status tess_check_conf(const tess_graph_conf *c) TESS_NODISCARD;
tess_status tess_check_step(const tess_tensor *output, const tess_step_conf *c) TESS_NODISCARD;
/* The inputs that a node would have: none lacks, all are of one graph; NULL where that is not so. */
tess_graph *tess_check_inputs(const tess_op *op, tess_tensor *const *in, int inputs);
/* infer has set the shape: no size overflows. */
tess_status tess_check_sizes(const tess_node *n) TESS_NODISCARD;
bool tess_fits_tile(int64_t rows, int64_t columns); /* in fp32 */
/* StarPU runs, with the disk where tiles are placed there. What the graph held in an earlier session is gone. */
tess_status tess_check_session(tess_graph *g) TESS_NODISCARD;
/* The parameters that a step uses were drawn or loaded. */
tess_status tess_check_params(const tess_graph *g, const bool *used) TESS_NODISCARD;
/* For infer: an input's values are `least` to `most`; NULL means that none is too small. */
void tess_limit_ids(tess_tensor *input, int64_t least, int64_t most, const char *because);
tess_status tess_check_ids(const tess_tensor *input, const int32_t *values, int64_t n) TESS_NODISCARD;
/* step.c: its steps know that it is gone; they ran in an earlier session. */
void tess_steps_orphan(tess_graph *g);
void tess_steps_forget(tess_graph *g);

/* ---- building (graph.c) ---- */

/* Adds a node of `op` over the inputs, with a copy of so many bytes of attributes. NULL where an input is NULL or infer
 * fails. */
tess_tensor *tess_node_add(const tess_op *op, tess_tensor *const *in, int inputs, const void *attributes, size_t bytes);
/* For infer: "linear: x (4,37,64), w (100,32): <what>" with the shapes of all inputs. */
tess_status tess_shape_error(const tess_node *n, const char *format, ...) TESS_PRINTF(2, 3);
/* infer of elementwise ops: all inputs (B,T,C), the output too. */
tess_status tess_same_shape(tess_node *n);
/* Cuts a vector at the same rows as a matrix, unless an op reads it already. */
void tess_param_cut_like(tess_tensor *vector, const tess_tensor *matrix);
void tess_set_shape(tess_node *n, int rank, int64_t a, int64_t b, int64_t c);
static inline int64_t tess_width(const tess_tensor *t)
{
    return t->rank == 3 ? t->dim[2] : 1;
}
static inline bool tess_is_param(const tess_tensor *t, int64_t rows, int64_t columns)
{
    return t->kind == TESS_KIND_PARAM && t->dim[0] == rows && t->dim[1] == columns;
}

int64_t tess_rows_of_tile(const tess_graph *g, int64_t rows, int64_t columns);
void tess_tensor_split(tess_graph *g); /* tensor_parallel.c: leaves this rank its part of every node */
void tess_graph_ready(tess_graph *g);  /* makes the tiles of parameters that have none yet */
static inline int64_t tess_state_elements(const tess_tensor *p, const struct tess_state *s)
{
    return s->rows * p->dim[1];
}

/* ---- ranks (grid.c) ---- */

static inline int tess_grid_size(const tess_grid *g)
{
    return g->data * g->pipeline * g->tensor;
}
static inline int tess_grid_data(const tess_grid *g)
{
    return g->rank / (g->pipeline * g->tensor);
}
static inline int tess_grid_stage(const tess_grid *g)
{
    return g->rank / g->tensor % g->pipeline;
}
static inline int tess_grid_tensor(const tess_grid *g)
{
    return g->rank % g->tensor;
}
/* The rank at another place of the data dimension. */
static inline int tess_grid_peer(const tess_grid *g, int d)
{
    return g->rank + (d - tess_grid_data(g)) * g->pipeline * g->tensor;
}
/* This rank's of the step's micro-batches. */
static inline void tess_grid_share(const tess_grid *g, int64_t micro, int64_t *first, int64_t *count)
{
    *count = micro / g->data;
    *first = *count * tess_grid_data(g);
}
/* The slices of a parameter's tile: whole rows, each owned by a place of the data dimension. */
typedef struct tess_slice {
    int64_t row, rows;
    int owner;
} tess_slice;
enum { TESS_VECTOR_ROWS = 4096 }; /* a vector is cut at multiples of */
int tess_grid_slices(const tess_tensor *p, int64_t tile);
tess_slice tess_grid_slice(const tess_tensor *p, int64_t tile, int s);
/* Of the micro-batches [first, first + count) the largest aligned groups, in order; how many. 2^level[i] are in the
 * i-th; room for 2 * 64. */
int tess_grid_groups(int64_t first, int64_t count, int *level);
/* Tags of parameters are below, those of activations between stages and between the ranks of a tensor above. */
#define TESS_TAGS_PIPELINE ((int64_t)1 << 30)
#define TESS_TAGS_TENSOR   (TESS_TAGS_PIPELINE + ((int64_t)1 << 29))
enum { TESS_TAG_WEIGHT, TESS_TAG_TOTAL, TESS_TAG_PART }; /* a part's: TESS_TAG_PART + its number */
int tess_grid_tag(const tess_tensor *p, int64_t tile, int s, int kind);

tess_status tess_param_fill(tess_graph *g, tess_tile *t, float value); /* param.c; f32 */
/* step.c: updates of g's parameters that are yet to come are made, unless they are s's. */
tess_status tess_settle(const tess_graph *g, const tess_step *s) TESS_NODISCARD;

/* ---- programs (program.c): tasks over tiles, in order ---- */

typedef struct tess_program {
    tess_arena *arena;
    tess_task *task;
    tess_use **use; /* of each task, to be marked */
    bool *backward; /* of each task: it belongs to a backward pass */
    size_t tasks, room;
    bool in_backward;
    tess_tile **tile; /* owned: those of activations and scalars */
    size_t tiles, tile_room;
    size_t too_large;   /* bytes of a tile that cannot be, */
    const char *of;     /* what it would have held */
    struct tess_slots { /* micro-batches share tiles: the k-th of one is the k-th of the next, in the same set */
        tess_tile **tile;
        size_t next, n;
    } * slots;
    int set, sets;
    double flops, recompute_flops, bytes;
} tess_program;

/* The tile belongs to one program, which drops its contents after the last use; the others outlive it. */
static inline bool tess_program_drops(const tess_tile *t)
{
    return tess_tile_role(t) == TESS_ROLE_ACTIVATION || tess_tile_role(t) == TESS_ROLE_GRADIENT;
}

tess_program *tess_program_new(void);
void tess_program_free(tess_program *p);
tess_tile *tess_program_tile(tess_program *p, size_t bytes, tess_role role, const char *label);
tess_tile *tess_program_slot(tess_program *p, size_t bytes, tess_role role, const char *label);
void tess_program_slots(tess_program *p, int set, bool restart); /* which set it takes from now on */
void tess_program_add(tess_program *p, tess_codelet *cl, const void *arg, const tess_use *use, unsigned nuse,
                      bool again);
/* fuse.c: pairs of tasks that become one, before the list is finished. */
void tess_program_fuse(tess_program *p);
/* Marks each tile's last use before it is written anew. A gradient that the program reads before it writes it is that
 * of the step before. Until a plan says more, a tile leaves RAM after each use. */
void tess_program_finish(tess_program *p, bool keep_gradients);
/* The place of each use's tile, task by task, in a table of the program's tiles, whose size is *tiles; free() it. */
uint32_t *tess_program_index(const tess_program *p, size_t *tiles);
void tess_program_plan(const tess_program *p, tess_plan *plan);  /* plan/holds.c */
uint64_t tess_program_fixed(const tess_program *p, int workers); /* of the program's tiles, as tess_plan_fixed */
tess_program *tess_step_program(const tess_step *s);             /* step.c */
/* step.c: TESS_INVALID once the parameters hold anything; some of a step's tiles, or of all, need the disk. */
tess_status tess_check_place(const tess_graph *of) TESS_NODISCARD;
void tess_step_note_disk(tess_step *s, bool all, uint64_t bytes);
/* Without `late` the updates that come late are left out. */
tess_status tess_program_run(const tess_program *p, bool late);

/* ---- where its tiles are (plan/) ---- */

typedef struct tess_uses tess_uses;
typedef struct tess_marks tess_marks;
/* plan/uses.c: what the program does with its tiles, in numbers; plan/plan.h has the rest. tess_uses_free it. */
tess_uses *tess_uses_list(const tess_program *p);
/* plan/apply.c: after which uses a tile leaves a level, and homes. */
void tess_marks_apply(tess_program *p, const tess_uses *u, const tess_marks *m, tess_tier level);
/* As they are in the program; tess_marks_free it. */
tess_marks *tess_marks_read(const tess_program *p, const tess_uses *u);

/* ---- lowering (lower.c): what ops call ---- */

struct tess_grad {
    tess_tile *tile;
    int holders; /* tensors whose gradient this is */
};

/* A weight that was gathered: two tiles take turns. */
struct tess_gather {
    tess_tile *tile[2];
    int turn;
    bool have;
    uint64_t stretch; /* of its last use, and the elements of gathered weights that were used before: */
    int64_t clock;
};

/* A parameter's tile whose gradient is a tree over micro-batches. */
struct tess_tree {
    tess_tile **leaf;    /* [micro]: its gradient from one micro-batch, while it grows */
    tess_tile *node[64]; /* sums of complete ones, in order */
    int64_t first[64];
    int level[64], nodes;
    tess_tile **spare;
    int spares;
};

struct tess_lower {
    tess_graph *g;
    tess_program *p;
    const tess_step_conf *conf;
    const tess_grid *grid;
    tess_dtype dtype;
    int64_t micros, micro0;      /* this rank's micro-batches, the first of them in the step */
    int64_t micro;               /* which of them */
    struct tess_gather **gather; /* [tensor][tile] */
    uint64_t stretch;            /* stretches of nodes so far */
    int64_t clock;
    int sums;                /* over the tensor dimension, so far */
    struct tess_tree **tree; /* [tensor][tile] */
    int **growing;   /* [tensor][micro]: backward rules that still add to a leaf, or to what is given up early */
    bool *early;     /* [tensor]: its gradient goes to the owners of its slices micro-batch by micro-batch */
    int64_t **begun; /* [tensor][tile]: the last micro-batch of whose gradient there is something; -1: none */
    int row_tiles;
    bool recomputing;
    int recomputed;           /* the segment that was last recomputed; -1: none */
    tess_tile ***value;       /* [tensor][micro * row_tiles + row tile]: the instance that forward wrote last */
    tess_tile ***aux;         /* [node][the same] */
    struct tess_grad ***grad; /* [tensor][the same] */
    bool *updated;            /* [tensor]: its late update is emitted */
    bool **touched;           /* [tensor][tile]: this parameter's gradient holds something already */
    int *pending;             /* [tensor]: backward rules that still add to this parameter's gradient */
    tess_tile **scratch;      /* by size */
    int scratches;
    bool *uses; /* [tensor]: tasks read this input or parameter */
    const tess_tensor *output;
    void **room;                      /* [node]: what its op keeps while it is lowered */
    tess_tile ***input;               /* [tensor][micro * row_tiles + row tile] */
    tess_tile **result;               /* [micro * row_tiles + row tile]: the output's */
    tess_tile *loss;                  /* sum and count of the whole step */
    tess_tile *late_loss, *late_norm; /* where updates come late: those of the step before */
    tess_tile **losses;               /* of each piece of the loss, in order */
    int nlosses, losses_room;
};

/* Rows of tensor t in row tile i; the global row (over all micro-batches) where it begins. */
int64_t tess_rows(const tess_lower *L, const tess_tensor *t, int i);
int64_t tess_first_row(const tess_lower *L, const tess_tensor *t, int i);
#define TESS_ARG(L, type, ...) ((type *)tess_arg_copy(L, &(type){__VA_ARGS__}, sizeof(type)))
void *tess_arg_copy(tess_lower *L, const void *arg, size_t bytes);

tess_use tess_in(tess_lower *L, const tess_tensor *t, int i);  /* read an activation or input */
tess_use tess_out(tess_lower *L, const tess_tensor *t, int i); /* a new instance, to write */
tess_use tess_aux_out(tess_lower *L, const tess_node *n, int i, size_t bytes);
tess_use tess_aux_in(tess_lower *L, const tess_node *n, int i);
tess_use tess_weight(tess_lower *L, const tess_tensor *p, int64_t tile); /* read a parameter's tile */
tess_use tess_scratch_use(tess_lower *L, size_t bytes);
bool tess_wants_gradient(const tess_lower *L, const tess_tensor *t);
tess_use tess_grad_read(tess_lower *L, const tess_tensor *t, int i); /* the output's gradient */
tess_use tess_grad_write(tess_lower *L, const tess_tensor *t, int i, bool *acc);
/* t's gradient is that of `from`, unchanged. */
void tess_grad_pass(tess_lower *L, const tess_tensor *from, const tess_tensor *t, int i);
/* What the op of a node keeps for itself while the step is lowered: so many bytes, zeros at first. */
void *tess_node_room(tess_lower *L, const tess_node *n, size_t bytes);
/* A parameter's gradient; acc is false for the first task of the step that writes this tile. */
tess_use tess_param_grad(tess_lower *L, const tess_tensor *p, int64_t tile, bool *acc);
/* The tile of a piece of the loss: sum and count, double. */
tess_use tess_loss_out(tess_lower *L);
void tess_emit(tess_lower *L, tess_codelet *cl, const void *arg, const tess_use *use, unsigned nuse);
#define TESS_EMIT(L, cl, arg, ...)                                                                                     \
    tess_emit(L, cl, arg, (tess_use[]){__VA_ARGS__}, sizeof((tess_use[]){__VA_ARGS__}) / sizeof(tess_use))

/* The program of a step over `output`; inputs, loss and norm are tiles that the step reads and writes. */
typedef struct tess_lowered {
    tess_program *program;
    tess_tile ***input; /* [tensor][micro * row_tiles + row tile], in the program's arena */
    tess_tile **output; /* [micro * row_tiles + row tile] */
    tess_tile *loss, *norm;
    int row_tiles;
    tess_program *updates; /* where they come late: they alone; its tiles are the other program's */
    bool *uses;            /* [tensor]: the inputs and parameters that its tasks read */
} tess_lowered;
void tess_lower_step(const tess_tensor *output, const tess_step_conf *conf, tess_lowered *out);
/* lower.c, for pipeline.c: a stretch of nodes; the gradient of t is done with; how many rules add to each parameter's;
 * the step's loss. */
void tess_lower_forward(tess_lower *L, int first, int end, const bool *wanted);
void tess_lower_backward(tess_lower *L, int first, int end, const bool *wanted);
void tess_lower_release(tess_lower *L, const tess_tensor *t, int i);
void tess_lower_count(tess_lower *L, const bool *wanted);
void tess_lower_losses(tess_lower *L);
/* pipeline.c: the chunk of each node; free() it. The stages that use each parameter, [tensor][stage]. */
int *tess_pipeline_chunks(const tess_graph *g);
void tess_pipeline_users(const tess_graph *g, bool *const *uses);
tess_status tess_pipeline_check(const tess_graph *g) TESS_NODISCARD;
/* A pass of a micro-batch through a chunk, and when it begins, a forward one taking 1 and a backward one 2. */
struct tess_pass {
    int chunk;
    int64_t micro;
    bool backward;
    double time;
};
/* This stage's passes in order; when those of all stages end, [chunk][micro][backward]; when all losses are known; how
 * long all takes. free() the two. */
struct tess_pass *tess_pipeline_order(const tess_grid *g, int64_t micros, bool train, int *n, double **ends,
                                      double *losses_known, double *span);
void tess_lower_pipeline(tess_lower *L, bool *wanted);
/* reduce.c: what ranks send each other. A gradient is complete: its sum over all micro-batches, where the states are;
 * the tile of a gathered weight; slices of a tile go from their owners to all; an exact sum over all ranks. */
void tess_lower_reduce(tess_lower *L, tess_tensor *p);
void tess_lower_give_up(tess_lower *L, tess_tensor *p); /* this micro-batch's, early */
tess_tile *tess_lower_gather(tess_lower *L, const tess_tensor *p, int64_t j);
void tess_lower_share(tess_lower *L, const tess_tensor *p, int64_t j, tess_use use, size_t size, int kind);
/* A tile of n elements, of which each rank of the tensor dimension has a part: their sum. */
void tess_lower_all_sum(tess_lower *L, tess_tile *t, int64_t n, tess_dtype type);
/* A tile to all other ranks of the tensor dimension, or from one. */
void tess_lower_tensor_tell(tess_lower *L, tess_tile *t, int from);
/* A whole tile. */
void tess_lower_message(tess_lower *L, tess_use use, int peer, int tag, bool sends);
/* The end of a step for a parameter of several stages. */
void tess_lower_tied(tess_lower *L, tess_tensor *p);
void tess_lower_tell(tess_lower *L, const tess_tensor *p, int64_t j); /* its weight, to the other stages */
void tess_lower_total(tess_lower *L, tess_tile *sum, int64_t sums, int which);
/* Whole weights as their owners' slices say. */
tess_program *tess_lower_sharing(tess_graph *g);
/* A leaf of the tree, and its end. */
tess_tile *tess_lower_leaf(tess_lower *L, const tess_tensor *p, int64_t j, bool *acc);
void tess_lower_grown(tess_lower *L, const tess_tensor *p);
/* optimizer.c: the parameters whose gradients are complete, and the end of the step. */
void tess_lower_update(tess_lower *L, tess_tensor *p);
void tess_lower_late(tess_lower *L, tess_tensor *p);
tess_tile *tess_lower_loss(tess_lower *L);
tess_tile *tess_lower_norm(tess_lower *L);

#endif
