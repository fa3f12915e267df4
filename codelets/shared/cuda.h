/* cuda_impl: what the CUDA bodies of this room are written with. NAME.cu beside NAME.c holds kernels and launchers; a
 * launcher is a tess_body, tess_cuda_<op>_f32, _bf16 or _f16, that puts kernels on w->stream and returns:
 *
 *     template <tess_dtype T> struct twice {
 *         const void *x;
 *         void *y;
 *         template <int K> TESS_DEVICE void at(int64_t i) const
 *         {
 *             float v[K];
 *             load<T, K>(v, x, i);
 *             for (int k = 0; k < K; k++) v[k] *= 2;
 *             store<T, K>(y, i, v);
 *         }
 *     };
 *     template <tess_dtype T> static void twice_body(const tess_work *w)
 *     {
 *         const tess_map_arg *a = (const tess_map_arg *)w->arg;
 *         map(w, twice<T>{w->buf[0].ptr, w->buf[1].ptr}, a->n, aligned(w->buf[0].ptr, w->buf[1].ptr));
 *     }
 *     TESS_CUDA_REAL(twice)
 *
 * A launcher never waits, never allocates: w->room is its scratch. Kernels say what failed through w->fault. Sums have
 * an order that depends on the shapes alone; no atomics where rounding could show them.
 *
 * With TESS_EMULATED the same source is C++ for the CPU, thread by thread, so that tests can run it without a GPU.
 */
#ifndef TESS_CUDA_IMPL_H
#define TESS_CUDA_IMPL_H
#ifdef TESS_EMULATED
#include "emulate.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif
#define _Noreturn [[noreturn]]
extern "C" {
#include "codelets.h"
#include "cuda_rate.h"
}
#include "scalar.h"
#include "update.h"

#define TESS_DEVICE __device__ __forceinline__

#ifndef TESS_CUDA_NAME
#define TESS_CUDA_NAME(body) tess_cuda_##body
#endif
/* The launchers of an op from a template op_body<T>(w). */
#define TESS_CUDA_BODY(op, name, type)                                                                                 \
    extern "C" void TESS_CUDA_NAME(name)(const tess_work *w)                                                           \
    {                                                                                                                  \
        op##_body<type>(w);                                                                                            \
    }
#define TESS_CUDA_REAL(op)                                                                                             \
    TESS_CUDA_BODY(op, op##_f32, TESS_F32)                                                                             \
    TESS_CUDA_BODY(op, op##_bf16, TESS_BF16)                                                                           \
    TESS_CUDA_BODY(op, op##_f16, TESS_F16)

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* An error of the CUDA runtime fails the task. */
void tess_cuda_check(const tess_work *w, int error, const char *what);

#ifndef TESS_EMULATED
#define TESS_KERNEL(threads)       static __global__ void __launch_bounds__(threads)
#define TESS_KERNEL_AT(threads, n) static __global__ void __launch_bounds__(threads, n)
#define TESS_DYNAMIC_SHARED(name)  extern __shared__ __align__(128) unsigned char name[]
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

template <class... P, class... A>
static void launch(const tess_work *w, void (*kernel)(P...), int64_t blocks, int threads, size_t shared, A... arg)
{
    if (blocks == 0) return;
    TESS_ASSERT(blocks <= INT32_MAX);
    if (shared > 48 << 10)
        tess_cuda_check(w, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                        "shared memory");
    (void)cudaGetLastError(); /* of somebody before on this thread: an allocation that StarPU tried, say */
    kernel<<<(unsigned)blocks, (unsigned)threads, shared, (cudaStream_t)w->stream>>>(arg...);
    tess_cuda_check(w, cudaGetLastError(), "launch");
}
static inline void set_bytes(const tess_work *w, void *p, int value, size_t bytes)
{
    tess_cuda_check(w, cudaMemsetAsync(p, value, bytes, (cudaStream_t)w->stream), "memset");
}
static inline void copy_bytes(const tess_work *w, void *to, const void *from, size_t bytes)
{
    tess_cuda_check(w, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)w->stream), "copy");
}
#endif

/* Bytes of shared memory that a block may have on the current device. */
static inline size_t shared_most()
{
    int device = 0, bytes = 48 << 10;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return (size_t)bytes;
}

/* Bytes of it that all blocks of a multiprocessor share, and what the system takes of them for each (CUDA C++
 * Programming Guide, "Compute Capabilities": 1 KiB from 8.0 on). */
static inline size_t shared_of_multiprocessor()
{
    int device = 0, bytes = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    return (size_t)bytes;
}
constexpr size_t SHARED_OF_A_BLOCK = 1 << 10;

static inline int64_t blocks_of(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

constexpr int WIDE = 8; /* elements that a thread moves at a time: 16 bytes of bf16 */

TESS_DEVICE float from_bf16(uint16_t x)
{
    return tess_float_of((uint32_t)x << 16);
}
TESS_DEVICE uint16_t to_bf16(float x)
{
#ifdef TESS_EMULATED
    return tess_to_bf16(x);
#else
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#endif
}
TESS_DEVICE float from_f16(uint16_t x)
{
#ifdef TESS_EMULATED
    return tess_from_f16(x);
#else
    return __half2float(__ushort_as_half(x));
#endif
}
TESS_DEVICE uint16_t to_f16(float x)
{
#ifdef TESS_EMULATED
    return tess_to_f16(x);
#else
    return __half_as_ushort(__float2half_rn(x));
#endif
}
TESS_DEVICE constexpr bool is_half(tess_dtype t)
{
    return t == TESS_BF16 || t == TESS_F16;
}
template <tess_dtype T> TESS_DEVICE float from_half(uint16_t x)
{
    return T == TESS_F16 ? from_f16(x) : from_bf16(x);
}
template <tess_dtype T> TESS_DEVICE uint16_t to_half(float x)
{
    return T == TESS_F16 ? to_f16(x) : to_bf16(x);
}
/* Two in a register, the first in the low half. */
TESS_DEVICE uint32_t to_bf16x2(float lo, float hi)
{
    return (uint32_t)to_bf16(lo) | (uint32_t)to_bf16(hi) << 16;
}
template <tess_dtype T> TESS_DEVICE uint32_t to_half2(float lo, float hi)
{
    return (uint32_t)to_half<T>(lo) | (uint32_t)to_half<T>(hi) << 16;
}

TESS_DEVICE const void *at(const void *x, int64_t i, tess_dtype t)
{
    return (const char *)x + i * (is_half(t) ? 2 : 4);
}
TESS_DEVICE void *at(void *x, int64_t i, tess_dtype t)
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

template <class... P> static bool aligned(P... p)
{
    return ((((uintptr_t)p) | ...) & 15) == 0;
}

/* ---- one thread, WIDE elements ----------------------------------------------------------------------------------- */

constexpr int MAP_THREADS = 256;

/* f.at<K>(i) for all elements, K of them at a time; `wide`: f's pointers are aligned. */
template <class F> TESS_KERNEL(MAP_THREADS) map_kernel(F f, int64_t n, bool wide)
{
    const int64_t i = ((int64_t)blockIdx.x * MAP_THREADS + threadIdx.x) * WIDE;
    if (wide && i + WIDE <= n) {
        f.template at<WIDE>(i);
        return;
    }
    for (int64_t k = i; k < i + WIDE && k < n; k++) f.template at<1>(k);
}
template <class F> static void map(const tess_work *w, F f, int64_t n, bool wide)
{
    launch(w, map_kernel<F>, blocks_of(n, (int64_t)MAP_THREADS * WIDE), MAP_THREADS, 0, f, n, wide);
}

/* y += x, where x is stored as FROM. */
template <tess_dtype FROM, tess_dtype T> struct into {
    const void *x;
    void *y;
    bool acc;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K];
        load<FROM, K>(v, x, i);
        accumulate<T, K>(y, i, acc, v);
    }
};

/* y = KIND::value(x), and dx += dy KIND::slope(x). */
template <tess_dtype T, class KIND> struct value_of {
    const void *x;
    void *y;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K];
        load<T, K>(v, x, i);
        for (int k = 0; k < K; k++) v[k] = KIND::value(v[k]);
        store<T, K>(y, i, v);
    }
};
template <tess_dtype T, class KIND> struct slope_of {
    const void *dy, *x;
    void *dx;
    bool acc;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K], d[K];
        load<T, K>(v, x, i);
        load<T, K>(d, dy, i);
        for (int k = 0; k < K; k++) d[k] *= KIND::slope(v[k]);
        accumulate<T, K>(dx, i, acc, d);
    }
};
/* The bodies of such an op: of x and y; of dy, x and dx. */
template <tess_dtype T, class KIND> static void map_value(const tess_work *w)
{
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
    map(w, value_of<T, KIND>{x, y}, ((const tess_map_arg *)w->arg)->n, aligned(x, y));
}
template <tess_dtype T, class KIND> static void map_slope(const tess_work *w)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *dy = w->buf[0].ptr, *x = w->buf[1].ptr;
    void *dx = w->buf[2].ptr;
    map(w, slope_of<T, KIND>{dy, x, dx, a->acc}, a->n, aligned(dy, x, dx));
}

/* ---- sums over threads, in a fixed tree ------------------------------------------------------------------------- */

constexpr int WARP = 32;

TESS_DEVICE float warp_sum(float v)
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

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* What a kernel needs to say that its task failed. */
struct failing {
    tess_kernel_fault *fault;
    const char *name;
    uint32_t order;
};
static inline failing failing_of(const tess_work *w, const char *name)
{
    return failing{w->fault, name, w->task ? w->task->order : 0};
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
    bool ta, tb, acc;
    const float *bias; /* or NULL */
    float *column_sum; /* or NULL: of A, stored (k,m), the sum of each of its columns; where the library can */
};
/* Whether column_sum was written. */
bool tess_cuda_mm_run(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, void *c);
/* With gelu by tanh: pre = op(A) op(B) [+ bias], C = gelu(pre), taken before pre is rounded; and C = op(A) op(B) times
 * gelu's slope at pre. pre is stored as C is. False where the library cannot, and then nothing is done. */
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
