/* The numbers of 8 bits, by their definition. */
#ifndef TESS_TESTS_FP8_LIST_H
#define TESS_TESTS_FP8_LIST_H
#include <math.h>

/* Fills in those of e4m3 (behind = 3) or e5m2 (behind = 2) that are not negative, by code; returns how many there are.
 */
static inline int fp8_list(int behind, double list[128])
{
    const int bias = behind == 3 ? 7 : 15, count = behind == 3 ? 127 : 124, steps = 1 << behind;
    for (int code = 0; code < count; code++) {
        const int e = code / steps, m = code % steps;
        list[code] = e ? ldexp(steps + m, e - bias - behind) : ldexp(m, 1 - bias - behind);
    }
    return count;
}

#endif
