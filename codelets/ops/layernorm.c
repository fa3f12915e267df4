/* layernorm: y = (x - mean) / std * gain + bias, over rows. */
#include "norm_impl.h"

NORM(layernorm, true)
