/* tanh: cap tanh(x / cap). */
#include "codelets/shared/parts.h"

/* 4 / (e^x + e^-x)^2, which loses nothing where tanh comes near 1. */
TESS_INLINE float slope_of(float x)
{
    const float e = tess_exp2f(fabsf(x) * (-2 * 1.44269504f)), slope = 4 * e / ((1 + e) * (1 + e));
    return x == x ? slope : x;
}

TESS_MAP(tanh_forward, x, false, a.cap *tess_tanhf(x *(1 / a.cap)))
TESS_MAP_TWO(tanh_backward, dy, x, a.acc, dy *slope_of(x *(1 / a.cap)))
