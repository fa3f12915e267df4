/* tessera.h: several ranks. A program that runs on one rank needs nothing from this header.
 *
 *     TESS_TRY(tess_ranks_join());                                           // before all else
 *     tess_grid grid = {.rank = tess_rank(), .data = tess_ranks(), .stage = 2};
 *     tess_graph *g = tess_graph_new(&(tess_graph_conf){.grid = grid});
 *     ... the rest is as on one rank; each rank feeds the micro-batches that tess_step_share names ...
 *     tess_ranks_leave();                                                    // after tess_stop
 *
 * The main threads of all ranks make the same calls in the same order. A rank may fail alone in a phase that every rank
 * surely completes: it ends the phase with tess_ranks_agree, which tells the others. */
#ifndef TESSERA_RANKS_H
#define TESSERA_RANKS_H
#include "runtime/tessera_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The grid of ranks that share one model, data x pipeline x tensor: rank = (d * pipeline + p) * tensor + t. It decides
 * which rank owns which shard of a tile (docs/ranks.md). All zeros are one rank. */
typedef struct tess_grid {
    int rank;            /* of this process */
    int data;            /* copies of the model; each trains on its own share of the micro-batches */
    int pipeline;        /* sections of consecutive blocks */
    int tensor;          /* parts of each matrix */
    bool rows;           /* sequence parallelism (Megatron): each tensor rank keeps a part of the rows of norms and
                            residuals */
    int sequence;        /* context parallelism: data-parallel ranks that share each micro-batch, a part of every
                            sequence each */
    int interleave;      /* interleaved pipeline: chunks of consecutive blocks in each section */
    int stage;           /* ZeRO's stage: 1 shards the optimizer's states over data, 2 gradients too, 3 weights too */
    int64_t persist;     /* stage 3: parameters of no more elements than this are not sharded */
    int64_t live, reuse; /* stage 3: the most elements that are gathered at the same time, and the most elements between
                            two uses of a gathered weight that is kept for the second one */
} tess_grid;

/* Joins the processes that a launcher (mpirun, srun) started together; without a launcher this process is rank 0 of 1.
 * It is called once, before any other function of the library. */
tess_status tess_ranks_join(void) TESS_NODISCARD;
/* Leaves the other ranks and waits until all have left; it is the last call. A rank that calls tess_ranks_agree instead
 * gets the error that this one left. */
void tess_ranks_leave(void);
/* Returns the number of this process, from 0. */
int tess_rank(void);
/* Returns how many ranks there are. */
int tess_ranks(void);
/* Is an all-reduce of statuses: it returns TESS_OK if every rank passes TESS_OK, else the status of the first rank that
 * passes another; the error's message names that rank unless all ranks have the same. A failure that the ranks agreed
 * on may pass through further agreements on its way up: they return it at once, without the other ranks. Once it is
 * handled the ranks agree as before. A failure is new when tess_error recorded it; a program records its own failures
 * so, too. Without a launcher it returns what it is given. */
tess_status tess_ranks_agree(tess_status status) TESS_NODISCARD;
/* Replaces each of n numbers by its sum over all ranks (all-reduce), in no particular order of addition. */
void tess_ranks_sum(double *x, int n);
/* Returns the name and version of the library that carries messages, "MPI ...", or "nothing". Before tess_start all
 * ranks must call it, and it returns the library that would carry them, and why. */
const char *tess_message_carrier(void);

#ifdef __cplusplus
}
#endif

#endif
