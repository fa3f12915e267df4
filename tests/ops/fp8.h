/* What 8 bits stand for, from the list of all of them: a matrix has one scale, the least power of 2 that brings it in
 * range. */
#ifndef TESS_TESTS_FP8_H
#define TESS_TESTS_FP8_H
#include "tests/fp8.h"
#include "tests/ops/ops.h"

/* Returns a matrix of `ld` columns of which the first `width` are rounded; or x, where nobody looks. */
static inline const double *op_fp8(const double *x, int64_t rows, int64_t width, int64_t ld, int behind)
{
    double list[128], most = 0, scale = 1, *y = op_zeros(rows * ld);
    const int count = fp8_list(behind, list);
    if (!op_expects) return x;
    for (int64_t i = 0; i < rows * width; i++) most = fmax(most, fabs(x[i / width * ld + i % width]));
    while (most > 0 && most * scale * 2 <= list[count - 1]) scale *= 2;
    while (most * scale > list[count - 1]) scale /= 2;
    for (int64_t i = 0; i < rows * width; i++) {
        const int64_t at = i / width * ld + i % width;
        const double v = fabs(x[at]) * scale;
        int below = 0;
        for (int step = 64; step; step /= 2) below += below + step < count && list[below + step] <= v ? step : 0;
        const int above = below + 1 < count ? below + 1 : below;
        const double up = list[above] - v, down = v - list[below];
        y[at] = copysign(list[up < down || (up == down && below % 2) ? above : below] / scale, x[at]);
    }
    return y;
}

#endif
