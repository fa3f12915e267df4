/* Parameters at run time: the tiles that they are made of, and the shards that each rank holds. */
#ifndef TESS_PARAM_H
#define TESS_PARAM_H
#include "graph/describe/describe.h"

/* The states that one update changes: rows of a parameter's tile, all of them or, with ZeRO, a slice. In fp32 the
 * weight is the master. A frozen parameter has the weight alone. */
struct tess_state {
    int64_t tile, row, rows;
    int64_t at;                           /* elements of the tile before the slice */
    int64_t first_piece;                  /* the index of its first piece among the parameter's */
    tess_tile *master;                    /* NULL: it is in the tile's weight */
    tess_tile *weight;                    /* ZeRO-3: the slice that rests between uses; else NULL */
    tess_tile *moment[TESS_MOMENTS_MOST]; /* the optimizer's moments of the slice */
    tess_tile *anchor, *outer;            /* with local steps: the master behind the last sum, TESS_OUTER */
    tess_tile *rest;                      /* TESS_REST, of a state that has nothing else */
    tess_tile *sum;                       /* the gradient over all micro-batches of the slice, or the tile's own */
    tess_tile *few;                       /* the sum in bf16, which waits for the update in its place; or NULL */
    tess_tile *norm;                      /* an exact sum of squares of that gradient */
    bool counts;                          /* `norm` enters the global norm on this rank */
    bool begun[TESS_ALL_PARTS];           /* master and moments were written, at least in part */
};

/* A row block of a parameter. */
struct tess_param_tile {
    tess_tile *weight; /* NULL: it is gathered before each use */
    tess_tile *gradient;
    int64_t first_state, states; /* the indices of its states among the parameter's */
    int index;                   /* its index among the tiles of all parameters */
    bool filled;                 /* the weight was written */
};

/* A run of rows that a rank of the tensor dimension has: local row `local` + i is global row `global` + i. */
struct tess_segment {
    int64_t local, global, rows;
};

/* The part of a parameter that is on this rank. */
struct tess_owned {
    struct tess_segment segment[TESS_MOST_BESIDE]; /* of the rows, where the tensor dimension shares them out */
    int segments;
    int64_t col0;                                /* the first column */
    struct tess_segment strip[TESS_MOST_BESIDE]; /* of columns, in each of `blocks` as far apart: of a tensor of any */
    int strips;                                  /* rank, where that is no run of columns; 0: it is */
    int64_t blocks, apart;
    bool leads;         /* only the first rank of the tensor dimension has it */
    bool absent;        /* no node of this rank's section of the pipeline uses it: this rank has no tile of it */
    bool shared;        /* nodes of several sections use it (tied weights); its states are at `home`, the first */
    bool twice;         /* this section uses it on the way forth and on the way back of TESS_ZB_V */
    int home, sections; /* how many sections use it */
    bool *user;         /* [section] */
    bool sliced;        /* its states are sharded over the data dimension (ZeRO) */
    bool gathered;      /* its weight is, too (ZeRO-3) */
    bool stays;         /* a stack of experts whose owners other ranks send rows to: `gathered`, but never is */
};

/* A piece of a parameter, and where it is: elements from `at` on of a state. */
struct tess_placed_piece {
    tess_piece piece;
    int64_t state, at;
    struct tess_widened { /* by part: the program has it in fp32, and the tile has fewer bits */
        float *room;      /* NULL: it has not */
        void *of;         /* the tile, for a master from the piece on */
        int mode, times;
    } wide[TESS_ALL_PARTS];
};

struct tess_param {
    tess_init init;
    tess_tensor *storage;         /* the parameter of another graph whose tiles these are; itself otherwise */
    struct tess_owned on;         /* this rank */
    struct tess_param_tile *tile; /* NULL before tess_graph_ready */
    struct tess_state *state;     /* this rank's; behind them one for each tile whose gradient goes in codes */
    int64_t states, rests;
    struct tess_placed_piece *piece; /* in the same order */
    int64_t pieces, rest_pieces;
    bool frozen;          /* it is not trained: it has no gradient, no moments, and no master but its weight */
    tess_dtype quantized; /* NF4 or INT8: it is frozen, and the weight is held so; else TESS_F32 */
    bool is_state;        /* a step replaces it by the value that stands in the place of its gradient */
    bool copy;            /* the weight has 16 bits: a copy of the master or, if frozen, the only value */
    bool stale;           /* the program has written masters, and tess_graph_round was not called since */
    bool trained;         /* a step trains it */
    const tess_optimizer_kind *optimizer; /* the optimizer that its moments are for; NULL: there are none yet */
    int moments;
    int local;            /* with local steps the number of data-parallel ranks, whose moments differ; else 0 */
    int64_t width;        /* numbers that a row has in them; 0: as many as columns */
    tess_keeping keeping; /* the format of its moments */
    float begins;         /* the first value of its moments */
    bool own_rates;       /* lr_scale and weight_decay hold in place of the step's */
    double lr_scale, weight_decay;
    int hidden;  /* 1: it is a hidden matrix, -1: it is none, 0: those that read it say so */
    bool turned; /* PyTorch has its rows as columns */
};

/* Returns whether tasks read a parameter in the graph's dtype, where that has 16 bits: a matrix that is no state. */
static inline bool tess_param_narrows(const tess_tensor *p)
{
    return p->rank == 2 && !p->held->is_state;
}
static inline bool tess_is_frozen(const tess_tensor *p)
{
    return p->held->storage->held->frozen;
}

/* Returns the dtype that a parameter's weight is held in. */
static inline tess_dtype tess_weight_dtype(const tess_tensor *p)
{
    if (p->held->quantized) return p->held->quantized;
    return p->held->copy ? p->g->conf.dtype : TESS_F32;
}

/* Returns the tile of a part that is beside the master, or NULL. */
static inline tess_tile *tess_state_part(const struct tess_state *s, tess_part part)
{
    return part < TESS_PARTS ? s->moment[part - TESS_MOMENT1] : part == TESS_OUTER ? s->outer : s->rest;
}
static inline bool tess_is_moment(tess_part part)
{
    return part > TESS_MASTER && part < TESS_PARTS;
}

/* Returns whether its rows are whole blocks of codes, also where ranks share out its columns. */
static inline bool tess_param_has_blocks(const tess_tensor *p)
{
    return p->dim[1] % TESS_QUANTIZED_BLOCK == 0 && p->held->on.col0 % TESS_QUANTIZED_BLOCK == 0 && !p->held->on.strips;
}
/* Returns whether tasks use what codes of its weight stand for. */
static inline bool tess_weight_in_codes(const tess_tensor *p)
{
    const tess_grid *g = &p->g->conf.grid;
    return g->weight_codes && !p->held->quantized && tess_param_has_blocks(p) && !p->held->on.shared &&
           p->dim[0] * p->dim[1] > g->persist;
}
/* Returns the dtype that slices of its weight are gathered in. */
static inline tess_dtype tess_weight_sent(const tess_tensor *p)
{
    return tess_weight_in_codes(p) ? TESS_INT8 : tess_weight_dtype(p);
}

/* Returns whether a parameter is a state, which a step replaces and passes no gradient to. */
static inline bool tess_is_state(const tess_tensor *p)
{
    return p->held->storage->held->is_state;
}

static inline int64_t tess_state_elements(const tess_tensor *p, const struct tess_state *s)
{
    return s->rows * p->dim[1];
}
/* Makes the moments of a parameter for an optimizer that trains it, or, before any step trains it, for tess_param_map
 * (moments.c). */
tess_status tess_param_moments(tess_tensor *p, const tess_optimizer *o, bool trains) TESS_NODISCARD;
/* Makes what stands beside the moments: what local steps have, or frees it where there are none, and a matrix' gradient
 * in fewer bits (moments.c). */
void tess_param_beside(tess_tensor *p, const tess_local *local, tess_dtype gradients);
/* Returns the kind of optimizer that updates it: of hidden matrices another one than of the rest. */
const tess_optimizer_kind *tess_param_kind(const tess_tensor *p, const tess_optimizer *o);
/* Returns how moments are kept, but for the rows that a tile has; those of vectors are fp32. */
tess_kept tess_param_kept(const tess_tensor *p);
/* Fills a part that is beside the master with its first value. */
tess_status tess_param_begin(tess_tensor *p, const struct tess_state *s, tess_part part);
/* Returns the stream of random numbers that is a parameter's, from its name: other parameters do not shift it. */
uint32_t tess_param_stream(const tess_tensor *p);
/* Returns the weight decay of a parameter. */
double tess_param_decay(const tess_tensor *p, const tess_optimizer *o);
/* Returns the graph that owns g's parameters. */
static inline tess_graph *tess_graph_owner(tess_graph *g)
{
    return g->params ? g->param[0]->held->storage->g : g;
}

/* ---- ranks (grid.c) ---- */

static inline int tess_grid_size(const tess_grid *g)
{
    return g->data * g->pipeline * g->tensor;
}
/* Returns this rank's place in the data dimension. */
static inline int tess_grid_data(const tess_grid *g)
{
    return g->rank / (g->pipeline * g->tensor);
}
/* Returns the section of the pipeline that this rank computes. */
static inline int tess_grid_section(const tess_grid *g)
{
    return g->rank / g->tensor % g->pipeline;
}
/* Returns the section of a chunk of blocks. */
static inline int tess_grid_section_of(const tess_grid *g, int chunk)
{
    const int turn = chunk % g->pipeline;
    return g->schedule == TESS_ZB_V && chunk >= g->pipeline ? g->pipeline - 1 - turn : turn;
}
/* Returns this rank's place in the tensor dimension. */
static inline int tess_grid_tensor(const tess_grid *g)
{
    return g->rank % g->tensor;
}
/* Returns the first of `rows` rows that belongs to the t-th rank of the tensor dimension under sequence parallelism. */
static inline int64_t tess_grid_rows(const tess_grid *g, int64_t rows, int t)
{
    return rows * t / g->tensor;
}
/* Returns the rank at another place of the data dimension. */
static inline int tess_grid_peer(const tess_grid *g, int d)
{
    return g->rank + (d - tess_grid_data(g)) * g->pipeline * g->tensor;
}
/* Returns how many consecutive places of the data dimension share a machine that has `ranks_here` consecutive ranks; 1:
 * none do, or there is one machine only. */
int tess_grid_near(const tess_grid *g, int ranks_here);
/* Returns the number of ranks, or of groups that share sequences, that have micro-batches of their own. */
static inline int tess_grid_batches(const tess_grid *g)
{
    return g->data / g->sequence;
}
/* Returns how many consecutive ranks of the data dimension share the states of a model. */
static inline int tess_grid_shard(const tess_grid *g)
{
    return g->copies ? g->data : g->group;
}
/* Returns this rank's place among the ranks that share its sequences. */
static inline int tess_grid_sequence(const tess_grid *g)
{
    return tess_grid_data(g) % g->sequence;
}
/* Stores which of a step's micro-batches place d of the data dimension has: as many as the others, or its share. */
void tess_grid_share(const tess_grid *g, const tess_step_conf *c, int d, int64_t *first, int64_t *count);

/* A slice of a parameter's tile: whole rows, owned by a place of the data dimension. */
typedef struct tess_slice {
    int64_t row, rows;
    int owner;
} tess_slice;
enum { TESS_MOST_SLICES = 128 };
/* All of a tile's, and which is the last that this rank owns, or -1. */
typedef struct tess_slices {
    int n, own;
    tess_slice of[TESS_MOST_SLICES];
} tess_slices;
enum { TESS_VECTOR_ROWS = 4096 }; /* vectors are sliced at multiples of this many rows */
/* Stores which of `experts` experts the d-th of their owners has. */
void tess_grid_experts(const tess_grid *g, int64_t experts, int d, int64_t *first, int64_t *end);
/* Returns the place of the data dimension that owns the expert whose tile it is, or -1. */
int tess_grid_expert(const tess_tensor *p, int64_t tile);
/* Returns the dtype that parts of its gradient are sent in; those of owned experts may have nowhere to go. */
static inline tess_dtype tess_gradient_sent(const tess_tensor *p)
{
    return tess_param_has(p, TESS_REST) && tess_param_has_blocks(p) ? TESS_INT8 : p->g->conf.grid.sent;
}
/* Stores a tile's slices. */
void tess_grid_slices(const tess_tensor *p, int64_t tile, tess_slices *out);
/* Returns the rows of slice *s and of those behind it that the same place holds of `ranks` in a row, and stores the
 * first slice behind these. The owner is that of slice *s. */
tess_slice tess_grid_run(const tess_slices *of, int ranks, int *s);
/* Splits the micro-batches [first, first + count) into the largest aligned groups, in order, and returns their number.
 * The i-th has 2^level[i] micro-batches; `level` has room for 2 * 64. */
int tess_grid_groups(int64_t first, int64_t count, int *level);

/* Tags are the names of messages. Tags of parameters come first, then tags of activations between sections, then tags
 * of collectives of the tensor dimension. */
#define TESS_TAGS_PIPELINE ((int64_t)1 << 30)
#define TESS_TAGS_TENSOR   (TESS_TAGS_PIPELINE + ((int64_t)1 << 29))
enum { TESS_TAG_WEIGHT, TESS_TAG_TOTAL, TESS_TAG_PART }; /* a part's: TESS_TAG_PART + its number */
/* Returns how many tiles parameters may have, given that each of their slices needs tags. */
int64_t tess_grid_most_tiles(const tess_grid *g);
/* Returns the tag of a message about a slice. */
int tess_grid_tag(const tess_tensor *p, int64_t tile, int s, int kind);

#endif
