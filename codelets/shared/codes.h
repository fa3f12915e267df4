/* codes: what the codes of quantized matrices stand for, of CPU and CUDA bodies alike. */
#ifndef TESS_CODES_H
#define TESS_CODES_H
#include "codelets/shared/scalar.h"

/* The quantiles of a normal distribution, scaled to [-1, 1]. */
#define TESS_NF4_VALUES                                                                                                \
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,                   \
        -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,                \
        0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f,    \
        1.0f

/* Point i of n from 0.1 to 1, with torch.linspace's bits: from the nearer end. */
TESS_INLINE float tess_code_point(int n, int i)
{
    const float step = (1.0f - 0.1f) / (float)(n - 1);
    return i < n / 2 ? fmaf(step, (float)i, 0.1f) : fmaf(-step, (float)(n - 1 - i), 1.0f);
}
/* Of 8 bits: seven decades below 1, of 1, 2, ... 64 steps, each step the middle of two points; 0 is 127, 1 is 255. */
TESS_INLINE float tess_int8_value(int code)
{
    const float decade[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
    const int size = code < 127 ? 127 - code : code - 127;
    int d = 0;
    if (size == 0 || size == 128) return size ? 1.0f : 0.0f;
    while (size >> (d + 1)) d++;
    const int n = (1 << d) + 1, i = size - (1 << d);
    const float value = decade[d] * ((tess_code_point(n, i) + tess_code_point(n, i + 1)) / 2);
    return code < 127 ? -value : value;
}

#endif
