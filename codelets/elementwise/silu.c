/* silu: x sigmoid(x). */
#include "codelets/shared/parts.h"

static const float over_ln2 = 1.44269504f;

TESS_INLINE float value(float x)
{
    float unused;
    return x * tess_sigmoidf(-over_ln2 * x, &unused);
}

TESS_INLINE float slope_of(float x)
{
    float slope, y = tess_sigmoidf(-over_ln2 * x, &slope);
    return y + x * slope;
}

TESS_MAP(silu_forward, x, false, value(x))
TESS_MAP_TWO(silu_backward, dy, x, a.acc, dy *slope_of(x))
