/* graph: networks as tensors and ops, described as if for one device with endless memory, and the step that trains
 * them. It knows no device: a step is lowered to a program of tile tasks, which the runtime runs.
 *
 *     tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_BF16});
 *     tess_tensor *ids = tess_input(g, "ids", 8, 128), *next = tess_input(g, "next", 8, 128);    // (B, T)
 *     tess_tensor *table = tess_param(g, "table", 256, 64, TESS_NORMAL(0.02f));                  // (V, C)
 *     tess_tensor *w = tess_param(g, "w", 64, 64, TESS_NORMAL(0.02f)), *b = tess_param(g, "b", 64, 1, TESS_ZERO);
 *     tess_tensor *x = tess_embedding(ids, table, NULL);                                          // (B, T, C)
 *     x = tess_add(x, tess_gelu(tess_linear(x, w, b), TESS_GELU_TANH));
 *     tess_tensor *loss = tess_cross_entropy(x, table, NULL, next);
 *
 *     tess_step *s;
 *     TESS_TRY(tess_step_new(loss, &(tess_step_conf){.train = true, .optimizer = TESS_ADAMW}, &s));
 *     TESS_TRY(tess_graph_init(g, 1));
 *     TESS_TRY(tess_step_feed(s, ids, tokens));
 *     TESS_TRY(tess_step_feed(s, next, targets));
 *     tess_step_result r;
 *     TESS_TRY(tess_step_run(s, &(tess_step_input){.step = 0, .lr = 1e-3}, &r));                 // r.loss
 *
 * Building never fails on the spot: an op given wrong shapes returns NULL, an op given NULL returns NULL, and
 * tess_step_new returns the first error, which names the op and the shapes. The graph owns its tensors. What else a
 * program gets wrong is TESS_INVALID where it does harm: a value that is fed and that no row of a table is for, an
 * input that was not fed, parameters neither drawn nor loaded, a call before tess_start or after tess_stop, or of a
 * step whose graph was freed. What a graph holds ends with tess_stop; it may be drawn or loaded anew after the next
 * tess_start.
 *
 * Tiles. An activation (B, T, C) is cut into tiles of whole sequences; a parameter (rows, columns) into tiles of whole
 * rows. The cut depends on the shapes and tess_graph_conf alone, never on the machine: sums have one order.
 */
#ifndef TESS_GRAPH_H
#define TESS_GRAPH_H
#include "codelets.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- describing -------------------------------------------------------------------------------------------------- */

typedef struct tess_graph tess_graph;
typedef struct tess_tensor tess_tensor;

/* The ranks that train one model, data x pipeline x tensor of them: rank = (d * pipeline + p) * tensor + t. Who owns
 * what follows from it: see docs/placement.md. All zeros: one rank. */
typedef struct tess_grid {
    int rank, data, pipeline, tensor;
    int interleave;      /* chunks of blocks that a pipeline stage has */
    int stage;           /* ZeRO's: sharded over data are 1 the optimizer's states, 2 gradients too, 3 weights too */
    int64_t persist;     /* stage 3: parameters of no more elements are not sharded */
    int64_t live, reuse; /* stage 3: most elements gathered at a time; between two uses of one that is kept */
} tess_grid;

typedef struct tess_graph_conf {
    tess_dtype dtype;      /* of activations and matrices; TESS_BF16 keeps fp32 masters */
    int64_t tile_rows;     /* rows (tokens) an activation's tile has, as far as whole sequences allow; 0: 1024 */
    int64_t tile_elements; /* most elements of a parameter's tile; 0: 2.5 Mi */
    int64_t loss_rows;     /* rows whose logits exist at a time; 0: 512 */
    tess_grid grid;
    tess_graph *share; /* parameters of this other graph are used where the name is the same; it must live longer */
} tess_graph_conf;

tess_graph *tess_graph_new(const tess_graph_conf *conf);
void tess_graph_free(tess_graph *g);

typedef enum tess_init_kind { TESS_INIT_FILL, TESS_INIT_NORMAL } tess_init_kind;
typedef struct tess_init {
    tess_init_kind kind;
    float value; /* the constant, or the standard deviation */
} tess_init;
#define TESS_ZERO      (TESS_LITERAL(tess_init){TESS_INIT_FILL, 0})
#define TESS_ONE       (TESS_LITERAL(tess_init){TESS_INIT_FILL, 1})
#define TESS_NORMAL(s) (TESS_LITERAL(tess_init){TESS_INIT_NORMAL, s})

/* Token ids or indices (B, T). All inputs of a graph have the same B. */
tess_tensor *tess_input(tess_graph *g, const char *name, int64_t batch, int64_t length);
/* A matrix (rows, columns), or a vector (rows) with columns 1. A name that exists already returns that parameter. */
tess_tensor *tess_param(tess_graph *g, const char *name, int64_t rows, int64_t columns, tess_init init);

/* From here to the next mark ops belong to one block, the unit of activation checkpointing. name is copied. */
void tess_block(tess_graph *g, const char *name);
void tess_block_end(tess_graph *g);
/* Names the tensor for errors and traces; returns it. */
tess_tensor *tess_name(tess_tensor *t, const char *format, ...) TESS_PRINTF(2, 3);

/* Ops. Shapes: x (B, T, C). */
tess_tensor *tess_embedding(tess_tensor *ids, tess_tensor *table,
                            tess_tensor *positions);                         /* positions (>=T, C) or NULL */
tess_tensor *tess_linear(tess_tensor *x, tess_tensor *w, tess_tensor *bias); /* w (out, C), bias (out) or NULL */
tess_tensor *tess_layernorm(tess_tensor *x, tess_tensor *gain, tess_tensor *bias, float eps);
/* gain (C), or (D): then each run of D elements is a row by itself, as heads are. */
tess_tensor *tess_rmsnorm(tess_tensor *x, tess_tensor *gain, float eps);
tess_tensor *tess_gelu(tess_tensor *x, tess_gelu_kind kind);
tess_tensor *tess_silu(tess_tensor *x);
tess_tensor *tess_add(tess_tensor *a, tess_tensor *b);
tess_tensor *tess_mul(tess_tensor *a, tess_tensor *b);
tess_tensor *tess_dropout(tess_tensor *x, float p);
typedef struct tess_rope_conf {
    int64_t dim;    /* of a head */
    int64_t rotary; /* how many of dim rotate; 0: all */
    float base;     /* 0: 10000 */
    tess_rope_scaling scaling;
    bool neighbours; /* pairs (2i, 2i+1) instead of (i, i + rotary/2) */
} tess_rope_conf;
tess_tensor *tess_rope(tess_tensor *x, tess_rope_conf conf);
typedef struct tess_attention_conf {
    int64_t heads, groups; /* groups: heads of k and v, 0: as many as heads */
    float scale;           /* 0: 1/sqrt(dim) */
    float dropout;
    bool causal;
} tess_attention_conf;
tess_tensor *tess_attention(tess_tensor *q, tess_tensor *k, tess_tensor *v, tess_attention_conf conf);
/* q, k and v side by side in one tensor, as one linear makes them. */
tess_tensor *tess_attention_packed(tess_tensor *qkv, tess_attention_conf conf);
/* Mean over targets >= 0 of -log softmax(x w^T + bias)[target]; its value is the loss. The head and its loss work on
 * loss_rows rows at a time: logits of a whole batch never exist. */
tess_tensor *tess_cross_entropy(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets);
/* Of each sequence the row that index (B, 1) names: (B, 1, C). */
tess_tensor *tess_pick(tess_tensor *x, tess_tensor *index);

const char *tess_tensor_name(const tess_tensor *t);
int tess_tensor_shape(const tess_tensor *t, int64_t shape[3]); /* the rank */

/* ---- parameters ---------------------------------------------------------------------------------------------------
 */

int tess_graph_params(const tess_graph *g);
tess_tensor *tess_graph_param(const tess_graph *g, int index);
tess_tensor *tess_graph_find_param(const tess_graph *g, const char *name);
int64_t tess_graph_param_elements(const tess_graph *g);
int64_t tess_param_tiles(const tess_tensor *p);
void tess_param_rows(const tess_tensor *p, int64_t tile, int64_t *first, int64_t *count);

/* Draws every parameter from its init and zeroes the moments; values depend on the seed and the parameter alone. */
tess_status tess_graph_init(tess_graph *g, uint64_t seed) TESS_NODISCARD;
typedef enum tess_part { TESS_MASTER, TESS_MOMENT1, TESS_MOMENT2, TESS_PARTS } tess_part;
/* What this rank holds of a parameter's master and moments: rectangles of it, rows [row, row + rows) and columns [col,
 * col + cols), dense and row-major. With one rank they are its tiles. */
typedef struct tess_piece {
    int64_t row, rows, col, cols;
    bool writes; /* of the ranks that hold the same, this is the one that writes it out */
} tess_piece;
int64_t tess_param_pieces(const tess_tensor *p);
tess_piece tess_param_piece(const tess_tensor *p, int64_t piece);
/* One of them, fp32, for the main thread between steps. */
tess_status tess_param_map(tess_tensor *p, int64_t piece, tess_part part, int mode, float **data) TESS_NODISCARD;
void tess_param_unmap(tess_tensor *p, int64_t piece, tess_part part);
/* After masters were written from outside: renews the bf16 copies. */
tess_status tess_graph_round(tess_graph *g) TESS_NODISCARD;

/* ---- the step ------------------------------------------------------------------------------------------------------
 */

typedef struct tess_optimizer {
    double beta1, beta2, eps, weight_decay;
    bool l2;          /* Adam: decay is added to the gradient */
    bool no_decay_1d; /* vectors do not decay */
    double clip;      /* by the global norm; 0: off */
} tess_optimizer;
#define TESS_ADAMW                                                                                                     \
    (TESS_LITERAL(tess_optimizer){0.9, 0.999, 1e-8, 0, false, false, 0}) /* without decay or clipping                  \
                                                                          */

typedef struct tess_step_conf {
    bool train;    /* else only the forward pass */
    int64_t micro; /* micro-batches of B sequences that make a step, on all ranks together; 0: 1 */
    bool by_layer; /* all micro-batches through a block before the next: same bits, more activations, less traffic */
    bool deterministic; /* gradients add up in one tree over all micro-batches, whoever computes which: the same bits on
                           any number of ranks, for some more memory and time */
    bool late; /* with clipping: updates come in the next step's forward pass, or when somebody asks for them */
    tess_optimizer optimizer;
    int recompute_every; /* activation checkpointing: blocks between kept activations; 0: off */
    bool keep_gradients; /* for tests: no optimizer, gradients stay readable */
    bool check_finite;   /* forward only: the first tensor that is not finite fails the step by name */
} tess_step_conf;

typedef struct tess_step tess_step;
/* output: the loss, or with train false any tensor. Needs no running StarPU: a plan can be drawn up anywhere. */
tess_status tess_step_new(tess_tensor *output, const tess_step_conf *conf, tess_step **step) TESS_NODISCARD;
void tess_step_free(tess_step *s);

/* What the machine does a second, as far as the tasks of a step reach it. */
typedef struct tess_rates {
    double flops, copy; /* of matrices; bytes of the tasks without: all workers together */
    double read, write; /* bytes from the disk, to it: either alone */
    double both;        /* of these the shares that both have at the same time, added up: 1 to 2 */
} tess_rates;
/* The time of a step on paper: seconds of it, and those that workers and the disk's directions are busy. */
typedef struct tess_forecast {
    double seconds, work, read, write;
} tess_forecast;

/* Where a step's tiles live, and what that moves. */
typedef struct tess_placement {
    uint64_t needed;        /* the least conf.ram that may do */
    uint64_t largest_task;  /* bytes of the tiles of the task with the most */
    uint64_t room;          /* of RAM for tiles that flow: for tess_flow_room */
    uint64_t slack;         /* of it, what is set aside for tiles that come early and leave late */
    uint64_t read, written; /* from and to the disk in a step */
    uint64_t bound;         /* no placement within this RAM moves less in all */
    uint64_t disk;          /* bytes of the tiles whose home is the disk */
    /* conf.ram is room and these: inputs, scalars and scratch of both steps; the workers' buffers; what tiles take
     * beyond their bytes
     */
    uint64_t fixed, buffers, margin;
    tess_forecast time; /* where rates are known */
} tess_placement;
typedef struct tess_place_conf {
    uint64_t ram;            /* bytes, for all tiles and what workers have beside them; */
    uint64_t taken;          /* of it, what another step has for its inputs, scalars and scratch */
    int workers;             /* each has its scratch, and for its products buffers of: */
    uint64_t worker_bytes;   /* at most */
    unsigned away;           /* roles, 1 << TESS_ROLE_..., that rest on disk between uses even where RAM has room; of
                                activations those that wait for the backward pass */
    uint64_t weights_in_ram; /* of weights that are to be away, bytes that need not be */
    unsigned stay;           /* roles that never leave RAM */
    uint64_t slack;          /* of placement.slack; 0: what makes the step fastest on paper */
    uint64_t slack_states;   /* the same in tiles of optimizer state */
    bool alone;              /* of a step that does not train: no other one has placed the parameters */
    tess_rates rates;        /* zeros: unknown */
} tess_place_conf;
/* Places the tiles of a step: of one that trains all of them, of another, later, its own beside them; before anything
 * is drawn or loaded. Too little for its largest task is TESS_INVALID with the number that would do. */
tess_status tess_step_place(tess_step *s, const tess_place_conf *conf, tess_placement *out) TESS_NODISCARD;

/* Which tiles leave a GPU between their uses there, and what of its memory they have at a time. */
typedef struct tess_gpu_placement {
    uint64_t needed;        /* memory that would do, if that which there is does not */
    uint64_t memory;        /* what is shared out: to */
    uint64_t room;          /* tiles that come and go by plan; the rest is StarPU's, for inputs, scratch, */
    bool states;            /* and the optimizer's states, if there is enough of it for an update on the GPU */
    uint64_t all;           /* the room in which nothing would have to leave */
    uint64_t read, written; /* copied to the GPU and back in a step by plan, */
    uint64_t bound;         /* of which no plan has less; */
    uint64_t home;          /* parameters and states that are nowhere but on the GPU */
} tess_gpu_placement;
typedef struct tess_gpu_conf {
    uint64_t memory; /* for tiles */
    bool all; /* parameters and their states get homes too; else the step that trains, whose room that is, gave them */
    bool messages; /* they take tiles there */
    double states; /* the share of the optimizer's that may live there */
} tess_gpu_conf;
/* Before tess_step_place, which does not count in RAM what is on the GPU alone. Too little for the largest task is
 * TESS_INVALID. */
tess_status tess_step_place_gpu(tess_step *s, const tess_gpu_conf *conf, tess_gpu_placement *out) TESS_NODISCARD;

/* What a machine has for the tiles of a step: a GPU's memory, if .gpu.memory is said, and RAM above a disk, if .ram.ram
 * is. */
typedef struct tess_rooms {
    tess_gpu_conf gpu;
    tess_place_conf ram;
} tess_rooms;
/* How a step is laid out, and where its tiles are. */
typedef struct tess_layout {
    bool by_layer, late; /* of tess_step_conf */
    tess_gpu_placement gpu;
    tess_placement ram;
    tess_tier lacks; /* where no layout fits, what is too little: the `needed` of its placement may do */
} tess_layout;
/* The step that trains, laid out in the way that is fastest on paper within these rooms, or, with no room said for RAM,
 * that copies the least to a GPU and back; conf's own by_layer and late are not asked. Its tiles are placed. All ranks
 * call it, and get the same layout. TESS_INVALID with out->lacks where nothing fits. */
tess_status tess_step_lay_out(tess_tensor *output, const tess_step_conf *conf, const tess_rooms *rooms,
                              tess_step **step, tess_layout *out) TESS_NODISCARD;

/* The time of the step as placed, with that much room for its tiles in RAM. */
void tess_step_forecast(const tess_step *s, const tess_rates *rates, uint64_t room, int workers, tess_forecast *out);

/* The micro-batches of the step that this rank computes. */
void tess_step_share(const tess_step *s, int64_t *first, int64_t *count);
/* The batch of an input: B sequences for each of this rank's micro-batches, copied. */
tess_status tess_step_feed(tess_step *s, const tess_tensor *input, const int32_t *values) TESS_NODISCARD;
/* The same, checked to be `count` values; and how many it takes. */
tess_status tess_step_feed_values(tess_step *s, const tess_tensor *input, const int32_t *values,
                                  int64_t count) TESS_NODISCARD;
int64_t tess_step_values(const tess_step *s, const tess_tensor *input);

typedef struct tess_step_input {
    int64_t step;
    uint64_t seed;
    double lr;
    double beta1, beta2; /* where a schedule moves them; 0: the optimizer's */
} tess_step_input;
typedef struct tess_step_result {
    double loss;      /* mean over the targets that count */
    double grad_norm; /* of the averaged gradient, before clipping */
    int64_t targets;
} tess_step_result;
/* Runs one step to its end. A loss or gradient that is not finite is TESS_FAILED; with such a loss no weight changed.
 */
tess_status tess_step_run(tess_step *s, const tess_step_input *in, tess_step_result *out) TESS_NODISCARD;
/* After a run with train false: the rows of the output, in fp32, of this rank's sequences. */
tess_status tess_step_output(tess_step *s, float *values) TESS_NODISCARD;
/* With keep_gradients, below stage 1: the gradient of one parameter, (rows, columns). */
tess_status tess_step_gradient(tess_step *s, tess_tensor *param, float *values) TESS_NODISCARD;

/* What a step will hold and do, from its program alone. */
typedef struct tess_plan {
    uint64_t resident[TESS_ROLE_COUNT]; /* bytes held from step to step, by role */
    uint64_t peak[TESS_ROLE_COUNT];     /* most bytes live at one time in program order, by role */
    uint64_t peak_total;                /* most bytes live at one time, all roles, */
    uint64_t peak_ram;                  /* and of those that are not on the GPU alone, as placed there; */
    uint64_t ram[TESS_ROLE_COUNT];      /* what that is made of, by role */
    /* By where they were placed: parameters and states that stay in RAM, and all tiles that rest on disk. */
    uint64_t stays[TESS_ROLE_COUNT], on_disk[TESS_ROLE_COUNT];
    double flops; /* of the model: forward and backward, without recomputation */
    double recompute_flops;
    double bytes;  /* read and written beside products of matrices */
    uint64_t sent; /* bytes, to other ranks */
    uint64_t tasks, tiles;
} tess_plan;
void tess_step_plan(const tess_step *s, tess_plan *plan);
/* Bytes of the plan's tiles that do not flow, each worker having its scratch. */
uint64_t tess_plan_fixed(const tess_plan *plan, int workers);

#ifdef __cplusplus
}
#endif

#endif
