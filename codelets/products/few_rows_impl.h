/* few: y = x w^T + b for a few rows of x, where w is read once and nothing is brought into another form: what such
 * a product costs is reading w. Each element of y is a sum in 16 lanes over k in its order, whatever else is computed
 * beside it, so a row has the same bits alone and among others.
 *
 * Of bf16 a lane has neighbours: 32 elements are 16 words, whose low halves are one vector and whose high halves are
 * another, without a lane being crossed. Their products are exact in fp32, so that there a fused multiplication and
 * addition has the bits of the two one after the other: this is the one place that asks for it, since it halves what
 * several rows cost. */
#ifndef TESS_FEW_ROWS_IMPL_H
#define TESS_FEW_ROWS_IMPL_H
#include "codelets/shared/vector.h"

typedef float few_vector __attribute__((vector_size(64)));
typedef uint32_t few_bits __attribute__((vector_size(64)));

enum { FEW_OUTPUTS = 64 }; /* whose rows of w stay at hand for the next rows of x */

/* A step of 16 words of a row from element i on; of the last ones `left` elements, and zeros: one vector of fp32, two
 * of bf16. */
TESS_INLINE void few_load(few_vector v[2], const void *x, int64_t i, int64_t left, tess_dtype t)
{
    const int64_t per = t == TESS_BF16 ? 32 : 16;
    few_bits word = {0};
    if (left >= per)
        memcpy(&word, tess_at(x, i, t), sizeof word);
    else
        memcpy(&word, tess_at(x, i, t), (size_t)left * (t == TESS_BF16 ? 2 : 4));
    if (t == TESS_BF16) {
        v[0] = (few_vector)(word << 16);
        v[1] = (few_vector)(word & 0xffff0000u);
    } else {
        v[0] = (few_vector)word;
    }
}

/* A step of R rows of x and W rows of w. */
#define FEW_STEP(R, W, left)                                                                                           \
    do {                                                                                                               \
        few_vector w_[W][2];                                                                                           \
        _Pragma("GCC unroll 8") for (int c_ = 0; c_ < W; c_++) few_load(w_[c_], w, (out + c_) * in + k_, left, t);     \
        _Pragma("GCC unroll 8") for (int r_ = 0; r_ < R; r_++)                                                         \
        {                                                                                                              \
            few_vector x_[2];                                                                                          \
            few_load(x_, x, (row + r_) * in + k_, left, t);                                                            \
            _Pragma("GCC unroll 8") for (int c_ = 0; c_ < W; c_++)                                                     \
            {                                                                                                          \
                sum[r_][c_] += x_[0] * w_[c_][0];                                                                      \
                if (t == TESS_BF16) sum[r_][c_] += x_[1] * w_[c_][1];                                                  \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)
/* y[r][c] = sum + b. */
#define FEW_BLOCK(R, W)                                                                                                \
    do {                                                                                                               \
        const int64_t per_ = t == TESS_BF16 ? 32 : 16;                                                                 \
        few_vector sum[R][W];                                                                                          \
        _Pragma("GCC unroll 8") for (int r_ = 0; r_ < R; r_++) _Pragma("GCC unroll 8") for (int c_ = 0; c_ < W; c_++)  \
            sum[r_][c_] = (few_vector){0};                                                                             \
        int64_t k_ = 0;                                                                                                \
        for (; k_ + per_ <= in; k_ += per_) FEW_STEP(R, W, per_);                                                      \
        if (k_ < in) FEW_STEP(R, W, in - k_);                                                                          \
        _Pragma("GCC unroll 8") for (int r_ = 0; r_ < R; r_++) _Pragma("GCC unroll 8") for (int c_ = 0; c_ < W; c_++)  \
        {                                                                                                              \
            float lane_[16];                                                                                           \
            memcpy(lane_, &sum[r_][c_], sizeof lane_);                                                                 \
            const float total_ = tess_sum16(lane_);                                                                    \
            tess_store(y, (row + r_) * a->ld + a->col + out + c_, t, bias ? total_ + bias[out + c_] : total_);         \
        }                                                                                                              \
    } while (0)
/* The outputs [first, end) of R rows, W at a time. */
#define FEW_ROWS(R, W)                                                                                                 \
    do {                                                                                                               \
        int64_t out = first;                                                                                           \
        for (; out + W <= end; out += W) FEW_BLOCK(R, W);                                                              \
        for (; out < end; out++) FEW_BLOCK(R, 1);                                                                      \
        row += R;                                                                                                      \
    } while (0)

/* x (rows,in), w (out,in), y (rows,ld): its columns [col, col + out). */
TESS_INLINE void few_rows(const tess_linear_arg *a, const void *x, const void *w, const float *bias, void *y,
                          tess_dtype t)
{
    const int64_t in = a->in;
    for (int64_t first = 0; first < a->out; first += FEW_OUTPUTS) {
        const int64_t end = first + FEW_OUTPUTS < a->out ? first + FEW_OUTPUTS : a->out;
        int64_t row = 0;
        while (row + 8 <= a->rows) FEW_ROWS(8, 2);
        if (row + 4 <= a->rows) FEW_ROWS(4, 4);
        if (row + 2 <= a->rows) FEW_ROWS(2, 4);
        if (row < a->rows) FEW_ROWS(1, 8);
    }
}

TESS_CLONES static void few_rows_f32(const tess_linear_arg *a, const void *x, const void *w, const float *bias, void *y)
{
    few_rows(a, x, w, bias, y, TESS_F32);
}
__attribute__((optimize("fp-contract=fast"))) TESS_CLONES static void
few_rows_bf16(const tess_linear_arg *a, const void *x, const void *w, const float *bias, void *y)
{
    few_rows(a, x, w, bias, y, TESS_BF16);
}

#endif
