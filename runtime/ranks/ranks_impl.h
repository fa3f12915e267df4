/* MPI, which only this folder and what carries messages speak, and who lives on this machine. */
#ifndef TESS_RANKS_IMPL_H
#define TESS_RANKS_IMPL_H
#include "runtime.h"
#include <mpi.h>

/* ranks.c */

/* What carries messages has this communicator to itself. */
extern MPI_Comm tess_messages_comm;
/* Starts MPI and finds the others. */
tess_status tess_ranks_open(void) TESS_NODISCARD;
/* Ends MPI; this is rank 0 of 1 again. */
void tess_ranks_close(void);
/* Returns the main threads' communicator of the ranks of this machine. */
MPI_Comm tess_ranks_here_comm(void);
/* Gathers as tess_ranks_gather does, among the ranks of this machine. */
void tess_ranks_gather_here(const void *mine, size_t bytes, void *all);

/* window.c: memory that the ranks of a machine share */

/* Gets so many bytes, which all ranks of the communicator call; NULL, on all of them, where MPI has none to share. */
void *tess_window_open(MPI_Comm here, size_t bytes, MPI_Win *window);
/* Gives them back; all of them call it. */
void tess_window_close(MPI_Win *window);

/* watch.c: whether the ranks of this machine live. */

/* Begins to watch the ranks of the communicator, which all of them call. */
void tess_watch_start(MPI_Comm here, int rank);
/* Lets ranks end without a word from now on. */
void tess_watch_forgive(void);
/* Stops watching, after all ranks have forgiven. */
void tess_watch_stop(void);

/* bell.c: ranks of a machine wake each other. */

/* Makes the bells, which all ranks of the machine call; `ranks` there are in all. */
void tess_bells_open(MPI_Comm here, int rank, int ranks);
/* Does away with them; all ranks of the machine call it. */
void tess_bells_close(void);
/* Rings that rank's, this one's too, from any thread; nothing where it is on another machine. */
void tess_bell_ring(int rank);
/* Returns how often this rank's was rung. */
unsigned tess_bell_rings(void);
/* Rests for so many microseconds, less than a second, or until it is rung oftener than that. */
void tess_bell_rest(unsigned rings, long us);

/* share.c */

/* Divides the machine among its ranks, all of which call this. */
void tess_share_take(void);
#endif
