/* scale: x times a constant. */
#include "cuda.h"

template <tess_dtype T> struct scaled {
    const void *x;
    void *y;
    float by;
    bool acc;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K];
        load<T, K>(v, x, i);
        for (int k = 0; k < K; k++) v[k] = by * v[k];
        accumulate<T, K>(y, i, acc, v);
    }
};

template <tess_dtype T> static void scale_body(const tess_work *w)
{
    const tess_map_arg *a = (const tess_map_arg *)w->arg;
    const void *x = w->buf[0].ptr;
    void *y = w->buf[1].ptr;
    map(w, scaled<T>{x, y, a->by, a->acc}, a->n, aligned(x, y));
}

TESS_CUDA_REAL(scale)
