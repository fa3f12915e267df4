/* rmsnorm: y = x / rms * gain, over rows. */
#include "codelets/ops/norm_impl.h"

NORM(rmsnorm, false)
