/* rmsnorm: y = x / rms * gain, over rows. */
#include "norm_cuda_impl.h"

TESS_CUDA_REAL_OF(rmsnorm_forward, norm_forward<T, false>(w))
TESS_CUDA_REAL_OF(rmsnorm_backward, norm_backward<T, false>(w))
