/* swiglu: a block a row. */
#include "codelets/shared/kernels.h"

constexpr int THREADS = 256;

template <tess_dtype T> TESS_KERNEL(THREADS) forward_kernel(const void *x, void *y, int64_t width)
{
    const int64_t row = blockIdx.x;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        const float gate = value_at<T>(x, 2 * row * width + i), up = value_at<T>(x, (2 * row + 1) * width + i);
        add_at<T>(y, row * width + i, false, __fdividef(gate, 1 + __expf(-gate)) * up);
    }
}

template <tess_dtype T>
TESS_KERNEL(THREADS)
backward_kernel(const void *dy, const void *x, void *dx, int64_t width, bool acc)
{
    const int64_t row = blockIdx.x;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        const int64_t first = 2 * row * width + i, second = first + width;
        const float d = value_at<T>(dy, row * width + i), gate = value_at<T>(x, first), up = value_at<T>(x, second);
        const float e = __expf(-fabsf(gate)), large = __fdividef(1, 1 + e); /* sigmoid(|gate|) */
        const float sigmoid = gate < 0 ? e * large : large;
        add_at<T>(dx, first, acc, d * up * (sigmoid + gate * (e * large * large)));
        add_at<T>(dx, second, acc, d * (gate * sigmoid));
    }
}

template <tess_dtype T> static void forward(const tess_work *w)
{
    const tess_swiglu_arg *a = arg_of(w);
    launch(w, forward_kernel<T>, a->rows, THREADS, 0, buffer(w, 0), w->buf[1].ptr, a->width);
}
template <tess_dtype T> static void backward(const tess_work *w)
{
    const tess_swiglu_arg *a = arg_of(w);
    launch(w, backward_kernel<T>, a->rows, THREADS, 0, buffer(w, 0), buffer(w, 1), w->buf[2].ptr, a->width, a->acc);
}

TESS_CUDA_REAL_OF(swiglu_forward, forward<T>(w))
TESS_CUDA_REAL_OF(swiglu_backward, backward<T>(w))
