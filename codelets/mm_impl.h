/* mm: products of matrices, on oneDNN, by the calling thread alone.
 *
 *     tess_mm_run(&(tess_mm){.m = rows, .n = out, .k = in, .lda = in, .ldb = in, .ldc = out, .tb = true,
 *                            .in = TESS_BF16, .out = TESS_BF16, .bias = b}, x, w, y);        y = x w^T + b
 *
 * The same product gives the same bits on every thread, with any number of workers.
 */
#ifndef TESS_MM_IMPL_H
#define TESS_MM_IMPL_H
#include "vector_impl.h"

/* C (m,n) = [C +] op(A) (m,k) op(B) (k,n) [+ bias (n)]. A matrix is row-major; ld is the distance of its rows in
 * elements. ta: A is stored (k,m); tb: B is stored (n,k). Sums are fp32; C is rounded once. */
typedef struct tess_mm {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    tess_dtype in, out; /* of A and B; of C */
    bool ta, tb, acc;
    bool packed;       /* B is what tess_mm_pack made of it, of ldb columns; n may be less, k is 4096 at most */
    bool plain;        /* leave all to the library: the yardstick of bench_mm */
    const float *bias; /* or NULL */
} tess_mm;
void tess_mm_run(const tess_mm *d, const void *a, const void *b, void *c);
/* Bytes of the buffers that the calling thread holds now; for tests of tess_mm_bytes. */
size_t tess_mm_held(void);

/* B in the order in which the kernels read it, for several products with it. Reads n, k, ldb, in and tb. */
size_t tess_mm_packed_bytes(const tess_mm *d);
void tess_mm_pack(const tess_mm *d, const void *b, void *packed);

/* ---- what attention and cross_entropy do with a product ---------------------------------------------------------- */

#define TESS_LOG2_E 1.44269504f
#define TESS_LN_2   0.693147181f

/* 2^z for z below 127, to 2e-7: a softmax's exponential, at half the work of tess_expf. Below -126 it stays at 2^-126,
 * which is as good as 0 here. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits, from where it goes
 * into the exponent. NaN stays NaN. */
TESS_INLINE float tess_power_of_2(float z)
{
    const float big = 12582912.0f;
    z = -126.0f > z ? -126.0f : z;
    const float t = z + big, f = z - (t - big);
    float p = 1.32647366e-3f;
    p = p * f + 9.67151672e-3f;
    p = p * f + 5.55073358e-2f;
    p = p * f + 0.240222424f;
    p = p * f + 0.693147004f;
    p = p * f + 1.0f;
    return tess_float_of(tess_bits(p) + (tess_bits(t) << 23));
}

#endif
