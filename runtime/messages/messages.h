/* Messages: tasks that send tiles to other ranks and take theirs, and what carries them. */
#ifndef TESS_MESSAGES_H
#define TESS_MESSAGES_H
#include "runtime/runtime.h"
#include <stdatomic.h>

/* A message whose tiles are where its carrier takes them, or on their way there. */
typedef struct tess_exchange {
    const tess_task *task;
    const tess_message_arg *message; /* the task's, where all bytes are known */
    unsigned lane;
    uint64_t number;     /* among those of its lane, in the order of the list */
    unsigned node;       /* where its tiles are */
    atomic_uint left;    /* tiles that are not there; then, the carrier's, what is under way */
    double asked, began; /* for the trace; 0: it is not traced */
    uint64_t *nth;       /* of each span: which it is of those to its peer, or from it, in the order of the list */
    void *own;           /* the carrier's */
    struct tess_exchange *next;
} tess_exchange;

/* MPI counts bytes in an int: what is longer goes in runs, which meet in order. */
#ifndef TESS_RUN_BYTES
#define TESS_RUN_BYTES ((size_t)1 << 30)
#endif

/* Tags that mpi.c sends by: 0 to 32767, which every MPI takes. */
#ifndef TESS_TAGS
#define TESS_TAGS 32768
#endif

/* What carries messages, a file each. message.c knows no more of one than this. */
typedef struct tess_carrier {
    /* Returns its name and version. */
    const char *(*name)(void);
    /* Returns why it cannot carry messages, or NULL if it can, the same on all ranks; all ranks call it. NULL: it
     * always can. */
    const char *(*hindrance)(void);
    /* Starts it with `lanes` lanes, and stores the memory node from which it takes tiles; returns false, on all ranks,
     * if it cannot carry after all. All ranks call it. */
    bool (*start)(unsigned lanes, unsigned *node);
    /* Takes over a message all of whose tiles are there, from any thread; it gives it back to tess_exchange_ended. */
    void (*take)(tess_exchange *e);
    /* Ends it, when nothing is under way. This rank alone may. */
    void (*stop)(void);
} tess_carrier;

/* starpu_mpi.c: StarPU-MPI, from RAM to RAM. */
extern const tess_carrier tess_by_starpu_mpi;
/* mpi.c: MPI itself, from RAM to RAM. */
extern const tess_carrier tess_by_mpi;
/* nccl.c: NCCL, from GPU to GPU. */
extern const tess_carrier tess_by_nccl;

/* ---- exchange.c ---- */

/* Returns where a span of a message lies whose tiles are there. */
char *tess_exchange_data(const tess_exchange *e, const tess_span *s);
/* Keeps digests of a message's tiles, if they are asked for, before any byte is sent or received. */
void tess_exchange_begins(const tess_exchange *e);
/* Finds out how many bytes each span has, when the tiles are there. */
void tess_exchange_counts(tess_exchange *e);
/* Takes a message back from its carrier, from any thread, when all its spans have gone or come. */
void tess_exchange_ended(tess_exchange *e);

/* ---- message.c ---- */

/* Meets the other ranks before the start, when all have stopped what carried before; false: not all are ready for it.
 */
bool tess_messages_meet(bool ready);
/* Starts a carrier with `lanes` lanes, beside `workers` workers; TESS_INVALID if the requested one cannot carry, or if
 * ranks request different ones. All ranks call it. */
tess_status tess_messages_start(tess_carriers by, unsigned lanes, int workers) TESS_NODISCARD;
/* Ends it, when nothing is under way. */
void tess_messages_stop(void);
/* Submits a message; its end is counted as a task's. */
void tess_message_submit(const tess_task *t);
/* Returns whether messages take tiles in a GPU's memory. */
bool tess_messages_on_gpu(void);
/* ---- serve.c: a thread for carriers that have none ---- */

/* What such a carrier does on it. */
typedef struct tess_wire {
    unsigned lanes;                                     /* it begins those of each in order; 0: it keeps to no order */
    unsigned most;                                      /* messages of a lane that began and did not end */
    void (*enter)(void);                                /* prepares the thread; may be NULL */
    bool (*claim)(const tess_exchange *e);              /* asks for a message to begin now; false: later; may be NULL */
    void (*begin)(tess_exchange *e, void *const *data); /* begins a message whose spans are at `data` */
    tess_exchange *(*ended)(void);                      /* gives one back that has ended; NULL: none has */
} tess_wire;
/* Starts the thread. */
bool tess_serve_start(const tess_wire *wire);
/* Hands a message to it, from any thread. */
void tess_serve_take(tess_exchange *e);
/* Ends the thread, when nothing is under way. */
void tess_serve_stop(void);

/* ---- pauses.c: how long to wait before the next look ---- */

/* Rests when nothing has moved for `idle` seconds, at most until the next tess_rest_end. `news` is the number that
 * tess_rest_news returned before the last look. */
void tess_rest(unsigned news, double idle);
/* Counts how often a rest was ended. */
unsigned tess_rest_news(void);
/* Ends it, from any thread: there is something new to look at. */
void tess_rest_end(void);
#endif
