/* The GPUs of a machine that is simulated, in the place of what CUDA says of this one's (gpu/cuda.c, ranks/devices.c).
 * Their memory is StarPU's, which counts it and has none; their streams are its workers of GPUs. */
#include "runtime/gpu/gpu.h"
#include "runtime/ranks/devices.h"
#include "tools/simulate/simulated.h"
#include <stdlib.h>

/* ---- devices ---- */

void tess_gpu_load_at_once(void) {}

int tess_gpu_devices(void)
{
    return tess_simulated_machine()->gpus.count;
}

const char *tess_gpu_trouble(void)
{
    return NULL;
}

bool tess_gpu_device_bus(int device, char *bus, int room)
{
    snprintf(bus, (size_t)room, "simulated %d", device);
    return true;
}

uint64_t tess_gpu_device_bytes(int device, char *name, int room)
{
    (void)device;
    snprintf(name, (size_t)room, "%s", tess_simulated_machine()->gpus.name);
    return tess_simulated_machine()->gpus.bytes;
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
    (void)device;
    return n ? tess_simulated_machine()->gpus.bytes : 0;
}

/* ---- what CUDA is asked for ---- */

const char *tess_cuda_lacks(void)
{
    return NULL;
}

void tess_cuda_on_own(const int *device, int n)
{
    (void)device, (void)n;
}

void *tess_cuda_host_new(size_t bytes)
{
    return tess_alloc(bytes);
}

void tess_cuda_host_free(void *p)
{
    free(p);
}

void tess_cuda_host_touch(void *p, size_t bytes)
{
    (void)p, (void)bytes;
}

/* Nothing is ever there. */
void *tess_cuda_device_new(size_t bytes)
{
    (void)bytes;
    return (void *)((uintptr_t)1 << 40);
}

void tess_cuda_device_free(void *p)
{
    (void)p;
}

void tess_cuda_body_begins(int worker, void *stream)
{
    (void)worker, (void)stream;
}

void tess_cuda_body_ends(int worker, void *stream)
{
    (void)worker, (void)stream;
}

void tess_cuda_times_free(int worker)
{
    (void)worker;
}

void *tess_cuda_stream(void)
{
    return NULL;
}

void tess_cuda_look(void) {}

const char *tess_cuda_said(void)
{
    return NULL;
}

/* As in a build with nvcc. */
tess_body tess_gpu_body(const tess_codelet *cl)
{
    return cl->cpu_alone ? NULL : cl->cpu;
}

/* A launch: the time of what it puts on the stream is StarPU's, by the model of its codelet. */
void tess_gpu_run(const tess_codelet *cl, const tess_work *w)
{
    (void)cl;
    tess_simulated_choose(w->task);
}
