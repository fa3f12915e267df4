/* What the files of this room share about StarPU; no other room sees it. */
#ifndef TESS_STARPU_IMPL_H
#define TESS_STARPU_IMPL_H
#include "runtime.h"
#include <starpu.h>

enum { TESS_MAX_WORKERS = 256 };

struct tess_tile {
    starpu_data_handle_t handle; /* NULL until its first use */
    size_t bytes;
    tess_role role;
    tess_tier home;
    char *label;
    /* flow.c's, while the home is the disk: */
    unsigned holds;                /* tasks let in and not done that use it */
    uint32_t last, written, ended; /* since it was held: order + 1 of the latest task that used, wrote, ended it */
    bool stay;                     /* what the latest says */
    bool kept;                     /* it stays in RAM though nobody holds it */
    bool charged;                  /* its bytes count against the budget */
    bool dirty;                    /* written since it came */
    bool filled;                   /* it has contents, as of the tasks that are done */
};
/* Registers the tile with StarPU if it is not yet. */
starpu_data_handle_t tess_tile_handle(tess_tile *t);

/* One worker's figures for one codelet, written by that worker alone. */
struct tess_tally {
    uint64_t tasks;
    double busy, waiting, scheduling, flops;
};
struct tess_codelet_state {
    struct starpu_codelet cl;
    struct starpu_perfmodel model;
    char symbol[64];
    const tess_codelet *owner;
    struct tess_tally tally[TESS_MAX_WORKERS];
    struct tess_codelet_state *next;
};
extern struct tess_codelet_state *tess_codelets; /* all that were submitted since tess_start */
void tess_codelets_forget(void);

extern bool tess_profiling;
extern double tess_submit_seconds;

/* The memory node of the disk tier; -1 without one. */
extern int tess_disk_node;

/* machine.c: the disk tier's first failure, which holds until it is closed; NULL without one. */
const char *tess_disk_fault(void);

/* submit.c: a failure that sticks to what runs, as of the task of that order; from any thread. */
void tess_fault_set(uint32_t order, const char *text);

/* submit.c: to StarPU, at once. */
tess_status tess_submit_one(const tess_task *t) TESS_NODISCARD;
/* flow.c: a task is done. */
void tess_flow_done(const tess_task *t);

/* slab.c: the memory below StarPU's buffers in RAM. */
void tess_slab_install(uint64_t bytes); /* the cap; 0: none */
void tess_slab_release(void);
#endif
