/* mm_widths: products of our own, in fp32, as mm.c uses them where the library has no panels, or all
 * machines are to have the same bits. */
#ifndef TESS_MM_WIDTHS_IMPL_H
#define TESS_MM_WIDTHS_IMPL_H
#include "codelets/products/mm.h"

/* A kernel for one width of vectors. pack_a takes m rows of A and pack_b n columns of B, of d->in, d->k deep; the last
 * panel is filled up, and behind A's panels there is room for one more vector. multiply makes C (m,n) = [C +] A B
 * [+ bias]. */
typedef struct mm_kernel {
    int64_t rows; /* of a panel of A */
    void (*pack_a)(float *to, const void *a, const tess_mm *d, int64_t m);
    void (*pack_b)(float *to, const void *b, const tess_mm *d, int64_t n);
    void (*multiply)(int64_t m, int64_t n, int64_t k, const float *a, const float *b, const float *bias, float *c,
                     int64_t ldc, bool acc);
} mm_kernel;
extern const mm_kernel tess_mm_128;
#ifdef __x86_64__
extern const mm_kernel tess_mm_256, tess_mm_512;
#endif

#endif
