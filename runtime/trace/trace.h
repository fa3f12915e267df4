/* The trace: what happened when, while steps are traced. Whoever knows that something has ended says so, in one call
 * that neither locks nor allocates and costs a branch where nothing is traced:
 *
 *     if (tess_traces()) tess_trace_add(&(tess_trace_event){.kind = TESS_TRACE_READ, .begin = began, .end = now, ...});
 *
 * An event goes to a ring of the thread's own (record.c), of fixed size; a thread of the trace's takes what is there
 * some hundred times a second and writes it (write.c) as a line of JSON. A ring that is full loses events, which are
 * counted. So memory is bounded, and a trace is as long as the disk has room. It knows neither tasks nor tiles: names
 * are borrowed until tess_trace_settle, which comes before any of them goes. */
#ifndef TESS_TRACE_H
#define TESS_TRACE_H
#include "runtime/runtime.h"
#include <stdatomic.h>

typedef enum tess_trace_kind {
    TESS_TRACE_STEP,    /* a step, from its samples to its end */
    TESS_TRACE_WAIT,    /* submission stood still */
    TESS_TRACE_TASK,    /* a body on a worker */
    TESS_TRACE_READ,    /* a tile came from the drive, */
    TESS_TRACE_WRITE,   /* or went there */
    TESS_TRACE_TO_GPU,  /* a tile came to a GPU, */
    TESS_TRACE_OFF_GPU, /* or left it */
    TESS_TRACE_MESSAGE, /* spans between ranks */
    TESS_TRACE_SPAN,    /* one of those of the message that its thread told last: an end of an arrow between ranks */
    TESS_TRACE_KINDS
} tess_trace_kind;

/* What submission waits for, where it is room: as users see it, and explain tells it by. */
#define TESS_WAIT_ROOM  "room in RAM"
#define TESS_WAIT_PLACE "a place on the GPU"

enum { TESS_TRACE_ARRIVALS = 4 }; /* that a task may have waited for, at most */

/* Times are tess_seconds(). */
typedef struct tess_trace_event {
    tess_trace_kind kind;
    bool gpu;                             /* the worker is a GPU's */
    bool helps;                           /* the worker had parts of another's task */
    uint32_t worker;                      /* of a task; else the writer's */
    int32_t tag;                          /* of a span; of a message: the least of its spans' */
    uint64_t number;                      /* of a step; a task's place in the list; of messages, spans: 1 + the peer */
    double begin, end;                    /* of the body; on the drive, on the link */
    double asked;                         /* when a task was ready, a transfer was asked for; 0: not known */
    double submitted;                     /* of a task; 0: not known */
    double data_begin, data_end;          /* when a worker fetched what its task needs; 0: it did not */
    const char *name;                     /* of the op; "weight"; what submission waited for */
    const char *of;                       /* the tile's label; NULL: of none */
    uint64_t bytes, received;             /* moved, or sent to other ranks; taken from them */
    double flops;                         /* of a task */
    uint32_t nth;                         /* of a span: which it is of those of its tag, peer and direction */
    uint32_t arrival;                     /* the number of an arrival, which a task refers to; 0: none */
    uint32_t waited[TESS_TRACE_ARRIVALS]; /* the arrivals that a task is the first to use */
} tess_trace_event;

/* What is counted all the time, and sampled while steps are traced. */
typedef enum tess_trace_gauge {
    TESS_TRACE_GPU_BYTES,
    TESS_TRACE_CPU_BYTES,
    TESS_TRACE_DISK_BYTES,
    TESS_TRACE_TASKS, /* submitted, and not ended */
    TESS_TRACE_DRIVE, /* transfers asked of the drive, and not ended */
    TESS_TRACE_SPANS, /* messages under way */
    TESS_TRACE_GAUGES
} tess_trace_gauge;

/* ---- record.c ---- */

extern atomic_bool tess_trace_on;
extern _Atomic uint64_t tess_trace_gauges[TESS_TRACE_GAUGES];

/* Returns whether a step is traced now. */
static inline bool tess_traces(void)
{
    return __builtin_expect(atomic_load_explicit(&tess_trace_on, memory_order_relaxed), 0);
}
/* Sets a gauge, from any thread. */
static inline void tess_trace_set(tess_trace_gauge g, uint64_t value)
{
    atomic_store_explicit(&tess_trace_gauges[g], value, memory_order_relaxed);
}
/* Adds an event, from any thread. */
void tess_trace_add(const tess_trace_event *e);
/* Returns a number for something that arrived; a later one is greater, modulo 2^32. */
uint32_t tess_trace_arrival(void);

enum { TESS_TRACE_RING = 4096 }; /* events that a thread may be ahead of the writer */
/* Written by its thread at `head`, read by the writer at `tail`. */
typedef struct tess_trace_ring {
    _Atomic uint32_t head, tail;
    atomic_bool taken; /* by a thread that lives */
    uint32_t looked;   /* the writer's: arrivals up to here are known, */
    uint32_t message;  /* and the track of the last message among them */
    struct tess_trace_ring *_Atomic next;
    tess_trace_event event[TESS_TRACE_RING];
} tess_trace_ring;
/* Returns the first of all rings there are. */
tess_trace_ring *tess_trace_rings(void);
/* Takes the number of events that found no room since it was last asked. */
uint64_t tess_trace_lost(void);

/* ---- write.c ---- */

/* Returns whether the file could not be written: no further step is traced. */
bool tess_trace_failed(void);
/* Writes all that was said so far, and a sample of the gauges; the main thread's. Names may go after it. */
void tess_trace_settle(void);
#endif
