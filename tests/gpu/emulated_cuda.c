/* A GPU for StarPU where there is none: the calls of CUDA's runtime that StarPU's driver and runtime/gpu/ make, over
 * the CPU's memory. What is put on a stream has happened when the call returns; the device's memory is as large as
 * TESS_EMULATED_GPU says in MiB (4096 without), and NaN when it is given out and taken back. Its bodies are the CPU's,
 * so that a run has the same bits wherever its tasks ran; the kernels have tests of their own (emulated.cpp). So whole
 * runs go through StarPU's driver, its memory nodes and our plan for them:
 *
 *     tools/starpu cuda; with_cuda=yes; . tools/lib.sh; build build-emulated -Demulated_gpu=true
 *
 * The program's own symbols come before those of the libraries, so this takes the place of libcudart for StarPU too. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the device gave out, by address. */
struct piece {
    void *at;
    size_t bytes;
    struct piece *next;
};
static struct {
    pthread_mutex_t lock;
    struct piece *first;
    size_t used;
} device = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t device_bytes(void)
{
    const char *mib = getenv("TESS_EMULATED_GPU");
    return (size_t)(mib ? atoi(mib) : 4096) << 20;
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *id)
{
    *id = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int id)
{
    return id ? cudaErrorInvalidDevice : cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int id)
{
    (void)id;
    memset(p, 0, sizeof *p);
    strcpy(p->name, "emulated GPU");
    p->totalGlobalMem = device_bytes();
    p->major = 9;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *name, int room, int id)
{
    snprintf(name, (size_t)room, "emulated %d", id);
    return id ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int id)
{
    (void)attribute, (void)id;
    *value = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int id, int peer)
{
    (void)id, (void)peer;
    *can = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}
cudaError_t cudaDeviceReset(void)
{
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t error)
{
    return error ? "an error of the emulated GPU" : "no error";
}

/* ---- memory ---- */

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    pthread_mutex_lock(&device.lock);
    *total = device_bytes();
    *left = *total - device.used;
    pthread_mutex_unlock(&device.lock);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    cudaError_t error = cudaErrorMemoryAllocation;
    pthread_mutex_lock(&device.lock);
    struct piece *piece = malloc(sizeof *piece);
    if (piece && device.used + bytes <= device_bytes() && !posix_memalign(p, 256, bytes ? bytes : 1)) {
        memset(*p, 0xff, bytes); /* as floats, NaN */
        *piece = (struct piece){*p, bytes, device.first};
        device.first = piece;
        device.used += bytes;
        error = cudaSuccess;
    } else
        free(piece);
    pthread_mutex_unlock(&device.lock);
    return error;
}

cudaError_t cudaFree(void *p)
{
    pthread_mutex_lock(&device.lock);
    struct piece **at = &device.first;
    while (*at && (*at)->at != p) at = &(*at)->next;
    struct piece *piece = *at;
    if (piece) {
        *at = piece->next;
        device.used -= piece->bytes;
        memset(p, 0xff, piece->bytes);
        free(p);
        free(piece);
    }
    pthread_mutex_unlock(&device.lock);
    return piece || !p ? cudaSuccess : cudaErrorInvalidDevicePointer;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    return posix_memalign(p, 4096, bytes ? bytes : 1) ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    (void)p, (void)bytes, (void)flags;
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p)
{
    (void)p;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)stream;
    return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    memset(p, value, bytes);
    return cudaSuccess;
}

/* ---- streams and events: everything has happened ---- */

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    *stream = malloc(1);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = malloc(1);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)event, (void)stream;
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}
