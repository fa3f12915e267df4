/* add: sums of two tensors of one shape, and what gradients need of them. */
#include "codelets/shared/kernels.h"

struct sum {
    TESS_DEVICE float operator()(float x, float z) const { return x + z; }
};
template <tess_dtype T> static void add_sum_body(const tess_work *w)
{
    const tess_map_arg *a = arg_of(w);
    map_into<TESS_F32, T>(w, buffer(w, 0), at(w->buf[1].ptr, a->first, T), a->n, a->acc);
}

TESS_CUDA_REAL_OF(add_forward, map_two<T>(w, false, sum{}))
TESS_CUDA_REAL_OF(add_into, map_one<T>(w, map_adds(w), same{}))
TESS_CUDA_REAL(add_sum)
