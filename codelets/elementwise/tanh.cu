/* tanh: cap tanh(x / cap). */
#include "codelets/shared/kernels.h"

struct capped {
    float cap;
    TESS_DEVICE float operator()(float x) const { return cap * tanhf(x / cap); }
};
struct capped_gradient {
    float cap;
    TESS_DEVICE float operator()(float dy, float x) const
    {
        const float z = x / cap, e = exp2f(fmaxf(fabsf(z) * (-2 * 1.44269504f), -125)); /* as the CPU's */
        return dy * (z == z ? 4 * e / ((1 + e) * (1 + e)) : z);
    }
};
static float cap_of(const tess_work *w)
{
    return ((const tess_map_arg *)w->arg)->cap;
}

TESS_CUDA_REAL_OF(tanh_forward, map_one<T>(w, false, capped{cap_of(w)}))
TESS_CUDA_REAL_OF(tanh_backward, map_two<T>(w, map_adds(w), capped_gradient{cap_of(w)}))
