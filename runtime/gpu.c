/* GPUs: which are this rank's, what each of their workers has, and what their kernels said. Calls of CUDA are in this
 * file and nccl.c; a build without nvcc, or with a StarPU that has no CUDA, has no GPUs.
 *
 * A worker drives one GPU through one stream, on which the kernels of its tasks run one after the other. So each worker
 * needs one piece of scratch, and one place where kernels say what failed: both are made at the start, the first
 * through StarPU, which counts it below its limit, the second in host memory that the GPU writes. */
#include "share_impl.h"
#include "starpu_impl.h"
#include <stdlib.h>
#include <string.h>

#if defined TESS_HAVE_CUDA && defined STARPU_USE_CUDA
#include <cuda_runtime_api.h>

enum {
    ROOM = 64 << 20, /* a product's workspace, and as much for the body beside it */
    MAX_GPUS = 64
};

static struct {
    int workers, id[MAX_GPUS];
    uintptr_t room[TESS_MAX_WORKERS];
    struct tess_kernel_fault *fault; /* of each worker, in pinned memory */
    uint64_t peak;
} gpu;

int tess_gpu_devices(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
    return count < MAX_GPUS ? count : MAX_GPUS;
}

/* This rank's: those that share.c left it, or the user, whose variables of StarPU win. */
static int devices(int id[MAX_GPUS])
{
    tess_share_read();
    const int n = tess_share_gpu_ids(tess_gpu_devices(), getenv("STARPU_WORKERS_CUDAID"), getenv("STARPU_NCUDA"), id);
    return n < STARPU_MAXCUDADEVS ? n : STARPU_MAXCUDADEVS;
}

int tess_gpus(void)
{
    int id[MAX_GPUS];
    return devices(id);
}

bool tess_gpu_first(int *device, char *name, int room)
{
    int id[MAX_GPUS];
    if (devices(id) == 0) return false;
    *device = id[0];
    return cudaDeviceGetPCIBusId(name, room, id[0]) == cudaSuccess;
}

unsigned tess_gpu_first_node(void)
{
    return starpu_worker_get_memory_node((unsigned)gpu.id[0]);
}

uint64_t tess_gpu_bytes(uint64_t cap)
{
    uint64_t bytes = 0;
    int id[MAX_GPUS], n = devices(id);
    for (int i = 0; i < n; i++) {
        struct cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, id[i]) != cudaSuccess) continue;
        const uint64_t most = p.totalGlobalMem - p.totalGlobalMem / 10; /* as StarPU does */
        bytes += cap && cap < most ? cap : most;
    }
    return bytes;
}

/* Beside tiles are the workers' scratch, and what StarPU and CUDA round up. */
uint64_t tess_gpu_tiles(uint64_t cap)
{
    const char *limit = getenv("STARPU_LIMIT_CUDA_MEM"); /* in MiB; it wins */
    if (tess_gpus() != 1) return 0;
    const uint64_t bytes = tess_gpu_bytes(limit ? (uint64_t)atoll(limit) << 20 : cap), beside = ROOM + bytes / 64;
    return bytes > beside ? bytes - beside : 1;
}

uint64_t tess_gpu_cap(uint64_t tiles)
{
    return (tiles + ROOM) / 63 * 64 + 64;
}

const char *tess_gpu_support(void)
{
    static char text[400];
    struct cudaDeviceProp p;
    int id[MAX_GPUS], n = devices(id);
    if (n == 0 || cudaGetDeviceProperties(&p, id[0]) != cudaSuccess)
        return "CUDA bodies are built, StarPU drives GPUs, and there is none (or none is left by STARPU_NCUDA)";
    snprintf(text, sizeof text, "StarPU drives %d: %s, %s each", n, p.name, tess_human_bytes((double)p.totalGlobalMem));
    return text;
}

/* ---- start and stop ---- */

/* Before StarPU starts. What the user set wins: a worker for each GPU (of a list of them StarPU makes as many workers
 * as the machine has GPUs); kernels queue up to four deep, so that the GPU never waits for a launch; memory is kept
 * below the cap. */
void tess_gpu_prepare(uint64_t cap)
{
    char mib[32], count[16];
    if (tess_gpus() == 0) return;
    snprintf(count, sizeof count, "%d", tess_gpus());
    tess_environment_default("STARPU_NCUDA", count);
    tess_environment_default("STARPU_CUDA_PIPELINE", "4");
    if (!cap) return;
    snprintf(mib, sizeof mib, "%llu", (unsigned long long)(cap >> 20));
    tess_environment_default("STARPU_LIMIT_CUDA_MEM", mib);
}

tess_status tess_gpu_start(void)
{
    gpu.workers = (int)starpu_worker_get_ids_by_type(STARPU_CUDA_WORKER, gpu.id, MAX_GPUS);
    if (gpu.workers <= 0) {
        gpu.workers = 0;
        return TESS_OK;
    }
    const size_t bytes = TESS_MAX_WORKERS * sizeof *gpu.fault;
    if (cudaHostAlloc((void **)&gpu.fault, bytes, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess)
        return tess_error(TESS_FAILED, "gpu", "no pinned memory left (%zu bytes)", bytes);
    memset(gpu.fault, 0, bytes);
    for (int i = 0; i < gpu.workers; i++) {
        const int id = gpu.id[i];
        TESS_ASSERT(id < TESS_MAX_WORKERS);
        gpu.room[id] = starpu_malloc_on_node(starpu_worker_get_memory_node((unsigned)id), ROOM);
        if (!gpu.room[id])
            return tess_error(TESS_INVALID, "GPU", "its memory leaves no %s for the kernels' scratch (raise the cap)",
                              tess_human_bytes(ROOM));
    }
    return TESS_OK;
}

/* Before StarPU shuts down. */
void tess_gpu_stop(void)
{
    for (int i = 0; i < gpu.workers; i++) {
        const int id = gpu.id[i];
        if (gpu.room[id]) starpu_free_on_node(starpu_worker_get_memory_node((unsigned)id), gpu.room[id], ROOM);
        gpu.room[id] = 0;
    }
    if (gpu.fault) cudaFreeHost(gpu.fault);
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
    w->stream = starpu_cuda_get_local_stream();
    w->room = (void *)gpu.room[w->worker];
    w->room_bytes = ROOM;
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
    return gpu.workers > 0 && starpu_memory_pin(p, bytes) == 0;
}

void tess_gpu_unpin(void *p, size_t bytes)
{
    starpu_memory_unpin(p, bytes);
}

void tess_gpu_traffic(uint64_t *to, uint64_t *from)
{
    struct starpu_profiling_bus_info i;
    *to = *from = 0;
    for (int bus = 0; bus < starpu_bus_get_count(); bus++) {
        if (starpu_bus_get_profiling_info(bus, &i)) continue;
        const bool in = starpu_node_get_kind((unsigned)starpu_bus_get_dst(bus)) == STARPU_CUDA_RAM;
        const bool out = starpu_node_get_kind((unsigned)starpu_bus_get_src(bus)) == STARPU_CUDA_RAM;
        if (in && !out) *to += (uint64_t)i.transferred_bytes;
        if (out && !in) *from += (uint64_t)i.transferred_bytes;
    }
}

/* Of all GPUs, what StarPU holds there. The peak is that of the moments when somebody looked: each launch does. */
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

#else

int tess_gpus(void)
{
    return 0;
}
int tess_gpu_devices(void)
{
    return 0;
}
bool tess_gpu_first(int *device, char *name, int room)
{
    (void)device, (void)name, (void)room;
    return false;
}
unsigned tess_gpu_first_node(void)
{
    return STARPU_MAIN_RAM;
}
uint64_t tess_gpu_bytes(uint64_t cap)
{
    (void)cap;
    return 0;
}
const char *tess_gpu_support(void)
{
#ifdef TESS_HAVE_CUDA
    return "CUDA bodies are built, but this StarPU has no CUDA (tools/starpu-cuda builds one that has)";
#else
    return "this build has no CUDA bodies (it found no nvcc)";
#endif
}
void tess_gpu_prepare(uint64_t cap)
{
    (void)cap;
}
tess_status tess_gpu_start(void)
{
    return TESS_OK;
}
void tess_gpu_stop(void) {}
int tess_gpu_workers(void)
{
    return 0;
}
void tess_gpu_work(tess_work *w)
{
    (void)w;
}
bool tess_gpu_failed(int worker)
{
    (void)worker;
    return false;
}
void tess_gpu_faults(void) {}
bool tess_gpu_pin(void *p, size_t bytes)
{
    (void)p, (void)bytes;
    return false;
}
void tess_gpu_unpin(void *p, size_t bytes)
{
    (void)p, (void)bytes;
}
void tess_gpu_use(uint64_t *now, uint64_t *peak)
{
    *now = *peak = 0;
}
uint64_t tess_gpu_tiles(uint64_t cap)
{
    (void)cap;
    return 0;
}
uint64_t tess_gpu_cap(uint64_t tiles)
{
    return tiles;
}
void tess_gpu_traffic(uint64_t *to, uint64_t *from)
{
    *to = *from = 0;
}
#endif
