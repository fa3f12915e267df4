/* Ranks, a section of runtime.h: who else runs, what they do together, and the tiles that they send each other. */
#ifndef TESS_RUNTIME_RANKS_H
#define TESS_RUNTIME_RANKS_H
#include "runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ranks/ranks.c: who else runs -------------------------------------------------------------------------------- */

/* Failures. What every rank surely comes by, a rank may fail in: it goes up with its status, and the others hear of it
 * when they next agree. So each phase of a run ends with tess_ranks_agree, main does too, and between a rank's failure
 * and the next agreement no other rank may need it (for a message, a sum). A failure in the middle of such needs takes
 * all ranks down, by tess_ranks_abort; so does the end of a rank that could say nothing, which ranks/watch.c sees.
 */

/* Returns its number among those of this machine, and how many these are. */
int tess_rank_here(int *ranks_here);
/* Returns how many ranks in a row share a machine, the same of all machines; 1: they are uneven, or it is not known. */
int tess_ranks_near(void);
/* Says whether mpirun or srun started it, through which what is printed goes. */
bool tess_ranks_launched(void);
/* Takes the place of one of many ranks, for measurements and estimates; what the others would send is zero. */
void tess_ranks_pretend(int rank, int size);
/* Says whether it does. */
bool tess_ranks_pretended(void);
/* Ends all ranks at once, from any thread; it is said why already. */
TESS_NORETURN void tess_ranks_abort(int status);
/* Says in one line, "WHERE: WHAT", why this cannot go on, and ends all ranks; from any thread. */
TESS_NORETURN void tess_die(const char *text);
/* Asks to say why the ranks of a machine end, of which the first thing said is enough: true, once, for it. From any
 * thread, and from a signal's handler. */
bool tess_watch_speak(void);
/* Says whether somebody did. */
bool tess_watch_spoken(void);
/* Says whether a rank runs; in a simulation one may do the work of others (docs/simulate.md). */
bool tess_rank_is_there(int rank);
/* Waits for all ranks. */
void tess_ranks_barrier(void);
/* Adds up counts. */
void tess_ranks_sum_counts(int64_t *x, int n);
/* Finds the largest of all ranks'. */
void tess_ranks_most(int64_t *x, int n);
/* Tells rank 0's bytes to all. */
void tess_ranks_tell(void *data, size_t bytes);
/* Returns the seconds that make tess_seconds() here rank 0's, within the time of a short message. */
double tess_ranks_clock(void);
/* Gathers the bytes of all ranks in the order of their numbers. */
void tess_ranks_gather(const void *mine, size_t bytes, void *all);

/* ---- messages/message.c: tiles between ranks --------------------------------------------------------------------- */

/* A run of bytes of one of the task's tiles that goes to another rank or comes from it. Those between the same two
 * ranks meet in order, which is the same in both lists. A tag is a name that both ends have, for whoever reads a trace.
 */
typedef struct tess_span {
    unsigned use; /* of the task's */
    int peer, tag;
    bool sends;
    size_t offset, bytes;
} tess_span;
/* Messages of a lane may be carried strictly one after the other, in the order of the list; lanes pass each other. */
#define TESS_MESSAGE_LANES 8
typedef struct tess_message_arg {
    unsigned spans, lane;
    const tess_span *span;
} tess_message_arg;
/* A task of it has tiles to read (all parts are sent), to write (they come, and are all of it) or both. All its parts
 * are under way at the same time. Messages are carried one after the other in the order of the list where NCCL does it:
 * the lists of all ranks must be parts of one order, and both ends of a part at the same place of it. */
extern tess_codelet tess_message;
/* Says whether it would be NCCL, between the GPUs' memories. All ranks call it. */
bool tess_messages_can_gpu(tess_carriers by);
/* Returns the bytes so far. */
void tess_message_traffic(uint64_t *sent, uint64_t *received);
/* Returns the seconds since it was last asked in which at least one message was under way, from the moment that its
 * tile was ready here; and those of them in which workers had no task, a share of all workers. */
void tess_message_seconds(double *under_way, double *exposed);
/* Returns, of the latter, those in which bytes of a message moved, since it was last asked; a simulated network alone
 * knows, and elsewhere it is 0. */
double tess_message_moving(void);
/* Returns, since it was last asked, the seconds in which workers had no task, a share of all workers, and no bytes of a
 * message moved to this rank or from it, where the network knows of them. */
double tess_still_seconds(void);

#ifdef __cplusplus
}
#endif

#endif
