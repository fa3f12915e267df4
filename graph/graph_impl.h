/* The inside of the graph room: nodes, the ops' table, and what an op's lowering may call. */
#ifndef TESS_GRAPH_IMPL_H
#define TESS_GRAPH_IMPL_H
#include "graph.h"

enum { TESS_MAX_INPUTS = 4, TESS_MAX_AUX = 1 };

typedef struct tess_node tess_node;
typedef struct tess_lower tess_lower;

/* What a backward rule reads of the forward pass, besides gradients. */
enum { TESS_READS_IN0 = 1, TESS_READS_IN1 = 2, TESS_READS_IN2 = 4, TESS_READS_OUT = 16, TESS_READS_AUX = 32 };

/* One an op, in graph/ops/<name>.c. infer checks shapes and sets the output's; forward and backward emit the tasks of
 * row tile i. backward finds the output's gradient and leaves the inputs'. */
typedef struct tess_op {
    const char *name;
    tess_status (*infer)(tess_node *n);
    void (*forward)(tess_lower *L, const tess_node *n, int i);
    void (*backward)(tess_lower *L, const tess_node *n, int i);
    unsigned reads;
} tess_op;
#define TESS_OP(name) extern const tess_op tess_op_##name;
#include "ops.def"
#undef TESS_OP

typedef enum tess_kind { TESS_KIND_INPUT, TESS_KIND_PARAM, TESS_KIND_ACTIVATION, TESS_KIND_LOSS } tess_kind;

/* The tiles of one row block of a parameter. In fp32 the weight is the master. */
struct tess_param_tile {
    tess_tile *weight, *master, *moment[2], *gradient, *norm;
    bool has_moments; /* they were written */
};

struct tess_tensor {
    tess_graph *g;
    const char *name;
    tess_kind kind;
    int id; /* place in the graph */
    int rank;
    int64_t dim[3];      /* (B, T, C), (B, T), (rows, columns), (rows) */
    tess_node *producer; /* NULL for inputs and parameters */
    /* parameters */
    tess_init init;
    int64_t tile_rows, tiles;
    struct tess_param_tile *tile;
    tess_tensor *storage; /* the parameter of another graph whose tiles these are; itself otherwise */
};

struct tess_node {
    const tess_op *op;
    int id, block; /* block 0: none */
    int inputs;
    tess_tensor *in[TESS_MAX_INPUTS], *out;
    union {
        float eps, p;
        tess_gelu_kind gelu;
        tess_rope_conf rope;
        struct {
            tess_attention_conf conf;
            int64_t dim;
            bool packed;
        } attention;
    };
    uint32_t random; /* this op's stream of random numbers */
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
    uint32_t randoms;   /* streams given out */
    tess_step *pending; /* whose updates of these parameters are yet to come */
};

/* ---- building (graph.c) ---- */

/* A node of `op` over the inputs, whose attributes `attr` sets; NULL where an input is NULL or infer fails. */
tess_tensor *tess_node_add(const tess_op *op, tess_tensor *const *in, int inputs, const tess_node *attributes);
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

tess_status tess_param_fill(tess_graph *g, tess_tile *t, float value); /* param.c; f32 */
/* step.c: updates of g's parameters that are yet to come are made, unless they are s's. */
tess_status tess_settle(const tess_graph *g, const tess_step *s) TESS_NODISCARD;

/* ---- programs (program.c): tasks over tiles, in order ---- */

typedef struct tess_program {
    tess_arena *arena;
    tess_task *task;
    bool *backward; /* of each task: it belongs to a backward pass */
    size_t tasks, room;
    bool in_backward;
    tess_tile **tile; /* owned: those of activations and scalars */
    size_t tiles, tile_room;
    size_t slot, slots; /* micro-batches share tiles: the k-th of one is the k-th of the next */
    tess_tile **slot_tile;
    double flops, recompute_flops, bytes;
} tess_program;

tess_program *tess_program_new(void);
void tess_program_free(tess_program *p);
tess_tile *tess_program_tile(tess_program *p, size_t bytes, tess_role role, const char *label);
tess_tile *tess_program_slot(tess_program *p, size_t bytes, tess_role role, const char *label);
void tess_program_add(tess_program *p, tess_codelet *cl, const void *arg, const tess_use *use, unsigned nuse,
                      bool again);
/* Marks each tile's last use before it is written anew. A gradient that the program reads before it writes it is that
 * of the step before. */
void tess_program_finish(tess_program *p, bool keep_gradients);
/* The place of each use's tile, task by task, in a table of the program's tiles, whose size is *tiles; free() it. */
uint32_t *tess_program_index(const tess_program *p, size_t *tiles);
void tess_program_plan(const tess_program *p, tess_plan *plan); /* plan.c */
/* simulate.c: the step as placed, with that much room for tiles that flow. */
void tess_program_simulate(const tess_program *p, const tess_rates *rates, uint64_t room, int workers,
                           tess_forecast *out);
/* place.c; `fixed` is what stays in RAM whatever is decided. Without `all` the homes of parameters and their states are
 * given, and those in RAM are part of it. */
tess_status tess_program_place(tess_program *p, const tess_place_conf *conf, uint64_t fixed, bool all,
                               tess_placement *out) TESS_NODISCARD;
/* Without `late` the updates that come late are left out. */
tess_status tess_program_run(const tess_program *p, bool late);

/* room.c: bytes at each moment of a cycle. */
typedef struct tess_room tess_room;
tess_room *tess_room_new(const int64_t *bytes, size_t moments);
void tess_room_free(tess_room *r);
/* Takes `bytes` from `count` moments from `first` on, around the end of the cycle; the least that is left in them,
 * which may be below zero. Negative bytes give back. */
int64_t tess_room_take(tess_room *r, size_t first, size_t count, int64_t bytes);
int64_t tess_room_least(const tess_room *r);

/* ---- lowering (lower.c): what ops call ---- */

struct tess_grad {
    tess_tile *tile;
    int holders; /* tensors whose gradient this is */
};

struct tess_lower {
    tess_graph *g;
    tess_program *p;
    const tess_step_conf *conf;
    tess_dtype dtype;
    int64_t micro; /* which micro-batch */
    int row_tiles;
    bool recomputing;
    int recomputed;           /* the segment that was last recomputed; -1: none */
    tess_tile ***value;       /* [tensor][micro * row_tiles + row tile]: the instance that forward wrote last */
    tess_tile ***aux;         /* [node][the same] */
    struct tess_grad ***grad; /* [tensor][the same] */
    bool *updated;            /* [tensor]: its late update is emitted */
    bool **touched;           /* [tensor][tile]: this parameter's gradient holds something already */
    int *pending;             /* [tensor]: backward rules that still add to this parameter's gradient */
    tess_tile *scratch[16];   /* by size */
    const tess_tensor *output;
    struct tess_ring *ring; /* of the loss: what its tasks leave for each other, a few sets that take turns */
    int ring_turn;
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
tess_use tess_weight(const tess_tensor *p, int64_t tile); /* read a parameter's tile */
tess_use tess_scratch_use(tess_lower *L, size_t bytes);
bool tess_wants_gradient(const tess_lower *L, const tess_tensor *t);
tess_use tess_grad_read(tess_lower *L, const tess_tensor *t, int i); /* the output's gradient */
tess_use tess_grad_write(tess_lower *L, const tess_tensor *t, int i, bool *acc);
/* t's gradient is that of `from`, unchanged. */
void tess_grad_pass(tess_lower *L, const tess_tensor *from, const tess_tensor *t, int i);
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
} tess_lowered;
void tess_lower_step(const tess_tensor *output, const tess_step_conf *conf, tess_lowered *out);
/* optimizer.c: the parameters whose gradients are complete, and the end of the step. */
void tess_lower_update(tess_lower *L, tess_tensor *p);
void tess_lower_late(tess_lower *L, tess_tensor *p);
tess_tile *tess_lower_norm(tess_lower *L);
tess_tile *tess_lower_sum(tess_lower *L, tess_tile **part, int parts, int64_t scalars, const char *label);

#endif
