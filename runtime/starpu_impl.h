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
    struct tess_disk_tile *place; /* on the disk, where that is the home */
    int mapped;                   /* the mode in which the main thread has it */
    tess_tile *known, **knower;   /* of those that StarPU knows of; knower: NULL outside the list */
    /* flow.c's, as of the last task submitted or let in: */
    bool resident;           /* in RAM or on its way there */
    bool departs;            /* it leaves after a task that is let in and not submitted */
    bool filled;             /* it has contents */
    bool dirty;              /* written since it entered */
    bool visits;             /* in RAM for the main thread alone */
    tess_tile *next, **link; /* of those in RAM whose home is the disk; link: NULL outside the list */
    /* flow_gpu.c's, likewise: */
    struct {
        bool placed;      /* `at` is its place on the GPU, from the task looked at that first needs it there */
        bool settled;     /* nobody else is in it any more, and StarPU knows it */
        bool known;       /* StarPU knows some place, this one or an earlier one */
        bool fetch;       /* its contents come when it settles */
        bool departs;     /* it leaves after a task that is looked at and not submitted */
        bool filled;      /* it has contents */
        unsigned writers; /* tasks that are looked at and not submitted */
        uint64_t at;
    } gpu;
};
/* Registers the tile with StarPU if it is not yet. */
starpu_data_handle_t tess_tile_handle(tess_tile *t);
/* Before StarPU goes: it forgets all tiles, which are then as they were made. */
void tess_tiles_stop(void);

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

/* fault.c: a failure that sticks to what runs, as of the task of that order; from any thread. Is there one? Takes it.
 */
enum { TESS_FAULT_TEXT = 512 };
void tess_fault_set(uint32_t order, const char *text);
extern volatile bool tess_fault_stands;
void tess_fault_take(char text[TESS_FAULT_TEXT]);

/* submit.c: to StarPU, at once. */
tess_status tess_submit_one(const tess_task *t) TESS_NODISCARD;
/* flow.c: is there a cap on RAM? Then: a task was submitted; a task ended, from any thread; all of them did; the
 * main thread maps a tile, and has done with it. */
bool tess_flow_caps(void);
void tess_flow_submitted(const tess_task *t);
void tess_flow_ended(void);
void tess_flow_works(int more); /* a worker takes up (1) or ends (-1) a body */
bool tess_flow_busy(void);      /* has every worker one? */
void tess_flow_messages(bool under_way);
void tess_flow_wait(void);
void tess_flow_map(tess_tile *t, int mode);
void tess_flow_unmap(tess_tile *t, int mode);
void tess_flow_forget(tess_tile *t); /* it is about to be freed */
/* For the GPU's flow: something moved, which those who wait want to know, from any thread; waits until that is so. */
void tess_flow_moved(void);
void tess_flow_to_gpu(int more); /* tiles that come */
void tess_flow_until(bool (*so)(const void *), const void *of, const char *who, const char *what);

/* flow_gpu.c: will it have a say? After gpu.c's start and before its stop; has it? Then: task[k] of the list is next;
 * it was submitted; the list ends before task[k]; where StarPU may run a task (0: anywhere). The main thread has done
 * with a tile in RAM; a tile leaves RAM for the disk; is about to be freed. */
bool tess_gpu_planned(void);
tess_status tess_gpu_flow_start(void) TESS_NODISCARD;
void tess_gpu_flow_stop(void);
bool tess_gpu_flows(void);
tess_status tess_gpu_flow_ahead(const tess_task *task, size_t n, size_t k) TESS_NODISCARD;
void tess_gpu_flow_submitted(const tess_task *t);
void tess_gpu_flow_ends(const tess_task *task, size_t k);
uint32_t tess_gpu_flow_where(const tess_task *t);
void tess_gpu_flow_unmap(tess_tile *t, int mode);
void tess_gpu_flow_leaves_ram(tess_tile *t);
void tess_gpu_flow_forget(tess_tile *t);

/* message.c; with `by_mpi` NCCL is not asked. */
void tess_messages_start(bool by_mpi);
void tess_messages_stop(void);
void tess_message_submit(const tess_task *t);
bool tess_messages_on_gpu(void); /* they take tiles in its memory */

/* nccl.c. Of all ranks: why it cannot carry, NULL where it can; whether it carries from now on, and from the memory of
 * which node. */
const char *tess_nccl_hindrance(void);
bool tess_nccl_start(bool off, unsigned *node);
void tess_nccl_stop(void);
const char *tess_nccl_name(void);
/* In message.c's thread: before all else; a message begins, its parts at `data`; did the first that did not end do so?
 * No more than so many may be between. */
enum { TESS_NCCL_GROUPS = 64 };
void tess_nccl_enter(void);
void tess_nccl_begin(const tess_message_arg *m, void *const *data);
bool tess_nccl_ended(const tess_message_arg *m);

/* machine.c: a place on the disk tier, which takes it back. */
struct tess_disk_tile *tess_disk_place_new(size_t bytes);
void tess_disk_place_free(struct tess_disk_tile *place, size_t bytes);

/* gpu.c: around StarPU's start and stop; */
void tess_gpu_prepare(uint64_t cap); /* bytes of each GPU; 0: none */
tess_status tess_gpu_start(void) TESS_NODISCARD;
void tess_gpu_stop(void);
int tess_gpu_workers(void);
/* CUDA devices of this machine; this rank's first one, and what tells it from all others of the machine (false: there
 * is none); once StarPU runs, the node of that one's memory. */
int tess_gpu_devices(void);
bool tess_gpu_first(int *device, char *name, int room);
unsigned tess_gpu_first_node(void);
bool tess_on_gpu(int worker); /* submit.c */
bool tess_has_cuda(const tess_codelet *cl);
/* what a CUDA body gets, in its worker; whether one of that worker's kernels failed, and after all of them, what; */
void tess_gpu_work(tess_work *w);
bool tess_gpu_failed(int worker);
void tess_gpu_faults(void);
/* host memory that copies to and from a GPU go past the processor; and what GPUs hold. */
bool tess_gpu_pin(void *p, size_t bytes);
void tess_gpu_unpin(void *p, size_t bytes);
void tess_gpu_use(uint64_t *now, uint64_t *peak);

/* perfmodel.c: before StarPU's start */
void tess_perfmodels_check(void);

/* slab.c: the memory below StarPU's buffers in RAM. */
void tess_slab_install(uint64_t bytes); /* the cap; 0: none */
void tess_slab_release(void);
#endif
