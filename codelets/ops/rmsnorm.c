/* rmsnorm: y = x / rms * gain, over rows. */
#include "norm_impl.h"

NORM(rmsnorm, false)
