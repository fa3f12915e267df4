/* rmsnorm: y = x / rms * gain, over rows; the gain is what is stored and a shift. */
#include "parts.h"

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

/* With h = x / rms and g = dy gain: dx = (g - h mean(g h)) / rms, of the rows [first, end). */
TESS_INLINE void backward_rows(const tess_work *w, int64_t first, int64_t end, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    const float *gain = w->buf[2].ptr, *stats = w->buf[3].ptr;
    const int64_t n = a->width;
    const bool acc = a->acc;
    const float shift = a->shift;
    for (int64_t r = first; r < end; r++) {
        const void *dy = tess_at(w->buf[0].ptr, r * n, t), *x = tess_at(w->buf[1].ptr, r * n, t);
        void *dx = tess_at_mut(w->buf[4].ptr, r * n, t);
        const float rrms = stats[r];
        float dot[TESS_LANES] = {0};
        TESS_EACH(i, l, n, const float d = tess_load(dy, i, t); const float h = tess_load(x, i, t) * rrms;
                  dot[l] += d * (gain[i] + shift) * h);
        const float mean_gh = tess_sum16(dot) / (float)n;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float h = tess_load(x, i, t) * rrms;
            tess_accumulate(dx, i, t, acc, (tess_load(dy, i, t) * (gain[i] + shift) - h * mean_gh) * rrms);
        }
    }
}

/* dgain = sum of dy h over the rows, in their order, of the columns [first, first + n). */
TESS_INLINE void backward_columns(const tess_work *w, int64_t first, int64_t n, tess_dtype t)
{
    const tess_norm_arg *a = w->arg;
    const float *stats = w->buf[3].ptr;
    float *dgain = (float *)w->buf[5].ptr + first;
    if (!a->acc_param) memset(dgain, 0, (size_t)n * sizeof *dgain);
    for (int64_t r = 0; r < a->rows; r++) {
        const void *dy = tess_at(w->buf[0].ptr, r * a->width + first, t);
        const void *x = tess_at(w->buf[1].ptr, r * a->width + first, t);
        const float rrms = stats[r];
#pragma omp simd
        for (int64_t i = 0; i < n; i++) dgain[i] += tess_load(dy, i, t) * (tess_load(x, i, t) * rrms);
    }
}
TESS_NORM_BACKWARD(rmsnorm_backward)

static inline int64_t cut_forward(const tess_work *w, int64_t k, tess_dtype t, tess_cut *c)
{
    return tess_cut_norm(w, k, t, 2, 1, c);
}

TESS_REAL_CUT(rmsnorm_forward, cut_forward)
TESS_PART_CODELETS(rmsnorm_backward)
