/* relu: max(x, 0), of a NaN the NaN. */
#include "codelets/shared/parts.h"

TESS_MAP(relu_forward, x, false, x < 0 ? 0 : x)
TESS_MAP_TWO(relu_backward, dy, x, a.acc, x <= 0 ? 0 : x == x ? dy : x)
