/* linear: products through mm.cu, biases in their epilogues. */
#include "reduce.h"

template <tess_dtype T> static void linear_forward_body(const tess_work *w)
{
    const tess_linear_arg *a = (const tess_linear_arg *)w->arg;
    tess_cuda_mm d = {};
    d.m = a->rows, d.n = a->out, d.k = a->in;
    d.lda = a->in, d.ldb = a->in, d.ldc = a->ld;
    d.in = d.out = T;
    d.tb = true;
    d.bias = a->bias ? (const float *)w->buf[3].ptr : NULL;
    tess_cuda_mm_run(w, &d, w->buf[0].ptr, w->buf[1].ptr, (char *)w->buf[2].ptr + a->col * tess_dtype_size(T));
}

template <tess_dtype T> static void linear_backward_input_body(const tess_work *w)
{
    const tess_linear_arg *a = (const tess_linear_arg *)w->arg;
    tess_cuda_mm d = {};
    d.m = a->rows, d.n = a->in, d.k = a->out;
    d.lda = a->ld, d.ldb = a->in, d.ldc = a->in;
    d.in = T;
    d.out = a->sum ? TESS_F32 : T;
    d.acc = a->acc;
    tess_cuda_mm_run(w, &d, (const char *)w->buf[0].ptr + a->col * tess_dtype_size(T), w->buf[1].ptr, w->buf[2].ptr);
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

/* The library sums the columns beside the product where nothing is to be added to. */
template <tess_dtype T> static void linear_backward_weight_body(const tess_work *w)
{
    const tess_linear_arg *a = (const tess_linear_arg *)w->arg;
    const void *dy = (const char *)w->buf[0].ptr + a->col * tess_dtype_size(T);
    const void *x = (const char *)w->buf[1].ptr + a->row * a->in * (int64_t)tess_dtype_size(T);
    float *db = a->bias ? (float *)w->buf[3].ptr : NULL;
    tess_cuda_mm d = {};
    d.m = a->out, d.n = a->in, d.k = a->rows;
    d.lda = a->ld, d.ldb = a->in, d.ldc = a->in;
    d.in = T;
    d.out = TESS_F32;
    d.ta = true;
    d.acc = a->acc;
    d.column_sum = a->acc_bias ? NULL : db;
    if (tess_cuda_mm_run(w, &d, dy, x, w->buf[2].ptr) || !db) return;
    const bool wide = a->out % WIDE == 0 && a->ld % WIDE == 0 && aligned(dy);
    sum_columns(w, bias_sums<T>{dy, a->ld, db, a->acc_bias}, a->rows, a->out, wide);
}

template <tess_dtype T> static void linear_backward_bias_body(const tess_work *w)
{
    const tess_linear_arg *a = (const tess_linear_arg *)w->arg;
    const void *dy = (const char *)w->buf[0].ptr + a->col * tess_dtype_size(T);
    const bool wide = a->out % WIDE == 0 && a->ld % WIDE == 0 && aligned(dy);
    sum_columns(w, bias_sums<T>{dy, a->ld, (float *)w->buf[1].ptr, a->acc_bias}, a->rows, a->out, wide);
}

TESS_CUDA_REAL(linear_forward)
TESS_CUDA_REAL(linear_backward_input)
TESS_CUDA_REAL(linear_backward_weight)
TESS_CUDA_REAL(linear_backward_bias)
