/* layernorm: y = (x - mean) / std * gain + bias, over rows. */
#include "codelets/ops/norm_impl.h"

NORM(layernorm, true)
