/* vector: what the bodies of this room are written with. An op is written once, over elements of `t`, and instantiated
 * for each dtype and for three widths of vectors:
 *
 *     TESS_INLINE void twice(const tess_work *w, tess_dtype t)
 *     {
 *         const tess_map_arg *a = w->arg;
 *         const void *x = w->buf[0].ptr;
 *         void *y = w->buf[1].ptr;
 *     #pragma omp simd
 *         for (int64_t i = 0; i < a->n; i++) tess_store(y, i, t, 2 * tess_load(x, i, t));
 *     }
 *     TESS_REAL(twice)    // tess_codelet tess_twice[] = {[TESS_F32] = ..., [TESS_BF16] = ...}
 *
 * `t` is a constant in each instance, so that its tests disappear and the loop becomes one of vectors. Results have
 * the same bits with any width: elements are computed one by one with IEEE operations that are never contracted, and
 * sums run in 16 lanes.
 */
#ifndef TESS_VECTOR_H
#define TESS_VECTOR_H
#include "codelets/codelets.h"
#include "codelets/shared/scalar.h"
#include "codelets/shared/update.h"
#include <math.h>
#include <string.h>

/* Sanitizers run before what chooses a clone, and must not. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || !defined __x86_64__
#define TESS_PLAIN
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define TESS_PLAIN
#endif
#endif
#ifdef TESS_PLAIN
#define TESS_CLONES
#else
#define TESS_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif

/* The one place where CUDA enters: tess_cuda_<body> is in the .cu file of the op's name. Who has none says so first. */
#if defined TESS_HAVE_CUDA && !defined TESS_EMULATED_GPU && !defined TESS_CPU_ALONE && !defined TESS_NO_CUDA_BODIES
#define TESS_CUDA_DECLARE(body) extern void tess_cuda_##body(const tess_work *w);
#define TESS_CUDA(body)         tess_cuda_##body
#else
#define TESS_CUDA_DECLARE(body)
#define TESS_CUDA(body) NULL
#endif

/* f(op, f32, TESS_F32, ...), and the same with bf16 and f16. */
#define TESS_EACH_REAL(f, op, ...)                                                                                     \
    f(op, f32, TESS_F32, __VA_ARGS__) f(op, bf16, TESS_BF16, __VA_ARGS__) f(op, f16, TESS_F16, __VA_ARGS__)

/* The codelets of an op, from its body op(w, t). TESS_REAL leaves the cost to the runtime: no flops, the bytes of the
 * buffers, which is what most ops of this room move; TESS_REAL_COST takes it from op_cost(arg, t). Codelets of
 * TESS_REAL_EITHER have the same bits on CPU and GPU. A body of TESS_PART_COST comes in as many parts as
 * op_parts(cl, arg) returns. */
#define TESS_REAL(op)        TESS_REAL_BODIES(op) TESS_CODELETS(op, op, )
#define TESS_REAL_EITHER(op) TESS_REAL_BODIES(op) TESS_CODELETS(op, op, .either = true)
#define TESS_REAL_COST(op)   TESS_REAL_COSTS(op, .parts = NULL)
#define TESS_PART_COST(op)   TESS_REAL_COSTS(op, .parts = op##_parts)
/* The one codelet, of fp32, of a body op(w); what else it has follows. */
#define TESS_F32_CODELET(op, ...)                                                                                      \
    TESS_CUDA_DECLARE(op##_f32)                                                                                        \
    tess_codelet tess_##op[] = {                                                                                       \
        [TESS_F32] = {.name = #op, .dtype = TESS_F32, .cpu = op, .cuda = TESS_CUDA(op##_f32), __VA_ARGS__}};

/* What these are made of. The codelets are tess_OP, their bodies BODY_f32, BODY_bf16 and BODY_f16. */
#define TESS_CODELET(body, name_of, t, op, ...)                                                                        \
    [t] = {.name = #op, .dtype = t, .cpu = body##_##name_of, .cuda = TESS_CUDA(body##_##name_of), __VA_ARGS__},
#define TESS_CODELETS(op, body, ...)                                                                                   \
    tess_codelet tess_##op[TESS_REAL_DTYPES] = {TESS_EACH_REAL(TESS_CODELET, body, op, __VA_ARGS__)};
#define TESS_REAL_COSTS(op, ...)                                                                                       \
    TESS_REAL_BODIES(op)                                                                                               \
    TESS_EACH_REAL(TESS_COST, op, )                                                                                    \
    tess_codelet tess_##op[TESS_REAL_DTYPES] = {TESS_EACH_REAL(TESS_COST_CODELET, op, __VA_ARGS__)};
#define TESS_COST_CODELET(op, name_of, t, ...)                                                                         \
    TESS_CODELET(op, name_of, t, op, .cost = op##_cost_##name_of, __VA_ARGS__)
#define TESS_COST(op, name_of, t, ...)                                                                                 \
    static tess_cost op##_cost_##name_of(const void *arg)                                                              \
    {                                                                                                                  \
        return op##_cost(arg, t);                                                                                      \
    }
#define TESS_REAL_BODIES(op) TESS_EACH_REAL(TESS_BODY, op, )
#define TESS_BODY(op, name_of, t, ...)                                                                                 \
    TESS_CUDA_DECLARE(op##_##name_of)                                                                                  \
    TESS_CLONES static void op##_##name_of(const tess_work *w)                                                         \
    {                                                                                                                  \
        op(w, t);                                                                                                      \
    }

/* f(..., t), where t is a constant. */
#define TESS_BY_DTYPE(t, f, ...)                                                                                       \
    ((t) == TESS_BF16  ? f(__VA_ARGS__, TESS_BF16)                                                                     \
     : (t) == TESS_F16 ? f(__VA_ARGS__, TESS_F16)                                                                      \
                       : f(__VA_ARGS__, TESS_F32))

TESS_INLINE int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

TESS_INLINE void tess_widen(float *dst, const void *src, int64_t n, tess_dtype t)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dst[i] = tess_load(src, i, t);
}
TESS_INLINE void tess_narrow(void *dst, const float *src, int64_t n, tess_dtype t)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) tess_store(dst, i, t, src[i]);
}

/* ---- sums in 16 lanes -------------------------------------------------------------------------------------------- */

enum { TESS_LANES = 16 };

/* Runs a statement for i in [0, n), with l = i % 16:
 *
 *     float sum[TESS_LANES] = {0};
 *     TESS_EACH(i, l, n, sum[l] += x[i]);
 *     total = tess_sum16(sum);
 */
#define TESS_EACH(i, l, n, ...)                                                                                        \
    do {                                                                                                               \
        int64_t each_ = 0;                                                                                             \
        for (; each_ + TESS_LANES <= (n); each_ += TESS_LANES) {                                                       \
            _Pragma("omp simd") for (int l = 0; l < TESS_LANES; l++)                                                   \
            {                                                                                                          \
                const int64_t i = each_ + l;                                                                           \
                __VA_ARGS__;                                                                                           \
            }                                                                                                          \
        }                                                                                                              \
        for (int l = 0; each_ + l < (n); l++) {                                                                        \
            const int64_t i = each_ + l;                                                                               \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

/* The lanes combined in one fixed tree: halves onto halves. */
TESS_INLINE float tess_sum16(const float lane[TESS_LANES])
{
    float a[8], b[4];
    for (int l = 0; l < 8; l++) a[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++) b[l] = a[l] + a[l + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}
/* The sum of squares in update.h's order. */
TESS_INLINE double tess_squares(const float *x, int64_t n)
{
    double sum[TESS_SQUARE_LANES] = {0};
    for (int64_t c = 0; c < tess_square_pieces(n); c++) {
        const float *piece = x + c * TESS_SQUARE_PIECE;
        const int64_t left = n - c * TESS_SQUARE_PIECE, m = left < TESS_SQUARE_PIECE ? left : TESS_SQUARE_PIECE;
        double lane[TESS_SQUARE_LANES] = {0};
        int64_t i = 0;
        for (; i + TESS_SQUARE_LANES <= m; i += TESS_SQUARE_LANES) {
#pragma omp simd
            for (int l = 0; l < TESS_SQUARE_LANES; l++) {
                const double v = piece[i + l];
                lane[l] += v * v;
            }
        }
        for (int l = 0; i + l < m; l++) lane[l] += (double)piece[i + l] * (double)piece[i + l];
        sum[c % TESS_SQUARE_LANES] += tess_sum64d(lane);
    }
    return tess_sum64d(sum);
}
TESS_INLINE float tess_max16(const float lane[TESS_LANES])
{
    float m = lane[0];
    for (int l = 1; l < TESS_LANES; l++) m = lane[l] > m ? lane[l] : m;
    return m;
}

#endif
