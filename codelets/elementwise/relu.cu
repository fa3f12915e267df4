/* relu: max(x, 0). */
#include "cuda.h"

struct relu {
    static TESS_DEVICE float value(float x) { return x < 0 ? 0 : x; }
    static TESS_DEVICE float slope(float x) { return x <= 0 ? 0 : x == x ? 1 : x; }
};

template <tess_dtype T> static void relu_forward_body(const tess_work *w)
{
    map_value<T, relu>(w);
}
template <tess_dtype T> static void relu_backward_body(const tess_work *w)
{
    map_slope<T, relu>(w);
}

TESS_CUDA_REAL(relu_forward)
TESS_CUDA_REAL(relu_backward)
