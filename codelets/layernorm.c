/* layernorm: y = (x - mean) / std * gain + bias, over rows. */
#include "vector_impl.h"

TESS_INLINE void layernorm_forward(const tess_work *w, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    const float *gain = w->buf[1].ptr, *bias = w->buf[2].ptr;
    float *stats = w->buf[4].ptr;
    const int64_t n = a->width;
    for (int64_t r = 0; r < a->rows; r++) {
        const void *x = tess_at(w->buf[0].ptr, r * n, t);
        void *y = tess_at_mut(w->buf[3].ptr, r * n, t);
        float sum[TESS_LANES] = {0}, square[TESS_LANES] = {0};
        TESS_EACH(i, l, n, sum[l] += tess_load(x, i, t));
        const float mean = tess_sum16(sum) / (float)n;
        TESS_EACH(i, l, n, const float d = tess_load(x, i, t) - mean; square[l] += d * d);
        const float rstd = 1 / sqrtf(tess_sum16(square) / (float)n + a->eps);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) tess_store(y, i, t, (tess_load(x, i, t) - mean) * rstd * gain[i] + bias[i]);
        stats[2 * r] = mean;
        stats[2 * r + 1] = rstd;
    }
}

/* With h = (x - mean) / std and g = dy gain: dx = (g - mean(g) - h mean(g h)) / std, dgain = sum of dy h and
 * dbias = sum of dy over the rows, in their order. */
TESS_INLINE void layernorm_backward(const tess_work *w, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    const float *gain = w->buf[2].ptr, *stats = w->buf[3].ptr;
    float *dgain = w->buf[5].ptr, *dbias = w->buf[6].ptr;
    const int64_t n = a->width;
    const bool acc = a->acc;
    if (!a->acc_param) {
        memset(dgain, 0, (size_t)n * sizeof *dgain);
        memset(dbias, 0, (size_t)n * sizeof *dbias);
    }
    for (int64_t r = 0; r < a->rows; r++) {
        const void *dy = tess_at(w->buf[0].ptr, r * n, t), *x = tess_at(w->buf[1].ptr, r * n, t);
        void *dx = tess_at_mut(w->buf[4].ptr, r * n, t);
        const float mean = stats[2 * r], rstd = stats[2 * r + 1];
        float sum[TESS_LANES] = {0}, dot[TESS_LANES] = {0};
        TESS_EACH(i, l, n, const float d = tess_load(dy, i, t); const float h = (tess_load(x, i, t) - mean) * rstd;
                  sum[l] += d * gain[i]; dot[l] += d * gain[i] * h; dgain[i] += d * h; dbias[i] += d);
        const float mean_g = tess_sum16(sum) / (float)n, mean_gh = tess_sum16(dot) / (float)n;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float h = (tess_load(x, i, t) - mean) * rstd;
            tess_accumulate(dx, i, t, acc, (tess_load(dy, i, t) * gain[i] - mean_g - h * mean_gh) * rstd);
        }
    }
}

TESS_REAL(layernorm_forward)
TESS_REAL(layernorm_backward)
