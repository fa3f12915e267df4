/* silu: x sigmoid(x); of kind 1 sigmoid(x) alone. */
#include "codelets/shared/parts.h"

static const float over_ln2 = 1.44269504f;

TESS_INLINE float value(float x, int kind)
{
    float unused, y = tess_sigmoidf(-over_ln2 * x, &unused);
    return kind && x == x ? y : x * y;
}

TESS_INLINE float slope_of(float x, int kind)
{
    float slope, y = tess_sigmoidf(-over_ln2 * x, &slope);
    return kind && x == x ? slope : y + x * slope;
}

TESS_MAP(silu_forward, x, false, value(x, a.kind))
TESS_MAP_TWO(silu_backward, dy, x, a.acc, dy *slope_of(x, a.kind))
