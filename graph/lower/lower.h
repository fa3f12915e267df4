/* Lowering: what the passes that write a program share. emit.c has what rules of ops call; passes.c goes over the
 * nodes, lower.c orders the passes; pipeline.c orders the passes of a section. parcels.c makes messages, which
 * gathers.c sends of weights, gradients.c of gradients, and sums.c of all else; updates.c has the updates. */
#ifndef TESS_LOWER_IMPL_H
#define TESS_LOWER_IMPL_H
#include "graph/describe/param.h"
#include "graph/lower/program.h"
#include "graph/ops/lowering.h"

/* Lanes of messages: what ranks of a section tell each other. Of that what ranks of the data dimension do is apart from
 * sums over a tensor's ranks, for which its next product waits; and of several machines with several of them each, what
 * goes between machines from what goes within them. Then a tensor that goes from section to section (six), and its runs
 * that come together there. Who has no sections has the first two or three (tess_lanes). */
enum {
    TESS_LANE_STEP,
    TESS_LANE_DATA,
    TESS_LANE_NEAR,
    TESS_LANE_SECTIONS,
    TESS_LANE_TOGETHER = TESS_LANE_SECTIONS + 6
};
_Static_assert(TESS_LANE_SECTIONS == TESS_LANES_OF_SECTION, "lanes of a section");
_Static_assert(TESS_LANE_TOGETHER < TESS_MESSAGE_LANES, "lanes");

/* The gradient of an activation's row tile. */
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

/* A gradient that is complete, of a micro-batch or of the step, and has not gone to its owners. */
struct tess_owed {
    tess_tensor *p;
    int64_t micro;
    bool early, last;
};

/* A parameter's tile whose gradient is a tree over micro-batches. */
struct tess_tree {
    tess_tile **leaf;    /* [micro * pieces + piece]: its gradient from one of them, while it grows */
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
    const tess_tensor *output;
    int row_tiles;
    struct tess_spans cut;
    bool *uses;  /* [tensor]: tasks read this input or parameter */
    bool *wants; /* [tensor]: the backward pass makes its gradient */

    /* Where it is. */
    int64_t micros, micro0; /* this rank's micro-batches, the first of them in the step */
    int64_t micro;          /* which of them */
    uint64_t stretch;       /* stretches of nodes so far */
    bool recomputing;
    int32_t *used;       /* [micro * batch + sequence]: rows that can change the loss; NULL: unknown (idle_rows.c) */
    const int32_t *rows; /* of `used`, those of the tasks that are emitted now; NULL: theirs are not rows of it */
    int64_t place;       /* of the first of these rows in its sequence */
    int64_t piece;       /* of its sequence's, that the tasks which are emitted now belong to */
    const tess_tensor *bounds; /* the input that says so */
    bool *kept;                /* [node]: its output outlives the forward pass wherever it is read */
    int recomputed;            /* the group of blocks that was last recomputed; -1: none */
    struct tess_whole *whole;  /* what the rule sees that is called now, of tensors in spans; NULL: spans */

    /* Values. */
    tess_tile ***input;       /* [tensor][micro * row_tiles + row tile] */
    tess_tile ***value;       /* [tensor][the same]: the instance that forward wrote last */
    tess_tile ***aux;         /* [node][the same] */
    struct tess_grad ***grad; /* [tensor][the same] */
    tess_tile **result;       /* [the same]: the output's */
    tess_tile **scratch;      /* by size */
    int scratches;
    void **room; /* [node]: what its op keeps while it is lowered */

    /* Gradients of parameters. */
    bool **touched;          /* [tensor][tile]: it holds something already */
    int *pending;            /* [tensor]: backward rules that still add to it */
    struct tess_tree **tree; /* [tensor][tile] */
    int **growing;          /* [tensor][micro]: backward rules that still add to a leaf, or to what is given up early */
    bool *early;            /* [tensor]: it goes to the owners of its slices micro-batch by micro-batch */
    int64_t **begun;        /* [tensor][tile]: the last micro-batch of whose gradient there is something; -1: none */
    bool *updated;          /* [tensor]: its late update is emitted */
    struct tess_owed *owed; /* in order; */
    int nowed, owed_room;

    /* Messages. */
    struct tess_gather **gather; /* [tensor][tile] */
    int64_t clock;               /* elements of gathered weights that were used so far */
    int sums;                    /* over the tensor dimension, so far */
    unsigned lane;               /* of the messages that are emitted now */
    tess_tile ***none;           /* [tensor][row tile]: zeros, for a section whose gradient nobody has found */
    int comes;                   /* the set of tiles that a pass's input from another section has */

    /* The step's scalars. */
    tess_tile *loss;                  /* sum and count of the whole step, */
    tess_tile *losses_exact;          /* and before they were rounded */
    tess_tile *late_loss, *late_norm; /* where updates come late: those of the step before */
    tess_tile **losses;               /* of each part of the loss, in order */
    int nlosses, losses_room;
};

/* The program of a step; inputs, loss and norm are tiles that the step reads and writes. */
typedef struct tess_lowered {
    tess_program *program;
    tess_tile ***input; /* [tensor][micro * row_tiles + row tile], in the program's arena */
    tess_tile **output; /* [micro * row_tiles + row tile] */
    tess_tile *loss, *norm;
    tess_tile *losses_exact; /* what `loss` was rounded from */
    int row_tiles;
    struct tess_spans cut;
    tess_program *updates;     /* where they come late: they alone; its tiles are the other program's */
    bool *uses;                /* [tensor]: the inputs and parameters that its tasks read */
    const tess_tensor *bounds; /* NULL, or the input that says which rows can change the loss; */
    int32_t *used;             /* [micro * batch + sequence]: how many can, for tess_lower_idle_fill to set */
} tess_lowered;

/* ---- tiles and tasks (emit.c; what rules of ops call is in ops/lowering.h) ---- */

/* Returns the place of row tile i of this micro-batch in the tables. */
static inline int64_t tess_lower_at(const tess_lower *L, int i)
{
    return L->micro * L->row_tiles + i;
}
/* The same of a tensor, whose row tiles are all one where it is whole. */
static inline int64_t tess_lower_place(const tess_lower *L, const tess_tensor *t, int i)
{
    return tess_lower_at(L, tess_is_whole(t) ? 0 : i);
}
/* Returns how many tiles a micro-batch has of a tensor. */
static inline int tess_lower_tiles(const tess_lower *L, const tess_tensor *t)
{
    return tess_is_whole(t) ? 1 : L->row_tiles;
}
/* Returns the rows of a row tile, of which this rank may have some alone. */
int64_t tess_rows_of_all(const tess_lower *L, const tess_tensor *t, int i);

/* ---- spans of sequences (spans.c, whole_sequences.c) ---- */

/* Returns how the row tiles of what this is made of are cut, and stores how many a micro-batch has here. */
struct tess_spans tess_lower_spans(const tess_tensor *output, bool deterministic, int64_t *row_tiles);
/* Returns whether a node goes by spans of sequences of this length; else it has whole ones. */
bool tess_takes_spans(const tess_node *n, int64_t length);
/* Returns whether a tensor's row tiles are spans. An input that is not by rows, as bounds are, is there for all spans
 * of its sequence. A row may have several places in an activation, as one that goes through several experts. */
static inline bool tess_is_cut(const tess_lower *L, const tess_tensor *t)
{
    const int64_t length = L->cut.length;
    if (!L->cut.rows || t->dim[1] < length) return false;
    return t->kind == TESS_KIND_ACTIVATION ? t->dim[1] % length == 0 : t->dim[1] == length;
}
/* Returns the place of the rank that has a whole sequence of a micro-batch, and stores which of its pieces that is of.
 */
int64_t tess_spans_owner(const struct tess_spans *s, int64_t sequence, int64_t *piece);
/* Returns whether what a node makes has a row tile i on this rank: of one that is not cut the first of a sequence is.
 */
bool tess_lower_has(const tess_lower *L, const tess_tensor *t, int i);
/* Emit the tasks of a node's row tile i where it has whole sequences: with the first of a sequence. */
void tess_lower_whole_forward(tess_lower *L, const tess_node *n, int i);
void tess_lower_whole_backward(tess_lower *L, const tess_node *n, int i);
/* What the rule of such a node sees of tensors in spans. */
enum { TESS_WHOLE_PARTS = 2 * (TESS_MOST_INPUTS + 1) };
struct tess_whole {
    struct tess_whole_part {
        const tess_tensor *t;
        bool gradient;
        tess_tile *tile;
    } part[TESS_WHOLE_PARTS];
    int parts;
};
/* Returns the whole sequence of a tensor, or of its gradient; NULL: it has none yet (emit.c). */
tess_tile *tess_whole_find(const struct tess_whole *w, const tess_tensor *t, bool gradient);
void tess_whole_add(struct tess_whole *w, const tess_tensor *t, bool gradient, tess_tile *tile);
/* Refuses what ranks that share sequences cannot do. */
tess_status tess_check_sequence(const tess_tensor *output, const tess_step_conf *c);
/* Returns the span of its sequence that row tile i is. */
static inline int64_t tess_span_of(const tess_lower *L, int i)
{
    return tess_span_at(&L->cut, L->cut.place, i % L->cut.here, L->cut.here);
}

/* ---- rows that change nothing (idle_rows.c) ---- */

/* Makes room for how many rows of each sequence can change the loss, where the graph tells. */
void tess_lower_idle(tess_lower *L, const bool *wanted);
/* The tasks emitted from now on are those of this node's row tile i; NULL: of no node's. */
void tess_lower_rows(tess_lower *L, const tess_node *n, int i);
/* Sets how many rows can change the loss, by what the step's inputs were fed, [tensor]; returns which share of all. */
double tess_lower_idle_fill(const tess_graph *g, const tess_lowered *low, int64_t micros, int32_t *const *fed);

/* ---- passes over nodes (passes.c) ---- */

/* Emits the forward tasks of nodes [first, end) for a micro-batch, behind the late updates of the parameters that they
 * are the first to use. */
void tess_lower_forward(tess_lower *L, int first, int end, const bool *wanted);
/* Emits their backward tasks, behind the recomputation of what they read. `put`, if any, says which must wait until the
 * end of the step: */
void tess_lower_backward(tess_lower *L, int first, int end, const bool *wanted, const bool *put);
/* Emits what complete gradients of a pipeline's section owe to others, once the passes' own messages are emitted. */
void tess_lower_owed(tess_lower *L);
/* Emits those of one that waited. */
void tess_lower_node_backward(tess_lower *L, const tess_node *n);
/* Finds which of a group's nodes [first, last] are computed again: those that the backward pass reads, or others of
 * them do, and that are not kept. */
void tess_lower_again(const tess_lower *L, int first, int last, const bool *wanted, bool *again);
/* Returns the node whose value is made with this one's by one task whose bits are its own (tess_fusion); NULL: none. */
const tess_node *tess_lower_made_with(const tess_node *n);
/* Returns which group of blocks is recomputed together; -1: none. */
int tess_lower_group(const tess_lower *L, const tess_node *n);
/* Is done with the gradient of a row tile of t. */
void tess_lower_release(tess_lower *L, const tess_tensor *t, int i);
/* Counts how many backward rules of the step add to each parameter's gradient. */
void tess_lower_count(tess_lower *L, const bool *wanted);
/* Emits the sum of the step's losses, if its output is one. */
void tess_lower_losses(tess_lower *L);

/* ---- the step (lower.c) ---- */

/* Marks the nodes, [node], that a tensor depends on. */
void tess_lower_mark(const tess_tensor *t, bool *wanted);
/* Finds the tensors, [tensor], whose gradient a step that trains makes: of parameters that are not frozen, and of
 * what is made of any of them. Below these nothing wants one. */
void tess_lower_wants(const tess_graph *g, bool *wants);

void tess_lower_step(const tess_tensor *output, const tess_step_conf *conf, tess_lowered *out);

/* ---- the order of a pipeline (pipeline.c) ---- */

/* A pass of a micro-batch through a chunk, and when it begins, a forward one taking 1 and a backward one 2. */
struct tess_pass {
    int chunk;
    int64_t micro;
    bool backward;
    double time;
};
/* Returns this section's *n passes in order. *ends says when those of all sections end, [chunk][micro][backward],
 * *losses_known when all losses are known, *span how long all takes. free() the passes and the ends. */
struct tess_pass *tess_pipeline_order(const tess_grid *g, int64_t micros, bool train, int *n, double **ends,
                                      double *losses_known, double *span);
/* Emits this section's passes, and leaves in `wanted` the nodes that are its own. */
void tess_lower_pipeline(tess_lower *L, bool *wanted);

/* ---- messages (parcels.c) ---- */

/* A whole tile goes to a rank or comes from it. */
void tess_lower_message(tess_lower *L, tess_use use, int peer, int tag, bool sends);
/* Returns the lane of a message over the data dimension: within machines (near), or between them. */
unsigned tess_lower_data_lane(const tess_lower *L, bool near);

/* ---- of weights (gathers.c) ---- */

/* The slices of a tile, `size` bytes an element, go from their owners to everyone. */
void tess_lower_share(tess_lower *L, const tess_tensor *p, int64_t j, tess_use use, size_t size, int kind);
/* Returns a program that makes whole weights of their owners' slices. */
tess_program *tess_lower_sharing(tess_graph *g);
/* A parameter of several sections: its weight goes from the first to the others. */
void tess_lower_tell(tess_lower *L, const tess_tensor *p, int64_t j);

/* ---- of gradients (gradients.c) ---- */

/* The leaves of this micro-batch are complete. */
void tess_lower_grown(tess_lower *L, const tess_tensor *p);
/* A parameter's gradient is complete: its sum over all micro-batches and ranks goes where its states are. */
void tess_lower_reduce(tess_lower *L, tess_tensor *p);
/* The same of this micro-batch's alone, early. */
void tess_lower_give_up(tess_lower *L, tess_tensor *p);
/* Ends a step for a parameter of several sections. */
void tess_lower_tied(tess_lower *L, tess_tensor *p);

/* ---- of what ranks add up (sums.c) ---- */

/* Of a tile of so many rows each rank of the tensor dimension adds up its own; or gives them to the others. */
void tess_lower_sum_rows(tess_lower *L, tess_tile *t, int64_t rows, int64_t width);
void tess_lower_give_rows(tess_lower *L, tess_tile *t, int64_t rows, int64_t width);
/* Adds up what ranks of the tensor dimension have of a gradient, where each has some rows of what reads the parameter.
 */
void tess_lower_join_rows(tess_lower *L, const tess_tensor *p);
/* The same as tess_lower_message of a tile that all ranks of the tensor dimension have alike, each with a peer in
 * another section. Each sends a run of it, and the receivers give each other theirs: so it goes once over the network
 * between their nodes, and not once for each rank. */
void tess_lower_cross(tess_lower *L, tess_use use, int peer, int tag, bool sends);
/* Exact sums over all ranks; `which` of a step's it is. */
void tess_lower_total(tess_lower *L, tess_tile *sum, int64_t sums, int which);

/* ---- what recomputation keeps (keeps.c) ---- */

/* Stores which nodes' outputs a step keeps. */
void tess_lower_keeps(const tess_graph *g, const tess_step_conf *conf, bool *kept);
/* Of a node: the time that its forward tasks take and the size of its output, in any units. */
typedef struct tess_price {
    int64_t time, size;
} tess_price;
/* Lists the nodes that a step which keeps none would compute again, first those that save the most time for their size;
 * price[node] is the same on all ranks, and so is the list. Returns how many there are, and stores how many of them
 * save at least so much time for a unit of size; the graph owns the list. */
int tess_lower_worth(const tess_tensor *output, const tess_step_conf *conf, const tess_price *price, double least,
                     const int **keep, int *save_it);

/* ---- the optimizer (updates.c) ---- */

/* Returns whether updates wait for the norm of all gradients. */
static inline bool tess_step_waits(const tess_step_conf *c)
{
    return c->optimizer.clip > 0 || c->skips;
}

/* Emits what follows a parameter's complete gradient. */
void tess_lower_update(tess_lower *L, tess_tensor *p);
/* Emits its update of the step before. */
void tess_lower_late(tess_lower *L, tess_tensor *p);
/* Emits the step's loss and returns its tile. */
tess_tile *tess_lower_loss(tess_lower *L);
/* Emits the gradient's norm, and the updates that wait for it; returns the norm's tile. */
tess_tile *tess_lower_norm(tess_lower *L);

#endif
