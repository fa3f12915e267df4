/* relu: max(x, 0). */
#include "codelets/shared/kernels.h"

struct relu {
    static TESS_DEVICE float value(float x) { return x < 0 ? 0 : x; }
    static TESS_DEVICE float slope(float x) { return x <= 0 ? 0 : x == x ? 1 : x; }
};

TESS_CUDA_MAP(relu, relu)
