/* graph: networks as tensors and ops, described as if for one device with endless memory, and the step that trains
 * them. Ops know no device: a step is lowered to a program of tile tasks, the plan decides where each tile lives
 * (plan/plan.h), and the runtime runs the tasks.
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
 * What a program may call is declared in the tessera_*.h of this folder; here is what the plan of a run and its reports
 * need beside that.
 *
 * Tiles. An activation (B, T, C) is cut into tiles of whole sequences, or, where these are longer than a tile should
 * be, of spans of one; a parameter (rows, columns) into tiles of whole rows. The cut depends on the shapes and
 * tess_graph_conf alone, never on the machine: sums have one order.
 */
#ifndef TESS_GRAPH_H
#define TESS_GRAPH_H
#include "codelets/codelets.h"
#include "graph/tessera_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- parameters, as files and reports have them ------------------------------------------------------------------ */

/* Returns the number of neighbours in the data dimension after which the ranks' work repeats, but for the numbers of
 * the slices that are theirs (docs/ranks.md). `ranks_here` ranks in a row share a machine. */
int tess_grid_alike(const tess_grid *g, int ranks_here);
/* Returns the names of the matrices that every rank of the tensor dimension has whole, and why they could not be shared
 * out, or NULL where there are none. It is known once a step was made of the graph. */
const char *tess_graph_unsplit(const tess_graph *g);
/* Returns the blocks of each section of a pipeline, or NULL without one, in the same way. */
const char *tess_graph_sections(const tess_graph *g);
/* Makes the data-parallel ranks the owners of the experts, some each, before parameters are added; they share no
 * sequences. What goes between ranks then, rows or weights, is what is fewer bytes where a rank has that many
 * micro-batches in a step. 0: weights go; less: rows, unless the experts have more than matrices. */
void tess_graph_own_experts(tess_graph *g, int64_t micros);
/* Returns what goes between ranks that own the experts, or NULL, in the same way. */
const char *tess_graph_experts(const tess_graph *g);
/* Returns the sum of n numbers from 1 to 10000 with commas between, or 0 where the text is something else. They are
 * stored in each[n], which may be NULL. */
int64_t tess_shares_sum(const char *shares, int n, int64_t *each);
enum { TESS_FEW_SLICES = 16 }; /* that a parameter's tile has on more ranks, if it is not large */
/* Returns the time in which sections of a pipeline have nothing to do, in a step of `micros` micro-batches, as a part
 * of the time in which they have, where each has as much to do and a backward pass takes as long as two forward passes.
 */
double tess_grid_bubble(const tess_grid *g, int64_t micros);
/* Describes what ranks that share sequences exchange in a step's attention, or returns NULL if none do. */
const char *tess_step_shares(const tess_step *s);
/* Returns how many matrices a parameter is a stack of; 1: it is a single one. */
int64_t tess_param_members(const tess_tensor *p);
/* Returns the dtype in which a parameter is kept from step to step: fp32, or for a frozen matrix the graph's. */
tess_dtype tess_param_dtype(const tess_tensor *p);
/* Returns whether a parameter is a matrix that linears alone read. */
bool tess_param_multiplies(const tess_tensor *p);
/* Makes the weight of a frozen matrix one in NF4 or INT8, before the first step of its graph. Returns false, and leaves
 * it as it is, where not linears alone read it, or a row is not whole blocks. */
bool tess_param_quantize(tess_tensor *p, tess_dtype as);
/* Has the program a piece of such a weight as it is kept, to write all of its blocks, until it is unmapped as a master
 * is; *blocks becomes NULL, and nothing is had, where it is not kept `as` that. */
tess_status tess_param_map_blocks(tess_tensor *p, int64_t piece, tess_dtype as, void **blocks) TESS_NODISCARD;
/* Returns whether a step replaces a parameter by what the network computed for it, instead of training it. */
bool tess_param_is_state(const tess_tensor *p);
/* Beside a GPU, once a run has begun: maps RAM ahead for the parameters and states that rest there. */
void tess_graph_ready_ram(const tess_graph *g);
/* Returns how many tiles a parameter is cut into. */
int64_t tess_param_tiles(const tess_tensor *p);
/* Stores which rows of the parameter one of its tiles has. */
void tess_param_rows(const tess_tensor *p, int64_t tile, int64_t *first, int64_t *count);
/* Returns how many parts a parameter has: its master, and the moments of the optimizer that trains it. Before there is
 * a step, AdamW's are counted. */
int tess_param_parts(const tess_tensor *p);
/* Returns whether a parameter has that part; TESS_OUTER and TESS_REST are beyond those that are counted. */
bool tess_param_has(const tess_tensor *p, tess_part part);
/* Returns how many pieces TESS_REST has, which each rank has of all rows of its tiles: those behind the others. */
int64_t tess_param_rests(const tess_tensor *p);
/* Returns how many ranks of the data dimension each have their own values of a part, as with local steps of moments,
 * and stores this rank's place among them; 1: all ranks have the same. */
int tess_param_owners(const tess_tensor *p, tess_part part, int *mine);
/* Returns TESS_INVALID where ranks have made local steps since their last sum, whose weights no file can hold. */
tess_status tess_graph_together(const tess_graph *g) TESS_NODISCARD;
/* Returns the suffix of a parameter's name in files for a part, "exp_avg"; NULL for the master, which has no suffix. */
const char *tess_param_part_name(const tess_tensor *p, tess_part part);
/* Returns the dtype that a part has in files: its own, or fp32 for what is kept in 8 bits. */
tess_dtype tess_param_part_dtype(const tess_tensor *p, tess_part part);
/* Returns how many numbers a row of a part has, where a rank has all columns: as many as these, or Adafactor's means.
 */
int64_t tess_param_part_width(const tess_tensor *p, tess_part part);
/* Returns how many numbers all moments of the graph's parameters are. */
double tess_graph_moments(const tess_graph *g);
/* A part of a piece that is read beside the next step, which waits with what it is about to change of it. */
typedef struct tess_borrowed {
    tess_lending lending;
    const tess_tensor *of;
    int64_t piece, at;
    tess_part part;
} tess_borrowed;
/* Finds how its tile is to be lent, between two steps: as the step before leaves it, also where updates of that come
 * late. False: it is read now, since no step brings it to RAM. */
bool tess_param_borrow(const tess_tensor *p, int64_t piece, tess_part part, tess_borrowed *out);
/* Returns the values of one that is ready in fp32, in `room` where it is kept otherwise. Any thread may call it. */
const float *tess_borrowed_values(const tess_borrowed *b, float *room);
/* Returns the format in which the step that trains keeps the moments of matrices. */
tess_keeping tess_graph_keeping(const tess_graph *g);
/* Returns the name of the optimizer that trains the graph, and stores how many moments it has of a parameter. */
const char *tess_graph_optimizer(const tess_graph *g, int *moments);
/* Returns whether an op of that name is in the graph. */
bool tess_graph_uses(const tess_graph *g, const char *op);
/* Returns the name of the first op whose GPU kernels take many times as long as similar ones, and describes them in
 * `said`; NULL: there is none. */
const char *tess_graph_slow(const tess_graph *g, char *said, size_t room);

/* ---- what a step holds ------------------------------------------------------------------------------------------- */

/* The memory and work of a step, as its program shows. Arrays have an entry for each role; numbers are bytes unless the
 * comment says otherwise. */
typedef struct tess_holds {
    uint64_t resident[TESS_ROLE_COUNT]; /* held from step to step */
    uint64_t peak[TESS_ROLE_COUNT];     /* the most of a role that is live at one time, in the order of the program */
    uint64_t peak_total;                /* the most that is live at one time, of all roles */
    uint64_t peak_ram;                  /* the same without tiles that live on the GPU alone */
    uint64_t ram[TESS_ROLE_COUNT];      /* the parts of peak_ram */
    uint64_t stays[TESS_ROLE_COUNT];    /* parameters and states that stay in RAM */
    uint64_t on_disk[TESS_ROLE_COUNT];  /* tiles that rest on disk */
    double flops;                       /* of the model, forward and backward */
    double recompute_flops;             /* of activations that are computed again, and of Muon's iterations */
    double bytes;                       /* read and written by tasks that are no products of matrices */
    uint64_t sent;                      /* to other ranks */
    uint64_t sent_between;              /* beside that, at the end of a run of local steps */
    uint64_t tasks, tiles;              /* how many there are */
} tess_holds;
/* Stores what a step holds with its tiles where they are placed now. */
void tess_step_holds(const tess_step *s, tess_holds *holds);
/* Returns the bytes that RAM must hold at most without a disk: all tiles live at one time, and each worker's scratch.
 */
uint64_t tess_holds_need(const tess_holds *holds, int workers);
/* Returns the bytes of tiles that no plan moves: inputs, scalars, and the scratch of `workers` workers. */
uint64_t tess_holds_fixed(const tess_holds *holds, int workers);

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* Settings of a plan for RAM above the disk. */
typedef struct tess_place_conf {
    uint64_t ram;            /* bytes for all tiles and for workers' buffers; 0: there is no disk */
    uint64_t taken;          /* bytes of it that another step has for its inputs, scalars and scratch */
    int workers;             /* workers, each with scratch of its own */
    uint64_t worker_bytes;   /* the most bytes of a worker's buffers for products */
    unsigned away;           /* a set of roles, TESS_AWAY_...: their tiles rest on disk between uses even where RAM has
                                room; of activations those that wait for the backward pass */
    uint64_t weights_in_ram; /* where weights are away, bytes of them that may stay */
    unsigned stay;           /* a set of roles whose tiles never leave RAM */
    uint64_t slack;          /* tess_placement.slack; 0: the plan chooses it */
    uint64_t slack_states;   /* the same as a number of tiles of optimizer state */
    bool alone;              /* the step does not train, and no other step has placed the parameters */
    tess_rates rates;        /* of the machine; zeros: unknown */
} tess_place_conf;

/* Settings of a plan for the GPU. */
typedef struct tess_gpu_conf {
    uint64_t memory; /* bytes for tiles; 0: there is no plan for it */
    bool all;        /* the plan chooses homes for parameters and states; else an earlier plan chose them */
    bool messages;   /* messages between ranks take tiles from the GPU's memory */
    double states;   /* the share of the optimizer's states that may live there */
    uint64_t refuse; /* a plan that copies this many bytes in a step is refused; 0: none is */
} tess_gpu_conf;

/* The memory that a machine has for the tiles of one step. */
typedef struct tess_limits {
    tess_gpu_conf gpu;
    tess_place_conf ram;
    uint64_t whole; /* without a disk: the cap on what RAM holds at most; 0: there is none */
    uint64_t ahead; /* without a cap, on several ranks: bytes that tiles may take ahead of the tasks that need them */
} tess_limits;
/* Stores what a machine has for a step with matrices of a dtype, but for the memory of a GPU. All ranks call it. */
void tess_limits_of(const tess_machine *m, tess_dtype t, tess_limits *l);

/* Lays out the step that trains, in the order that is fastest on paper within the limits, or, without a disk, in the
 * one that moves the least; conf->layout is not read. Its tiles are placed, and *out is the plan. All ranks call it,
 * and the order is the same on all. TESS_INVALID where nothing fits: the one of out->gpu and out->ram that lacks room
 * then has `needed`, which may do, and the other is zero. */
tess_status tess_step_lay_out(tess_tensor *output, const tess_step_conf *conf, const tess_limits *limits,
                              tess_step **step, tess_plan *out) TESS_NODISCARD;
/* Does what tess_step_fit does, within limits that the caller may have changed. It does not check the cap on RAM where
 * there is no disk, nor the cap on the disk. */
tess_status tess_step_fit_within(tess_tensor *output, const tess_step_conf *conf, const tess_machine *m,
                                 const tess_limits *limits, tess_step **step, tess_plan *plan) TESS_NODISCARD;
/* Returns the bytes of RAM that tiles have at a time where none rest on disk: below a cap what the fixed ones leave of
 * it; without one, on several ranks, what the program holds and what is gathered ahead; 0: there is no bound. */
uint64_t tess_step_room(const tess_step *s, const tess_machine *m, const tess_limits *limits, bool gpu_planned);
/* Returns the bytes that the files of a disk tier need for `bytes` of tiles, in whole MiB. */
uint64_t tess_disk_room(uint64_t bytes);
/* Returns how many lanes a step's messages have. */
unsigned tess_lanes(const tess_grid *g);

/* Places the tiles of a step in RAM and on disk: all tiles of a step that trains; of another, which comes later, its
 * own beside those. It comes before anything is drawn or loaded. A RAM that is too small for the largest task is
 * TESS_INVALID, and out->needed is what would do. */
tess_status tess_step_place(tess_step *s, const tess_place_conf *conf, tess_placement *out) TESS_NODISCARD;
/* Decides which tiles of a step leave the GPU between their uses there. It comes before tess_step_place, which counts
 * no RAM for what lives on the GPU alone. A memory that is too small for the largest task is TESS_INVALID. */
tess_status tess_step_place_gpu(tess_step *s, const tess_gpu_conf *conf, tess_gpu_placement *out) TESS_NODISCARD;
/* Computes the time of a step as it is placed, with so much room in RAM for its tiles. */
void tess_step_forecast(const tess_step *s, const tess_rates *rates, uint64_t room, int workers, tess_forecast *out);

/* A machine with a GPU, or a rank's part of one, as a rehearsal knows it. */
typedef struct tess_stage {
    double (*seconds)(const tess_task *t,
                      bool gpu); /* of a task on the GPU or on one core, of a message on its links */
    int cores;
    double link, link_latency; /* between RAM and the GPU, each way: bytes a second, and seconds beside them */
    double ram;                /* bytes a second of RAM, which updates on cores share with copies; 0: they do not */
    double between;            /* seconds from step to step */
    tess_drive drive;          /* zeros: there is none */
} tess_stage;
/* Returns the seconds of a step's tasks that can run on a GPU, one behind the other. */
double tess_step_gpu_seconds(const tess_step *s, const tess_stage *stage);
/* The seconds of a step, and in which each part of a machine is at work. */
typedef struct tess_rehearsed {
    double seconds, gpu, cores, to_gpu, from_gpu, read, written, messages;
} tess_rehearsed;
/* Computes that of a step as it was placed by a plan. */
void tess_step_rehearse(const tess_step *s, const tess_plan *plan, const tess_stage *stage, tess_rehearsed *out);

/* What the printed plan adds to a plan's numbers: names of caps, and what lies beside the step. */
typedef struct tess_plan_words {
    const char *cpu;                /* the name of the cap on RAM */
    bool capped;                    /* the user has set a cap on RAM */
    const char *disk;               /* the name of the cap on the disk; NULL: there is none */
    const char *path;               /* the directories of the disk tier */
    uint64_t limit;                 /* RAM without a disk: the cap, or what is free */
    uint64_t least_cpu, least_disk; /* the least that the caps may be; 0: that is not known */
    uint64_t beside;                /* RAM of evaluations beside the step */
    uint64_t gpu_memory;            /* of GPUs without a plan */
    int64_t steps;                  /* of the run; 0: that is not known */
} tess_plan_words;
/* Prints each level of memory of a step that fits. */
void tess_plan_print_with(const tess_plan *plan, const tess_step *step, const tess_plan_words *words, FILE *out);
/* Prints what RAM must hold where no tile can leave it. */
void tess_plan_print_needs(const tess_step *step, int workers, const tess_plan_words *words, FILE *out);

/* ---- the step as reports have it --------------------------------------------------------------------------------- */

/* What a step's tasks allow while their tiles are where they are wanted. */
enum { TESS_WIDTHS = 9 };
typedef struct tess_parallelism {
    double work;                 /* the seconds of all tasks */
    double path;                 /* the seconds of the longest chain of tasks that wait for each other */
    double seconds[TESS_WIDTHS]; /* of a list schedule on 1, 2, 4, ... 256 cores */
    struct {
        uint64_t tasks;
        double seconds;
    } chain[TESS_PROFILE_ROWS]; /* the part of each codelet in the longest chain, by its row of the profile */
} tess_parallelism;
/* Computes that from measured times: a codelet's is shared among its tasks in proportion to their cost. */
void tess_step_parallelism(const tess_step *s, const tess_profile *measured, tess_parallelism *out);
/* Computes it from the same times that a forecast goes by; messages take none. */
void tess_step_parallelism_by(const tess_step *s, const tess_rates *rates, int workers, tess_parallelism *out);

/* What a step is to whoever schedules it: tiles, numbered as they come first in the list, and tasks in the order of the
 * list. All is borrowed for the time of the call that has it. */
typedef struct tess_listed_tile {
    const char *name;
    tess_role role;
    tess_tier home; /* where the plan has it rest */
    uint64_t bytes; /* of scratch: for each worker */
    bool lasts;     /* it has contents before the step and behind it */
} tess_listed_tile;
typedef struct tess_listed_use {
    uint32_t tile;
    int mode; /* of tess_mode; by the plan TESS_LEAVES_RAM is there for tiles whose home is the disk alone */
} tess_listed_use;
typedef struct tess_listed_task {
    const tess_codelet *codelet;
    const char *where; /* it can run: "cpu", "gpu", "either", or it is a "message" */
    bool backward;
    double flops, bytes;        /* flops: of matrices; bytes: that it reads and writes beside products */
    double held;                /* bytes of its tiles, but for scratch */
    double seconds;             /* on one of the workers, by the rates; 0: not known */
    uint32_t parts;             /* parts of equal size that other workers may take; 1: none */
    const tess_listed_use *use; /* one for each tile */
    const uint32_t *before;     /* the tasks that it waits for, in their order, each once */
    size_t uses, befores;
} tess_listed_task;
/* Whom tess_step_list calls: for each tile, then for each task. */
typedef struct tess_lister {
    void *of;
    void (*tile)(void *of, uint32_t k, const tess_listed_tile *t);
    void (*task)(void *of, uint32_t k, const tess_listed_task *t);
} tess_lister;
/* Lists a step as it is placed. `rates` NULL: no times are known. */
void tess_step_list(const tess_step *s, const tess_rates *rates, int workers, const tess_lister *to);
/* Has each run of the step write down from now on, as its tasks end, what bits they found in their tiles and left there
 * (step/step_digest.c); NULL: no longer. What tasks of a GPU do is not written. */
void tess_step_digest(tess_step *s, FILE *to);
/* Returns the dtype of a step's matrices; that of NULL is TESS_F32. */
tess_dtype tess_step_dtype(const tess_step *s);
/* Returns how many values of an input this rank feeds. */
int64_t tess_step_values(const tess_step *s, const tess_tensor *input);
/* Returns how many values tess_step_output stores: of a tensor by places there are those of each span of a sequence. */
int64_t tess_step_outputs(const tess_step *s);
/* Returns how many losses the step adds up. */
int tess_step_losses(const tess_step *s);
/* Returns how many numbers stand beside the losses. */
int tess_step_numbers(const tess_step *s);
/* Adds, for each loss and then for each number beside them, two exact sums (codelets.h) over all ranks: the losses of
 * the targets that counted in the last run, and the number of these targets. Summed over several runs they do not
 * depend on how samples were grouped. */
tess_status tess_step_add_losses(const tess_step *s, void *sums) TESS_NODISCARD;
/* Returns how many parts of the loss this rank makes in a run: one for every loss_rows rows of a row tile, in the order
 * of the rows. A rank that makes none, since others hold the head, has none. */
int tess_step_loss_parts(const tess_step *s);
/* Stores of each part of the last run, for each loss and then for each number beside them: its sum, and how many
 * targets counted. */
tess_status tess_step_part_losses(const tess_step *s, double *values) TESS_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
