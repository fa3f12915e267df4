/* norm_cuda: the CUDA bodies of layernorm and, not CENTRED, of rmsnorm, as in norm_impl.h: a block a row; the gradients
 * of gain and bias in a second pass, down the columns. */
#ifndef TESS_NORM_CUDA_IMPL_H
#define TESS_NORM_CUDA_IMPL_H
#include "reduce.h"

constexpr int NORM_THREADS = 256;

template <bool CENTRED> TESS_DEVICE float gain_of(float gain, float shift)
{
    return CENTRED ? gain : gain + shift;
}
template <bool CENTRED> TESS_DEVICE float centre(float x, float mean)
{
    return CENTRED ? x - mean : x;
}

/* x, gain, bias, y (rows,width), stats (rows,2) or (rows). A row is read three times, twice of them from the cache. */
template <tess_dtype T, int K, bool CENTRED>
TESS_KERNEL(NORM_THREADS)
norm_kernel(const void *x, const float *gain, const float *bias, void *y, float *stats, tess_norm_arg a)
{
    TESS_SHARED(float, room, [NORM_THREADS / WARP]);
    const int64_t width = a.width, row = (int64_t)blockIdx.x * width;
    float sum = 0, square = 0, mean = 0, v[K], g[K], b[K];
    if (CENTRED) {
        for (int64_t i = threadIdx.x * K; i < width; i += NORM_THREADS * K) {
            load<T, K>(v, x, row + i);
            for (int k = 0; k < K; k++) sum += v[k];
        }
        mean = block_sum<NORM_THREADS>(sum, room) / (float)width;
    }
    for (int64_t i = threadIdx.x * K; i < width; i += NORM_THREADS * K) {
        load<T, K>(v, x, row + i);
        for (int k = 0; k < K; k++) square += centre<CENTRED>(v[k], mean) * centre<CENTRED>(v[k], mean);
    }
    const float rstd = 1 / sqrtf(block_sum<NORM_THREADS>(square, room) / (float)width + a.eps);
    for (int64_t i = threadIdx.x * K; i < width; i += NORM_THREADS * K) {
        load<T, K>(v, x, row + i);
        load<TESS_F32, K>(g, gain, i);
        if (CENTRED) load<TESS_F32, K>(b, bias, i);
        for (int k = 0; k < K; k++) {
            v[k] = centre<CENTRED>(v[k], mean) * rstd * gain_of<CENTRED>(g[k], a.shift);
            if (CENTRED) v[k] += b[k];
        }
        store<T, K>(y, row + i, v);
    }
    if (threadIdx.x > 0) return;
    if (CENTRED) stats[2 * blockIdx.x] = mean;
    stats[CENTRED ? 2 * blockIdx.x + 1 : blockIdx.x] = rstd;
}
template <tess_dtype T, bool CENTRED> static void norm_forward(const tess_work *w)
{
    const tess_norm_arg *a = arg_of(w);
    const void *x = buffer(w, 0);
    const float *gain = buffer(w, 1), *bias = CENTRED ? (const float *)w->buf[2].ptr : NULL;
    void *y = buffer(w, CENTRED ? 3 : 2);
    const bool wide = a->width % WIDE == 0 && aligned(x, gain, bias, y);
    launch(w, wide ? norm_kernel<T, WIDE, CENTRED> : norm_kernel<T, 1, CENTRED>, a->rows, NORM_THREADS, 0, x, gain,
           bias, y, buffer(w, CENTRED ? 4 : 3), *a);
}

/* With h = (x - mean) / std and g = dy gain: dx = (g - mean(g) - h mean(g h)) / std. */
template <tess_dtype T, int K, bool CENTRED>
TESS_KERNEL(NORM_THREADS)
norm_dx_kernel(const void *dy, const void *x, const float *gain, const float *stats, void *dx, tess_norm_arg a)
{
    TESS_SHARED(float, room, [NORM_THREADS / WARP]);
    const int64_t width = a.width, row = (int64_t)blockIdx.x * width;
    const float mean = CENTRED ? stats[2 * blockIdx.x] : 0, rstd = stats[CENTRED ? 2 * blockIdx.x + 1 : blockIdx.x];
    float sum = 0, dot = 0, mean_g = 0, v[K], d[K], g[K];
    for (int64_t i = threadIdx.x * K; i < width; i += NORM_THREADS * K) {
        load<T, K>(v, x, row + i);
        load<T, K>(d, dy, row + i);
        load<TESS_F32, K>(g, gain, i);
        for (int k = 0; k < K; k++) {
            if (CENTRED) sum += d[k] * g[k];
            dot += d[k] * gain_of<CENTRED>(g[k], a.shift) * (centre<CENTRED>(v[k], mean) * rstd);
        }
    }
    if (CENTRED) mean_g = block_sum<NORM_THREADS>(sum, room) / (float)width;
    const float mean_gh = block_sum<NORM_THREADS>(dot, room) / (float)width;
    for (int64_t i = threadIdx.x * K; i < width; i += NORM_THREADS * K) {
        load<T, K>(v, x, row + i);
        load<T, K>(d, dy, row + i);
        load<TESS_F32, K>(g, gain, i);
        for (int k = 0; k < K; k++) {
            const float of = centre<CENTRED>(d[k] * gain_of<CENTRED>(g[k], a.shift), mean_g);
            v[k] = (of - centre<CENTRED>(v[k], mean) * rstd * mean_gh) * rstd;
        }
        accumulate<T, K>(dx, row + i, a.acc, v);
    }
}

/* dgain = sum of dy h, dbias = sum of dy. */
template <tess_dtype T, bool CENTRED> struct norm_sums {
    static constexpr int SUMS = CENTRED ? 2 : 1;
    const void *dy, *x;
    const float *stats;
    float *dgain, *dbias;
    int64_t width;
    bool acc;
    template <int K> TESS_DEVICE void at(float v[SUMS][K], int64_t r, int64_t c) const
    {
        const float mean = CENTRED ? stats[2 * r] : 0, rstd = stats[CENTRED ? 2 * r + 1 : r];
        float d[K];
        load<T, K>(v[0], x, r * width + c);
        load<T, K>(d, dy, r * width + c);
#pragma unroll
        for (int k = 0; k < K; k++) {
            v[0][k] = d[k] * (centre<CENTRED>(v[0][k], mean) * rstd);
            if (CENTRED) v[SUMS - 1][k] = d[k];
        }
    }
    TESS_DEVICE void put(int s, int64_t c, float total) const
    {
        float *to = s == 0 ? dgain : dbias;
        to[c] = acc ? to[c] + total : total;
    }
};
template <tess_dtype T, bool CENTRED> static void norm_backward(const tess_work *w)
{
    const tess_norm_arg *a = arg_of(w);
    const void *dy = buffer(w, 0), *x = buffer(w, 1);
    const float *gain = buffer(w, 2), *stats = buffer(w, 3);
    void *dx = buffer(w, 4), *dbias = CENTRED ? w->buf[6].ptr : NULL;
    const bool wide = a->width % WIDE == 0 && aligned(dy, x, gain, dx);
    launch(w, wide ? norm_dx_kernel<T, WIDE, CENTRED> : norm_dx_kernel<T, 1, CENTRED>, a->rows, NORM_THREADS, 0, dy, x,
           gain, stats, dx, *a);
    const norm_sums<T, CENTRED> s = {dy, x, stats, buffer(w, 5), (float *)dbias, a->width, a->acc_param};
    sum_columns(w, s, a->rows, a->width, wide);
}

#endif
