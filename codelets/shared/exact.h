/* exact: a sum of exact.c's, for CPU and CUDA bodies alike. */
#ifndef TESS_EXACT_H
#define TESS_EXACT_H
#include "codelets/shared/scalar.h"

enum { TESS_EXACT_LIMBS = 68, TESS_EXACT_LOWEST = -1074 }; /* the exponent of the last bit of a double, at least */

/* Limb i counts 2^(LOWEST + 32 i); all but the last are in [0, 2^32) between tasks. */
typedef struct tess_exact {
    int64_t limb[TESS_EXACT_LIMBS];
    int64_t odd; /* terms that are not finite */
} tess_exact;

/* Stores the size of a finite x in three limbs, the first of them limb *at; returns false where x is not finite. */
TESS_INLINE bool tess_exact_split(double x, int *at, uint32_t limb[3])
{
    union {
        double d;
        uint64_t u;
    } v = {.d = x};
    const int exponent = (int)(v.u >> 52) & 0x7ff;
    if (exponent == 0x7ff) return false;
    const int place = exponent ? exponent - 1 : 0, shift = place % 32; /* of the last bit, above LOWEST */
    const uint64_t digits = (v.u & 0xfffffffffffffu) | (uint64_t)(exponent != 0) << 52, low = digits << shift;
    *at = place / 32;
    limb[0] = (uint32_t)low;
    limb[1] = (uint32_t)(low >> 32);
    limb[2] = shift ? (uint32_t)(digits >> (64 - shift)) : 0;
    return true;
}

TESS_INLINE void tess_exact_carry(tess_exact *e)
{
    for (int k = 0; k + 1 < TESS_EXACT_LIMBS; k++) {
        int64_t over = e->limb[k] >> 32; /* rounds down, below zero too */
        e->limb[k] -= over * ((int64_t)1 << 32);
        e->limb[k + 1] += over;
    }
}

/* Adds x; the carries are yet to be made. */
TESS_INLINE void tess_exact_take(tess_exact *e, double x)
{
    int at;
    uint32_t limb[3];
    if (!tess_exact_split(x, &at, limb)) {
        e->odd++;
        return;
    }
    for (int k = 0; k < 3; k++) e->limb[at + k] += signbit(x) ? -(int64_t)limb[k] : (int64_t)limb[k];
}

/* The sum as a double; NaN where a term was not finite. */
TESS_INLINE double tess_exact_read(const void *sum)
{
    tess_exact e = *(const tess_exact *)sum;
    if (e.odd) return NAN;
    double sign = 1, x = 0;
    if (e.limb[TESS_EXACT_LIMBS - 1] < 0) {
        sign = -1;
        for (int k = 0; k < TESS_EXACT_LIMBS; k++) e.limb[k] = -e.limb[k];
        tess_exact_carry(&e);
    }
    for (int k = TESS_EXACT_LIMBS - 1; k >= 0; k--) x += ldexp((double)e.limb[k], 32 * k + TESS_EXACT_LOWEST);
    return sign * x;
}

/* Adds the means of losses, whose sums and counts lie one after the other in n sums. One without targets adds none. */
TESS_INLINE double tess_exact_means(const tess_exact *sum, int64_t n)
{
    double all = 0;
    for (int64_t k = 0; k < n; k += 2) {
        const double total = tess_exact_read(&sum[k]), count = tess_exact_read(&sum[k + 1]);
        if (count > 0) all += total / count;
    }
    return all;
}
#endif
