/* Parameters at run time: the tiles that they are made of, and what of them each rank holds. */
#ifndef TESS_PARAM_IMPL_H
#define TESS_PARAM_IMPL_H
#include "graph/describe/describe.h"

/* What an optimizer's update changes: rows of a parameter's tile, all of them or, where the ranks of the data dimension
 * share them out, a slice. In fp32 the weight is the master. Of what is frozen it is the weight alone. */
struct tess_state {
    int64_t tile, row, rows;
    int64_t at;                           /* elements of the tile before it */
    int64_t first_piece;                  /* of the parameter's */
    tess_tile *master;                    /* NULL: it is in the tile's weight */
    tess_tile *weight;                    /* where weights are gathered: what rests between uses; else NULL */
    tess_tile *moment[TESS_MOMENTS_MOST]; /* those of them that the optimizer has; of this slice alone, as are: */
    tess_tile *sum;         /* the gradient of all micro-batches: the tile's own where nothing is sliced */
    tess_tile *norm;        /* an exact sum of squares */
    bool counts;            /* that enters the global norm on this rank */
    bool begun[TESS_PARTS]; /* master and moments were written, if only in part */
};

/* A row block of a parameter. */
struct tess_param_tile {
    tess_tile *weight; /* NULL: gathered when it is used */
    tess_tile *gradient;
    int64_t first_state, states; /* of the parameter's */
    int index;                   /* among the tiles of all parameters */
    bool filled;                 /* the weight was written */
};

/* Rows that a rank of the tensor dimension has: `rows` of its own from `local` on are those from `global` on. */
struct tess_segment {
    int64_t local, global, rows;
};

/* What of a parameter is on this rank. */
struct tess_owned {
    struct tess_segment segment[TESS_MOST_BESIDE]; /* of the rows, where the tensor dimension shares them out */
    int segments;
    int64_t col0;                                /* the first column */
    struct tess_segment strip[TESS_MOST_BESIDE]; /* of columns, in each of `blocks` as far apart: of a tensor of any */
    int strips;                                  /* rank, where that is no run of columns; 0: it is */
    int64_t blocks, apart;
    bool leads;         /* only the first rank of the tensor dimension has it */
    bool absent;        /* no node of this rank's section of the pipeline uses it: no tile is here */
    bool shared;        /* nodes of several sections do; states are at `home`, the first of them */
    int home, sections; /* how many sections use it */
    bool *user;         /* [section] */
    bool sliced;        /* over the ranks of the data dimension */
    bool gathered;      /* the weight too */
};

/* A piece of a parameter, and where it is: elements from `at` on of a state. */
struct tess_placed_piece {
    tess_piece piece;
    int64_t state, at;
    struct tess_widened { /* by part: the program has it in fp32, and the tile has fewer bits */
        float *room;      /* NULL: it has not */
        void *of;         /* the tile, for a master from the piece on */
        int mode, times;
    } wide[TESS_PARTS];
};

struct tess_param {
    tess_init init;
    tess_tensor *storage;         /* the parameter of another graph whose tiles these are; itself otherwise */
    struct tess_owned on;         /* this rank */
    struct tess_param_tile *tile; /* NULL before tess_graph_ready */
    struct tess_state *state;     /* this rank's */
    int64_t states;
    struct tess_placed_piece *piece;
    int64_t pieces;
    bool frozen;   /* nothing trains it: it has no gradient, no moments, and no master but its weight */
    bool is_state; /* a step replaces it by what stands in the place of its gradient */
    bool copy;     /* the weight is bf16: a copy of a master or, frozen, all there is */
    bool stale;    /* masters were written, and not rounded since */
    bool trained;  /* a step trains it, with: */
    const tess_optimizer_kind *optimizer; /* whose moments there are; NULL: nobody asked for any yet */
    int moments;
    tess_keeping keeping; /* of them */
    float begins;         /* what each of them begins with */
    bool own_rates;       /* with what follows instead of the step's */
    double lr_scale, weight_decay;
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

/* A step replaces it, and passes no gradient to it. */
static inline bool tess_is_state(const tess_tensor *p)
{
    return p->held->storage->held->is_state;
}

static inline int64_t tess_state_elements(const tess_tensor *p, const struct tess_state *s)
{
    return s->rows * p->dim[1];
}
/* Makes the moments of a parameter for an optimizer that trains it, or, before there is one, for whoever asks for them
 * (moments.c). */
tess_status tess_param_moments(tess_tensor *p, const tess_optimizer *o, bool trains) TESS_NODISCARD;
/* Returns how moments are kept, but for the rows that a tile has; those of vectors are fp32. */
tess_kept tess_param_kept(const tess_tensor *p);
/* Fills one of them with what it begins with. */
tess_status tess_param_begin_moment(tess_tensor *p, const struct tess_state *s, int moment);
/* Returns the stream of random numbers that is a parameter's, from its name: other parameters do not shift it. */
uint32_t tess_param_stream(const tess_tensor *p);
/* Returns the weight decay of a parameter. */
double tess_param_decay(const tess_tensor *p, const tess_optimizer *o);
/* The graph whose parameters g's are. */
static inline tess_graph *tess_graph_owner(tess_graph *g)
{
    return g->params ? g->param[0]->held->storage->g : g;
}

/* ---- ranks (grid.c) ---- */

static inline int tess_grid_size(const tess_grid *g)
{
    return g->data * g->pipeline * g->tensor;
}
/* This rank's place in the data dimension. */
static inline int tess_grid_data(const tess_grid *g)
{
    return g->rank / (g->pipeline * g->tensor);
}
/* The section of the pipeline that this rank computes. */
static inline int tess_grid_section(const tess_grid *g)
{
    return g->rank / g->tensor % g->pipeline;
}
/* This rank's place in the tensor dimension. */
static inline int tess_grid_tensor(const tess_grid *g)
{
    return g->rank % g->tensor;
}
/* The first of so many rows that are the t-th rank's of the tensor dimension, where these ranks share them out. */
static inline int64_t tess_grid_rows(const tess_grid *g, int64_t rows, int t)
{
    return rows * t / g->tensor;
}
/* The rank at another place of the data dimension. */
static inline int tess_grid_peer(const tess_grid *g, int d)
{
    return g->rank + (d - tess_grid_data(g)) * g->pipeline * g->tensor;
}
/* Returns how many places of the data dimension in a row share a machine on which so many ranks in a row are; 1: none
 * do, or it is the only one. */
int tess_grid_near(const tess_grid *g, int ranks_here);
/* How many ranks, or groups of ranks that share sequences, have micro-batches of their own. */
static inline int tess_grid_batches(const tess_grid *g)
{
    return g->data / g->sequence;
}
/* This rank's place among those that share its sequences. */
static inline int tess_grid_sequence(const tess_grid *g)
{
    return tess_grid_data(g) % g->sequence;
}
/* This rank's of the step's micro-batches. */
static inline void tess_grid_share(const tess_grid *g, int64_t micro, int64_t *first, int64_t *count)
{
    *count = micro / tess_grid_batches(g);
    *first = *count * (tess_grid_data(g) / g->sequence);
}

/* A slice of a parameter's tile: whole rows, owned by a place of the data dimension. */
typedef struct tess_slice {
    int64_t row, rows;
    int owner;
} tess_slice;
enum { TESS_VECTOR_ROWS = 4096 }; /* a vector is sliced at multiples of */
/* Returns how many slices a tile has. */
int tess_grid_slices(const tess_tensor *p, int64_t tile);
tess_slice tess_grid_slice(const tess_tensor *p, int64_t tile, int s);
/* Finds the largest aligned groups of the micro-batches [first, first + count), in order, and returns how many there
 * are. 2^level[i] are in the i-th; there is room for 2 * 64. */
int tess_grid_groups(int64_t first, int64_t count, int *level);

/* Tags, the names of messages, of parameters are below, those of activations between sections and between the ranks of
 * a tensor above. */
#define TESS_TAGS_PIPELINE ((int64_t)1 << 30)
#define TESS_TAGS_TENSOR   (TESS_TAGS_PIPELINE + ((int64_t)1 << 29))
enum { TESS_TAG_WEIGHT, TESS_TAG_TOTAL, TESS_TAG_PART }; /* a part's: TESS_TAG_PART + its number */
/* Returns how many tiles parameters may have, of which each slice has tags; one rank of data alone needs none. */
int64_t tess_grid_most_tiles(const tess_grid *g);
/* Returns the tag of a message about a slice. */
int tess_grid_tag(const tess_tensor *p, int64_t tile, int s, int kind);

#endif
