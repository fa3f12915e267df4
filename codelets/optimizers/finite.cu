/* finite: the search for what is not. */
#include "codelets/shared/kernels.h"

/* The first element that is not finite, if any, by an atomic minimum, which has no order. */
template <tess_dtype T> struct search {
    const void *x;
    unsigned long long *first;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K];
        load<T, K>(v, x, i);
        for (int k = 0; k < K; k++)
            if (!isfinite(v[k])) atomicMin(first, (unsigned long long)(i + k));
    }
};
template <tess_dtype T> TESS_KERNEL(1) found_kernel(const void *x, const unsigned long long *first, failing failed)
{
    if (*first != ~0ull) tess_kernel_failed(failed, (int64_t)*first, value_at<T>(x, (int64_t)*first));
}
template <tess_dtype T> static void all_finite_body(const tess_work *w)
{
    const tess_count_arg *a = arg_of(w);
    const void *x = w->buf[0].ptr;
    unsigned long long *first = (unsigned long long *)room_of(w, sizeof *first);
    if (!first) return;
    set_bytes(w, first, 0xff, sizeof *first);
    map(w, search<T>{x, first}, a->n, aligned(x));
    launch(w, found_kernel<T>, 1, 1, 0, x, first, failing_of(w, a->name));
}
TESS_CUDA_REAL(all_finite)
