/* tessera.h: several ranks. A program that runs alone needs nothing of this.
 *
 *     TESS_TRY(tess_ranks_join());                                           // before all else
 *     tess_grid grid = {.rank = tess_rank(), .data = tess_ranks(), .stage = 2};
 *     tess_graph *g = tess_graph_new(&(tess_graph_conf){.grid = grid});
 *     ... the rest is as on one rank; each rank feeds the micro-batches that tess_step_share names ...
 *     tess_ranks_leave();                                                    // after tess_stop
 *
 * The main threads of all ranks make the same calls in the same order. A rank may fail alone in a phase that every rank
 * surely completes: it ends the phase with tess_ranks_agree, where the others learn of it. */
#ifndef TESSERA_RANKS_H
#define TESSERA_RANKS_H
#include "runtime/tessera_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How ranks share one model: data x pipeline x tensor of them, rank = (d * pipeline + p) * tensor + t. Which rank owns
 * which part of a tile follows from it (docs/ranks.md). All zeros are one rank. */
typedef struct tess_grid {
    int rank;            /* of this process */
    int data;            /* copies of the model, each of which trains on its share of the micro-batches */
    int pipeline;        /* sections of consecutive blocks */
    int tensor;          /* parts of each matrix */
    bool rows;           /* of what lies between matrices each of these ranks has some rows, not all of them alike */
    int sequence;        /* so many of `data` in a row share each micro-batch: each has a part of every sequence */
    int interleave;      /* runs of blocks that each section of the pipeline has */
    int stage;           /* ZeRO's: 1 shards the optimizer's states over data, 2 gradients too, 3 weights too */
    int64_t persist;     /* stage 3: parameters of no more elements than this are not sharded */
    int64_t live, reuse; /* stage 3: the most elements that are gathered at a time, and the most between two uses of a
                            weight that is kept from one to the other */
} tess_grid;

/* Joins the processes that a launcher (mpirun, srun) started together; without a launcher this process is rank 0 of 1.
 * It is called once, before any other function of the library. */
tess_status tess_ranks_join(void) TESS_NODISCARD;
/* Leaves them and waits until all have done so; it is the last call. Ranks that agree instead hear that this one left.
 */
void tess_ranks_leave(void);
/* Returns the number of this process, from 0. */
int tess_rank(void);
/* Returns how many ranks there are. */
int tess_ranks(void);
/* Returns TESS_OK if every rank passes TESS_OK, else the status of the first rank that passes another; the error's
 * message names that rank unless all ranks have the same. A failure that the ranks agreed on may pass through further
 * agreements on its way up: they return it at once, whether the other ranks come by them or not. Once it is handled the
 * ranks agree as before. A failure is new when tess_error recorded it, and a program records its own with it, too.
 * Without a launcher it returns what it is given. */
tess_status tess_ranks_agree(tess_status status) TESS_NODISCARD;
/* Replaces each of n numbers by its sum over all ranks, in no particular order of addition. */
void tess_ranks_sum(double *x, int n);
/* Returns the name and version of what carries messages, "MPI ...", or "nothing". Before tess_start, when all ranks
 * must call it, it returns what would carry them and why. */
const char *tess_message_carrier(void);

#ifdef __cplusplus
}
#endif

#endif
