/* any_cum: a thread goes along one line, beside threads that do not meet it. */
#include "codelets/generic/cum_impl.h"
#include "codelets/shared/kernels.h"

constexpr int CUM_THREADS = 128;

TESS_DEVICE int64_t cum_at(const tess_any_cum_arg &a, int64_t i)
{
    return (a.reverse ? a.n - 1 - i : i) * a.inner;
}
/* Where a thread's line begins; -1: there are no more. */
TESS_DEVICE int64_t cum_line(const tess_any_cum_arg &a)
{
    const int64_t k = (int64_t)blockIdx.x * CUM_THREADS + threadIdx.x;
    return k < a.outer * a.inner ? k / a.inner * a.n * a.inner + k % a.inner : -1;
}

TESS_KERNEL(CUM_THREADS) cum_kernel(tess_any_cum_arg a, const float *x, float *y)
{
    const int64_t from = cum_line(a);
    double s = 0;
    for (int64_t i = 0; i < a.n && from >= 0; i++) {
        const int64_t at = from + cum_at(a, i);
        s = i ? tess_cum_join(a.fn, s, (double)x[at]) : (double)x[at];
        y[at] = a.acc ? y[at] + (float)s : (float)s;
    }
}
TESS_KERNEL(CUM_THREADS) cum_whole_kernel(tess_any_cum_arg a, const int32_t *x, int32_t *y)
{
    const int64_t from = cum_line(a);
    int32_t s = 0;
    for (int64_t i = 0; i < a.n && from >= 0; i++) {
        const int64_t at = from + cum_at(a, i);
        s = i ? tess_cum_join_whole(a.fn, s, x[at]) : x[at];
        y[at] = s;
    }
}
TESS_KERNEL(CUM_THREADS)
cum_back_kernel(tess_any_cum_arg a, const float *x, const float *y, const float *dy, float *dx)
{
    const int64_t from = cum_line(a);
    double s = 0;
    for (int64_t i = a.n - 1; i >= 0 && from >= 0; i--) {
        const int64_t at = from + cum_at(a, i), before = from + cum_at(a, i ? i - 1 : 0),
                      behind = from + cum_at(a, i + 1 < a.n ? i + 1 : i);
        const float d = (float)tess_cum_back(a.fn, x, y, dy, at, before, behind, i == 0, i + 1 < a.n, &s);
        dx[at] = a.acc ? dx[at] + d : d;
    }
}

template <tess_dtype T> static void any_cum_body(const tess_work *w)
{
    const tess_any_cum_arg *a = arg_of(w);
    const int64_t blocks = blocks_of(a->outer * a->inner, CUM_THREADS);
    if (a->element == TESS_REAL)
        launch(w, cum_kernel, blocks, CUM_THREADS, 0, *a, buffer(w, 0), buffer(w, 1));
    else
        launch(w, cum_whole_kernel, blocks, CUM_THREADS, 0, *a, buffer(w, 0), buffer(w, 1));
}
template <tess_dtype T> static void any_cum_backward_body(const tess_work *w)
{
    const tess_any_cum_arg *a = arg_of(w);
    launch(w, cum_back_kernel, blocks_of(a->outer * a->inner, CUM_THREADS), CUM_THREADS, 0, *a, buffer(w, 0),
           buffer(w, 1), buffer(w, 2), buffer(w, 3));
}
TESS_CUDA_BODY(any_cum, any_cum_f32, TESS_F32)
TESS_CUDA_BODY(any_cum_backward, any_cum_backward_f32, TESS_F32)
