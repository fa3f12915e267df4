/* silu: x sigmoid(x). */
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

TESS_CUDA_MAP(silu, silu)
