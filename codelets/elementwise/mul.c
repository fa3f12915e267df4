/* mul: products of two tensors of one shape, element by element. */
#include "codelets/shared/parts.h"

TESS_MAP_TWO(mul_forward, x, z, false, x *z)
TESS_MAP_TWO(mul_backward, dy, z, a.acc, dy *z)
