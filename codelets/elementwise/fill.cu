/* fill: first values of parameters, and the copies in 16 bits of those that have a master. The bits are the CPU's, so
 * this file is compiled without contraction. */
#include "codelets/shared/kernels.h"

template <tess_dtype T> struct constant {
    void *x;
    float value;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K];
        for (int k = 0; k < K; k++) v[k] = value;
        store<T, K>(x, i, v);
    }
};
template <tess_dtype T> static void fill_body(const tess_work *w)
{
    const tess_count_arg *a = arg_of(w);
    void *x = at(w->buf[0].ptr, a->at, T);
    map(w, constant<T>{x, a->value}, a->n, aligned(x));
}
TESS_CUDA_REAL(fill)

struct normal {
    void *x;
    float value;
    int64_t first, width, stride;
    bool uniform;
    tess_random_key key;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float v[K];
        for (int k = 0; k < K; k++) {
            const int64_t row = (i + k) / width, column = (i + k) % width;
            const uint64_t place = (uint64_t)(first + row * stride + column);
            v[k] = value * (uniform ? tess_uniform_at(key, place) : tess_normal_at(key, place));
        }
        store<TESS_F32, K>(x, i, v);
    }
};
template <tess_dtype T> static void fill_normal_body(const tess_work *w)
{
    const tess_count_arg *a = arg_of(w);
    const tess_random_key key = tess_random_begin(w->env->seed, UINT64_MAX, a->op);
    const int64_t width = a->width ? a->width : a->n;
    const normal f = {(float *)w->buf[0].ptr + a->at, a->value, a->first, width, a->stride, a->uniform, key};
    map(w, f, a->n, aligned(f.x));
}
TESS_CUDA_BODY(fill_normal, fill_normal_f32, TESS_F32)

template <tess_dtype T> static void round_body(const tess_work *w)
{
    const tess_count_arg *a = arg_of(w);
    map_into<TESS_F32, T>(w, buffer(w, 0), at(w->buf[1].ptr, a->at, T), a->n, false);
}
TESS_CUDA_BODY(round, all_round_bf16, TESS_BF16)
TESS_CUDA_BODY(round, all_round_f16, TESS_F16)
