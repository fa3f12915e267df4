/* finite: the search for what is not. */
#include "codelets/shared/vector.h"

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
TESS_CODELETS(finite, all_finite, .either = true)
