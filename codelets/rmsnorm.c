/* rmsnorm: y = x / rms * gain, over rows; the gain is what is stored and a shift. */
#include "vector_impl.h"

TESS_INLINE void rmsnorm_forward(const tess_work *w, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    const float *gain = w->buf[1].ptr;
    float *stats = w->buf[3].ptr;
    const int64_t n = a->width;
    const float shift = a->shift;
    for (int64_t r = 0; r < a->rows; r++) {
        const void *x = tess_at(w->buf[0].ptr, r * n, t);
        void *y = tess_at_mut(w->buf[2].ptr, r * n, t);
        float square[TESS_LANES] = {0};
        TESS_EACH(i, l, n, const float v = tess_load(x, i, t); square[l] += v * v);
        const float rrms = 1 / sqrtf(tess_sum16(square) / (float)n + a->eps);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) tess_store(y, i, t, tess_load(x, i, t) * rrms * (gain[i] + shift));
        stats[r] = rrms;
    }
}

/* With h = x / rms and g = dy gain: dx = (g - h mean(g h)) / rms, dgain = sum of dy h over the rows, in their order. */
TESS_INLINE void rmsnorm_backward(const tess_work *w, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    const float *gain = w->buf[2].ptr, *stats = w->buf[3].ptr;
    float *dgain = w->buf[5].ptr;
    const int64_t n = a->width;
    const bool acc = a->acc;
    const float shift = a->shift;
    if (!a->acc_param) memset(dgain, 0, (size_t)n * sizeof *dgain);
    for (int64_t r = 0; r < a->rows; r++) {
        const void *dy = tess_at(w->buf[0].ptr, r * n, t), *x = tess_at(w->buf[1].ptr, r * n, t);
        void *dx = tess_at_mut(w->buf[4].ptr, r * n, t);
        const float rrms = stats[r];
        float dot[TESS_LANES] = {0};
        TESS_EACH(i, l, n, const float d = tess_load(dy, i, t); const float h = tess_load(x, i, t) * rrms;
                  dot[l] += d * (gain[i] + shift) * h; dgain[i] += d * h);
        const float mean_gh = tess_sum16(dot) / (float)n;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float h = tess_load(x, i, t) * rrms;
            tess_accumulate(dx, i, t, acc, (tess_load(dy, i, t) * (gain[i] + shift) - h * mean_gh) * rrms);
        }
    }
}

TESS_REAL(rmsnorm_forward)
TESS_REAL(rmsnorm_backward)
