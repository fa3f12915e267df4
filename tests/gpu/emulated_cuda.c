/* GPUs for StarPU where there are none: the calls of CUDA's runtime that StarPU's driver and runtime/ make, over the
 * CPU's memory. Bodies are the CPU's, so that a run has the same bits wherever its tasks ran; the kernels have tests of
 * their own (emulated.cpp). So whole runs go through StarPU's driver, its memory nodes and our plan for them:
 *
 *     tools/starpu cuda; with_cuda=yes; . tools/lib.sh; build build-emulated -Demulated_gpu=true
 *
 * It is as unhelpful as a GPU may be. What is put on a stream happens later, on another thread, in any order that
 * streams and events allow, drawn from TESS_EMULATED_SEED; until a copy ends its target is NaN (emulated_streams.c).
 * Memory is NaN when it is given out and taken back. A context takes 600 MiB of the device that a thread is on when it
 * first calls, and a thread that never said is on device 0. A reset takes memory, streams and events. Bodies may touch
 * the memory of their stream's device alone.
 *
 *     TESS_EMULATED_GPU=4096       MiB of each device
 *     TESS_EMULATED_GPUS=1         devices
 *     TESS_EMULATED_BESIDE=0       MiB of each that other programs hold
 *     TESS_EMULATED_SEED=1         of what happens when; step k of a training run draws from this and k together
 *     TESS_EMULATED_TOGETHER=FILE  processes that share the devices: contexts and memory of all count
 *     TESS_EMULATED_LATE=RANK      a rank whose resets take a second longer
 *     TESS_EMULATED_ERROR=35       what the driver says instead of having devices (0: it has them)
 *     TESS_EMULATED_FAULT="X 3"    from the third on X is refused, which is cudaMalloc, cudaHostAlloc,
 *                                  cudaHostRegister or what makes and launches a graph; of
 *                                  cudaGraphExecKernelNodeSetParams it is not said; or copies and launches are
 *                                  counted: from the third on the GPU is "lost" and every wait for it says so, or
 *                                  "stands" and nothing on it ends
 *     TESS_EMULATED_CLOCK=1000     events find a clock that each body moves by so many us, and nothing else does
 *     TESS_EMULATED_OWN_BITS=1     bodies have bits of their own (emulated_bits.c)
 *     TESS_EMULATED_DRY=FILE       nothing is computed or copied, all takes its time (emulated_dry.c)
 *     TESS_EMULATED_REPORT=FILE    to which a line is added at the end: contexts, copies, and what was loaded when
 *
 * The program's own symbols come before those of the libraries, so this takes the place of libcudart for StarPU too. */
#include "tests/gpu/emulated_cuda.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct emulated_counts emulated_counts;

/* What a device holds, of all processes that share it, in memory of theirs. */
static struct use {
    int contexts;
    size_t bytes;
} alone[EMULATED_DEVICES], *use = alone;

/* What a device gave out, and what of RAM is pinned, by address. */
struct piece {
    char *at;
    size_t bytes;
    struct piece *next;
};
static struct device {
    bool context;
    struct piece *first;
} device[EMULATED_DEVICES];
static struct piece *pinned;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int current;
static const size_t CONTEXT = (size_t)600 << 20;

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}
static size_t device_bytes(void)
{
    const char *text = getenv("TESS_EMULATED_GPU");
    return !text && emulated_dry() ? emulated_dry_bytes() : (size_t)(text ? atol(text) : 4096) << 20;
}
static int devices(void)
{
    const long n = setting("TESS_EMULATED_GPUS", 1);
    return n < EMULATED_DEVICES ? (int)n : EMULATED_DEVICES;
}

void emulated_broken(const char *what, ...)
{
    va_list ap;
    fprintf(stderr, "emulated GPU: ");
    va_start(ap, what);
    vfprintf(stderr, what, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    abort();
}

bool emulated_fault(const char *what)
{
    static _Atomic long calls;
    const char *asked = getenv("TESS_EMULATED_FAULT");
    const size_t n = strlen(what);
    return asked && !strncmp(asked, what, n) && asked[n] == ' ' && ++calls >= atol(asked + n);
}

/* ---- devices ---- */

static void report(void)
{
    const char *path = getenv("TESS_EMULATED_REPORT"), *loading = getenv("CUDA_MODULE_LOADING");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f, "contexts");
    for (int i = 0; i < devices(); i++)
        if (device[i].context) fprintf(f, " %d", i);
    const struct emulated_counts *c = &emulated_counts;
    fprintf(f, ", copies %ld, pageable %ld, bodies %ld, pins %ld, launches %ld, graphs %ld, set %ld, modules %s\n",
            c->copies, c->pageable, c->bodies, c->pins, c->launches, c->graphs, c->set, loading ? loading : "-");
    fclose(f);
}

/* With the lock. */
static void set_context(int id, bool there)
{
    if (device[id].context != there) __atomic_fetch_add(&use[id].contexts, there ? 1 : -1, __ATOMIC_RELAXED);
    device[id].context = there;
}

static void share_devices(void)
{
    const char *path = getenv("TESS_EMULATED_TOGETHER");
    const int fd = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    if (fd < 0) return;
    if (ftruncate(fd, sizeof alone)) abort();
    use = mmap(NULL, sizeof alone, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (use == MAP_FAILED) abort();
    close(fd);
}

int emulated_device(void)
{
    static bool once;
    pthread_mutex_lock(&lock);
    if (!once) {
        atexit(report);
        share_devices();
    }
    once = true;
    set_context(current, true);
    pthread_mutex_unlock(&lock);
    return current;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    const cudaError_t error = (cudaError_t)setting("TESS_EMULATED_ERROR", 0);
    *count = error ? 0 : devices();
    return error;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 12040;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *id)
{
    *id = current;
    return cudaSuccess;
}
/* Since CUDA 12 this makes the context. */
cudaError_t cudaSetDevice(int id)
{
    if (id < 0 || id >= devices()) return cudaErrorInvalidDevice;
    current = id;
    emulated_device();
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int id)
{
    if (id < 0 || id >= devices()) return cudaErrorInvalidDevice;
    memset(p, 0, sizeof *p);
    strcpy(p->name, "emulated GPU");
    p->totalGlobalMem = device_bytes();
    p->major = 9;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *name, int room, int id)
{
    snprintf(name, (size_t)room, "emulated %d", id);
    return id < devices() ? cudaSuccess : cudaErrorInvalidDevice;
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
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    emulated_drain(emulated_device());
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}
cudaError_t cudaPeekAtLastError(void)
{
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorInsufficientDriver   ? "CUDA driver version is insufficient for CUDA runtime version"
           : error == cudaErrorDevicesUnavailable ? "CUDA-capable device(s) is/are busy or unavailable"
           : error                                ? "an error of the emulated GPU"
                                                  : "no error";
}

/* ---- memory ---- */

static struct piece **find(struct piece **at, const void *p)
{
    while (*at && (*at)->at != p) at = &(*at)->next;
    return at;
}
static bool holds(const struct piece *of, const void *p, size_t bytes)
{
    for (; of; of = of->next)
        if ((const char *)p >= of->at && (const char *)p + bytes <= of->at + of->bytes) return true;
    return false;
}

bool emulated_is_on(int id, const void *p, size_t bytes)
{
    pthread_mutex_lock(&lock);
    const bool is = holds(device[id].first, p, bytes);
    pthread_mutex_unlock(&lock);
    return is;
}
bool emulated_is_pinned(const void *p, size_t bytes)
{
    pthread_mutex_lock(&lock);
    bool is = holds(pinned, p, bytes);
    for (int i = 0; i < devices() && !is; i++) is = holds(device[i].first, p, bytes);
    pthread_mutex_unlock(&lock);
    return is;
}

static size_t taken(int id)
{
    const int contexts = __atomic_load_n(&use[id].contexts, __ATOMIC_RELAXED);
    return __atomic_load_n(&use[id].bytes, __ATOMIC_RELAXED) + (size_t)contexts * CONTEXT +
           ((size_t)setting("TESS_EMULATED_BESIDE", 0) << 20);
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    const int id = emulated_device();
    pthread_mutex_lock(&lock);
    *total = device_bytes();
    *left = *total > taken(id) ? *total - taken(id) : 0;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* NaN, as floats; or nothing, where nothing is computed. */
static bool get_memory(void **p, size_t bytes)
{
    if (!emulated_dry()) return !posix_memalign(p, 256, bytes) && memset(*p, 0xff, bytes);
    *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *p != MAP_FAILED;
}
static void put_memory(void *p, size_t bytes)
{
    if (emulated_dry())
        munmap(p, bytes);
    else
        free(memset(p, 0xff, bytes));
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    const int id = emulated_device();
    cudaError_t error = cudaErrorMemoryAllocation;
    if (emulated_fault("cudaMalloc")) return error;
    pthread_mutex_lock(&lock);
    struct piece *piece = malloc(sizeof *piece);
    if (piece && taken(id) + bytes <= device_bytes() && get_memory(p, bytes ? bytes : 1)) {
        *piece = (struct piece){*p, bytes, device[id].first};
        device[id].first = piece;
        __atomic_fetch_add(&use[id].bytes, bytes, __ATOMIC_RELAXED);
        error = cudaSuccess;
    } else
        free(piece);
    pthread_mutex_unlock(&lock);
    return error;
}

static bool take_back(int id, const void *p)
{
    struct piece **at = find(&device[id].first, p), *piece = *at;
    if (!piece) return false;
    *at = piece->next;
    __atomic_fetch_sub(&use[id].bytes, piece->bytes, __ATOMIC_RELAXED);
    put_memory(piece->at, piece->bytes ? piece->bytes : 1);
    free(piece);
    return true;
}

/* After all that is on its way there. */
cudaError_t cudaFree(void *p)
{
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    const int own = emulated_device();
    bool was = !p;
    if (p) emulated_drain(own);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < devices() && !was; i++) was = take_back(i, p);
    pthread_mutex_unlock(&lock);
    return was ? cudaSuccess : cudaErrorInvalidDevicePointer;
}

cudaError_t cudaDeviceReset(void)
{
    const char *late = getenv("TESS_EMULATED_LATE"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    emulated_drain(current);
    emulated_forget(current);
    if (late && rank && !strcmp(late, rank)) sleep(1);
    pthread_mutex_lock(&lock);
    while (device[current].first) take_back(current, device[current].first->at);
    set_context(current, false);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* ---- RAM that devices reach by themselves ---- */

/* Pinning takes long: nobody else may have to wait for it, which a thread that wants the slab's lock would. */
static void *asks_the_slab(void *done)
{
    uint64_t now, peak;
    extern void tess_slab_use(uint64_t *, uint64_t *);
    tess_slab_use(&now, &peak);
    __atomic_store_n((int *)done, 1, __ATOMIC_RELEASE);
    return NULL;
}
static void check_nobody_waits(void)
{
    pthread_t thread;
    int done = 0;
    if (emulated_counts.pins++ % 16) return;
    if (pthread_create(&thread, NULL, asks_the_slab, &done)) return;
    for (int i = 0; i < 60000 && !__atomic_load_n(&done, __ATOMIC_ACQUIRE); i++) usleep(1000);
    if (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) emulated_broken("the slab is locked while memory is pinned");
    pthread_join(thread, NULL);
}

static void add_pinned(void *p, size_t bytes)
{
    struct piece *piece = malloc(sizeof *piece);
    if (!piece) abort();
    pthread_mutex_lock(&lock);
    *piece = (struct piece){p, bytes, pinned};
    pinned = piece;
    pthread_mutex_unlock(&lock);
}
static bool drop_pinned(void *p)
{
    pthread_mutex_lock(&lock);
    struct piece **at = find(&pinned, p), *piece = *at;
    if (piece) *at = piece->next;
    pthread_mutex_unlock(&lock);
    free(piece);
    return piece;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    (void)flags;
    emulated_device();
    if (emulated_fault("cudaHostAlloc") || posix_memalign(p, 4096, bytes ? bytes : 1)) return cudaErrorMemoryAllocation;
    add_pinned(*p, bytes);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p)
{
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    emulated_drain(emulated_device());
    if (!drop_pinned(p)) return cudaErrorInvalidValue;
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    (void)flags;
    emulated_device();
    if (emulated_is_pinned(p, 1)) return cudaErrorHostMemoryAlreadyRegistered;
    if (emulated_fault("cudaHostRegister")) return cudaErrorMemoryAllocation;
    if (emulated_dry())
        emulated_dry_pin(bytes);
    else
        check_nobody_waits();
    add_pinned(p, bytes);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p)
{
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    emulated_drain(emulated_device());
    return drop_pinned(p) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}
