/* rmsnorm: a block a row; the gain's gradient in a second pass, down the columns. */
#include "reduce.h"

constexpr int THREADS = 256;

/* x, gain, y (rows,width), stats (rows). */
template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
rmsnorm_kernel(const void *x, const float *gain, void *y, float *stats, int64_t width, float eps, float shift)
{
    TESS_SHARED(float, room, [THREADS / WARP]);
    const int64_t row = (int64_t)blockIdx.x * width;
    float square = 0, v[K], g[K];
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        load<T, K>(v, x, row + i);
        for (int k = 0; k < K; k++) square += v[k] * v[k];
    }
    const float rrms = 1 / sqrtf(block_sum<THREADS>(square, room) / (float)width + eps);
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        load<T, K>(v, x, row + i);
        load<TESS_F32, K>(g, gain, i);
        for (int k = 0; k < K; k++) v[k] = v[k] * rrms * (g[k] + shift);
        store<T, K>(y, row + i, v);
    }
    if (threadIdx.x == 0) stats[blockIdx.x] = rrms;
}
template <tess_dtype T> static void rmsnorm_forward_body(const tess_work *w)
{
    const tess_norm_arg *a = (const tess_norm_arg *)w->arg;
    const void *x = w->buf[0].ptr;
    const float *gain = (const float *)w->buf[1].ptr;
    void *y = w->buf[2].ptr;
    const bool wide = a->width % WIDE == 0 && aligned(x, gain, y);
    launch(w, wide ? rmsnorm_kernel<T, WIDE> : rmsnorm_kernel<T, 1>, a->rows, THREADS, 0, x, gain, y,
           (float *)w->buf[3].ptr, a->width, a->eps, a->shift);
}

/* With h = x / rms and g = dy gain: dx = (g - h mean(g h)) / rms. */
template <tess_dtype T, int K>
TESS_KERNEL(THREADS)
rmsnorm_dx_kernel(const void *dy, const void *x, const float *gain, const float *stats, void *dx, int64_t width,
                  float shift, bool acc)
{
    TESS_SHARED(float, room, [THREADS / WARP]);
    const int64_t row = (int64_t)blockIdx.x * width;
    const float rrms = stats[blockIdx.x];
    float dot = 0, v[K], d[K], g[K];
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        load<T, K>(v, x, row + i);
        load<T, K>(d, dy, row + i);
        load<TESS_F32, K>(g, gain, i);
        for (int k = 0; k < K; k++) dot += d[k] * (g[k] + shift) * (v[k] * rrms);
    }
    const float mean_gh = block_sum<THREADS>(dot, room) / (float)width;
    for (int64_t i = threadIdx.x * K; i < width; i += THREADS * K) {
        load<T, K>(v, x, row + i);
        load<T, K>(d, dy, row + i);
        load<TESS_F32, K>(g, gain, i);
        for (int k = 0; k < K; k++) v[k] = (d[k] * (g[k] + shift) - v[k] * rrms * mean_gh) * rrms;
        accumulate<T, K>(dx, row + i, acc, v);
    }
}

/* dgain = sum of dy h. */
template <tess_dtype T> struct rmsnorm_sums {
    static constexpr int SUMS = 1;
    const void *dy, *x;
    const float *stats;
    float *dgain;
    int64_t width;
    bool acc;
    template <int K> TESS_DEVICE void at(float v[SUMS][K], int64_t r, int64_t c) const
    {
        const float rrms = stats[r];
        float d[K];
        load<T, K>(v[0], x, r * width + c);
        load<T, K>(d, dy, r * width + c);
#pragma unroll
        for (int k = 0; k < K; k++) v[0][k] = d[k] * (v[0][k] * rrms);
    }
    TESS_DEVICE void put(int, int64_t c, float total) const
    {
        dgain[c] = acc ? dgain[c] + total : total;
    }
};
template <tess_dtype T> static void rmsnorm_backward_body(const tess_work *w)
{
    const tess_norm_arg *a = (const tess_norm_arg *)w->arg;
    const void *dy = w->buf[0].ptr, *x = w->buf[1].ptr;
    const float *gain = (const float *)w->buf[2].ptr, *stats = (const float *)w->buf[3].ptr;
    void *dx = w->buf[4].ptr;
    const bool wide = a->width % WIDE == 0 && aligned(dy, x, gain, dx);
    launch(w, wide ? rmsnorm_dx_kernel<T, WIDE> : rmsnorm_dx_kernel<T, 1>, a->rows, THREADS, 0, dy, x, gain, stats, dx,
           a->width, a->shift, a->acc);
    rmsnorm_sums<T> s = {dy, x, stats, (float *)w->buf[5].ptr, a->width, a->acc_param};
    sum_columns(w, s, a->rows, a->width, wide);
}

TESS_CUDA_REAL(rmsnorm_forward)
TESS_CUDA_REAL(rmsnorm_backward)
