/* What the files of a pipeline share. */
#ifndef TESS_PIPELINE_IMPL_H
#define TESS_PIPELINE_IMPL_H
#include "graph/lower/lower.h"

static inline int tess_chunks(const tess_grid *g)
{
    return g->pipeline * g->interleave;
}

/* Returns whether a chunk is on the way back of TESS_ZB_V. */
static inline bool tess_is_back(const tess_grid *g, int chunk)
{
    return g->schedule == TESS_ZB_V && chunk >= g->pipeline;
}

/* Returns the chunk of each node; the caller calls free(). */
int *tess_pipeline_chunks(const tess_graph *g);

static inline double tess_pass_length(const tess_grid *g, bool backward)
{
    return backward && g->schedule == TESS_1F1B ? 2 : 1;
}

/* The end of each pass, by chunk, micro-batch and direction; less than 0: it is yet to come. Behind them the starts. */
struct tess_ends {
    double *at;
    int64_t micros;
    int chunks;
};

static inline double *tess_end_of(const struct tess_ends *e, int chunk, int64_t micro, bool backward)
{
    return &e->at[(chunk * e->micros + micro) * 2 + backward];
}

static inline double *tess_begin_of(const struct tess_ends *e, int chunk, int64_t micro, bool backward)
{
    return tess_end_of(e, chunk, micro, backward) + e->chunks * e->micros * 2;
}

#endif
