/* tessera.h: the numbers of a plan. A program that prints its plan, or only runs by it, need not read them. */
#ifndef TESSERA_PLAN_H
#define TESSERA_PLAN_H
#include "runtime/tessera_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The forecast time of a step, in seconds: of the whole step, and of workers, reads and writes while each is busy. */
typedef struct tess_forecast {
    double seconds, work, read, write;
    uint64_t early; /* bytes of tiles that are in RAM because tasks begin before earlier tasks of the list have ended */
} tess_forecast;

/* RAM above the disk. All members but `time` are bytes. */
typedef struct tess_placement {
    uint64_t needed;        /* the least RAM that may do */
    uint64_t largest_task;  /* tiles of the task that uses the most */
    uint64_t room;          /* RAM for all tiles but inputs, scalars and scratch */
    uint64_t slack;         /* the part of the room that is kept for prefetches and late evictions */
    uint64_t read, written; /* read from disk and written to it in a step */
    uint64_t bound;         /* no plan within this RAM moves less, both ways together */
    uint64_t disk;          /* tiles that rest on disk */
    uint64_t fixed;         /* RAM beside the room for inputs, scalars and scratch */
    uint64_t buffers;       /* RAM beside the room for the workers' buffers of products */
    uint64_t margin;        /* RAM beside the room that tiles take beyond their own bytes */
    tess_forecast time;     /* zeros where the machine's rates are not known */
} tess_placement;

/* The GPU above RAM. All numbers are bytes. */
typedef struct tess_gpu_placement {
    uint64_t needed;        /* the least memory that may do */
    uint64_t memory;        /* the part of the GPU's memory for tiles; 0: there is no plan for a GPU */
    uint64_t room;          /* the part of `memory` whose tiles the plan places; StarPU has the rest for inputs and
                               scratch */
    uint64_t all;           /* the room with which no tile would have to leave */
    uint64_t read, written; /* copied to the GPU and back from it in a step */
    uint64_t bound;         /* no plan copies less, both ways together */
    uint64_t home;          /* parameters and states that live on the GPU alone */
} tess_gpu_placement;

/* How a step is laid out on a machine. tess_step_fit fills it in; it is a value, and needs no call to free it. */
typedef struct tess_plan {
    bool by_layer, late;    /* the order of the step, as in tess_step_layout */
    int kept, again;        /* `kept` of the `again` activations that recomputation could make again are kept */
    bool pipeline;          /* ranks are sections of a pipeline */
    unsigned lanes;         /* lanes of messages between GPUs, which do not wait for each other; 0: one */
    int workers;            /* CPU workers */
    uint64_t cpu_bytes;     /* the cap on RAM that the plan keeps to; 0: there is none */
    uint64_t disk_bytes;    /* the size of the disk's files; 0: nothing rests there */
    tess_gpu_placement gpu; /* zeros without a GPU, or with several in one process */
    tess_placement ram;     /* without a disk, `room` alone is set */
} tess_plan;

#ifdef __cplusplus
}
#endif

#endif
