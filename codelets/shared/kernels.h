/* kernels: what the CUDA bodies of this room are written with. NAME.cu beside NAME.c holds kernels and launchers; a
 * launcher is a tess_body, tess_cuda_<op>_f32, _bf16 or _f16, that puts kernels on w->stream and returns:
 *
 *     struct twice {
 *         TESS_DEVICE float operator()(float x) const { return 2 * x; }
 *     };
 *     template <tess_dtype T> static void twice_body(const tess_work *w)
 *     {
 *         map_one<T>(w, false, twice{});
 *     }
 *     TESS_CUDA_REAL(twice)
 *
 * A launcher never waits, never allocates: w->room is its scratch. Kernels say what failed through w->fault. Sums have
 * an order that depends on the shapes alone; no atomics where rounding could show them.
 *
 * With TESS_EMULATED the same source is C++ for the CPU, thread by thread, so that tests can run it without a GPU.
 */
#ifndef TESS_KERNELS_H
#define TESS_KERNELS_H
#ifdef TESS_EMULATED
#include "tests/gpu/emulate.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif
#define _Noreturn [[noreturn]]
extern "C" {
#include "codelets/codelets.h"
#include "codelets/shared/cuda_rate.h"
}
#include "codelets/shared/scalar.h"
#include "codelets/shared/update.h"

/* A function of kernels, and one that launchers call too. nvcc takes a call of a TESS_DEVICE function on the host
 * without a word, and makes of it one of exit(1): tests/gpu/host_stubs looks for those. */
#define TESS_DEVICE __device__ __forceinline__
#define TESS_BOTH   __host__ __device__ __forceinline__

#ifndef TESS_CUDA_NAME
#define TESS_CUDA_NAME(body) tess_cuda_##body
#endif
/* The launchers of an op from a template op_body<T>(w), or from the statements of such a body. */
#define TESS_CUDA_BODY(op, name, type)                                                                                 \
    extern "C" void TESS_CUDA_NAME(name)(const tess_work *w)                                                           \
    {                                                                                                                  \
        op##_body<type>(w);                                                                                            \
    }
#define TESS_CUDA_REAL_OF(op, ...)                                                                                     \
    template <tess_dtype T> static void op##_body(const tess_work *w)                                                  \
    {                                                                                                                  \
        __VA_ARGS__;                                                                                                   \
    }                                                                                                                  \
    TESS_CUDA_REAL(op)
#define TESS_CUDA_REAL(op)                                                                                             \
    TESS_CUDA_BODY(op, op##_f32, TESS_F32)                                                                             \
    TESS_CUDA_BODY(op, op##_bf16, TESS_BF16)                                                                           \
    TESS_CUDA_BODY(op, op##_f16, TESS_F16)

/* A task's argument, or a buffer of its own, as a pointer to whatever it is wanted as. */
struct untyped {
    void *ptr;
    template <class A> operator A *() const { return (A *)ptr; }
};
static inline untyped arg_of(const tess_work *w)
{
    return untyped{(void *)w->arg};
}
static inline untyped buffer(const tess_work *w, int64_t i)
{
    return untyped{w->buf[i].ptr};
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* An error of the CUDA runtime fails the task. */
void tess_cuda_check(const tess_work *w, int error, const char *what);

#ifndef TESS_EMULATED
#define TESS_KERNEL(threads)       static __global__ void __launch_bounds__(threads)
#define TESS_KERNEL_AT(threads, n) static __global__ void __launch_bounds__(threads, n)
/* A parameter that is large, and stays where the launch has put it. */
#define TESS_KERNEL_ARG(type)     const __grid_constant__ type
#define TESS_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
/* TESS_SHARED(float, sum, [8][32]) */
#define TESS_SHARED(type, name, sides) __shared__ type name sides

/* One instruction by its text, with lists of operands, as TESS_PTX("add.f32 %0, %1, %2;", (PTX_OUT("f", sum)),
 * (PTX_IN("f", a), PTX_IN("f", b))); the emulation reads the same text. PURE: the compiler may leave it out or move it;
 * MEMORY: it may not move reads and writes of memory over it. */
#define TESS_PTX(text, out, in)        asm volatile(text : TESS_PTX_LIST out : TESS_PTX_LIST in)
#define TESS_PTX_PURE(text, out, in)   asm(text : TESS_PTX_LIST out : TESS_PTX_LIST in)
#define TESS_PTX_MEMORY(text, out, in) asm volatile(text : TESS_PTX_LIST out : TESS_PTX_LIST in : "memory")
#define TESS_PTX_LIST(...)             __VA_ARGS__
#define PTX_OUT(kind, x)               "=" kind(x)
#define PTX_BOTH(kind, x)              "+" kind(x)
#define PTX_IN(kind, x)                kind(x)

template <class A> struct as_it_is {
    typedef A type;
};
/* Arguments become what the kernel's parameters are. */
template <class... P>
static void launch(const tess_work *w, void (*kernel)(P...), int64_t blocks, int threads, size_t shared,
                   typename as_it_is<P>::type... arg)
{
    if (blocks == 0) return;
    TESS_ASSERT(blocks <= INT32_MAX);
    if (shared > 48 << 10)
        tess_cuda_check(w, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                        "shared memory");
    const void *args[] = {&arg...};
    const size_t bytes[] = {sizeof(arg)...};
    const tess_launch l = {
        (const void *)kernel, (unsigned)blocks, (unsigned)threads, shared, sizeof...(P), args, bytes};
    tess_cuda_check(w, tess_gpu_launch(w, &l), "launch");
}
/* What such a call is known by. */
struct bytes_set {
    void *to;
    const void *from;
    size_t value, bytes;
};
static inline void set_bytes(const tess_work *w, void *p, int value, size_t bytes)
{
    const bytes_set what = {p, NULL, (size_t)value, bytes};
    if (tess_gpu_launched(w, &what, sizeof what)) return;
    tess_cuda_check(w, cudaMemsetAsync(p, value, bytes, (cudaStream_t)w->stream), "memset");
}
static inline void copy_bytes(const tess_work *w, void *to, const void *from, size_t bytes)
{
    const bytes_set what = {to, from, 0, bytes};
    if (tess_gpu_launched(w, &what, sizeof what)) return;
    tess_cuda_check(w, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)w->stream), "copy");
}
#endif

/* Returns an attribute of the current device: the bytes of shared memory that a block may have, or that all blocks of a
 * multiprocessor share. The system takes 1 KiB of the latter for each block (CUDA C++ Programming Guide, "Compute
 * Capabilities"). */
static inline int device_attribute(cudaDeviceAttr which)
{
    int device = 0, value = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, which, device);
    return value;
}
constexpr size_t SHARED_OF_A_BLOCK = 1 << 10;

static inline int64_t blocks_of(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

constexpr int WIDE = 8; /* elements that a thread moves at a time: 16 bytes of bf16 */

#ifdef TESS_EMULATED
#define to_bf16  tess_to_bf16
#define from_f16 tess_from_f16
#define to_f16   tess_to_f16
#else
TESS_DEVICE uint16_t to_bf16(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
TESS_DEVICE float from_f16(uint16_t x)
{
    return __half2float(__ushort_as_half(x));
}
TESS_DEVICE uint16_t to_f16(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}
#endif
TESS_BOTH constexpr bool is_half(tess_dtype t)
{
    return t == TESS_BF16 || t == TESS_F16;
}
template <tess_dtype T> TESS_DEVICE float from_half(uint16_t x)
{
    return T == TESS_F16 ? from_f16(x) : tess_from_bf16(x);
}
template <tess_dtype T> TESS_DEVICE uint16_t to_half(float x)
{
    return T == TESS_F16 ? to_f16(x) : to_bf16(x);
}
/* Two in a register, the first in the low half. */
template <tess_dtype T> TESS_DEVICE uint32_t to_half2(float lo, float hi)
{
    return (uint32_t)to_half<T>(lo) | (uint32_t)to_half<T>(hi) << 16;
}

TESS_BOTH const void *at(const void *x, int64_t i, tess_dtype t)
{
    return (const char *)x + i * (is_half(t) ? 2 : 4);
}
TESS_BOTH void *at(void *x, int64_t i, tess_dtype t)
{
    return (char *)x + i * (is_half(t) ? 2 : 4);
}

/* K elements from i on; K = WIDE needs 16-byte alignment there. */
template <tess_dtype T, int K> TESS_DEVICE void load(float v[K], const void *x, int64_t i)
{
    static_assert(K == 1 || K == WIDE, "");
    if constexpr (is_half(T) && K == 1) {
        v[0] = from_half<T>(((const uint16_t *)x)[i]);
    } else if constexpr (is_half(T)) {
        const uint4 u = *(const uint4 *)((const uint16_t *)x + i);
        const uint32_t word[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (int k = 0; k < K; k++) v[k] = from_half<T>((uint16_t)(k % 2 ? word[k / 2] >> 16 : word[k / 2]));
    } else if constexpr (K == 1) {
        v[0] = ((const float *)x)[i];
    } else {
#pragma unroll
        for (int k = 0; k < K; k += 4) {
            const float4 f = *(const float4 *)((const float *)x + i + k);
            v[k] = f.x, v[k + 1] = f.y, v[k + 2] = f.z, v[k + 3] = f.w;
        }
    }
}
template <tess_dtype T, int K> TESS_DEVICE void store(void *y, int64_t i, const float v[K])
{
    if constexpr (is_half(T) && K == 1) {
        ((uint16_t *)y)[i] = to_half<T>(v[0]);
    } else if constexpr (is_half(T)) {
        uint4 u;
        u.x = to_half2<T>(v[0], v[1]);
        u.y = to_half2<T>(v[2], v[3]);
        u.z = to_half2<T>(v[4], v[5]);
        u.w = to_half2<T>(v[6], v[7]);
        *(uint4 *)((uint16_t *)y + i) = u;
    } else if constexpr (K == 1) {
        ((float *)y)[i] = v[0];
    } else {
#pragma unroll
        for (int k = 0; k < K; k += 4) {
            float4 f;
            f.x = v[k], f.y = v[k + 1], f.z = v[k + 2], f.w = v[k + 3];
            *(float4 *)((float *)y + i + k) = f;
        }
    }
}
/* "+=": to what is there with acc, else over it. */
template <tess_dtype T, int K> TESS_DEVICE void accumulate(void *y, int64_t i, bool acc, float v[K])
{
    if (acc) {
        float old[K];
        load<T, K>(old, y, i);
#pragma unroll
        for (int k = 0; k < K; k++) v[k] = old[k] + v[k];
    }
    store<T, K>(y, i, v);
}

/* One element. */
template <tess_dtype T> TESS_DEVICE float value_at(const void *x, int64_t i)
{
    float v[1];
    load<T, 1>(v, x, i);
    return v[0];
}
template <tess_dtype T> TESS_DEVICE void put_at(void *y, int64_t i, float value)
{
    const float v[1] = {value};
    store<T, 1>(y, i, v);
}
template <tess_dtype T> TESS_DEVICE void add_at(void *y, int64_t i, bool acc, float value)
{
    float v[1] = {value};
    accumulate<T, 1>(y, i, acc, v);
}

template <class... P> static bool aligned(P... p)
{
    return ((((uintptr_t)p) | ...) & 15) == 0;
}

/* ---- one thread, WIDE elements ----------------------------------------------------------------------------------- */

constexpr int MAP_THREADS = 256;

/* f.at<K>(i) for all elements, K of them at a time, by this of the blocks; `wide`: f's pointers are aligned. */
template <class F> TESS_DEVICE void map_block(const F &f, int64_t block, int64_t n, bool wide)
{
    const int64_t i = (block * MAP_THREADS + threadIdx.x) * WIDE;
    if (wide && i + WIDE <= n) {
        f.template at<WIDE>(i);
        return;
    }
    for (int64_t k = i; k < i + WIDE && k < n; k++) f.template at<1>(k);
}
static inline int64_t map_blocks(int64_t n)
{
    return blocks_of(n, (int64_t)MAP_THREADS * WIDE);
}
template <class F> TESS_KERNEL(MAP_THREADS) map_kernel(F f, int64_t n, bool wide)
{
    map_block(f, blockIdx.x, n, wide);
}
template <class F> static void map(const tess_work *w, F f, int64_t n, bool wide)
{
    launch(w, map_kernel<F>, map_blocks(n), MAP_THREADS, 0, f, n, wide);
}

/* One launch for several tasks: f[k].block(b) for the blocks of each, of F::THREADS threads. */
template <class F> struct together {
    static constexpr int MOST = 4000 / (int)(sizeof(F) + sizeof(uint32_t)); /* a kernel has 4 KiB of parameters */
    F f[MOST];
    uint32_t end[MOST]; /* its last block, plus 1 */
    int count;
};
template <class F> TESS_KERNEL(F::THREADS) together_kernel(TESS_KERNEL_ARG(together<F>) all)
{
    int k = 0;
    while (blockIdx.x >= all.end[k]) k++;
    all.f[k].block(blockIdx.x - (k ? all.end[k - 1] : 0));
}
template <class F> static void launch_together(const tess_work *w, together<F> *all)
{
    if (all->count) launch(w, together_kernel<F>, all->end[all->count - 1], F::THREADS, 0, *all);
    all->count = 0;
}
template <class F> static void add_together(const tess_work *w, together<F> *all, const F &f, int64_t blocks)
{
    if (all->count == together<F>::MOST) launch_together(w, all);
    all->f[all->count] = f;
    all->end[all->count] = (all->count ? all->end[all->count - 1] : 0) + (uint32_t)blocks;
    all->count++;
}

/* y [+]= f(x), or f(x, z), where x is stored as FROM. */
template <tess_dtype FROM, tess_dtype T, class F, bool TWO> struct mapped {
    const void *x, *z;
    void *y;
    bool acc;
    F f;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K], u[K];
        load<FROM, K>(v, x, i);
        if constexpr (TWO) load<FROM, K>(u, z, i);
        for (int k = 0; k < K; k++)
            if constexpr (TWO)
                v[k] = f(v[k], u[k]);
            else
                v[k] = f(v[k]);
        accumulate<T, K>(y, i, acc, v);
    }
};
/* The bodies of such ops, of x and y, or of x, z and y. */
template <tess_dtype T, class F> static void map_one(const tess_work *w, bool acc, F f)
{
    const void *x = buffer(w, 0);
    void *y = buffer(w, 1);
    map(w, mapped<T, T, F, false>{x, NULL, y, acc, f}, ((const tess_map_arg *)w->arg)->n, aligned(x, y));
}
template <tess_dtype T, class F> static void map_two(const tess_work *w, bool acc, F f)
{
    const void *x = buffer(w, 0), *z = buffer(w, 1);
    void *y = buffer(w, 2);
    map(w, mapped<T, T, F, true>{x, z, y, acc, f}, ((const tess_map_arg *)w->arg)->n, aligned(x, z, y));
}
static inline bool map_adds(const tess_work *w)
{
    return ((const tess_map_arg *)w->arg)->acc;
}
/* y (n) [+]= x, stored as FROM. */
struct same {
    TESS_DEVICE float operator()(float x) const { return x; }
};
template <tess_dtype FROM, tess_dtype T>
static void map_into(const tess_work *w, const void *x, void *y, int64_t n, bool acc)
{
    map(w, mapped<FROM, T, same, false>{x, NULL, y, acc, {}}, n, aligned(x, y));
}
/* An op of one input, of KIND::value(x), and of KIND::slope(x), by which dy is multiplied. */
template <class KIND> struct value_of {
    TESS_DEVICE float operator()(float x) const { return KIND::value(x); }
};
template <class KIND> struct slope_of {
    TESS_DEVICE float operator()(float dy, float x) const { return dy * KIND::slope(x); }
};
#define TESS_CUDA_MAP(op, kind)                                                                                        \
    TESS_CUDA_REAL_OF(op##_forward, map_one<T>(w, false, value_of<kind>{}))                                            \
    TESS_CUDA_REAL_OF(op##_backward, map_two<T>(w, map_adds(w), slope_of<kind>{}))

/* ---- sums over threads, in a fixed tree ------------------------------------------------------------------------- */

constexpr int WARP = 32;

template <class X> TESS_DEVICE X warp_sum(X v)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
TESS_DEVICE float warp_max(float v)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
/* Of all THREADS of a block, to each of them; `room` is shared, a float a warp, and free when all have returned. */
template <int THREADS> TESS_DEVICE float block_sum(float v, float *room)
{
    v = warp_sum(v);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = v;
    __syncthreads();
    v = threadIdx.x % WARP < THREADS / WARP ? room[threadIdx.x % WARP] : 0;
    v = warp_sum(v);
    __syncthreads();
    return v;
}

/* Returns how many of the block's threads say so, and of those before this one; counts are free after a barrier. */
template <int THREADS> TESS_DEVICE int count(bool hit, int *counts, int *before)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const uint32_t hits = __ballot_sync(0xffffffffu, hit);
    if (lane == 0) counts[warp] = __popc(hits);
    __syncthreads();
    int all = 0;
    *before = __popc(hits & ((1u << lane) - 1));
    for (int i = 0; i < THREADS / WARP; i++) {
        *before += i < warp ? counts[i] : 0;
        all += counts[i];
    }
    return all;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* What a kernel needs to say that its task failed. */
struct failing {
    tess_kernel_fault *fault;
    const char *name;
    uint32_t order;
};
static inline failing failing_of(const tess_work *w, const char *name)
{
    return failing{w->fault, name, (w->task ? w->task->order : 0) + (w->env ? w->env->first : 0)};
}
/* By one thread of one block. */
TESS_DEVICE void tess_kernel_failed(failing f, int64_t element, double value)
{
    volatile tess_kernel_fault *to = f.fault;
    if (to->set && to->order <= f.order) return;
    to->order = f.order;
    to->name = f.name;
    to->element = element;
    to->value = value;
    to->set = 1;
}

/* ---- products of matrices (mm.cu) ------------------------------------------------------------------------------- */

/* C (m,n) = [C +] op(A) (m,k) op(B) (k,n) [+ bias (n)], row-major; ta: A is stored (k,m); tb: B is stored (n,k); ld in
 * elements. Sums are fp32, in one order for a shape and a device. */
struct tess_cuda_mm {
    int64_t m, n, k, lda, ldb, ldc;
    tess_dtype in, out;
    tess_dtype b = TESS_F32; /* NF4 or INT8: B is quantized, of one product; its values, read as `in`, are in w->room */
    tess_fp8 fp8 = TESS_NO_FP8;                   /* of bf16: A is rounded to it, and B to e4m3 */
    const float *scale_a = NULL, *scale_b = NULL; /* mm.cu's own: A and B are codes with these scales */
    bool ta = false, tb = false, acc = false;
    const float *bias = NULL;                              /* or NULL */
    int64_t batch = 1, next_a = 0, next_b = 0, next_c = 0; /* products, several only without bias; elements from a
                                                              matrix to the next product's */
};
void tess_cuda_mm_run(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, void *c);
/* With gelu by tanh: pre = op(A) op(B) [+ bias], C = gelu(pre), taken before pre is rounded; and C = op(A) op(B) times
 * gelu's slope at pre. pre is stored as C is. False where the library cannot: then it is to be made otherwise. */
bool tess_cuda_mm_gelu(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, void *pre, void *c);
bool tess_cuda_mm_slope(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, const void *pre,
                        void *c);
/* What mm takes of w->room; what is behind it is the body's. */
constexpr size_t TESS_CUDA_MM_ROOM = 32 << 20;
/* NULL, and the task failed, where there is less. */
static inline void *room_of(const tess_work *w, size_t bytes)
{
    if (TESS_CUDA_MM_ROOM + bytes <= w->room_bytes) return (char *)w->room + TESS_CUDA_MM_ROOM;
    tess_work_fail(w, "CUDA: %zu bytes of scratch are too many (use smaller tiles)", bytes);
    return NULL;
}

#endif
