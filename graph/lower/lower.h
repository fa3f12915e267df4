/* Lowering: the state that the passes which write a program share. emit.c has the functions that rules of ops call;
 * passes.c goes over the nodes, lower.c orders the passes; pipeline.c orders the passes of a section. parcels.c makes
 * the messages of collectives: gathers.c all-gathers weights, gradients.c reduces gradients to their owners, and sums.c
 * has the collectives of the tensor dimension; updates.c has the optimizer's updates. */
#ifndef TESS_LOWER_H
#define TESS_LOWER_H
#include "graph/describe/param.h"
#include "graph/lower/program.h"
#include "graph/ops/lowering.h"

/* Lanes of messages. Within a lane messages go in the order of the list; lanes do not wait for each other. A grid
 * without a pipeline has the first ones alone (tess_lanes). */
enum {
    TESS_LANE_STEP,                             /* collectives of the tensor dimension, whose next product waits */
    TESS_LANE_DATA,                             /* four lanes: ZeRO's all-gathers and its reductions, between machines
                                                   and within one */
    TESS_LANE_SECTIONS = TESS_LANE_DATA + 4,    /* six lanes: activations and gradients between sections */
    TESS_LANE_TOGETHER = TESS_LANE_SECTIONS + 6 /* the parts of such a tensor, gathered where they arrive */
};
_Static_assert(TESS_LANE_SECTIONS == TESS_LANES_OF_SECTION, "lanes of a section");
_Static_assert(TESS_LANE_TOGETHER < TESS_MESSAGE_LANES, "lanes");

/* The gradient of an activation's row tile. */
struct tess_grad {
    tess_tile *tile;
    int holders; /* tensors whose gradient this is */
};

/* A weight that is gathered before use: two tiles take turns. */
struct tess_gather {
    tess_tile *tile[2];
    int turn;
    bool have;
    tess_tile *codes; /* what it is read from, or NULL */
    /* How it comes, from all ranks and from the group, and is passed on: alike each time. NULL: it was not yet. */
    const tess_message_arg *message[2][2];
    bool copied;     /* the group has a copy, */
    tess_tile *copy; /* and this rank these rows of it, or NULL */
    int64_t row, rows;
    uint64_t stretch; /* the stretch of its last use */
    int64_t clock;    /* the elements of gathered weights that were used before that use */
};

/* Tiles of one size in which matrices that are updated as a whole take turns, so that few of them exist. */
struct tess_turns {
    size_t bytes;
    tess_tile *tile[2];
    int turn;
};

/* A gradient that is complete, of a micro-batch or of the step, and is yet to be reduced to its owners. */
struct tess_owed {
    tess_tensor *p;
    int64_t micro;
    bool early, last;
};

/* A parameter's tile whose gradient is a tree over micro-batches. */
struct tess_tree {
    tess_tile **leaf;    /* [micro * pieces + piece]: the gradient of one micro-batch or piece, while it grows */
    tess_tile *node[64]; /* sums of complete leaves, in order */
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
    const tess_tensor *output;
    int row_tiles;
    struct tess_spans cut;
    bool *uses;  /* [tensor]: tasks read this input or parameter */
    bool *wants; /* [tensor]: the backward pass makes its gradient */

    /* The position of the lowering. */
    int64_t micros, micro0; /* the number of this rank's micro-batches, and the index of its first one in the step */
    int64_t micro;          /* the index of the current one among this rank's */
    uint64_t stretch;       /* stretches of nodes so far */
    bool recomputing;
    int32_t *used; /* [run][micro * batch + sequence]: rows that can change the loss; NULL: unknown (idle_rows.c) */
    const int32_t *rows;       /* `used` of the sequences that the next tasks work on, or NULL */
    int64_t place;             /* the position of the first such row in its sequence */
    int64_t piece;             /* the piece of its sequence that the next tasks belong to */
    const tess_tensor *bounds; /* the input that `used` follows from */
    bool *kept;                /* [node]: its output outlives the forward pass wherever it is read */
    int recomputed;            /* the group of blocks that was last recomputed; -1: none */
    int guest;                 /* 0: the next tasks are of this rank's rows; 1 + d: of those that place d sent here */
    struct tess_whole *whole; /* gathered sequences that the current rule sees in place of spans; NULL: it sees spans */

    /* Values. */
    tess_tile ***input;       /* [tensor][micro * row_tiles + row tile] */
    tess_tile ***value;       /* [tensor][the same]: the instance that forward wrote last */
    tess_tile ***aux;         /* [node][the same] */
    struct tess_grad ***grad; /* [tensor][the same] */
    tess_tile **result;       /* [the same]: tiles of the output */
    tess_tile **scratch;      /* sorted by size */
    int scratches;
    void **room;                /* [node]: memory that its op asked for (tess_node_room) */
    const tess_tensor **routed; /* [tensor]: of what owners of experts make of all ranks' rows, the weights of the
                                   routing; NULL: none do */

    /* Gradients of parameters. */
    bool **touched;          /* [tensor][tile]: a task has written to it */
    int *pending;            /* [tensor]: backward rules that still add to it */
    struct tess_tree **tree; /* [tensor][tile]; of what stays with its owner [place, tile] */
    int **growing;           /* [tensor][micro]: backward rules that still add to this micro-batch's gradient */
    bool *early;             /* [tensor]: it is reduced to its owners after each micro-batch (ZeRO-2) */
    int64_t **begun;         /* [tensor][the same]: the last micro-batch that has written to it; -1: none */
    tess_tile ***guests;     /* [tensor][place, tile]: the gradient of what that place's rows make of an expert here */
    bool *updated;           /* [tensor]: its late update is emitted */
    struct tess_owed *owed;  /* gradients that are yet to be reduced, in order */
    int nowed, owed_room;
    bool pairs; /* micro-batches go in turns, two by two */
    bool once;  /* data-parallel ranks have other numbers of micro-batches (stage 3): for all of them together weights
                  come once a stretch, and gradients go behind it, so that ranks send the same in the same order */

    /* Matrices that are updated as a whole. */
    struct tess_turns *turns;
    int nturns;
    int matrices; /* their number so far */

    /* Messages. */
    struct tess_gather **gather; /* [tensor][tile] */
    int64_t clock;               /* elements of gathered weights that were used so far */
    int sums;                    /* collectives of the tensor dimension so far */
    unsigned lane;               /* the lane of the next messages */
    tess_tile ***none; /* [tensor][row tile]: zeros, sent to a section in place of a gradient that is not made */
    int comes;         /* the set of tiles that a pass's input from another section has */

    /* Passes in which gradients of weights wait (waits.c). */
    bool waits;
    bool back;               /* the pass is on the way back of TESS_ZB_V */
    bool *alone;             /* [tensor]: one rule adds to its gradient */
    tess_tile ***second;     /* [tensor][tile]: the gradient of its uses on the way back; NULL: there is none yet */
    struct tess_wait *wait;  /* in order */
    size_t nwait, wait_room; /* those before wait_at are done */
    size_t wait_at;

    /* The step's scalars. */
    tess_tile *loss;                  /* the sum of losses and the count of targets, over the whole step */
    tess_tile *losses_exact;          /* the same before rounding */
    tess_tile *late_loss, *late_norm; /* with late updates: loss and norm of the step before */
    tess_tile **losses;               /* the parts of the loss, in order */
    int nlosses, losses_room;
};

/* The program of a step; inputs, loss and norm are tiles that the step reads and writes. */
typedef struct tess_lowered {
    tess_program *program;
    tess_tile ***input; /* [tensor][micro * row_tiles + row tile], in the program's arena */
    tess_tile **output; /* [micro * row_tiles + row tile] */
    tess_tile *loss, *norm;
    tess_tile *losses_exact; /* what `loss` was rounded from */
    tess_tile **losses;      /* the parts of the loss, in order, in the program's arena */
    int nlosses;
    int row_tiles;
    struct tess_spans cut;
    tess_program *updates;         /* with late updates: a program of these alone, over the tiles of the other one */
    tess_program *anchors, *outer; /* with local steps, before and behind a run of them; else NULL */
    bool *uses;                    /* [tensor]: the inputs and parameters that its tasks read */
    const tess_tensor *bounds;     /* the input that says which rows can change the loss, or NULL */
    int32_t *used; /* [run][micro * batch + sequence]: how many rows can; tess_lower_idle_fill sets it */
    bool pairs;    /* micro-batches go two by two */
} tess_lowered;

/* ---- tiles and tasks (emit.c; ops/lowering.h has the functions that rules of ops call) ---- */

/* Returns the index of row tile i of this micro-batch in the tables. */
static inline int64_t tess_lower_at(const tess_lower *L, int i)
{
    return (L->guest * L->micros + L->micro) * L->row_tiles + i;
}
/* Returns how many gradients a step has of a parameter's tiles: of experts that stay, one for each place's rows. */
static inline int64_t tess_lower_gradients(const tess_lower *L, const tess_tensor *p)
{
    return p->cut->tiles * (p->held->on.stays ? L->grid->data : 1);
}
/* Returns the same for a tensor: one that is whole has a single entry for all row tiles. */
static inline int64_t tess_lower_place(const tess_lower *L, const tess_tensor *t, int i)
{
    return tess_lower_at(L, tess_is_whole(t) ? 0 : i);
}
/* Returns how many tiles a micro-batch has of a tensor. */
static inline int tess_lower_tiles(const tess_lower *L, const tess_tensor *t)
{
    return tess_is_whole(t) ? 1 : L->row_tiles;
}
/* Releases the gradient of a row tile of t, which no later task reads. */
void tess_lower_release(tess_lower *L, const tess_tensor *t, int i);
/* Returns the rows of a tile that has place for all that may come of `rows` rows' choices, on the owner of experts. */
int64_t tess_guests_rows(const tess_lower *L, const tess_tensor *t, int64_t rows);
/* Returns the rows of a row tile on all ranks; under sequence parallelism this rank has some of them. */
int64_t tess_rows_of_all(const tess_lower *L, const tess_tensor *t, int i);

/* ---- spans of sequences (spans.c, whole_sequences.c) ---- */

/* Returns how the row tiles of the tensors that `output` depends on are cut, and stores how many a micro-batch has on
 * this rank. */
struct tess_spans tess_lower_spans(const tess_tensor *output, bool deterministic, int64_t *row_tiles);
/* Returns whether a node works on spans of sequences of this length; else it needs whole sequences. */
bool tess_takes_spans(const tess_node *n, int64_t length);
/* Returns whether a tensor's row tiles are spans. An input that is not by rows, such as bounds, is one tile for all
 * spans of its sequence. An activation may have several rows for one token, as after tess_dispatch. */
static inline bool tess_is_cut(const tess_lower *L, const tess_tensor *t)
{
    const int64_t length = L->cut.length;
    if (!L->cut.rows || t->dim[1] < length) return false;
    return t->kind == TESS_KIND_ACTIVATION ? t->dim[1] % length == 0 : t->dim[1] == length;
}
/* Returns the place of the rank that gathers a sequence of a micro-batch, and stores the index of the piece. */
int64_t tess_spans_owner(const struct tess_spans *s, int64_t sequence, int64_t *piece);
/* Returns whether tensor t has a row tile i on this rank. A tensor that is not cut has only the first row tile of each
 * sequence. */
bool tess_lower_has(const tess_lower *L, const tess_tensor *t, int i);
/* Emit the tasks of a node that needs whole sequences, at the first row tile of each sequence. */
void tess_lower_whole_forward(tess_lower *L, const tess_node *n, int i);
void tess_lower_whole_backward(tess_lower *L, const tess_node *n, int i);
/* The gathered sequences that the rule of such a node sees in place of spans. */
enum { TESS_WHOLE_PARTS = 2 * (TESS_MOST_INPUTS + 1) };
struct tess_whole {
    struct tess_whole_part {
        const tess_tensor *t;
        bool gradient;
        tess_tile *tile;
    } part[TESS_WHOLE_PARTS];
    int parts;
};
/* Returns the gathered sequence of a tensor, or of its gradient, or NULL if there is none yet (emit.c). */
tess_tile *tess_whole_find(const struct tess_whole *w, const tess_tensor *t, bool gradient);
void tess_whole_add(struct tess_whole *w, const tess_tensor *t, bool gradient, tess_tile *tile);
/* Refuses what ranks that share sequences cannot do. */
tess_status tess_check_sequence(const tess_tensor *output, const tess_step_conf *c);
/* Returns the index in its sequence of the span that row tile i is. */
static inline int64_t tess_span_of(const tess_lower *L, int i)
{
    return tess_span_at(&L->cut, L->cut.place, i % L->cut.here, L->cut.here);
}

/* ---- experts whose owners other ranks send rows to (guests.c) ---- */

/* Decides whether rows go to the owners of experts, or weights to the rows. */
void tess_guests_choose(tess_graph *g);
/* Refuses owners for experts that there are not. */
tess_status tess_guests_check(const tess_graph *g) TESS_NODISCARD;
/* Finds L->routed. */
void tess_guests_find(tess_lower *L);
/* Returns how many places' rows a node's tasks are of on the owner of experts; 0: they are of this rank's own. */
int tess_guests_of(const tess_lower *L, const tess_node *n);
/* Emit what goes between ranks behind a node's forward tasks, and before and behind its backward tasks. */
void tess_guests_forward(tess_lower *L, const tess_node *n);
void tess_guests_before(tess_lower *L, const tess_node *n);
void tess_guests_backward(tess_lower *L, const tess_node *n);

/* ---- rows that change nothing (idle_rows.c) ---- */

/* Allocates L->used if the graph has bounds that tell which rows can change the loss. */
void tess_lower_idle(tess_lower *L, const bool *wanted);
/* Makes row tile i of this node the subject of the next tasks; NULL ends that. */
void tess_lower_rows(tess_lower *L, const tess_node *n, int i);
/* Sets how many rows of each sequence can change the loss, from the values fed to the inputs, [tensor]; returns their
 * share of all rows. Two runs of a step have a half of `used` each, which begins at *at. */
double tess_lower_idle_fill(const tess_graph *g, const tess_lowered *low, int64_t micros, int32_t *const *fed, bool odd,
                            int64_t *at);

/* ---- passes over nodes (passes.c) ---- */

/* Emits the forward tasks of nodes [first, end) for a micro-batch, behind the late updates of the parameters that they
 * are the first to use. */
void tess_lower_forward(tess_lower *L, int first, int end, const bool *wanted);
/* Emits the backward tasks of nodes [first, end), behind the recomputation of the activations that they read. `put`,
 * unless NULL, marks nodes whose backward tasks wait until the end of the step. */
void tess_lower_backward(tess_lower *L, int first, int end, const bool *wanted, const bool *put);
/* Emits the reductions of the complete gradients of a pipeline's section, once the passes' own messages are emitted. */
void tess_lower_owed(tess_lower *L);
/* Emits the backward tasks of a node that waited. */
void tess_lower_node_backward(tess_lower *L, const tess_node *n);
/* Marks the nodes of a group, [first, last], that are recomputed: nodes that are not kept, and that the backward pass
 * or another recomputed node reads. */
void tess_lower_find_recomputed(const tess_lower *L, int first, int last, const bool *wanted, bool *again);
/* Returns the node that is fused with this one into a task with bits of its own (tess_fusion), or NULL. */
const tess_node *tess_lower_made_with(const tess_node *n);
/* Returns the group of blocks that is recomputed together with this node's; -1: none. */
int tess_lower_group(const tess_lower *L, const tess_node *n);
/* Counts how many backward rules of the step add to each parameter's gradient. */
void tess_lower_count(tess_lower *L, const bool *wanted);
/* Emits the sum of the step's losses, if its output is one. */
void tess_lower_losses(tess_lower *L);

/* ---- the step (lower.c) ---- */

/* Marks the nodes, [node], that a tensor depends on. */
void tess_lower_mark(const tess_tensor *t, bool *wanted);
/* Marks the tensors, [tensor], whose gradient a step that trains computes: parameters that are not frozen, and tensors
 * that depend on such a parameter. */
void tess_lower_wants(const tess_graph *g, bool *wants);

/* Returns how many numbers are reported beside a loss by steps that train, or that only evaluate. */
int64_t tess_numbers_of(const tess_tensor *loss, bool train);
/* Lowers a step to its program. */
void tess_lower_step(const tess_tensor *output, const tess_step_conf *conf, tess_lowered *out);

/* Returns whether micro-batches may go in pairs, as tess_step_layout has it (pairs.c). */
bool tess_lower_may_pair(const tess_graph *g, const tess_step_conf *conf);

/* ---- the order of a pipeline (pipeline.c) ---- */

/* Checks that a pipeline has a block for each of its chunks. */
tess_status tess_pipeline_check(const tess_graph *g) TESS_NODISCARD;
/* Sets which sections of the pipeline use each parameter, [tensor][section], and which this one uses both on the way
 * forth and on the way back, [tensor]. */
void tess_pipeline_users(const tess_graph *g, bool *const *uses, bool *twice);
/* A pass of a micro-batch through a chunk, and its start time in units: a forward pass takes 1, a backward pass 2, or 1
 * where gradients of weights are a pass of their own, which takes 1. */
struct tess_pass {
    int chunk;
    int64_t micro;
    enum tess_pass_kind { TESS_PASS_FORWARD, TESS_PASS_BACKWARD, TESS_PASS_WEIGHTS } kind;
    bool paired; /* a forward and a backward pass that follow each other go in turns */
    double time;
};
/* Returns this section's *n passes in order, with `pairs` of them where there may be. *ends are the end times of the
 * passes of all sections, [chunk][micro][backward], and behind them their start times; *losses_known is the time when
 * all losses are known, *span the time of the whole schedule. The caller calls free() on the passes and the ends. */
struct tess_pass *tess_pipeline_order(const tess_grid *g, int64_t micros, bool train, bool pairs, int *n, double **ends,
                                      double *losses_known, double *span);
/* Takes the tasks of a node's rule, those from `from` on, that make gradients of its parameters alone off the list,
 * until their pass comes. */
void tess_lower_wait(tess_lower *L, const tess_node *n, int i, size_t from);
/* Returns whether tasks of a node wait, in this micro-batch; then its uses end behind them. */
bool tess_lower_waits(tess_lower *L, const tess_node *n);
/* Emits what waits of this micro-batch's pass, up to where a node's uses of its parameters end, and returns that node;
 * NULL: nothing is left. */
const tess_node *tess_lower_waited(tess_lower *L);
/* Ends a node's uses of its parameters in this micro-batch (passes.c). */
void tess_lower_end_uses(tess_lower *L, const tess_node *n);
/* Emits this section's passes, and leaves in `wanted` the section's own nodes. */
void tess_lower_pipeline(tess_lower *L, bool *wanted);

/* ---- messages (parcels.c) ---- */

/* Emits a point-to-point message of a whole tile: a send to `peer`, or a receive from it. */
void tess_lower_message(tess_lower *L, tess_use use, int peer, int tag, bool sends);
/* Returns the lane of a message over the data dimension, within machines (near) or between them: of a sum, or of what
 * follows an update, behind which the sums of other tensors would wait for every update. */
unsigned tess_lower_data_lane(const tess_lower *L, bool near, bool sum);

/* ---- collectives of weights (gathers.c) ---- */

/* Emits an all-gather over the data dimension: the slices of a tile of that dtype, which `of` ranks in a row share, go
 * from each to all others of these. */
void tess_lower_all_gather(tess_lower *L, const tess_tensor *p, int64_t j, tess_use use, tess_dtype type, int kind,
                           int of);
/* Emits what takes the sum of a slice from its owner to the places of other groups that hold it. */
void tess_lower_share_sum(tess_lower *L, const tess_tensor *p, int64_t j);
/* Returns a program that all-gathers all weights. */
tess_program *tess_lower_gather_program(tess_graph *g);
/* Emits the broadcast of a weight that several sections use, from the first of them to the others. */
void tess_lower_broadcast_weight(tess_lower *L, const tess_tensor *p, int64_t j);

/* ---- collectives of gradients (gradients.c) ---- */

/* Adds this micro-batch's complete leaves to the trees of a parameter's gradient. */
void tess_lower_grown(tess_lower *L, const tess_tensor *p);
/* Emits the reduce-scatter of a complete gradient: its sum over micro-batches and ranks goes to the owners of its
 * slices, and to who else holds them. */
void tess_lower_reduce(tess_lower *L, tess_tensor *p);
/* Reduces this micro-batch's gradient to its owners (ZeRO-2). */
void tess_lower_reduce_micro(tess_lower *L, tess_tensor *p);
/* Emits the reduction of a gradient that several sections have a part of (tied weights) to the home section. */
void tess_lower_tied(tess_lower *L, tess_tensor *p);

/* ---- collectives of the tensor dimension (sums.c) ---- */

/* Emits a reduce-scatter of a tile over the ranks of the tensor dimension: each gets the sum of its own rows. */
void tess_lower_reduce_scatter_rows(tess_lower *L, tess_tile *t, int64_t rows, int64_t width);
/* Emits the all-gather of these rows. */
void tess_lower_all_gather_rows(tess_lower *L, tess_tile *t, int64_t rows, int64_t width);
/* Emits the all-reduce of a parameter's gradient over the tensor dimension, where sequence parallelism gives each rank
 * the gradient of its rows alone. */
void tess_lower_join_rows(tess_lower *L, const tess_tensor *p);
/* Emits a message between two sections of a tile that all ranks of the tensor dimension hold alike. Each rank sends a
 * part of it to its peer, and the receivers all-gather the parts, so that the tile crosses the network once. */
void tess_lower_cross(tess_lower *L, tess_use use, int peer, int tag, bool sends);
/* Emits an all-reduce of exact sums over all ranks; `which` numbers it in the step. */
void tess_lower_all_reduce_exact(tess_lower *L, tess_tile *sum, int64_t sums, int which);

/* ---- what recomputation keeps (keeps.c) ---- */

/* Marks the nodes whose outputs a step keeps. */
void tess_lower_keeps(const tess_graph *g, const tess_step_conf *conf, bool *kept);
/* The time of a node's forward tasks and the size of its output, in any units. */
typedef struct tess_price {
    int64_t time, size;
} tess_price;
/* Lists the nodes that a step which keeps none would recompute, sorted by the time that keeping them saves for their
 * size; price[node] is the same on all ranks, and so is the list. Returns their number, and stores how many save at
 * least `least` time for a unit of size; the graph owns the list. */
int tess_lower_worth(const tess_tensor *output, const tess_step_conf *conf, const tess_price *price, double least,
                     const int **keep, int *save_it);

/* ---- the optimizer (updates.c) ---- */

/* Returns whether updates wait for the norm of all gradients. Those of whole matrices do, so that what is not finite in
 * one tile changes none. */
static inline bool tess_step_waits(const tess_step_conf *c)
{
    return c->optimizer.clip > 0 || c->skips || tess_optimizer_kind_of(&c->optimizer)->whole;
}

/* Emits a parameter's update once its gradient is complete, or the sum of squares that clipping waits for. */
void tess_lower_update(tess_lower *L, tess_tensor *p);
/* Emits the late update of a parameter, which belongs to the step before. */
void tess_lower_late(tess_lower *L, tess_tensor *p);
/* Return the lists, which the caller frees, with which a run of local steps begins and ends (local.c): the copy of the
 * masters, and the step of the outer optimizer beside that one; `loss` is the last step's. */
tess_program *tess_lower_anchors(tess_graph *g);
tess_program *tess_lower_outer(tess_graph *g, const tess_local *local, tess_tile *loss);
/* Emits the step's loss and returns its tile. */
tess_tile *tess_lower_loss(tess_lower *L);
/* Emits the gradient's norm, and the updates that wait for it; returns the norm's tile. */
tess_tile *tess_lower_norm(tess_lower *L);

#endif
