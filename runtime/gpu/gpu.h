/* GPUs: which are this rank's, what their workers have, and what kernels said. */
#ifndef TESS_GPU_H
#define TESS_GPU_H
#include "runtime/runtime.h"

enum {
    TESS_GPU_ROOM = 64 << 20, /* a worker's scratch: a product's workspace, and as much for the body beside it */
    TESS_GPU_SMALL = 64       /* that part of the memory is for small tiles, for which StarPU finds places */
};

/* ---- gpus.c ---- */

/* Finds this rank's first device, and what tells it from all others of the machine; false: there is none. */
bool tess_gpu_first(int *device, char *name, int room);
/* Returns whether that worker of StarPU's drives a GPU. */
bool tess_on_gpu(int worker);

/* Returns the bytes of the one GPU that this process has, with that cap: for tiles and for StarPU. */
uint64_t tess_gpu_share(uint64_t cap);

/* ---- cuda.c: what CUDA is asked for ---- */

/* Returns the body that a GPU's worker runs; NULL: none. */
tess_body tess_gpu_body(const tess_codelet *cl);
/* Puts it on w->stream. */
void tess_gpu_run(const tess_codelet *cl, const tess_work *w);
/* Returns what this build lacks to drive GPUs; NULL: nothing. */
const char *tess_cuda_lacks(void);
/* Has the calling thread work on one of these devices, unless it does. */
void tess_cuda_on_own(const int *device, int n);
/* Returns memory of the host that GPUs write; NULL: none is left. */
void *tess_cuda_host_new(size_t bytes);
/* Takes it back. */
void tess_cuda_host_free(void *p);
/* Has memory of the host get its pages, some at a time, which count as something that moves: where a machine gives
 * fresh pages slowly a pin of all would stand still for longer than a run is waited for. */
void tess_cuda_host_touch(void *p, size_t bytes);
/* Returns memory of the calling thread's device; NULL: none is left. */
void *tess_cuda_device_new(size_t bytes);
/* Takes it back. */
void tess_cuda_device_free(void *p);
/* Returns the stream of the calling worker. */
void *tess_cuda_stream(void);
/* Takes note, in its worker, that a body is about to be put on the stream, and that it was. */
void tess_cuda_body_begins(int worker, void *stream);
void tess_cuda_body_ends(int worker, void *stream);
/* Forgets when that worker's bodies ran. */
void tess_cuda_times_free(int worker);
/* Keeps the last error that CUDA has for the calling thread, StarPU's too. */
void tess_cuda_look(void);
/* Returns the last one that any thread kept; NULL: none. */
const char *tess_cuda_said(void);

/* ---- launches.c: tasks as CUDA graphs ---- */

/* Whether any task becomes one. */
void tess_launches_want(bool wanted);
/* Puts the task's body on w->stream, in its worker. */
void tess_launches_run(const tess_codelet *cl, const tess_work *w);
/* Returns whether a body that fails is run again, since it failed of becoming a graph. */
bool tess_launches_refuse(const tess_work *w, const char *why);
/* Forgets that worker's. */
void tess_launches_free(int worker);

/* ---- gpu.c: while StarPU runs ---- */

/* Finds its workers of GPUs and gives each what it needs. */
tess_status tess_gpu_start(void) TESS_NODISCARD;
/* Takes that back, before StarPU stops. */
void tess_gpu_stop(void);
/* Returns how many workers drive a GPU. */
int tess_gpu_workers(void);
/* Returns the memory node of the first of their GPUs. */
unsigned tess_gpu_first_node(void);
/* Fills in what a CUDA body gets, in its worker. */
void tess_gpu_work(tess_work *w);
/* Returns whether one of that worker's kernels failed. */
bool tess_gpu_failed(int worker);
/* Makes what kernels said the run's failure, after all of them have run. */
void tess_gpu_faults(void);
/* Makes host memory such that copies to and from a GPU go past the processor, with all of its pages, and what was in it
 * lost; false: it is not. */
bool tess_gpu_pin(void *p, size_t bytes);
/* Makes it as it was. */
void tess_gpu_unpin(void *p, size_t bytes);
/* Takes a piece of the first GPU's memory, which StarPU counts as its own; 0: there is none so large. */
uintptr_t tess_gpu_take(uint64_t bytes);
/* Has StarPU take what it needs of it for small tiles. */
tess_status tess_gpu_take_chunks(void);
/* Returns that piece to the GPU. */
void tess_gpu_give(uintptr_t piece, uint64_t bytes);
/* Returns what StarPU holds on all GPUs, and the most that was seen. */
void tess_gpu_use(uint64_t *now, uint64_t *peak);
#endif
