/* rmsnorm: y = x / rms * gain, over rows. */
#include "codelets/ops/norm_cuda_impl.h"

TESS_CUDA_REAL_OF(rmsnorm_forward, norm_forward<T, false, false>(w))
TESS_CUDA_REAL_OF(add_rmsnorm_forward, norm_forward<T, false, true>(w))
TESS_CUDA_REAL_OF(rmsnorm_backward, norm_backward<T, false>(w))
