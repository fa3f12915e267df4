/* What a trace says of the time of a step: explain_read.c reads it, explain_walk.c walks back along what each thing
 * waited for, explain_text.c prints it, explain_paper.c asks the plan what another setting would change; explain.c,
 * above them, is the command. Times are seconds since the trace began, on rank 0's clock. */
#ifndef TESS_EXPLAIN_IMPL_H
#define TESS_EXPLAIN_IMPL_H
#include "models/train/run/run.h"

typedef enum tess_event_kind {
    TESS_EVENT_STEP,
    TESS_EVENT_WAIT, /* submission stood still */
    TESS_EVENT_TASK,
    TESS_EVENT_DATA, /* a worker fetched what its next task needs */
    TESS_EVENT_READ,
    TESS_EVENT_WRITE,
    TESS_EVENT_TO_GPU,
    TESS_EVENT_OFF_GPU,
    TESS_EVENT_MESSAGE,
    TESS_EVENT_KINDS
} tess_event_kind;

enum { TESS_EVENT_ARRIVALS = 4, TESS_TRACE_NAMES = 512, TESS_FIRST_WORKER = 10 /* the track of a rank's first */ };

typedef struct tess_event {
    tess_event_kind kind;
    int rank, name;                   /* name: of tess_traced.name */
    bool helps;                       /* the worker had parts of another's task */
    uint32_t track;                   /* of a task: its worker's */
    uint64_t number;                  /* of a step; a task's place in the list */
    double begin, end;                /* of it */
    double ready, submitted;          /* ready: of a transfer, when it was asked for; below 0: not known */
    double bytes, received, flops;    /* bytes: moved, or sent */
    int peer, tag;                    /* of a message; peer below 0: there are several */
    int arrival[TESS_EVENT_ARRIVALS]; /* of a task: transfers that it was the first to use; -1: none */
} tess_event;

/* What a trace says of the run. */
typedef struct tess_about {
    int ranks, workers; /* workers: of a rank */
    bool disk, gpu;
    uint32_t first; /* the track of the first worker that should be busy */
    double cpu_cap; /* bytes; 0: there is none */
    double matrix_rate, read_rate, write_rate, both, flops_rate, copy_rate;
    double paper; /* seconds of a step; 0: the plan made no forecast */
    double bound; /* the least bytes that a plan can move; 0: not known */
} tess_about;

typedef struct tess_traced {
    char *name[TESS_TRACE_NAMES];
    int names;
    tess_event *event; /* by rank, then by kind, then by end; arrivals are places here */
    size_t events;
    int ranks;
    size_t *first; /* [rank * TESS_EVENT_KINDS + kind]: the first of them, and one more behind the last */
    tess_about about;
} tess_traced;

/* ---- explain_read.c ---- */

/* Reads a trace; TESS_INVALID, with its place, where it is none of ours or is cut off. Whatever it returns, the trace
 * can be freed. */
tess_status tess_traced_read(const char *path, tess_traced *t) TESS_NODISCARD;
/* Frees it. */
void tess_traced_free(tess_traced *t);
/* Returns the events of a kind of a rank, in the order of their ends, and how many they are. */
const tess_event *tess_traced_of(const tess_traced *t, int rank, tess_event_kind kind, size_t *n);

/* ---- explain_walk.c ---- */

/* What a moment of a step is for, on a worker or on the path that the step's length hangs on. The first is work, the
 * next four waited for what was on its way, the rest is idle. */
typedef enum tess_use_of {
    TESS_FOR_TASKS, /* on the path: a task's; beside it: it waited for other workers' tasks */
    TESS_FOR_READS,
    TESS_FOR_ROOM, /* until tiles had gone */
    TESS_FOR_COPIES,
    TESS_FOR_SPANS, /* from other ranks */
    TESS_FOR_SUBMISSION,
    TESS_FOR_WORKERS, /* a task that was ready, to be begun */
    TESS_FOR_COUNT
} tess_use_of;

/* Seconds of a step, or of several. */
typedef struct tess_shares {
    double wall, busy;               /* wall: of the workers that are looked at, added up */
    double of[TESS_FOR_COUNT];       /* of the rest */
    double op[TESS_TRACE_NAMES];     /* of what is busy, by name */
    double waited[TESS_TRACE_NAMES]; /* of what waited for the drive, a copy or a message, by the name of that */
    int arrivals[TESS_TRACE_NAMES];  /* how many these were */
    double for_op[TESS_TRACE_NAMES]; /* the same seconds, by the op that they held up */
} tess_shares;

/* Adds what the path from the end of a step back to its beginning is made of: wall is the step's. */
void tess_explain_path(const tess_traced *t, const tess_event *step, tess_shares *path);
/* Adds what a worker did in a step, and what it waited for when it did nothing. */
void tess_explain_worker(const tess_traced *t, const tess_event *step, uint32_t track, tess_shares *s);
/* Returns the seconds of a step in which at least one event of a kind was there, and their bytes. */
double tess_explain_under_way(const tess_traced *t, const tess_event *step, tess_event_kind kind, double *bytes);

/* ---- explain_text.c ---- */

/* Prints what a trace says. */
void tess_explain_print(const tess_traced *t, FILE *out);

/* ---- explain_paper.c ---- */

/* Prints what other settings would change, by the plan; a line where that cannot be said. */
void tess_explain_settings(const char *output, const tess_traced *t, FILE *out);

#endif
