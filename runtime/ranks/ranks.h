/* How ranks communicate, and which of them share this machine. Only this folder and the carriers of messages call MPI;
 * in a simulation all ranks are in one process, and MPI is not called. */
#ifndef TESS_RANKS_H
#define TESS_RANKS_H
#include "runtime/runtime.h"

/* ranks.c */

/* Starts speaking with the others, and finds them. */
tess_status tess_ranks_open(void) TESS_NODISCARD;
/* Waits until all ranks leave. Those that agree meanwhile hear that this one left. */
void tess_ranks_part(void);
/* Ends speaking with them; this is rank 0 of 1 again. */
void tess_ranks_close(void);
/* Gathers as tess_ranks_gather does, among the ranks of this machine. */
void tess_ranks_gather_here(const void *mine, size_t bytes, void *all);

/* together.c: what the main threads of all ranks call together. */

/* Starts; says which rank this is of how many, of all and of this machine's. */
tess_status tess_together_open(int *rank, int *ranks, int *local, int *locals) TESS_NODISCARD;
void tess_together_close(void);
/* Has a launcher that would print a page about ranks that failed end all of them with that status instead, when all
 * have come here; it returns where that cannot be. */
void tess_together_end(int status);
typedef enum tess_reduction { TESS_SUM_REALS, TESS_SUM_COUNTS, TESS_MOST_COUNTS } tess_reduction;
/* Reduces n doubles or int64_t of all ranks. */
void tess_together_reduce(void *x, int n, tess_reduction how);
/* Sends that rank's bytes to all. */
void tess_together_tell(void *data, size_t bytes, int from);
/* Gathers those of all ranks, or of this machine's. */
void tess_together_gather(const void *mine, size_t bytes, void *of_all, bool here);
/* Waits for all. */
void tess_together_meet(void);
/* Returns the seconds that make this rank's clock rank 0's. */
double tess_together_clock(void);

/* share.c */

/* Divides the machine among its ranks; all of them call it. */
void tess_share_take(void);

#ifndef TESS_SIMULATED
#include <mpi.h>

/* What carries messages has this communicator to itself. */
extern MPI_Comm tess_messages_comm;
/* Returns the main threads' communicator of the ranks of this machine. */
MPI_Comm tess_ranks_here_comm(void);

/* shared_window.c: memory that the ranks of a machine share */

/* Allocates shared memory; all ranks of the communicator call it. Returns NULL, on all of them, if MPI has none. */
void *tess_window_open(MPI_Comm here, size_t bytes, MPI_Win *window);
/* Frees them; all of the ranks call it. */
void tess_window_close(MPI_Win *window);

/* watch.c: whether the ranks of this machine live. */

/* Begins to watch the ranks of the communicator, which all of them call. */
void tess_watch_start(MPI_Comm here, int rank);
/* Lets ranks end without a word from now on. */
void tess_watch_forgive(void);
/* Stops watching, after all ranks have forgiven. */
void tess_watch_stop(void);

/* wakeups.c: ranks of a machine wake each other. */

/* Makes the bells, which all ranks of the machine call; `ranks` there are in all. */
void tess_bells_open(MPI_Comm here, int rank, int ranks);
/* Does away with them; all ranks of the machine call it. */
void tess_bells_close(void);
/* Rings that rank's, this one's too, from any thread; nothing where it is on another machine. */
void tess_bell_ring(int rank);
/* Returns how often this rank's was rung. */
unsigned tess_bell_rings(void);
/* Rests for `us` microseconds, less than a second, or until there were more than `rings` wakeups. */
void tess_bell_rest(unsigned rings, long us);
#endif
#endif
