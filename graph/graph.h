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
 *     TESS_TRY(tess_step_new(loss, &(tess_step_conf){.train = true, .optimizer = tess_adamw()}, &s));
 *     TESS_TRY(tess_graph_init(g, 1));
 *     TESS_TRY(tess_step_feed(s, ids, tokens));
 *     TESS_TRY(tess_step_feed(s, next, targets));
 *     tess_step_result r;
 *     TESS_TRY(tess_step_run(s, &(tess_step_input){.step = 0, .lr = 1e-3}, &r));                 // r.loss
 *
 * Describing, parameters and the running of a step are declared in tessera_graph.h, which programs have too; here is
 * what plans and reports need of it.
 *
 * Tiles. An activation (B, T, C) is cut into tiles of whole sequences; a parameter (rows, columns) into tiles of whole
 * rows. The cut depends on the shapes and tess_graph_conf alone, never on the machine: sums have one order.
 */
#ifndef TESS_GRAPH_H
#define TESS_GRAPH_H
#include "codelets.h"
#include "tessera_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- describing -------------------------------------------------------------------------------------------------- */

/* Returns how many places of the data dimension in a row have the same to do but for which slices of tiles are theirs
 * (docs/placement.md). */
int tess_grid_alike(const tess_grid *g);

/* ---- parameters ---------------------------------------------------------------------------------------------------
 */

/* Names the matrices that every rank of the tensor dimension has whole, and says why they could not be shared out, once
 * a step was made of the graph; NULL where there are none. */
const char *tess_graph_unsplit(const tess_graph *g);
/* Returns how many matrices a parameter is a stack of; 1: it is one itself. */
int64_t tess_param_members(const tess_tensor *p);
/* Returns the dtype that its values are kept in from step to step: fp32, but that of the graph's matrices for a frozen
 * matrix. */
tess_dtype tess_param_dtype(const tess_tensor *p);
/* Returns how many tiles a parameter is cut into. */
int64_t tess_param_tiles(const tess_tensor *p);
/* Says which rows of it one of them has. */
void tess_param_rows(const tess_tensor *p, int64_t tile, int64_t *first, int64_t *count);

/* Returns how many parts there are of a parameter: its master, and the moments of the optimizer that trains it; AdamW's
 * where no step does yet. */
int tess_param_parts(const tess_tensor *p);
/* Returns what files call one of them behind the parameter's name, "exp_avg"; NULL: the master, which has that name. */
const char *tess_param_part_name(const tess_tensor *p, tess_part part);
/* Returns the dtype that files have of a part: that of its values, where these are a dtype's; of 8 bits fp32. */
tess_dtype tess_param_part_dtype(const tess_tensor *p, tess_part part);
/* Returns how moments of matrices are kept by the step that trains them. */
tess_keeping tess_graph_keeping(const tess_graph *g);
/* Returns the name of the optimizer whose moments they are, and says how many it has of a parameter that it trains. */
const char *tess_graph_optimizer(const tess_graph *g, int *moments);

/* ---- the step ------------------------------------------------------------------------------------------------------
 */

/* What the machine does a second, as far as the tasks of a step reach it. */
typedef struct tess_rates {
    double flops, copy; /* of matrices; bytes of the tasks without: all workers together */
    double read, write; /* bytes from the disk, to it: either alone */
    double both;        /* of these the shares that both have at the same time, added up: 2 at most; 0: unknown */
} tess_rates;
/* The time of a step on paper: seconds of it, and those that workers and the disk's directions are busy. */
typedef struct tess_forecast {
    double seconds, work, read, write;
} tess_forecast;

/* What a step's tasks allow, tiles being where they are wanted: the seconds of all of them, of the longest chain of
 * which each waits for the one before it, and of a list schedule on 1, 2, 4, ... 256 cores; and what of the chain is
 * the tasks of each codelet, by its row in the profile. */
enum { TESS_WIDTHS = 9 };
typedef struct tess_parallelism {
    double work, path, seconds[TESS_WIDTHS];
    struct {
        uint64_t tasks;
        double seconds;
    } chain[TESS_PROFILE_ROWS];
} tess_parallelism;

/* Where a step's tiles live, and what that moves. */
typedef struct tess_placement {
    uint64_t needed;        /* the least conf.ram that may do */
    uint64_t largest_task;  /* bytes of the tiles of the task with the most */
    uint64_t room;          /* of RAM for tiles that flow: for tess_machine.cpu_tiles */
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
typedef struct tess_limits {
    tess_gpu_conf gpu;
    tess_place_conf ram;
} tess_limits;
/* How a step is laid out, and where its tiles are. */
typedef struct tess_plan {
    bool by_layer, late; /* of tess_step_conf */
    tess_gpu_placement gpu;
    tess_placement ram;
    tess_tier lacks; /* where no layout fits, what is too little: the `needed` of its placement may do */
} tess_plan;
/* The step that trains, laid out in the way that is fastest on paper within these rooms, or, with no room said for RAM,
 * that moves the least to a GPU and back and between ranks; conf's own by_layer and late are not asked. Its tiles are
 * placed. All ranks call it, and get the same layout. TESS_INVALID with out->lacks where nothing fits. */
tess_status tess_step_lay_out(tess_tensor *output, const tess_step_conf *conf, const tess_limits *rooms,
                              tess_step **step, tess_plan *out) TESS_NODISCARD;

/* Returns the dtype of its matrices; that of no step is TESS_F32. */
tess_dtype tess_step_dtype(const tess_step *s);
/* The time of the step as placed, with that much room for its tiles in RAM. */
void tess_step_forecast(const tess_step *s, const tess_rates *rates, uint64_t room, int workers, tess_forecast *out);
/* What its tasks allow, taking the times that were measured: a codelet's, shared among its tasks by their cost. */
void tess_step_parallelism(const tess_step *s, const tess_profile *measured, tess_parallelism *out);

/* Returns how many values an input takes of this rank. */
int64_t tess_step_values(const tess_step *s, const tess_tensor *input);

/* Returns how many losses are added in the step's. */
int tess_step_losses(const tess_step *s);
/* Adds to two exact sums a loss (codelets.h), one after the other, the losses of the targets that counted in the last
 * run, and how many they were, on all ranks: over several runs they are the same however each run's samples were shared
 * out. */
tess_status tess_step_add_losses(const tess_step *s, void *sums) TESS_NODISCARD;

/* What a step will hold and do, from its program alone. */
typedef struct tess_holds {
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
} tess_holds;
void tess_step_holds(const tess_step *s, tess_holds *plan);
/* Bytes of the plan's tiles that do not flow, each worker having its scratch. */
uint64_t tess_holds_fixed(const tess_holds *plan, int workers);

#ifdef __cplusplus
}
#endif

#endif
