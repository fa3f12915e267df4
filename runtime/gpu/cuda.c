/* What is asked of CUDA for a rank's GPUs, in a build that has it: memory of the host, a stream, bodies. A machine that
 * is not here has simulated/gpu.c in this file's place. */
#include "runtime/gpu/gpu.h"
#include "runtime/progress/progress.h"
#include <starpu.h>
#include <sys/mman.h>
#ifdef TESS_EMULATED_GPU
#include "tests/gpu/emulated_cuda.h"
#endif

tess_body tess_gpu_body(const tess_codelet *cl)
{
#ifdef TESS_EMULATED_GPU
    return cl->cpu_alone ? NULL : cl->cpu;
#else
    return cl->cuda;
#endif
}

void tess_gpu_run(const tess_codelet *cl, const tess_work *w)
{
#ifdef TESS_EMULATED_GPU
    tess_emulated_run(tess_gpu_body(cl), w);
#else
    tess_gpu_body(cl)(w);
#endif
}

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

#if defined TESS_HAVE_CUDA && defined STARPU_USE_CUDA
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>

const char *tess_cuda_lacks(void)
{
    return NULL;
}

/* A thread that never said which device it works on has the first of the machine, which is another rank's: a call of
 * CUDA there would make a context on it, half a GiB for nothing. */
void tess_cuda_on_own(const int *own, int n)
{
    int device;
    if (cudaGetDevice(&device) != cudaSuccess) return;
    for (int i = 0; i < n; i++)
        if (device == own[i]) return;
    cudaSetDevice(own[0]);
}

void *tess_cuda_host_new(size_t bytes)
{
    void *p;
    return cudaHostAlloc(&p, bytes, cudaHostAllocPortable | cudaHostAllocMapped) == cudaSuccess ? p : NULL;
}

void tess_cuda_host_free(void *p)
{
    cudaFreeHost(p);
}

/* The kernel makes them; one that does not know how is asked for each by a write. */
void tess_cuda_host_touch(void *p, size_t bytes)
{
    enum { TURN = 16 << 20, PAGE = 4096 };
#ifdef TESS_EMULATED_GPU
    if (emulated_dry()) return; /* there is no memory behind it */
#endif
    for (size_t at = 0, n; at < bytes; at += n) {
        char *part = (char *)p + at;
        n = bytes - at < TURN ? bytes - at : TURN;
        if (madvise(part, n, MADV_POPULATE_WRITE))
            for (size_t i = 0; i < n; i += PAGE) *(volatile char *)(part + i) = 0;
        tess_patience_moved();
    }
}

void *tess_cuda_device_new(size_t bytes)
{
    void *p;
    const cudaError_t error = cudaMalloc(&p, bytes);
    tess_cuda_look();
    (void)cudaGetLastError(); /* no later call finds this error */
    return error == cudaSuccess ? p : NULL;
}

void tess_cuda_device_free(void *p)
{
    cudaFree(p);
}

void *tess_cuda_stream(void)
{
    return starpu_cuda_get_local_stream();
}

/* In the place of StarPU's, which says where in its source it was and aborts: a GPU that is lost, or a kernel that
 * wrote where it may not, is the end of the run. */
void starpu_cuda_report_error(const char *function, const char *file, int line, cudaError_t error)
{
    char text[400];
    (void)file, (void)line;
    snprintf(text, sizeof text, "GPU: %s (error %d of CUDA, met in %s; the kernel's log may say more)",
             cudaGetErrorString(error), (int)error, function);
    tess_die(text);
}

static _Atomic int said;

/* ---- when bodies ran ---- */

/* Events on a worker's stream before and behind its last bodies. Between two of them a GPU measures; of the host's
 * clock it knows nothing. So a body begins as long after the one before ended as the GPU says, but not before its
 * launch, and ends no later than it is seen to have ended. */
enum { BODIES = 32 }; /* one more than StarPU has in its pipeline, and some */
static struct times {
    cudaEvent_t begin[BODIES], end[BODIES];
    const struct starpu_task *task[BODIES];
    double launched[BODIES], ended; /* by StarPU's clock, in us; ended: the last that was asked for */
    unsigned put, asked;
} * times_of[STARPU_NMAXWORKERS];

static struct times *times_new(void)
{
    struct times *t = tess_alloc(sizeof *t);
    for (int k = 0; k < BODIES; k++)
        if (cudaEventCreateWithFlags(&t->begin[k], cudaEventDefault) != cudaSuccess ||
            cudaEventCreateWithFlags(&t->end[k], cudaEventDefault) != cudaSuccess)
            tess_die("GPU: it makes no events");
    return t;
}

void tess_cuda_body_begins(int worker, void *stream)
{
    if (!times_of[worker]) times_of[worker] = times_new();
    struct times *t = times_of[worker];
    t->launched[t->put % BODIES] = starpu_timing_now();
    cudaEventRecord(t->begin[t->put % BODIES], stream);
}

void tess_cuda_body_ends(int worker, void *stream)
{
    struct times *t = times_of[worker];
    t->task[t->put % BODIES] = starpu_task_get_current();
    cudaEventRecord(t->end[t->put++ % BODIES], stream);
}

void tess_cuda_times_free(int worker)
{
    struct times *t = times_of[worker];
    for (int k = 0; k < BODIES && t; k++) {
        cudaEventDestroy(t->begin[k]);
        cudaEventDestroy(t->end[k]);
    }
    free(t);
    times_of[worker] = NULL;
}

static double us_of(const struct timespec *t)
{
    return 1e6 * (double)t->tv_sec + 1e-3 * (double)t->tv_nsec;
}

static struct timespec timespec_of(double us)
{
    const double seconds = floor(us * 1e-6);
    return (struct timespec){(time_t)seconds, (long)(1e3 * (us - 1e6 * seconds))};
}

void starpu_cuda_body_times(struct starpu_task *task, struct timespec *begin, struct timespec *end);

/* A StarPU that tools/starpu built asks for it where it ends a task on a GPU, before its profile, our trace and its
 * performance models take the times; another has those of the host. */
void starpu_cuda_body_times(struct starpu_task *task, struct timespec *begin, struct timespec *end)
{
    struct times *t = times_of[starpu_worker_get_id()];
    float took, after;
    if (!t || t->asked == t->put || t->task[t->asked % BODIES] != task) return; /* it launched nothing */
    const unsigned k = t->asked++ % BODIES, before = (k + BODIES - 1) % BODIES;
    if (cudaEventElapsedTime(&took, t->begin[k], t->end[k]) != cudaSuccess) return;
    const double length = 1e3 * (double)took, seen = us_of(end);
    double from = t->launched[k];
    if (t->asked > 1 && cudaEventElapsedTime(&after, t->end[before], t->begin[k]) == cudaSuccess)
        from = fmax(from, t->ended + 1e3 * (double)after);
    from = fmin(from, seen - length);
    t->ended = from + length;
    *begin = timespec_of(from);
    *end = timespec_of(t->ended);
}

void tess_cuda_look(void)
{
    const cudaError_t error = cudaPeekAtLastError();
    if (error != cudaSuccess) said = (int)error;
}

const char *tess_cuda_said(void)
{
    return said ? cudaGetErrorString((cudaError_t)said) : NULL;
}

#else

const char *tess_cuda_lacks(void)
{
#ifdef TESS_HAVE_CUDA
    return "CUDA bodies are built, but this StarPU has no CUDA (tools/starpu cuda builds one that has)";
#else
    return "this build has no CUDA bodies (it found no nvcc)";
#endif
}

/* It does nothing without workers of GPUs. */
void tess_cuda_on_own(const int *device, int n)
{
    (void)device, (void)n;
}

void *tess_cuda_host_new(size_t bytes)
{
    (void)bytes;
    return NULL;
}

void tess_cuda_host_free(void *p)
{
    (void)p;
}

void tess_cuda_host_touch(void *p, size_t bytes)
{
    (void)p, (void)bytes;
}

void *tess_cuda_device_new(size_t bytes)
{
    (void)bytes;
    return NULL;
}

void tess_cuda_device_free(void *p)
{
    (void)p;
}

void *tess_cuda_stream(void)
{
    return NULL;
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

void tess_cuda_look(void) {}

const char *tess_cuda_said(void)
{
    return NULL;
}
#endif
