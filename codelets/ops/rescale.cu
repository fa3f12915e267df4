/* rescale: as in rescale.c. The lengths by a block a row; dm in a second pass, down the columns. */
#include "codelets/shared/reduce.h"

constexpr int RESCALE_THREADS = 256;

/* w (out,in), a (r,in), b (all,r), length (out). */
template <tess_dtype T>
TESS_KERNEL(RESCALE_THREADS)
lengths_kernel(const void *w, const void *right, const void *left, float *length, tess_rescale_arg a)
{
    TESS_SHARED(float, room, [RESCALE_THREADS / WARP]);
    const int64_t j = blockIdx.x;
    float square = 0;
    for (int64_t i = threadIdx.x; i < a.in; i += RESCALE_THREADS) {
        float beside = 0;
        for (int64_t k = 0; k < a.r; k++)
            beside += value_at<T>(left, (a.col + j) * a.r + k) * value_at<T>(right, k * a.in + i);
        const float v = value_at<T>(w, j * a.in + i) + a.by * beside;
        square += v * v;
    }
    square = block_sum<RESCALE_THREADS>(square, room);
    if (threadIdx.x == 0) length[j] = sqrtf(square);
}
template <tess_dtype T> static void lengths(const tess_work *w)
{
    const tess_rescale_arg *a = arg_of(w);
    launch(w, lengths_kernel<T>, a->out, RESCALE_THREADS, 0, buffer(w, 0), buffer(w, 1), buffer(w, 2), buffer(w, 3),
           *a);
}

/* A block a row. BACK: z is dy, and y dz. */
template <tess_dtype T, bool BACK>
TESS_KERNEL(RESCALE_THREADS)
rescale_kernel(const void *z, const float *m, const float *length, void *y, const float *bias, tess_rescale_arg a)
{
    const int64_t row = (int64_t)blockIdx.x * a.ld + a.col;
    for (int64_t c = threadIdx.x; c < a.out; c += RESCALE_THREADS) {
        const float shift = BACK || !bias ? 0 : bias[c];
        add_at<T>(y, row + c, BACK && a.acc, (value_at<T>(z, row + c) - shift) * (m[c] / length[c]) + shift);
    }
}
template <tess_dtype T> static void forward(const tess_work *w)
{
    const tess_rescale_arg *a = arg_of(w);
    launch(w, rescale_kernel<T, false>, a->rows, RESCALE_THREADS, 0, buffer(w, 0), buffer(w, 1), buffer(w, 2),
           buffer(w, 3), a->bias ? (const float *)w->buf[4].ptr : NULL, *a);
}

template <tess_dtype T> struct rescale_sums {
    static constexpr int SUMS = 1;
    const void *dy, *z;
    const float *length, *bias;
    float *dm;
    int64_t ld, col;
    bool acc;
    template <int K> TESS_DEVICE void at(float v[SUMS][K], int64_t r, int64_t c) const
    {
        for (int k = 0; k < K; k++) {
            const int64_t at = r * ld + col + c + k;
            v[0][k] = value_at<T>(dy, at) * (value_at<T>(z, at) - (bias ? bias[c + k] : 0));
        }
    }
    TESS_DEVICE void put(int, int64_t c, float total) const { dm[c] = (acc ? dm[c] : 0) + total / length[c]; }
};
template <tess_dtype T> static void backward(const tess_work *w)
{
    const tess_rescale_arg *a = arg_of(w);
    const float *bias = a->bias ? (const float *)w->buf[6].ptr : NULL;
    launch(w, rescale_kernel<T, true>, a->rows, RESCALE_THREADS, 0, buffer(w, 0), buffer(w, 2), buffer(w, 3),
           buffer(w, 4), bias, *a);
    const rescale_sums<T> s = {buffer(w, 0), buffer(w, 1), buffer(w, 3), bias, buffer(w, 5), a->ld, a->col, a->acc_m};
    sum_columns(w, s, a->rows, a->out, false);
}

TESS_CUDA_REAL_OF(rescale_lengths, lengths<T>(w))
TESS_CUDA_REAL_OF(rescale_forward, forward<T>(w))
TESS_CUDA_REAL_OF(rescale_backward, backward<T>(w))
