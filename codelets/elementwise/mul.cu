/* mul: products of two tensors of one shape, element by element. */
#include "codelets/shared/kernels.h"

struct product {
    TESS_DEVICE float operator()(float x, float z) const { return x * z; }
};

TESS_CUDA_REAL_OF(mul_forward, map_two<T>(w, false, product{}))
TESS_CUDA_REAL_OF(mul_backward, map_two<T>(w, map_adds(w), product{}))
