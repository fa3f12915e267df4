/* strip: runs of columns of one tensor go to, or are added to, columns of another. */
#include "codelets/shared/kernels.h"

constexpr int THREADS = 256;

/* Block r has row r of a run. */
template <tess_dtype T>
TESS_KERNEL(THREADS)
strip_kernel(const void *from, void *to, int64_t from_ld, int64_t to_ld, int64_t n, int64_t spread, int64_t sums,
             bool acc)
{
    const int64_t r = blockIdx.x, first = r / spread * sums * from_ld;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        float sum = value_at<T>(from, first + i);
        for (int64_t k = 1; k < sums; k++) sum += value_at<T>(from, first + k * from_ld + i);
        add_at<T>(to, r * to_ld + i, acc, sum);
    }
}

template <tess_dtype T> static void strip_body(const tess_work *w)
{
    const tess_strip_arg *a = arg_of(w);
    const size_t size = T == TESS_F32 ? 4 : 2;
    if (a->clears) set_bytes(w, w->buf[1].ptr, 0, (size_t)(a->rows * a->to_ld) * size);
    for (int k = 0; k < a->runs; k++)
        launch(w, strip_kernel<T>, a->rows, THREADS, 0, (const char *)w->buf[0].ptr + (size_t)a->run[k].from * size,
               (char *)w->buf[1].ptr + (size_t)a->run[k].to * size, a->from_ld, a->to_ld, a->run[k].n,
               a->spread ? a->spread : 1, a->sums ? a->sums : 1, a->acc);
}
TESS_CUDA_REAL(strip)
