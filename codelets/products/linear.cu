/* linear: products through mm.cu, biases in their epilogues. The gradient of a bias is a pass of its own: the library's
 * epilogue for it was slower than both on an H100, 529 TFLOP/s beside 617. */
#include "codelets/shared/reduce.h"

template <tess_dtype T> static void linear_forward_body(const tess_work *w)
{
    const tess_linear_arg *a = arg_of(w);
    tess_cuda_mm d = {a->rows, a->out, a->in, a->in, a->in, a->ld, T, T};
    d.tb = true, d.b = a->w, d.fp8 = a->fp8 ? TESS_E4M3 : TESS_NO_FP8;
    d.bias = a->bias ? (const float *)w->buf[3].ptr : NULL;
    tess_cuda_mm_run(w, &d, w->buf[0].ptr, w->buf[1].ptr, at(w->buf[2].ptr, a->col, T));
}

template <tess_dtype T> static void linear_backward_input_body(const tess_work *w)
{
    const tess_linear_arg *a = arg_of(w);
    tess_cuda_mm d = {a->rows, a->in, a->out, a->ld, a->in, a->in, T, a->sum ? TESS_F32 : T};
    d.acc = a->acc, d.b = a->w, d.fp8 = a->fp8 ? TESS_E5M2 : TESS_NO_FP8;
    tess_cuda_mm_run(w, &d, at(w->buf[0].ptr, a->col, T), w->buf[1].ptr, w->buf[2].ptr);
}

/* db = the sums of dy's columns. */
template <tess_dtype T> struct bias_sums {
    static constexpr int SUMS = 1;
    const void *dy;
    int64_t ld;
    float *db;
    bool acc;
    template <int K> TESS_DEVICE void at(float v[SUMS][K], int64_t r, int64_t c) const
    {
        load<T, K>(v[0], dy, r * ld + c);
    }
    TESS_DEVICE void put(int, int64_t c, float total) const { db[c] = acc ? db[c] + total : total; }
};
template <tess_dtype T> static void sum_bias(const tess_work *w, const tess_linear_arg *a, const void *dy, float *db)
{
    const bool wide = a->out % WIDE == 0 && a->ld % WIDE == 0 && aligned(dy);
    sum_columns(w, bias_sums<T>{dy, a->ld, db, a->acc_bias}, a->rows, a->out, wide);
}

template <tess_dtype T> static void linear_backward_weight_body(const tess_work *w)
{
    const tess_linear_arg *a = arg_of(w);
    const void *dy = at(w->buf[0].ptr, a->col, T);
    const void *x = at(w->buf[1].ptr, a->row * a->in, T);
    float *db = a->bias ? (float *)w->buf[3].ptr : NULL;
    tess_cuda_mm d = {a->out, a->in, a->rows, a->ld, a->in, a->in, T, TESS_F32};
    d.ta = true, d.acc = a->acc, d.fp8 = a->fp8 ? TESS_E5M2 : TESS_NO_FP8;
    tess_cuda_mm_run(w, &d, dy, x, w->buf[2].ptr);
    if (db) sum_bias<T>(w, a, dy, db);
}

template <tess_dtype T> static void linear_backward_bias_body(const tess_work *w)
{
    const tess_linear_arg *a = arg_of(w);
    sum_bias<T>(w, a, at(w->buf[0].ptr, a->col, T), buffer(w, 1));
}

TESS_CUDA_REAL(linear_forward)
TESS_CUDA_REAL(linear_backward_input)
TESS_CUDA_REAL(linear_backward_weight)
TESS_CUDA_REAL(linear_backward_bias)
