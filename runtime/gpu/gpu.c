/* What each worker of a GPU has, and what its kernels said. Calls of CUDA are in cuda.c, devices.c and nccl.c; a build
 * without nvcc, or with a StarPU that has no CUDA, has no GPUs.
 *
 * A worker drives one GPU through one stream, on which the kernels of its tasks run one after the other. So each worker
 * needs one piece of scratch, and one place where kernels say what failed: both are made at the start, the first
 * through StarPU, which counts it below its limit, the second in host memory that the GPU writes.
 *
 * A codelet with a CUDA body runs on the GPU where there is one and nowhere else: its sums have another order than the
 * CPU's, so a choice by StarPU would show in the numbers. Codelets that are marked `either` (updates, sums of squares,
 * copies, rounding) have the same bits on both sides, by one source, -fmad=false and sums in pieces of 8192 and 64
 * lanes; StarPU chooses there, so updates go to idle cores. Tiles are larger than on a CPU (8192 rows, 48 Mi elements),
 * since a task must outlast its launch. A failure in a kernel is written to pinned memory and found a few tasks later
 * than on a CPU. */
#include "runtime/gpu/gpu.h"
#include "runtime/progress/progress.h"
#include "runtime/ranks/devices.h"
#include <starpu.h>
#include <stdlib.h>
#include <string.h>

static struct {
    int workers, id[TESS_MAX_GPUS];
    uintptr_t room[TESS_MAX_WORKERS];
    struct tess_kernel_fault *fault; /* of each worker, in pinned memory */
    uint64_t peak;
} gpu;

/* StarPU's CPU workers give pinned memory back until it has shut down, after tess_gpu_stop: so these stay. */
static struct {
    int n, device[TESS_MAX_GPUS];
} own;

unsigned tess_gpu_first_node(void)
{
    return gpu.workers == 0 ? STARPU_MAIN_RAM : starpu_worker_get_memory_node((unsigned)gpu.id[0]);
}

/* ---- start and stop ---- */

tess_status tess_gpu_start(void)
{
    gpu.workers = (int)starpu_worker_get_ids_by_type(STARPU_CUDA_WORKER, gpu.id, TESS_MAX_GPUS);
    if (gpu.workers < 0) gpu.workers = 0;
    own.n = gpu.workers;
    for (int i = 0; i < own.n; i++) own.device[i] = starpu_worker_get_devid(gpu.id[i]);
    if (gpu.workers == 0) return TESS_OK;
    tess_cuda_on_own(own.device, own.n);
    const size_t bytes = TESS_MAX_WORKERS * sizeof *gpu.fault;
    gpu.fault = tess_cuda_host_new(bytes);
    if (!gpu.fault) return tess_error(TESS_FAILED, "gpu", "no pinned memory left (%zu bytes)", bytes);
    memset(gpu.fault, 0, bytes);
    for (int i = 0; i < gpu.workers; i++) {
        const int id = gpu.id[i];
        TESS_ASSERT(id < TESS_MAX_WORKERS);
        gpu.room[id] = starpu_malloc_on_node(starpu_worker_get_memory_node((unsigned)id), TESS_GPU_ROOM);
        if (!gpu.room[id])
            return tess_error(TESS_INVALID, "GPU", "its memory leaves no %s for the kernels' scratch (raise the cap)",
                              tess_human_bytes(TESS_GPU_ROOM));
    }
    return TESS_OK;
}

/* Before StarPU shuts down. */
void tess_gpu_stop(void)
{
    for (int i = 0; i < gpu.workers; i++) {
        const int id = gpu.id[i];
        if (gpu.room[id]) starpu_free_on_node(starpu_worker_get_memory_node((unsigned)id), gpu.room[id], TESS_GPU_ROOM);
        gpu.room[id] = 0;
        tess_cuda_times_free(id);
        tess_launches_free(id);
    }
    if (gpu.fault) tess_cuda_host_free(gpu.fault);
    gpu.fault = NULL;
    gpu.workers = 0;
    gpu.peak = 0;
}

int tess_gpu_workers(void)
{
    return gpu.workers;
}

/* ---- tasks ---- */

void tess_gpu_work(tess_work *w)
{
    w->stream = tess_cuda_stream();
    w->room = (void *)gpu.room[w->worker];
    w->room_bytes = TESS_GPU_ROOM;
    w->fault = &gpu.fault[w->worker];
}

bool tess_gpu_failed(int worker)
{
    return *(volatile uint32_t *)&gpu.fault[worker].set;
}

/* After all kernels have run: what they said becomes the run's failure. */
void tess_gpu_faults(void)
{
    for (int i = 0; i < gpu.workers; i++) {
        struct tess_kernel_fault *f = &gpu.fault[gpu.id[i]];
        char text[300];
        if (!f->set) continue;
        if (f->element < 0)
            snprintf(text, sizeof text, "%s: the gradient is not finite", f->name);
        else
            snprintf(text, sizeof text, "%s: element %lld is %g", f->name, (long long)f->element, f->value);
        tess_fault_set(f->order, text);
        f->set = 0;
    }
}

/* ---- memory ---- */

bool tess_gpu_pin(void *p, size_t bytes)
{
    if (gpu.workers == 0) return false;
    tess_cuda_on_own(own.device, own.n);
    tess_cuda_host_touch(p, bytes);
    const bool pinned = starpu_memory_pin(p, bytes) == 0;
    if (!pinned) tess_cuda_look();
    return pinned;
}

void tess_gpu_unpin(void *p, size_t bytes)
{
    if (own.n == 0) return;
    tess_cuda_on_own(own.device, own.n);
    starpu_memory_unpin(p, bytes);
}

/* From CUDA, since StarPU allocates nothing that is more than 0.9 of what is free (FREE_MARGIN in its driver). Told of
 * it, StarPU keeps what it allocates by itself to the rest of its limit. */
uintptr_t tess_gpu_take(uint64_t bytes)
{
    const unsigned node = tess_gpu_first_node();
    if (starpu_memory_allocate(node, bytes, 0)) return 0;
    tess_cuda_on_own(own.device, own.n);
    void *piece = tess_cuda_device_new(bytes);
    if (!piece) starpu_memory_deallocate(node, bytes);
    return (uintptr_t)piece;
}

/* StarPU cuts small buffers from chunks, and keeps some of them free. It would ask for ever for a chunk that CUDA
 * refused during a run, so it gets them at the start. */
tess_status tess_gpu_take_chunks(void)
{
    enum { PIECE = 4 << 20, CHUNK = 8 * PIECE, KEPT = 4 };
    const unsigned node = tess_gpu_first_node();
    uintptr_t piece[KEPT * CHUNK / PIECE];
    const uint64_t chunks = tess_gpu_limit() / TESS_GPU_SMALL / CHUNK;
    const int n = (int)(chunks < 1 ? 1 : chunks < KEPT ? chunks : KEPT) * (CHUNK / PIECE);
    int has = 0;
    while (has < n && (piece[has] = starpu_malloc_on_node(node, PIECE))) has++;
    for (int i = 0; i < has; i++) starpu_free_on_node(node, piece[i], PIECE);
    if (has == n) return TESS_OK;
    return tess_error(TESS_INVALID, "GPU",
                      "its memory leaves StarPU no %s for small buffers (let tiles have less of it)",
                      tess_human_bytes(n * (double)PIECE));
}

void tess_gpu_give(uintptr_t piece, uint64_t bytes)
{
    tess_cuda_on_own(own.device, own.n);
    tess_cuda_device_free((void *)piece);
    starpu_memory_deallocate(tess_gpu_first_node(), bytes);
}

/* StarPU resets the counts of a bus when they are read, so each bus has one reader. */
static uint64_t count_moved(bool from_gpu, bool to_gpu)
{
    struct starpu_profiling_bus_info i;
    uint64_t bytes = 0;
    for (int bus = 0; bus < starpu_bus_get_count(); bus++) {
        const enum starpu_node_kind src = starpu_node_get_kind((unsigned)starpu_bus_get_src(bus)),
                                    dst = starpu_node_get_kind((unsigned)starpu_bus_get_dst(bus));
        if ((src == STARPU_CUDA_RAM) != from_gpu || (dst == STARPU_CUDA_RAM) != to_gpu) continue;
        if (!starpu_bus_get_profiling_info(bus, &i)) bytes += (uint64_t)i.transferred_bytes;
    }
    return bytes;
}

void tess_gpu_traffic(uint64_t *to, uint64_t *from)
{
    *to = count_moved(false, true);
    *from = count_moved(true, false);
}

uint64_t tess_gpu_peer_traffic(void)
{
    return count_moved(true, true);
}

/* Of all GPUs, what StarPU holds there. The peak is taken at each call, and each launch makes one. */
void tess_gpu_use(uint64_t *now, uint64_t *peak)
{
    uint64_t bytes = 0;
    for (int i = 0; i < gpu.workers; i++) {
        const unsigned node = starpu_worker_get_memory_node((unsigned)gpu.id[i]);
        const starpu_ssize_t total = starpu_memory_get_total(node), left = starpu_memory_get_available(node);
        if (total > left) bytes += (uint64_t)(total - left);
    }
    uint64_t most = __atomic_load_n(&gpu.peak, __ATOMIC_RELAXED);
    while (bytes > most &&
           !__atomic_compare_exchange_n(&gpu.peak, &most, bytes, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    *now = bytes;
    *peak = bytes > most ? bytes : most;
}
