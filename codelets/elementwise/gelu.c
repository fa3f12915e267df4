/* gelu: x times the normal distribution function, by erf or by GPT-2's approximation
 *
 *     x (1 + tanh(u / 2)) / 2 = x sigmoid(u),  u = 2 sqrt(2/pi) (x + 0.044715 x^3) */
#include "codelets/shared/parts.h"

static const float linear = 1.59576912f, cubic = 0.0713548163f;      /* of u */
static const float linear_z = -2.30220819f, cubic_z = -0.102943239f; /* of -u / ln 2 */

TESS_INLINE float tanh_value(float x)
{
    float unused;
    return x * tess_sigmoidf(x * (linear_z + cubic_z * (x * x)), &unused);
}
TESS_INLINE float tanh_slope(float x)
{
    float square = x * x, slope;
    float y = tess_sigmoidf(x * (linear_z + cubic_z * square), &slope);
    return y + x * (slope * (linear + 3 * cubic * square));
}

/* The normal distribution function and its slope, from one exponential: beyond |x| lies e^(-x^2/2) q(t) with
 * t = 1 / (1 + 0.3 |x|) and q a polynomial. */
TESS_INLINE float normal(float x, float *slope)
{
    float e = tess_exp2f(x * x * -0.721347520f);
    float t = 1 / (1 + 0.3f * fabsf(x));
    float q = 3.61955244e-2f;
    q = q * t - 0.159380725f;
    q = q * t + 0.210121924f;
    q = q * t - 5.71700461e-2f;
    q = q * t + 0.13041758f;
    q = q * t + 9.93468682e-2f;
    q = q * t + 0.120845558f;
    q = q * t + 0.119623262f;
    float tail = e * (q * t);
    *slope = e * 0.398942280f;
    return x < 0 ? tail : 1 - tail;
}

TESS_INLINE float erf_value(float x)
{
    float unused;
    return x * normal(x, &unused);
}
TESS_INLINE float erf_slope(float x)
{
    float slope, y = normal(x, &slope);
    return y + x * slope;
}

TESS_MAP_BODY(tanh_forward, x, false, tanh_value(x))
TESS_MAP_TWO_BODY(tanh_backward, dy, x, a.acc, dy *tanh_slope(x))
TESS_MAP_BODY(erf_forward, x, false, erf_value(x))
TESS_MAP_TWO_BODY(erf_backward, dy, x, a.acc, dy *erf_slope(x))

TESS_INLINE bool by_tanh(const tess_work *w)
{
    return ((const tess_map_arg *)w->arg)->kind == TESS_GELU_TANH;
}
TESS_INLINE void gelu_forward(const tess_work *w, tess_dtype t)
{
    by_tanh(w) ? tanh_forward(w, t) : erf_forward(w, t);
}
TESS_INLINE void gelu_backward(const tess_work *w, tess_dtype t)
{
    by_tanh(w) ? tanh_backward(w, t) : erf_backward(w, t);
}

TESS_REAL_CUT(gelu_forward, tess_part_task_elements)
TESS_REAL_CUT(gelu_backward, tess_part_task_elements)
