/* What layernorm and rmsnorm share: one row at a time in double, dx by finite differences. */
#ifndef TESS_TESTS_NORM_H
#define TESS_TESTS_NORM_H
#include "tests/ops/ops.h"

enum { NORM_WIDEST = 2056, NORM_EPS_INVERSE = 100000 };
static const int64_t norm_shape[][2] = {{3, 1},    {5, 7},     {37, 65},
                                        {3, 1000}, {140, 264}, {5, 2056},
                                        {9, 1608}, {140, 9},   {1100, 65} /* more than a part */,
                                        {3, 1031} /* more than a block of a GPU holds */};
enum { NORM_SHAPES = sizeof norm_shape / sizeof *norm_shape };

/* y of one row; centered: layernorm's. Sets the mean and 1/std, or 0 and 1/rms. */
static inline void norm_row(const double *x, const double *gain, const double *bias, double *y, int64_t n,
                            bool centered, double stats[2])
{
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n && centered; i++) mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / (double)n;
    const double scale = 1 / sqrt(square + 1.0 / NORM_EPS_INVERSE);
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * scale * gain[i] + (bias ? bias[i] : 0);
    stats[0] = mean;
    stats[1] = scale;
}

/* The dot product of dy and y of one row. */
static inline double norm_dot(const double *x, const double *dy, const double *gain, int64_t n, bool centered)
{
    double y[NORM_WIDEST], stats[2], dot = 0;
    norm_row(x, gain, NULL, y, n, centered, stats);
    for (int64_t i = 0; i < n; i++) dot += dy[i] * y[i];
    return dot;
}

/* What bodies may be off by in dx of rows of one number, of rmsnorm's. It is dy gain scale (1 - (x scale)^2), of which
 * eps leaves 1e-5 where x is about 1, so the roundings of what cancels (twice the stored scale's, those of a few
 * products) are as large as much of the rest, which 16 bits round once more, fp16 by its smallest number. Of layernorm
 * nothing is left, exactly. */
static inline double norm_of_one(const double *dy, const double *x, const double *scale, double gain, int64_t rows,
                                 tess_dtype t)
{
    static const double rounds[] = {[TESS_BF16] = 0x1p-8, [TESS_F16] = 0x1p-10};
    double cancels = 0, rest = 0;
    for (int64_t r = 0; r < rows; r++) {
        const double term = dy[r] * gain * scale[r], left = term * (1 - x[r] * x[r] * scale[r] * scale[r]);
        cancels += term * term;
        rest += left * left;
    }
    const double least = t == TESS_F16 ? 0x1p-24 * sqrt((double)rows) : 0;
    return rounds[t] + (8 * 0x1p-24 * sqrt(cancels) + least) / sqrt(rest);
}

/* With `adds` the rows are a sum, which is written too, rounded as a tile is. */
static inline void norm_forward(tess_codelet *cl, int64_t rows, int64_t n, tess_dtype t, bool centered, bool adds,
                                float shift)
{
    const int64_t all = rows * n, stats_n = centered ? 2 : 1;
    const tess_norm_arg a = {.rows = rows, .width = n, .eps = 1.0f / NORM_EPS_INVERSE, .shift = shift};
    double *x = op_in("x", all, t, adds ? 1 : 2);
    if (adds) {
        const double *z = op_in("z", all, t, 1), *a = x;
        x = op_out("both", all, t, false);
        for (int64_t i = 0; i < all; i++) {
            float stored;
            op_put(&stored, 0, t, a[i] + z[i]);
            x[i] = op_value(&stored, 0, t);
        }
    }
    double *gain = op_in("gain", n, TESS_F32, 1);
    double *bias = centered ? op_in("bias", n, TESS_F32, 1) : NULL;
    double *y = op_out("y", all, t, false), *stats = op_out("stats", rows * stats_n, TESS_F32, false);
    for (int64_t i = 0; i < n; i++) gain[i] += (double)shift;
    for (int64_t r = 0; r < rows && op_expects; r++) {
        double two[2];
        norm_row(x + r * n, gain, bias, y + r * n, n, centered, two);
        memcpy(stats + r * stats_n, centered ? two : two + 1, (size_t)stats_n * sizeof *two);
    }
    op_run(cl, &a);
}

static inline void norm_backward(tess_codelet *cl, int64_t rows, int64_t n, tess_dtype t, bool centered, float shift,
                                 bool acc, bool acc_param)
{
    const int64_t all = rows * n, stats_n = centered ? 2 : 1;
    const tess_norm_arg a = {
        .rows = rows, .width = n, .eps = 1.0f / NORM_EPS_INVERSE, .shift = shift, .acc = acc, .acc_param = acc_param};
    double *dy = op_in("dy", all, t, 1), *x = op_in("x", all, t, 2), *gain = op_in("gain", n, TESS_F32, 1);
    double *stats = op_zeros(rows * stats_n), *y = op_zeros(n), *ones = op_zeros(n);
    for (int64_t i = 0; i < n; i++) ones[i] = 1, gain[i] += (double)shift;
    for (int64_t r = 0; r < rows; r++) {
        double two[2];
        norm_row(x + r * n, ones, NULL, y, n, centered, two);
        memcpy(stats + r * stats_n, centered ? two : two + 1, (size_t)stats_n * sizeof *two);
    }
    const double within = n > 1 || acc || centered ? 0 : norm_of_one(dy, x, stats, gain[0], rows, t);
    op_given("stats", rows * stats_n, TESS_F32, stats);
    double *dx = op_out("dx", all, t, acc);
    op_within(within);
    double *dgain = op_out("dgain", n, TESS_F32, acc_param);
    double *dbias = centered ? op_out("dbias", n, TESS_F32, acc_param) : op_zeros(n);
    for (int64_t r = 0; r < rows && op_expects; r++) {
        double two[2], *row = x + r * n;
        norm_row(row, ones, NULL, y, n, centered, two);
        for (int64_t i = 0; i < n; i++) {
            const double at = row[i];
            row[i] = at + 1e-5;
            const double above = norm_dot(row, dy + r * n, gain, n, centered);
            row[i] = at - 1e-5;
            const double below = norm_dot(row, dy + r * n, gain, n, centered);
            row[i] = at;
            dx[r * n + i] += (above - below) / 2e-5;
            dgain[i] += dy[r * n + i] * y[i];
            dbias[i] += dy[r * n + i];
        }
    }
    op_run(cl, &a);
}

/* With `shifted` the gain is every other time 1 more than what is stored. */
static inline void norm_tasks(tess_codelet *forward, tess_codelet *add_forward, tess_codelet *backward, bool centered,
                              bool shifted)
{
    for (int k = 0; k < (op_speed ? 1 : NORM_SHAPES); k++) OP_EACH(t) OP_EACH_ACC(acc)
        {
            const int64_t rows = op_speed ? 1024 : norm_shape[k][0], n = op_speed ? 768 : norm_shape[k][1];
            const float shift = shifted && k % 2 == acc ? 1 : 0;
            norm_forward(&forward[t], rows, n, t, centered, false, shift);
            norm_forward(&add_forward[t], rows, n, t, centered, true, shift);
            norm_backward(&backward[t], rows, n, t, centered, shift, acc, k % 2 ? acc : !acc);
        }
}

#endif
