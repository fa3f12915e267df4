/* few_impl: y = x w^T + b for a few rows of x, where w is read once and nothing is brought into another form: what such
 * a product costs is reading w. Each element of y is a sum in 16 lanes over k in its order, whatever else is computed
 * beside it, so a row has the same bits alone and among others. */
#ifndef TESS_FEW_IMPL_H
#define TESS_FEW_IMPL_H
#include "vector_impl.h"

typedef float few_vector __attribute__((vector_size(64)));
typedef uint32_t few_bits __attribute__((vector_size(64)));
typedef uint16_t few_half __attribute__((vector_size(32)));

/* 16 elements from i on; of the last ones `left`, and zeros. */
TESS_INLINE void few_load(few_vector *v, const void *x, int64_t i, int64_t left, tess_dtype t)
{
    const size_t n = left < 16 ? (size_t)left : 16;
    if (t == TESS_BF16) {
        few_half half = {0};
        memcpy(&half, (const tess_bf16 *)x + i, n == 16 ? sizeof half : n * 2);
        *v = (few_vector)(__builtin_convertvector(half, few_bits) << 16);
    } else {
        *v = (few_vector){0};
        memcpy(v, (const float *)x + i, n == 16 ? sizeof *v : n * 4);
    }
}

/* R rows of x, `W` rows of w: y[r][c] = sum + b. */
#define FEW_BLOCK(R, W)                                                                                                \
    do {                                                                                                               \
        few_vector sum[R][W];                                                                                          \
        for (int r_ = 0; r_ < R; r_++)                                                                                 \
            for (int c_ = 0; c_ < W; c_++) sum[r_][c_] = (few_vector){0};                                              \
        int64_t k_ = 0;                                                                                                \
        for (; k_ + 16 <= in; k_ += 16) FEW_STEP(R, W, 16);                                                            \
        if (k_ < in) FEW_STEP(R, W, in - k_);                                                                          \
        for (int r_ = 0; r_ < R; r_++)                                                                                 \
            for (int c_ = 0; c_ < W; c_++) {                                                                           \
                float lane_[16];                                                                                       \
                memcpy(lane_, &sum[r_][c_], sizeof lane_);                                                             \
                const float total_ = tess_sum16(lane_);                                                                \
                tess_store(y, (row + r_) * a->ld + a->col + out + c_, t, bias ? total_ + bias[out + c_] : total_);     \
            }                                                                                                          \
    } while (0)
#define FEW_STEP(R, W, left)                                                                                           \
    do {                                                                                                               \
        few_vector x_[R];                                                                                              \
        _Pragma("GCC unroll 8") for (int r_ = 0; r_ < R; r_++) few_load(&x_[r_], x, (row + r_) * in + k_, left, t);    \
        _Pragma("GCC unroll 8") for (int c_ = 0; c_ < W; c_++)                                                         \
        {                                                                                                              \
            few_vector w_;                                                                                             \
            few_load(&w_, w, (out + c_) * in + k_, left, t);                                                           \
            _Pragma("GCC unroll 8") for (int r_ = 0; r_ < R; r_++) sum[r_][c_] += x_[r_] * w_;                         \
        }                                                                                                              \
    } while (0)
/* All outputs of R rows, W at a time. */
#define FEW_ROWS(R, W)                                                                                                 \
    do {                                                                                                               \
        int64_t out = 0;                                                                                               \
        for (; out + W <= a->out; out += W) FEW_BLOCK(R, W);                                                           \
        for (; out < a->out; out++) FEW_BLOCK(R, 1);                                                                   \
    } while (0)

/* x (rows,in), w (out,in), y (rows,ld): its columns [col, col + out). */
TESS_INLINE void tess_few_rows(const tess_linear_arg *a, const void *x, const void *w, const float *bias, void *y,
                               tess_dtype t)
{
    const int64_t in = a->in;
    int64_t row = 0;
    for (; row + 8 <= a->rows; row += 8) FEW_ROWS(8, 2);
    if (row + 4 <= a->rows) {
        FEW_ROWS(4, 4);
        row += 4;
    }
    if (row + 2 <= a->rows) {
        FEW_ROWS(2, 4);
        row += 2;
    }
    if (row < a->rows) FEW_ROWS(1, 8);
}

#endif
