/* pick: one row of each sequence, named by an index. */
#include "codelets/shared/kernels.h"

constexpr int THREADS = 256;

/* Block p copies x's row of pick p to y, or, with BACK, adds y's row p to x's. */
template <tess_dtype T, bool BACK>
TESS_KERNEL(THREADS)
pick_kernel(const void *from, void *to, const int32_t *index, int64_t sequence, int64_t width, bool acc)
{
    const int64_t p = blockIdx.x, row = p * sequence + index[p];
    const int64_t source = (BACK ? p : row) * width, target = (BACK ? row : p) * width;
    if (index[p] < 0 || index[p] >= sequence) return; /* checked where the data was read */
    for (int64_t i = threadIdx.x; i < width; i += THREADS)
        add_at<T>(to, target + i, acc, value_at<T>(from, source + i));
}

template <tess_dtype T> static void pick_forward_body(const tess_work *w)
{
    const tess_pick_arg *a = arg_of(w);
    launch(w, pick_kernel<T, false>, a->rows / a->sequence, THREADS, 0, buffer(w, 0), w->buf[2].ptr, buffer(w, 1),
           a->sequence, a->width, false);
}
template <tess_dtype T> static void pick_backward_body(const tess_work *w)
{
    const tess_pick_arg *a = arg_of(w);
    if (!a->acc) set_bytes(w, w->buf[2].ptr, 0, (size_t)(a->rows * a->width) * tess_dtype_size(T));
    launch(w, pick_kernel<T, true>, a->rows / a->sequence, THREADS, 0, buffer(w, 0), w->buf[2].ptr, buffer(w, 1),
           a->sequence, a->width, a->acc);
}

TESS_CUDA_REAL(pick_forward)
TESS_CUDA_REAL(pick_backward)
