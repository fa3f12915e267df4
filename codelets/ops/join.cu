/* join: stripes of columns become one tensor. */
#include "codelets/shared/kernels.h"

constexpr int THREADS = 256;

/* Block r copies row r of a stripe, `n` elements. */
template <tess_dtype T>
TESS_KERNEL(THREADS)
join_kernel(void *y, const void *stripe, int64_t width, int64_t first, int64_t n)
{
    const int64_t r = blockIdx.x;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        put_at<T>(y, r * width + first + i, value_at<T>(stripe, r * n + i));
}

template <tess_dtype T> static void join_body(const tess_work *w)
{
    const tess_join_arg *a = arg_of(w);
    for (unsigned i = 1; i < w->nbuf; i++) {
        const int64_t first = (int64_t)(i - 1) * a->stripe, left = a->width - first;
        launch(w, join_kernel<T>, a->rows, THREADS, 0, w->buf[0].ptr, buffer(w, i), a->width, first,
               left < a->stripe ? left : a->stripe);
    }
}
TESS_CUDA_REAL(join)
