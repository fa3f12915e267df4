/* whole: functions of whole numbers, as XLA has them; the same bits on CPU and GPU. */
#ifndef TESS_WHOLE_H
#define TESS_WHOLE_H
#include "codelets/shared/scalar.h"

TESS_INLINE int32_t tess_quotient(int32_t a, int32_t b)
{
    return b == 0 ? -1 : b == -1 ? (int32_t)(0u - (uint32_t)a) : a / b;
}
TESS_INLINE int32_t tess_remainder(int32_t a, int32_t b)
{
    return b == 0 ? a : b == -1 ? 0 : a % b;
}

/* x held in what a whole number can be. */
TESS_INLINE int32_t tess_whole_of(float x)
{
    return x != x ? 0 : x >= 2147483648.0f ? INT32_MAX : x < -2147483648.0f ? INT32_MIN : (int32_t)x;
}

/* Threefry 2x32 of 20 rounds, of the counter (0, c) and a key: its first word, its second, or both combined. */
TESS_INLINE int32_t tess_threefry(int32_t k0, int32_t k1, int32_t c, int word)
{
    const int turn[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t key[3] = {(uint32_t)k0, (uint32_t)k1, (uint32_t)k0 ^ (uint32_t)k1 ^ 0x1BD11BDAu};
    uint32_t x = key[0], y = (uint32_t)c + key[1];
    for (int round = 0; round < 5; round++) {
        for (int j = 0; j < 4; j++) {
            x += y;
            y = y << turn[round & 1][j] | y >> (32 - turn[round & 1][j]);
            y ^= x;
        }
        x += key[(round + 1) % 3];
        y += key[(round + 2) % 3] + (uint32_t)round + 1;
    }
    return (int32_t)(word == 0 ? x : word == 1 ? y : x ^ y);
}

#endif
