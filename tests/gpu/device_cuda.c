/* The first GPU as the device. */
#include "tests/gpu/device.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

bool device_is_there(void)
{
    int count = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL); /* without one CUDA says that it is too old */
    if (!driver) return false;
    dlclose(driver);
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaErrorNoDevice) check(error, "cudaGetDeviceCount");
    return count > 0;
}
const char *device_name(void)
{
    static struct cudaDeviceProp properties;
    return cudaGetDeviceProperties(&properties, 0) == cudaSuccess ? properties.name : "no GPU";
}
void *device_new(size_t bytes)
{
    void *p = NULL;
    check(cudaMalloc(&p, bytes ? bytes : 1), "cudaMalloc");
    return p;
}
void device_free(void *p)
{
    check(cudaFree(p), "cudaFree");
}
void device_put(void *device, const void *host, size_t bytes)
{
    check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "copy to the device");
}
void device_get(void *host, const void *device, size_t bytes)
{
    check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}
void *device_host(size_t bytes)
{
    void *p = NULL;
    check(cudaHostAlloc(&p, bytes, cudaHostAllocMapped), "cudaHostAlloc");
    return p;
}
const char *device_error(void)
{
    cudaError_t error = cudaDeviceSynchronize();
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}
