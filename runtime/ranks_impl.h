/* MPI, which only ranks.c, watch.c and message.c speak. */
#ifndef TESS_RANKS_IMPL_H
#define TESS_RANKS_IMPL_H
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

extern MPI_Comm tess_messages_comm; /* of message.c's thread */

/* Like tess_ranks_gather, among the ranks of this machine. */
void tess_ranks_gather_here(const void *mine, size_t bytes, void *all);

/* share.c: what becomes this rank's of its machine. Of all ranks. */
void tess_share_take(void);

/* watch.c: whether the ranks of this machine live. After `forgive` one may end without a word of the others; all have
 * said it when one stops. */
void tess_watch_start(MPI_Comm here, int rank);
void tess_watch_forgive(void);
void tess_watch_stop(void);
#endif
