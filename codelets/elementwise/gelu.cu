/* gelu: the formulas of gelu.c, with the device's own exponential: on a GPU the CPU's polynomials would take longer
 * than the memory. */
#include "codelets/shared/kernels.h"

/* x sigmoid(u), u = 2 sqrt(2/pi) (x + 0.044715 x^3), and its slope. */
struct by_tanh {
    static TESS_DEVICE float value(float x)
    {
        const float u = x * (1.59576912f + 0.0713548163f * (x * x));
        return __fdividef(x, 1 + __expf(-u));
    }
    static TESS_DEVICE float slope(float x)
    {
        const float square = x * x, u = x * (1.59576912f + 0.0713548163f * square);
        const float e = __expf(-fabsf(u)), small = __fdividef(1, 1 + e); /* sigmoid(|u|) */
        const float y = u < 0 ? e * small : small;
        return y + x * (e * small * small * (1.59576912f + 3 * 0.0713548163f * square));
    }
};

/* x times the normal distribution function, and its slope. */
struct by_erf {
    static TESS_DEVICE float value(float x) { return x * normcdff(x); }
    static TESS_DEVICE float slope(float x) { return normcdff(x) + x * (0.398942280f * __expf(-0.5f * x * x)); }
};

static bool tanh_wanted(const tess_work *w)
{
    return ((const tess_map_arg *)w->arg)->kind == TESS_GELU_TANH;
}

TESS_CUDA_REAL_OF(gelu_forward,
                  tanh_wanted(w) ? map_one<T>(w, false, value_of<by_tanh>{}) : map_one<T>(w, false, value_of<by_erf>{}))
TESS_CUDA_REAL_OF(gelu_backward, tanh_wanted(w) ? map_two<T>(w, map_adds(w), slope_of<by_tanh>{})
                                                : map_two<T>(w, map_adds(w), slope_of<by_erf>{}))
