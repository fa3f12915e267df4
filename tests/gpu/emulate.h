/* emulate: the CUDA bodies on a CPU, so that a machine without a GPU runs their very source. A thread is a fiber with a
 * stack of its own; a block's fibers run in turns, each until it waits for the others of its warp or block. What is
 * emulated is what the bodies use: barriers, shuffles, votes, matrix pieces of tensor cores as the PTX manual lays them
 * out over lanes, and asynchronous copies, which happen as late as they may in one block and at once in the next.
 *
 * It finds wrong indices, wrong layouts, missing waits, lanes that do not come to what the whole warp must come to,
 * blocks that do not meet at a barrier, and, under ASan and UBSan, accesses outside of buffers and at wrong alignments.
 * A missing barrier shows, since a warp runs ahead of the others as far as it can, and their order alternates. Shared
 * memory, dynamic and static, is NaN when a block begins, whoever had it before (emulated_shared.h). Instructions that
 * the bodies name by their text are read from that text (emulated_ptx.h). Launches beyond what the device has are
 * refused: that is an H200, an A100 or what is not for data centres in turns, or whatever TESS_EMULATED_ARCH names (80,
 * 86, 89, 90, 120), with its shared memory. It does not find what only hardware has: timing, and what the manuals do
 * not say. */
#ifndef TESS_TESTS_EMULATE_H
#define TESS_TESTS_EMULATE_H
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#ifndef __x86_64__
#include <ucontext.h>
#endif
#include <vector>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __host__
#ifndef __forceinline__
#define __forceinline__ inline
#endif

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
typedef struct CUstream_st *cudaStream_t;
extern "C" int emulated_turn;     /* which device it is: each has its turn */
extern "C" int emulated_launches; /* kernels so far, and what only sets or copies bytes */

namespace emulate
{
struct dim {
    unsigned x;
};

enum waiting { RUNS, BLOCK, WARP_OF_LANES, ENDED };
typedef void (*together)(void *argument[32]); /* what a warp's lanes do at once */

/* An asynchronous copy: `bytes` of `from`, and zeros up to `all`. */
struct copy {
    void *to;
    const void *from;
    size_t bytes, all;
};

/* Where a stack was left. */
#ifdef __x86_64__
typedef void *place;
#else
typedef ucontext_t place;
#endif

struct fiber {
    place at;
    char *stack;
    waiting why;
    together what;
    void *argument;
    bool vote;
    std::vector<std::vector<copy>> groups; /* the last one is open */
};

constexpr size_t STACK = 256 << 10;
inline fiber fibers[1024];
inline int threads, current;
inline dim block, grid;
inline bool voted;
inline place scheduler;
inline void (*body)(void *);
inline void *body_argument;
inline void *scheduler_fake;
inline thread_local int device;
inline bool ends_only; /* of a launch run the first and the last blocks alone: for tests of what lies far apart */
inline bool early;     /* asynchronous copies are made at once: the other extreme */

[[noreturn]] inline void broken(const char *what)
{
    fprintf(stderr, "emulated kernel: %s (thread %d of block %u)\n", what, current, block.x);
    abort();
}

/* ---- changing stacks, told to ASan ---- */

/* What swapcontext does, but for the mask of signals: that is two calls of the kernel at each change, ten times what
 * the bodies themselves cost. */
#ifdef __x86_64__
__attribute__((naked, noinline)) inline void change_stacks(place *, const place *)
{
    asm("push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n mov (%rsi), %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret");
}
inline void begin_at(fiber *f, void (*first)())
{
    void **top =
        (void **)(f->stack + STACK) - 2; /* at a function's begin a return address lies at a multiple of 16, + 8 */
    *top = (void *)first;
    f->at = top - 6;
}
#else
inline void change_stacks(place *from, const place *to)
{
    swapcontext(from, to);
}
inline void begin_at(fiber *f, void (*first)())
{
    getcontext(&f->at);
    f->at.uc_stack.ss_sp = f->stack;
    f->at.uc_stack.ss_size = STACK;
    f->at.uc_link = NULL;
    makecontext(&f->at, first, 0);
}
#endif

inline void enter_fiber(fiber *f)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&scheduler_fake, f->stack, STACK);
#endif
    change_stacks(&scheduler, &f->at);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(scheduler_fake, NULL, NULL);
#endif
}
#ifdef __SANITIZE_ADDRESS__
inline const void *scheduler_stack;
inline size_t scheduler_size;
#endif
inline void leave_fiber(fiber *f, bool for_good)
{
#ifdef __SANITIZE_ADDRESS__
    void *fake = NULL;
    __sanitizer_start_switch_fiber(for_good ? NULL : &fake, scheduler_stack, scheduler_size);
#endif
    (void)for_good;
    change_stacks(&f->at, &scheduler);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_size);
#endif
}

inline void start()
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_size);
#endif
    fiber *f = &fibers[current];
    body(body_argument);
    f->why = ENDED;
    leave_fiber(f, true);
}

inline void wait_for(waiting why)
{
    fiber *f = &fibers[current];
    f->why = why;
    leave_fiber(f, false);
}

/* ---- a block ---- */

inline void release_block()
{
    voted = false;
    for (int i = 0; i < threads; i++) {
        if (fibers[i].why != BLOCK && fibers[i].why != ENDED) return;
        voted |= fibers[i].why == BLOCK && fibers[i].vote;
    }
    for (int i = 0; i < threads; i++)
        if (fibers[i].why == BLOCK) fibers[i].why = RUNS;
}

inline void release_warp(int first)
{
    void *argument[32];
    for (int i = 0; i < 32; i++) {
        const fiber *f = &fibers[first + i];
        if (f->why != WARP_OF_LANES) return;
        if (f->what != fibers[first].what) broken("lanes of a warp do different things at once");
        argument[i] = f->argument;
    }
    fibers[first].what(argument);
    for (int i = 0; i < 32; i++) fibers[first + i].why = RUNS;
}

/* As far as it gets without the others, so that what a missing barrier lets happen does happen; whether it got on. */
inline bool run_warp(int first)
{
    static int turns;
    const int lanes = threads - first < 32 ? threads - first : 32;
    bool any = false;
    for (bool progress = true; progress;) {
        progress = false;
        const bool up = ++turns % 2;
        for (int k = 0; k < lanes; k++) {
            current = first + (up ? k : lanes - 1 - k);
            if (fibers[current].why != RUNS) continue;
            progress = any = true;
            enter_fiber(&fibers[current]);
        }
        if (lanes == 32) release_warp(first);
    }
    return any;
}

/* The compute capability, times 10. */
inline int architecture()
{
    static const char *said = getenv("TESS_EMULATED_ARCH");
    static const int turns[] = {90, 86, 80};
    return said ? atoi(said) : turns[emulated_turn % 3];
}
} // namespace emulate
#include "tests/gpu/emulated_shared.h"
namespace emulate
{
inline void run_block()
{
    static int turns;
    begin_shared();
    early = !early;
    for (int i = 0; i < threads; i++) {
        fiber *f = &fibers[i];
        if (!f->stack) f->stack = (char *)malloc(STACK);
        begin_at(f, start);
        f->why = RUNS;
        f->groups.assign(1, {});
    }
    const int warps = (threads + 31) / 32;
    for (bool progress = true; progress; release_block()) {
        progress = false;
        const bool up = ++turns % 2;
        for (int k = 0; k < warps; k++) progress |= run_warp((up ? k : warps - 1 - k) * 32);
    }
    for (int i = 0; i < threads; i++)
        if (fibers[i].why != ENDED) {
            current = i;
            broken("waits for ever");
        }
}

/* ---- what a warp does at once ---- */

inline void at_once(together what, void *argument)
{
    fiber *f = &fibers[current];
    f->what = what;
    f->argument = argument;
    wait_for(WARP_OF_LANES);
}

struct shuffle {
    float value, got;
    int mask;
};
inline void shuffle_all(void *argument[32])
{
    shuffle *lane[32];
    for (int i = 0; i < 32; i++) lane[i] = (shuffle *)argument[i];
    for (int i = 0; i < 32; i++) lane[i]->got = lane[i ^ lane[i]->mask]->value;
}

struct ballot {
    bool mine;
    uint32_t all;
};
inline void ballot_all(void *argument[32])
{
    uint32_t all = 0;
    for (int i = 0; i < 32; i++) all |= (uint32_t)((ballot *)argument[i])->mine << i;
    for (int i = 0; i < 32; i++) ((ballot *)argument[i])->all = all;
}

inline void nothing(void *[32]) {}
} // namespace emulate

/* ---- CUDA's names ------------------------------------------------------------------------------------------------ */

#define threadIdx (emulate::dim{(unsigned)emulate::current})
#define blockIdx  (emulate::block)
#define blockDim  (emulate::dim{(unsigned)emulate::threads})

#define TESS_KERNEL(threads)       static void
#define TESS_KERNEL_AT(threads, n) static void
#define TESS_KERNEL_ARG(type)      const type &
#define TESS_DYNAMIC_SHARED(name)  unsigned char *name = emulate::dynamic_shared()
#define TESS_SHARED(type, name, sides)                                                                                 \
    typedef type emulated_##name sides;                                                                                \
    static char key_##name;                                                                                            \
    emulated_##name &name =                                                                                            \
        *(emulated_##name *)emulate::static_shared(&key_##name, sizeof(emulated_##name), alignof(type))

static inline void __syncthreads()
{
    emulate::fibers[emulate::current].vote = false;
    emulate::wait_for(emulate::BLOCK);
}
static inline int __syncthreads_or(int vote)
{
    emulate::fibers[emulate::current].vote = vote;
    emulate::wait_for(emulate::BLOCK);
    return emulate::voted;
}
static inline void __syncwarp()
{
    emulate::at_once(emulate::nothing, NULL);
}
static inline float __shfl_xor_sync(uint32_t, float v, int mask)
{
    emulate::shuffle s = {v, 0, mask};
    emulate::at_once(emulate::shuffle_all, &s);
    return s.got;
}
static inline int __shfl_xor_sync(uint32_t lanes, int v, int mask)
{
    float bits;
    memcpy(&bits, &v, sizeof v);
    bits = __shfl_xor_sync(lanes, bits, mask);
    memcpy(&v, &bits, sizeof v);
    return v;
}
static inline double __shfl_xor_sync(uint32_t lanes, double v, int mask)
{
    int half[2];
    memcpy(half, &v, sizeof v);
    for (int &h : half) h = __shfl_xor_sync(lanes, h, mask);
    memcpy(&v, half, sizeof v);
    return v;
}
static inline uint32_t __ballot_sync(uint32_t, bool mine)
{
    emulate::ballot b = {mine, 0};
    emulate::at_once(emulate::ballot_all, &b);
    return b.all;
}
static inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}
static inline int __popc(uint32_t x)
{
    return __builtin_popcount(x);
}
static inline unsigned long long atomicMin(unsigned long long *p, unsigned long long v)
{
    const unsigned long long old = *p;
    *p = v < old ? v : old;
    return old;
}
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long v)
{
    const unsigned long long old = *p;
    *p += v;
    return old;
}
/* ---- of CUDA's runtime ---- */

typedef int cudaError_t;
enum { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidDevice = 101 };
enum cudaDeviceAttr {
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
static inline const char *cudaGetErrorString(cudaError_t error)
{
    return error ? "an error of the emulated device" : "no error";
}
static inline cudaError_t cudaGetDevice(int *device)
{
    *device = emulate::device;
    return cudaSuccess;
}
static inline cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device > 1) return cudaErrorInvalidDevice; /* two */
    emulate::device = device;
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int)
{
    *value = which == cudaDevAttrComputeCapabilityMajor             ? emulate::architecture() / 10
             : which == cudaDevAttrComputeCapabilityMinor           ? emulate::architecture() % 10
             : which == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? (int)(emulate::shared_limit() + (1 << 10))
                                                                    : (int)emulate::shared_limit();
    return cudaSuccess;
}
#define __expf expf
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float normcdff(float x)
{
    return 0.5f * erfcf(-0.707106781f * x);
}

#include "tests/gpu/emulated_ptx.h"

/* ---- launching: kernels.h's ---- */

struct tess_work;
extern "C" bool emulated_launched(const tess_work *w, const void *what, size_t bytes);
#define tess_gpu_launched emulated_launched /* of emulated_lt.cpp, beside the runtime's own */

/* What a body launches, where a test sets `records`: it happens when the test runs it, by arguments that were copied.
 */
namespace emulate
{
struct recorded {
    const void *kernel; /* NULL: `what` is put on the stream */
    std::string what, arguments;
    std::function<void()> run; /* none where it is compared */
};
inline std::vector<recorded> *records;
inline bool compares; /* a library is told that the stream has it */
inline std::string called;

static inline void put(const void *kernel, const std::string &what, const std::function<void()> &run)
{
    emulated_launches++;
    if (!records)
        run();
    else if (kernel)
        records->push_back({kernel, "", what, run});
    else
        records->push_back({NULL, what, "", compares ? nullptr : run});
}
} // namespace emulate

template <class F> static void emulate_blocks(int64_t blocks, int threads, size_t shared, F call)
{
    if (threads < 1 || threads > 1024 || blocks < 0 || blocks > INT32_MAX) emulate::broken("no such launch");
    emulate::ask_shared(shared);
    emulate::threads = threads;
    emulate::body = [](void *f) { (*(F *)f)(); };
    emulate::body_argument = &call;
    for (int64_t b = 0; b < blocks; b++) {
        if (emulate::ends_only && b == 2 && blocks > 10) b = blocks - 8;
        emulate::block.x = (unsigned)b;
        emulate::run_block();
    }
    emulate::body_argument = NULL;
}
template <class... P, class... A>
static void launch(const tess_work *, void (*kernel)(P...), int64_t blocks, int threads, size_t shared, A... arg)
{
    if (blocks == 0) return;
    std::string arguments;
    if (emulate::records) (arguments.append((const char *)&arg, sizeof arg), ...);
    emulate::put((const void *)kernel, arguments,
                 [=] { emulate_blocks(blocks, threads, shared, [=] { kernel(arg...); }); });
}
static inline void set_bytes(const tess_work *, void *p, int value, size_t bytes)
{
    const std::string what((const char *)&p, sizeof p);
    emulate::put(NULL, what + std::to_string(value) + " " + std::to_string(bytes), [=] { memset(p, value, bytes); });
}
static inline void copy_bytes(const tess_work *, void *to, const void *from, size_t bytes)
{
    const void *at[] = {to, from};
    const std::string what((const char *)at, sizeof at);
    emulate::put(NULL, what + std::to_string(bytes), [=] { memcpy(to, from, bytes); });
}
#endif
