/* mm: products of matrices, on oneDNN, by the calling thread and those that take parts of its body.
 *
 *     tess_mm_run(&(tess_mm){.m = rows, .n = out, .k = in, .lda = in, .ldb = in, .ldc = out, .tb = true,
 *                            .in = TESS_BF16, .out = TESS_BF16, .bias = b}, x, w, y);        y = x w^T + b
 *
 * The same product gives the same bits on every thread, with any number of workers.
 */
#ifndef TESS_MM_H
#define TESS_MM_H
#include "codelets/shared/idle.h"

/* C (m,n) = [C +] op(A) (m,k) op(B) (k,n) [+ bias (n)]. A matrix is row-major; ld is the distance of its rows in
 * elements. ta: A is stored (k,m); tb: B is stored (n,k). Sums are fp32; C is rounded once. */
typedef struct tess_mm {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    tess_dtype in, out; /* of A and B; of C */
    tess_dtype b;       /* NF4 or INT8: B is quantized, and read as `in`; n, k and ldb are whole blocks */
    tess_fp8 fp8;       /* of bf16: A is rounded to it and B to e4m3, each with one scale for all of its numbers */
    bool ta, tb, acc;
    bool packed;            /* mm.c's own: B is in panels */
    bool part;              /* a part of a body calls: it is not cut, and what B needs is done for it alone */
    bool plain;             /* leave all to the library: the yardstick of bench_mm */
    const float *bias;      /* or NULL */
    const tess_idle *idle;  /* NULL, or rows that change nothing: of C, which are left at zeros or, with acc, as they
                               are; of a transposed A and of B, which are zeros in A */
    int64_t row;            /* mm.c's own: of C among these rows */
    float scale_a, scale_b; /* mm.c's own: of fp8 */
} tess_mm;
void tess_mm_run(const tess_mm *d, const void *a, const void *b, void *c);
/* Returns how many parts it comes in. */
int64_t tess_mm_parts(tess_mm d);
/* Returns the dtype in which this CPU multiplies: that of the operands or, where it has no instructions for it, fp32.
 */
tess_dtype tess_mm_as(tess_dtype t);
/* Returns how many fp32 the vectors of this CPU hold, 16, 8 or 4, and whether it has tiles for bf16: what wide.h is
 * written over. */
int tess_mm_lanes(void);
bool tess_mm_tiles(void);
/* Results have to have the bits of other machines. */
bool tess_mm_across(void);
/* Returns room for rows of `bytes` each, `most` of them or as many as fit and at least one, until the thread multiplies
 * again; *rows becomes how many. */
void *tess_mm_room(size_t bytes, int64_t most, int64_t *rows);
/* Returns the bytes of the buffers that the calling thread holds now; for tests of tess_mm_bytes. */
size_t tess_mm_held(void);

/* The products of a linear on one tile of its w: y = x w^T, dx = dy w and dw = dy^T x. */
TESS_INLINE tess_mm tess_mm_forward(const tess_linear_arg *a, tess_dtype t)
{
    tess_mm d = {.m = a->rows, .n = a->out, .k = a->in, .lda = a->in, .ldb = a->in, .ldc = a->ld};
    d.in = d.out = t, d.tb = true, d.b = a->w, d.fp8 = a->fp8 ? TESS_E4M3 : TESS_NO_FP8;
    return d;
}
TESS_INLINE tess_mm tess_mm_input(const tess_linear_arg *a, tess_dtype t)
{
    tess_mm d = {.m = a->rows, .n = a->in, .k = a->out, .lda = a->ld, .ldb = a->in, .ldc = a->in};
    d.in = t, d.out = a->sum ? TESS_F32 : t, d.acc = a->acc, d.b = a->w, d.fp8 = a->fp8 ? TESS_E5M2 : TESS_NO_FP8;
    return d;
}
TESS_INLINE tess_mm tess_mm_weight(const tess_linear_arg *a, tess_dtype t)
{
    tess_mm d = {.m = a->out, .n = a->in, .k = a->rows, .lda = a->ld, .ldb = a->in, .ldc = a->in};
    d.in = t, d.out = TESS_F32, d.ta = true, d.acc = a->acc, d.fp8 = a->fp8 ? TESS_E5M2 : TESS_NO_FP8;
    return d;
}

#endif
