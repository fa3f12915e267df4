/* emulated_runtime: what is called of CUDA's runtime beside kernels: memory, events and streams, on which nothing is
 * ever left to wait for. */
#ifndef TESS_TESTS_EMULATED_RUNTIME_H
#define TESS_TESTS_EMULATED_RUNTIME_H
#include "tests/gpu/emulate.h"
#include <cstdlib>
#include <cstring>

typedef struct emulated_event *cudaEvent_t;
static inline cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return posix_memalign(p, 256, bytes) ? cudaErrorInvalidValue : cudaSuccess;
}
static inline cudaError_t cudaFree(void *p)
{
    free(p);
    return cudaSuccess;
}
static inline cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = (cudaEvent_t)malloc(1);
    return cudaSuccess;
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}
static inline cudaError_t cudaEventRecord(cudaEvent_t, int)
{
    return cudaSuccess;
}
static inline cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaSuccess;
}
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t)
{
    *ms = 1;
    return cudaSuccess;
}
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
static inline cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    memset(p, value, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}

#endif
