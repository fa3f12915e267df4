/* Ranks, a section of runtime.h: the other processes of a run, and collectives over them. */
#ifndef TESS_RUNTIME_RANKS_H
#define TESS_RUNTIME_RANKS_H
#include "runtime/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ranks/ranks.c: the ranks of a run --------------------------------------------------------------------------- */

/* Failures. A rank may fail alone in a phase that every rank surely completes: it returns its status, and the others
 * learn of it in the next tess_ranks_agree. So each phase of a run ends with tess_ranks_agree, main does too, and from
 * a rank's failure to the next agreement no other rank may need it (for a message, a sum). Phases may be nested: a rank
 * that fails before an inner one meets the others at its end, and no rank waits at the outer one's
 * (docs/decisions/0031-agreements.md). Where others do need the rank, its failure ends all ranks by tess_ranks_abort;
 * and so does the end of a rank that had no time to say why, which ranks/watch.c sees. */

/* Returns this rank's index among the ranks of its machine, and stores their number. */
int tess_rank_here(int *ranks_here);
/* Returns how many ranks in a row share a machine, the same of all machines; 1: they are uneven, or it is not known. */
int tess_ranks_near(void);
/* Returns whether mpirun or srun started it, through which what is printed goes. */
bool tess_ranks_launched(void);
/* Says in a line, once, that a launcher started several of a program that has not joined them. */
void tess_ranks_say_unjoined(void);
/* Does what tess_ranks_leave does, for a program that ends with this status, the same on all ranks, and has said why:
 * where the launcher lets itself be told, it ends all of them here, and what they said is the last line. */
void tess_ranks_leave_with(int status);
/* Takes the place of one of many ranks, for measurements and estimates; what the others would send is zero. */
void tess_ranks_pretend(int rank, int size);
/* Does so, with `near` consecutive ranks that share a machine. */
void tess_ranks_pretend_near(int rank, int size, int near);
/* Returns whether it does. */
bool tess_ranks_pretended(void);
/* Ends all ranks at once, from any thread; it is said why already. */
TESS_NORETURN void tess_ranks_abort(int status);
/* Prints in one line, "WHERE: WHAT", why this cannot go on, and ends all ranks; from any thread. */
TESS_NORETURN void tess_die(const char *text);
/* Appends to that line, from then on, what the run leaves behind, such as the newest checkpoint. The main thread calls
 * it. */
void tess_dies_leaving(const char *text);
/* Returns true once on a machine, to the rank that may say why its ranks end. Any thread may call it, and a signal's
 * handler. */
bool tess_watch_speak(void);
/* Returns whether a rank of this machine has said why it ends. */
bool tess_watch_spoken(void);
/* Returns whether a rank runs; in a simulation one may do the work of others (docs/simulate.md). */
bool tess_rank_is_there(int rank);
/* Waits for all ranks. */
void tess_ranks_barrier(void);
/* Adds up counts. */
void tess_ranks_sum_counts(int64_t *x, int n);
/* Finds the largest of all ranks'. */
void tess_ranks_most(int64_t *x, int n);
/* Sends rank 0's bytes to all. */
void tess_ranks_tell(void *data, size_t bytes);
/* Returns the seconds that make tess_seconds() here rank 0's, within the time of a short message. */
double tess_ranks_clock(void);
/* Gathers the bytes of all ranks in the order of their numbers. */
void tess_ranks_gather(const void *mine, size_t bytes, void *all);

#ifdef __cplusplus
}
#endif

#endif
