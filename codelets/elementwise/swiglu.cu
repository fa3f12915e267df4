/* swiglu: a block a row, or with a limit a thread a pair. */
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

template <tess_dtype T> TESS_KERNEL(THREADS) clamped_kernel(tess_swiglu_arg a, const void *x, void *y)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.rows * a.width) return;
    float gate = value_at<T>(x, 2 * i), up = value_at<T>(x, 2 * i + 1);
    gate = gate > a.limit ? a.limit : gate;
    up = up > a.limit ? a.limit : up < -a.limit ? -a.limit : up;
    put_at<T>(y, i, gate / (1 + expf(-a.sharp * gate)) * (up + 1));
}

template <tess_dtype T>
TESS_KERNEL(THREADS)
clamped_back_kernel(tess_swiglu_arg a, const void *dy, const void *x, void *dx)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.rows * a.width) return;
    const float d = value_at<T>(dy, i), g = value_at<T>(x, 2 * i), u = value_at<T>(x, 2 * i + 1);
    const float gate = g > a.limit ? a.limit : g, up = u > a.limit ? a.limit : u < -a.limit ? -a.limit : u;
    const float e = expf(-fabsf(a.sharp * gate)), large = 1 / (1 + e), sigmoid = a.sharp * gate < 0 ? e * large : large;
    const float dgate = d * (up + 1) * (sigmoid + a.sharp * gate * (e * large * large));
    add_at<T>(dx, 2 * i, a.acc, g > a.limit ? 0 : dgate);
    add_at<T>(dx, 2 * i + 1, a.acc, u > a.limit || u < -a.limit ? 0 : d * (gate * sigmoid));
}

template <tess_dtype T> static void forward(const tess_work *w)
{
    const tess_swiglu_arg *a = arg_of(w);
    if (a->limit > 0) {
        launch(w, clamped_kernel<T>, blocks_of(a->rows * a->width, THREADS), THREADS, 0, *a, buffer(w, 0),
               w->buf[1].ptr);
        return;
    }
    launch(w, forward_kernel<T>, a->rows, THREADS, 0, buffer(w, 0), w->buf[1].ptr, a->width);
}
template <tess_dtype T> static void backward(const tess_work *w)
{
    const tess_swiglu_arg *a = arg_of(w);
    if (a->limit > 0) {
        launch(w, clamped_back_kernel<T>, blocks_of(a->rows * a->width, THREADS), THREADS, 0, *a, buffer(w, 0),
               buffer(w, 1), w->buf[2].ptr);
        return;
    }
    launch(w, backward_kernel<T>, a->rows, THREADS, 0, buffer(w, 0), buffer(w, 1), w->buf[2].ptr, a->width, a->acc);
}

TESS_CUDA_REAL_OF(swiglu_forward, forward<T>(w))
TESS_CUDA_REAL_OF(swiglu_backward, backward<T>(w))
