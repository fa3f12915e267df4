/* layernorm: y = (x - mean) / std * gain + bias, over rows. */
#include "codelets/ops/norm_cuda_impl.h"

TESS_CUDA_REAL_OF(layernorm_forward, norm_forward<T, true, false>(w))
TESS_CUDA_REAL_OF(add_layernorm_forward, norm_forward<T, true, true>(w))
TESS_CUDA_REAL_OF(layernorm_backward, norm_backward<T, true>(w))
