/* scale: x times a constant. Its gradient is the same of dy. */
#include "codelets/shared/parts.h"

TESS_MAP(scale, x, a.acc, a.by *x)
