/* norm: sums of squares and of scalars, towards the global norm and the step's loss, and the search for what is not
 * finite. */
#include "vector_impl.h"

TESS_CLONES static void square_sum(const tess_work *w)
{
    const tess_count_arg *a = w->arg;
    double *square = w->buf[1].ptr;
    *square = tess_squares(w->buf[0].ptr, a->n);
    /* Where the loss is not finite, that is what the step reports. */
    if (w->nbuf > 2 && isfinite(*(const double *)w->buf[2].ptr) && !isfinite(*square))
        tess_work_fail(w, "%s: the gradient is not finite", a->name);
}

static void scalar_sum(const tess_work *w)
{
    const tess_count_arg *a = w->arg;
    double *s = w->buf[0].ptr;
    for (int64_t i = 0; i < a->n; i++) {
        s[i] = 0;
        for (unsigned b = 1; b < w->nbuf; b++) s[i] += ((const double *)w->buf[b].ptr)[i];
    }
}

tess_codelet tess_square_sum[] = {[TESS_F32] = {.name = "square_sum", .dtype = TESS_F32, .cpu = square_sum}};
tess_codelet tess_scalar_sum[] = {[TESS_F32] = {.name = "scalar_sum", .dtype = TESS_F32, .cpu = scalar_sum}};

/* The exponent of what is not finite is all ones; the largest bits without the sign tell. */
TESS_INLINE void all_finite(const tess_work *w, tess_dtype t)
{
    const tess_count_arg *a = w->arg;
    const void *x = w->buf[0].ptr;
    uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < a->n; i++) {
        uint32_t size = tess_bits(tess_load(x, i, t)) & 0x7fffffffu;
        largest = size > largest ? size : largest;
    }
    if (largest < 0x7f800000u) return;
    int64_t first = 0;
    while (isfinite(tess_load(x, first, t))) first++;
    tess_work_fail(w, "%s: element %lld is %g", a->name, (long long)first, (double)tess_load(x, first, t));
}
TESS_REAL_BODIES(all_finite)
tess_codelet tess_finite[TESS_REAL_DTYPES] = {
    [TESS_F32] = {.name = "finite", .dtype = TESS_F32, .cpu = all_finite_f32},
    [TESS_BF16] = {.name = "finite", .dtype = TESS_BF16, .cpu = all_finite_bf16},
};
