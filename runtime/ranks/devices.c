/* The GPUs of this machine, before they are divided. A build without nvcc, or with a StarPU that has no CUDA, has none.
 */
#include "runtime/ranks/devices.h"
#include "runtime/runtime.h"
#include <starpu_config.h>

#if defined TESS_HAVE_CUDA && defined STARPU_USE_CUDA
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Loading a kernel at its first launch waits for the device, and a message of NCCL's that waits for its peer keeps that
 * from ever being idle: so where NCCL may carry, kernels are loaded at the start ("Lazy Loading", "Concurrent
 * execution" in CUDA's programming guide). CUDA reads the variable at its first call, which may be MPI's. */
void tess_gpu_load_at_once(void)
{
#if defined TESS_HAVE_NCCL || defined TESS_EMULATED_GPU
    const char *carrier = getenv("TESSERA_PARALLEL_CARRIER");
    if (carrier && *carrier && strcmp(carrier, "auto") && strcmp(carrier, "nccl")) return;
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
#endif
}

static cudaError_t count_devices(int *count)
{
    *count = 0;
    return cudaGetDeviceCount(count);
}

int tess_gpu_devices(void)
{
    int count;
    if (count_devices(&count) != cudaSuccess) return 0;
    return count < TESS_MAX_GPUS ? count : TESS_MAX_GPUS;
}

/* Where there is no driver the runtime says that it is too old. */
static bool has_driver(void)
{
#ifdef TESS_EMULATED_GPU
    return true;
#else
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver) dlclose(driver);
    return driver;
#endif
}

const char *tess_gpu_trouble(void)
{
    static char text[300];
    int count, driver = 0, runtime = 0;
    const cudaError_t error = count_devices(&count);
    if (error == cudaSuccess || error == cudaErrorNoDevice || !has_driver()) return NULL;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    snprintf(text, sizeof text, "CUDA says \"%s\" (its driver is for CUDA %d.%d, this program was built with %d.%d)",
             cudaGetErrorString(error), driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return text;
}

bool tess_gpu_device_bus(int device, char *bus, int room)
{
    return cudaDeviceGetPCIBusId(bus, room, device) == cudaSuccess;
}

uint64_t tess_gpu_device_bytes(int device, char *name, int room)
{
    struct cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, device) != cudaSuccess) return 0;
    snprintf(name, (size_t)room, "%s", p.name);
    return p.totalGlobalMem;
}

/* ---- what copies reach there ---- */

/* Returns the best rate of some turns that are long enough for a clock; 0: a copy failed. */
static double copy_rate(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    enum { TURNS = 5 };
    double best = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        const double start = tess_seconds();
        if (cudaMemcpy(to, from, bytes, kind) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) return 0;
        const double rate = (double)bytes / (tess_seconds() - start);
        if (rate > best) best = rate;
    }
    return best;
}

bool tess_gpu_device_copies(int device, tess_gpu_copies *out)
{
    const size_t bytes = 256 << 20;
    void *host = NULL, *one = NULL, *other = NULL;
    *out = (tess_gpu_copies){0};
    if (cudaSetDevice(device) == cudaSuccess && cudaHostAlloc(&host, bytes, cudaHostAllocPortable) == cudaSuccess &&
        cudaMalloc(&one, bytes) == cudaSuccess && cudaMalloc(&other, bytes) == cudaSuccess)
        *out = (tess_gpu_copies){.within = 2 * copy_rate(one, other, bytes, cudaMemcpyDeviceToDevice),
                                 .to = copy_rate(one, host, bytes, cudaMemcpyHostToDevice),
                                 .from = copy_rate(host, one, bytes, cudaMemcpyDeviceToHost)};
    if (other) cudaFree(other);
    if (one) cudaFree(one);
    if (host) cudaFreeHost(host);
    cudaGetLastError(); /* nothing of it is the run's */
    return out->within > 0 && out->to > 0 && out->from > 0;
}

/* A context takes what it takes before anybody asks for memory, so it is made first. */
void tess_gpu_device_open(const int *device, int n)
{
    for (int i = 0; i < n; i++)
        if (cudaSetDevice(device[i]) == cudaSuccess) cudaFree(NULL);
    if (n) cudaSetDevice(device[0]); /* the thread's from now on: that is no other rank's */
}

uint64_t tess_gpu_device_free(const int *device, int n)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < n; i++) {
        size_t left = 0, total = 0;
        if (cudaSetDevice(device[i]) != cudaSuccess || cudaMemGetInfo(&left, &total) != cudaSuccess) continue;
        if (left < least) least = left;
    }
    if (n) cudaSetDevice(device[0]);
    return least < UINT64_MAX ? least : 0;
}

#else

void tess_gpu_load_at_once(void) {}
int tess_gpu_devices(void)
{
    return 0;
}
const char *tess_gpu_trouble(void)
{
    return NULL;
}
bool tess_gpu_device_bus(int device, char *bus, int room)
{
    (void)device, (void)bus, (void)room;
    return false;
}
uint64_t tess_gpu_device_bytes(int device, char *name, int room)
{
    (void)device, (void)name, (void)room;
    return 0;
}
bool tess_gpu_device_copies(int device, tess_gpu_copies *out)
{
    (void)device, (void)out;
    return false;
}
void tess_gpu_device_open(const int *device, int n)
{
    (void)device, (void)n;
}
uint64_t tess_gpu_device_free(const int *device, int n)
{
    (void)device, (void)n;
    return 0;
}
#endif
