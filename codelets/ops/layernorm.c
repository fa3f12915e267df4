/* layernorm: y = (x - mean) / std * gain + bias, over rows. */
#include "parts.h"

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

/* With h = (x - mean) / std and g = dy gain: dx = (g - mean(g) - h mean(g h)) / std, of the rows [first, end). */
TESS_INLINE void backward_rows(const tess_work *w, int64_t first, int64_t end, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    const float *gain = w->buf[2].ptr, *stats = w->buf[3].ptr;
    const int64_t n = a->width;
    const bool acc = a->acc;
    for (int64_t r = first; r < end; r++) {
        const void *dy = tess_at(w->buf[0].ptr, r * n, t), *x = tess_at(w->buf[1].ptr, r * n, t);
        void *dx = tess_at_mut(w->buf[4].ptr, r * n, t);
        const float mean = stats[2 * r], rstd = stats[2 * r + 1];
        float sum[TESS_LANES] = {0}, dot[TESS_LANES] = {0};
        TESS_EACH(i, l, n, const float d = tess_load(dy, i, t); const float h = (tess_load(x, i, t) - mean) * rstd;
                  sum[l] += d * gain[i]; dot[l] += d * gain[i] * h);
        const float mean_g = tess_sum16(sum) / (float)n, mean_gh = tess_sum16(dot) / (float)n;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float h = (tess_load(x, i, t) - mean) * rstd;
            tess_accumulate(dx, i, t, acc, (tess_load(dy, i, t) * gain[i] - mean_g - h * mean_gh) * rstd);
        }
    }
}

/* dgain = sum of dy h and dbias = sum of dy over the rows, in their order, of the columns [first, first + n). */
TESS_INLINE void backward_columns(const tess_work *w, int64_t first, int64_t n, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    const float *stats = w->buf[3].ptr;
    float *dgain = (float *)w->buf[5].ptr + first, *dbias = (float *)w->buf[6].ptr + first;
    if (!a->acc_param) {
        memset(dgain, 0, (size_t)n * sizeof *dgain);
        memset(dbias, 0, (size_t)n * sizeof *dbias);
    }
    for (int64_t r = 0; r < a->rows; r++) {
        const void *dy = tess_at(w->buf[0].ptr, r * a->width + first, t);
        const void *x = tess_at(w->buf[1].ptr, r * a->width + first, t);
        const float mean = stats[2 * r], rstd = stats[2 * r + 1];
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float d = tess_load(dy, i, t);
            dgain[i] += d * ((tess_load(x, i, t) - mean) * rstd);
            dbias[i] += d;
        }
    }
}
TESS_NORM_BACKWARD(layernorm_backward)

static inline int64_t cut_forward(const tess_work *w, int64_t k, tess_dtype t, tess_cut *c)
{
    return tess_cut_norm(w, k, t, 3, 2, c);
}

TESS_REAL_CUT(layernorm_forward, cut_forward)
TESS_PART_CODELETS(layernorm_backward)
