/* Which of the machine's GPUs are this rank's, and what they hold. */
#include "runtime/gpu/gpu.h"
#include "runtime/ranks/devices.h"
#include "runtime/ranks/share.h"
#include <starpu.h>
#include <stdlib.h>

bool tess_on_gpu(int worker)
{
    return worker >= 0 && starpu_worker_get_type(worker) == STARPU_CUDA_WORKER;
}

/* This rank's: those that share.c left it, or the user, whose variables of StarPU win. */
static int devices(int id[TESS_MAX_GPUS])
{
    tess_share_read();
    const int n = tess_share_gpus(id);
    return n < STARPU_MAXCUDADEVS ? n : STARPU_MAXCUDADEVS;
}

int tess_gpus(void)
{
    int id[TESS_MAX_GPUS];
    return devices(id);
}

int tess_gpu_device(void)
{
    int id[TESS_MAX_GPUS];
    return devices(id) > 0 ? id[0] : -1;
}

bool tess_gpu_first(int *device, char *name, int room)
{
    int id[TESS_MAX_GPUS];
    if (devices(id) == 0) return false;
    *device = id[0];
    return tess_gpu_device_bus(id[0], name, room);
}

uint64_t tess_gpu_about(char *name, int room)
{
    const int device = tess_gpu_device();
    return device < 0 ? 0 : tess_gpu_device_bytes(device, name, room);
}

bool tess_gpu_copies_measure(tess_gpu_copies *out)
{
    const int device = tess_gpu_device();
    return device >= 0 && tess_gpu_device_copies(device, out);
}

uint64_t tess_gpu_bytes(uint64_t cap)
{
    uint64_t bytes = 0;
    int id[TESS_MAX_GPUS], n = devices(id);
    for (int i = 0; i < n; i++) {
        char name[256];
        const uint64_t all = tess_gpu_device_bytes(id[i], name, sizeof name),
                       most = all - all / 10; /* as StarPU does */
        bytes += cap && cap < most ? cap : most;
    }
    return bytes;
}

uint64_t tess_gpu_limit(void)
{
    const char *mib = getenv("STARPU_LIMIT_CUDA_MEM");
    return mib ? (uint64_t)atoll(mib) << 20 : 0;
}

/* What a context, modules and other programs hold is not free. Three parts in a hundred of the rest are left for what
 * CUDA and NCCL take later. A round number, so that a few bytes more or less make no other plan. */
uint64_t tess_gpu_share(uint64_t cap)
{
    const uint64_t grain = 64 << 20, limit = tess_gpu_limit(), most = limit ? limit : cap;
    const uint64_t left = (uint64_t)(0.97 * (double)tess_share_gpu_free()) / grain * grain;
    return most && most < left ? most : left;
}

/* All that StarPU allocates there by itself, and what it may allocate: a worker's scratch, and a part for tiles
 * without places, which are inputs and scalars, and for what is rounded up. */
uint64_t tess_gpu_tiles(uint64_t cap)
{
    if (tess_gpus() != 1) return 0;
    const uint64_t bytes = tess_gpu_share(cap), starpus = TESS_GPU_ROOM + bytes / TESS_GPU_SMALL;
    return bytes > starpus ? bytes - starpus : 1;
}

uint64_t tess_gpu_cap(uint64_t tiles)
{
    return (tiles + TESS_GPU_ROOM) / (TESS_GPU_SMALL - 1) * TESS_GPU_SMALL + TESS_GPU_SMALL;
}

const char *tess_gpu_support(void)
{
    static char text[600];
    char name[256];
    uint64_t bytes;
    int id[TESS_MAX_GPUS], n = devices(id);
    if (tess_cuda_lacks()) return tess_cuda_lacks();
    if (tess_gpu_trouble()) {
        snprintf(text, sizeof text, "CUDA bodies are built, StarPU drives GPUs, but %s", tess_gpu_trouble());
        return text;
    }
    if (n == 0 || !(bytes = tess_gpu_device_bytes(id[0], name, sizeof name)))
        return "CUDA bodies are built, StarPU drives GPUs, and there is none (or none is left by STARPU_NCUDA)";
    snprintf(text, sizeof text, "StarPU drives %d: %s, %s each", n, name, tess_human_bytes((double)bytes));
    return text;
}

int tess_cores(void)
{
    const char *ncpu = getenv("STARPU_NCPU"); /* StarPU's own, which wins */
    int cores = tess_share_read()->cores;
    /* A GPU's worker launches kernels and starts copies, and needs a core for it. StarPU leaves it one where the
     * number of CPU workers is not set (_starpu_init_machine_config); where it is, StarPU binds the last CPU worker to
     * the same core, and both poll there. StarPU takes off by itself what the user reserves. */
    const char *kept = getenv("STARPU_RESERVE_NCPU");
    const int reserve = kept && atoi(kept) > 0 ? atoi(kept) : 0,
              gpus = tess_gpus() > reserve ? tess_gpus() - reserve : 0;
    if (!(ncpu && atoi(ncpu) > 0)) cores = cores > gpus ? cores - gpus : 1;
    if (cores > STARPU_MAXCPUS) cores = STARPU_MAXCPUS;
    return ncpu && atoi(ncpu) > 0 && atoi(ncpu) < cores ? atoi(ncpu) : cores;
}
