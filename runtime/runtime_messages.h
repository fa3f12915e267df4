/* Messages, a section of runtime.h: tiles that ranks send each other. */
#ifndef TESS_RUNTIME_MESSAGES_H
#define TESS_RUNTIME_MESSAGES_H
#include "runtime/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For tess_machine.carrier, of runs whose configuration has read the environment: as AUTO, whatever
 * TESSERA_PARALLEL_CARRIER says. */
enum { TESS_CARRIER_ANY = TESS_CARRIER_COUNT };

/* How many rows a span has where only the run knows: use `by`, of int32 numbers, says where those of each expert begin,
 * and it has those from the first to the one before `end`. */
typedef struct tess_counted {
    unsigned by;
    int64_t first, end;
    size_t row;  /* bytes */
    bool inside; /* they lie at their places among all experts'; else from the tile's beginning, and zeros behind them
                    where they come */
} tess_counted;
/* A run of bytes of one of the task's tiles that goes to another rank or comes from it. Those between the same two
 * ranks meet in order, which is the same in both lists. A tag is a name that both ends have, for whoever reads a trace.
 */
typedef struct tess_span {
    unsigned use; /* of the task's */
    int peer, tag;
    bool sends;
    size_t offset, bytes;
    const tess_counted *counted; /* NULL: they are known; else bytes are those that are expected */
} tess_span;
/* Messages of a lane may be carried strictly one after the other, in the order of the list; lanes pass each other. */
#define TESS_MESSAGE_LANES 12
/* The first of them, which do not wait for another section of a pipeline. */
#define TESS_LANES_OF_SECTION 5
typedef struct tess_message_arg {
    unsigned spans, lane;
    const tess_span *span;
    int rank; /* whose list it is in: a forecast may be another's than this process is */
} tess_message_arg;
/* A task of it has tiles to read (all parts are sent), to write (they come, and are all of it) or both. All its parts
 * are under way at the same time. Messages are carried one after the other in the order of the list where NCCL does it:
 * the lists of all ranks must be parts of one order, and both ends of a part at the same place of it. */
extern tess_codelet tess_message;
/* Returns whether the carrier would be NCCL, between the GPUs' memories. All ranks call it. */
bool tess_messages_can_gpu(tess_carriers by);
/* Returns the bytes so far. */
void tess_message_traffic(uint64_t *sent, uint64_t *received);
/* Returns the seconds since it was last asked in which at least one message was under way, from the moment that its
 * tile was ready here; and those of them in which workers had no task, a share of all workers. */
void tess_message_seconds(double *under_way, double *exposed);
/* Returns the seconds of cores that carrying them took since the start, where a thread of ours does; else 0. */
double tess_message_cores(void);

#ifdef __cplusplus
}
#endif

#endif
