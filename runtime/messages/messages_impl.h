/* Messages: tasks that send tiles to other ranks and take theirs, and what carries them. */
#ifndef TESS_MESSAGES_IMPL_H
#define TESS_MESSAGES_IMPL_H
#include "runtime.h"
#include <stdatomic.h>

/* A message whose tiles are where its carrier takes them, or on their way there. */
typedef struct tess_exchange {
    const tess_task *task;
    uint64_t number;     /* in the order of the list */
    atomic_uint left;    /* tiles that are not there; then, the carrier's, what is under way */
    double asked, began; /* for the trace; 0: it is not traced */
    struct tess_exchange *next;
} tess_exchange;

/* What carries messages, a file each. Its functions are called by the thread that message.c has for it, but for `name`
 * and `stop`, which comes when the thread is gone. */
typedef struct tess_carrier {
    bool in_order; /* it begins messages in the order of the list, which is the same on all ranks */
    unsigned most; /* messages that began and did not end */
    const char *(*name)(void);
    void (*enter)(void);                                /* prepares the thread; may be NULL */
    void (*begin)(tess_exchange *e, void *const *data); /* begins a message whose spans are at `data` */
    tess_exchange *(*ended)(void);                      /* gives one back that has ended; NULL: none has */
    void (*stop)(void);
} tess_carrier;

/* ---- message.c ---- */

/* Starts the thread that carries; with `by_mpi` NCCL is not asked. All ranks call it. */
void tess_messages_start(bool by_mpi);
/* Ends it, when nothing is under way. */
void tess_messages_stop(void);
/* Submits a message; its end is counted as a task's. */
void tess_message_submit(const tess_task *t);
/* Says whether messages take tiles in a GPU's memory. */
bool tess_messages_on_gpu(void);

/* ---- nccl.c ---- */

/* Says why NCCL cannot carry, NULL where it can. All ranks call it. */
const char *tess_nccl_hindrance(void);
/* Starts it, and says in the memory of which node it takes tiles; NULL: it cannot carry, or, with `off`, shall not. All
 * ranks call it. */
const tess_carrier *tess_nccl_start(bool off, unsigned *node);
/* Returns its name and version. */
const char *tess_nccl_name(void);

/* ---- mpi.c ---- */

/* It always can, between the ranks that there are, and takes tiles in RAM. */
extern const tess_carrier tess_by_mpi;
#endif
