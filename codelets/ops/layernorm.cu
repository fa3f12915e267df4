/* layernorm: a block a row; the gains' and biases' gradients in a second pass, down the columns. */
#include "reduce.h"

constexpr int THREADS = 256;

/* x, gain, bias, y (rows,width), stats (rows,2). A row is read three times, twice of them from the cache. */
template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
layernorm_kernel(const void *x, const float *gain, const float *bias, void *y, float *stats, int64_t width, float eps)
{
    TESS_SHARED(float, room, [THREADS / WARP]);
    const int64_t row = (int64_t)blockIdx.x * width;
    float sum = 0, square = 0, v[K], g[K], b[K];
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        load<T, K>(v, x, row + i);
        for (int k = 0; k < K; k++) sum += v[k];
    }
    const float mean = block_sum<THREADS>(sum, room) / (float)width;
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        load<T, K>(v, x, row + i);
        for (int k = 0; k < K; k++) square += (v[k] - mean) * (v[k] - mean);
    }
    const float rstd = 1 / sqrtf(block_sum<THREADS>(square, room) / (float)width + eps);
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        load<T, K>(v, x, row + i);
        load<TESS_F32, K>(g, gain, i);
        load<TESS_F32, K>(b, bias, i);
        for (int k = 0; k < K; k++) v[k] = (v[k] - mean) * rstd * g[k] + b[k];
        store<T, K>(y, row + i, v);
    }
    if (threadIdx.x > 0) return;
    stats[2 * blockIdx.x] = mean;
    stats[2 * blockIdx.x + 1] = rstd;
}
template <tess_dtype T> static void layernorm_forward_body(const tess_work *w)
{
    const tess_norm_arg *a = (const tess_norm_arg *)w->arg;
    const void *x = w->buf[0].ptr;
    const float *gain = (const float *)w->buf[1].ptr, *bias = (const float *)w->buf[2].ptr;
    void *y = w->buf[3].ptr;
    const bool wide = a->width % WIDE == 0 && aligned(x, gain, bias, y);
    launch(w, wide ? layernorm_kernel<T, WIDE> : layernorm_kernel<T, 1>, a->rows, THREADS, 0, x, gain, bias, y,
           (float *)w->buf[4].ptr, a->width, a->eps);
}

/* With h = (x - mean) / std and g = dy gain: dx = (g - mean(g) - h mean(g h)) / std. */
template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
layernorm_dx_kernel(const void *dy, const void *x, const float *gain, const float *stats, void *dx, int64_t width,
                    bool acc)
{
    TESS_SHARED(float, room, [THREADS / WARP]);
    const int64_t row = (int64_t)blockIdx.x * width;
    const float mean = stats[2 * blockIdx.x], rstd = stats[2 * blockIdx.x + 1];
    float sum = 0, dot = 0, v[K], d[K], g[K];
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        load<T, K>(v, x, row + i);
        load<T, K>(d, dy, row + i);
        load<TESS_F32, K>(g, gain, i);
        for (int k = 0; k < K; k++) {
            sum += d[k] * g[k];
            dot += d[k] * g[k] * ((v[k] - mean) * rstd);
        }
    }
    const float mean_g = block_sum<THREADS>(sum, room) / (float)width;
    const float mean_gh = block_sum<THREADS>(dot, room) / (float)width;
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        load<T, K>(v, x, row + i);
        load<T, K>(d, dy, row + i);
        load<TESS_F32, K>(g, gain, i);
        for (int k = 0; k < K; k++) v[k] = (d[k] * g[k] - mean_g - (v[k] - mean) * rstd * mean_gh) * rstd;
        accumulate<T, K>(dx, row + i, acc, v);
    }
}

/* dgain = sum of dy h, dbias = sum of dy. */
template <tess_dtype T> struct layernorm_sums {
    static constexpr int SUMS = 2;
    const void *dy, *x;
    const float *stats;
    float *dgain, *dbias;
    int64_t width;
    bool acc;
    template <int K> TESS_DEVICE void at(float v[SUMS][K], int64_t r, int64_t c) const
    {
        const float mean = stats[2 * r], rstd = stats[2 * r + 1];
        load<T, K>(v[0], x, r * width + c);
        load<T, K>(v[1], dy, r * width + c);
#pragma unroll
        for (int k = 0; k < K; k++) v[0][k] = v[1][k] * ((v[0][k] - mean) * rstd);
    }
    TESS_DEVICE void put(int s, int64_t c, float total) const
    {
        float *to = s == 0 ? dgain : dbias;
        to[c] = acc ? to[c] + total : total;
    }
};
template <tess_dtype T> static void layernorm_backward_body(const tess_work *w)
{
    const tess_norm_arg *a = (const tess_norm_arg *)w->arg;
    const void *dy = w->buf[0].ptr, *x = w->buf[1].ptr;
    const float *gain = (const float *)w->buf[2].ptr, *stats = (const float *)w->buf[3].ptr;
    void *dx = w->buf[4].ptr;
    const bool wide = a->width % WIDE == 0 && aligned(dy, x, gain, dx);
    launch(w, wide ? layernorm_dx_kernel<T, WIDE> : layernorm_dx_kernel<T, 1>, a->rows, THREADS, 0, dy, x, gain, stats,
           dx, a->width, a->acc);
    layernorm_sums<T> s = {dy, x, stats, (float *)w->buf[5].ptr, (float *)w->buf[6].ptr, a->width, a->acc_param};
    sum_columns(w, s, a->rows, a->width, wide);
}

TESS_CUDA_REAL(layernorm_forward)
TESS_CUDA_REAL(layernorm_backward)
