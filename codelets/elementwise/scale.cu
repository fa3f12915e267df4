/* scale: x times a constant. */
#include "codelets/shared/kernels.h"

struct times {
    float by;
    TESS_DEVICE float operator()(float x) const { return by * x; }
};

TESS_CUDA_REAL_OF(scale, map_one<T>(w, map_adds(w), times{((const tess_map_arg *)w->arg)->by}))
