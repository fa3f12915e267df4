/* silu: x sigmoid(x), and sigmoid(x). */
#include "codelets/shared/kernels.h"

struct silu {
    static TESS_DEVICE float value(float x) { return __fdividef(x, 1 + __expf(-x)); }
    static TESS_DEVICE float slope(float x)
    {
        const float e = __expf(-fabsf(x)), large = __fdividef(1, 1 + e); /* sigmoid(|x|) */
        const float y = x < 0 ? e * large : large;
        return y + x * (e * large * large);
    }
};

struct sigmoid {
    static TESS_DEVICE float value(float x) { return __fdividef(1, 1 + __expf(-x)); }
    static TESS_DEVICE float slope(float x)
    {
        const float e = __expf(-fabsf(x)), large = __fdividef(1, 1 + e);
        return e * large * large;
    }
};

static bool alone(const tess_work *w)
{
    return ((const tess_map_arg *)w->arg)->kind;
}

TESS_CUDA_REAL_OF(silu_forward,
                  alone(w) ? map_one<T>(w, false, value_of<sigmoid>{}) : map_one<T>(w, false, value_of<silu>{}))
TESS_CUDA_REAL_OF(silu_backward, alone(w) ? map_two<T>(w, map_adds(w), slope_of<sigmoid>{})
                                          : map_two<T>(w, map_adds(w), slope_of<silu>{}))
