/* join: two elements by a reduction; the same bits on CPU and GPU. */
#ifndef TESS_JOIN_H
#define TESS_JOIN_H
#include "codelets/generic.h"

TESS_INLINE float tess_join_real(tess_reduction fn, float a, float b)
{
    switch (fn) {
    case TESS_REDUCE_SUM:
        return a + b;
    case TESS_REDUCE_MAX:
        return a >= b || a != a ? a : b;
    case TESS_REDUCE_MIN:
        return a <= b || a != a ? a : b;
    default:
        return a * b;
    }
}
TESS_INLINE int32_t tess_join_whole(tess_reduction fn, int32_t a, int32_t b)
{
    switch (fn) {
    case TESS_REDUCE_SUM:
        return (int32_t)((uint32_t)a + (uint32_t)b);
    case TESS_REDUCE_PROD:
        return (int32_t)((uint32_t)a * (uint32_t)b);
    case TESS_REDUCE_MAX:
        return a > b ? a : b;
    case TESS_REDUCE_MIN:
        return a < b ? a : b;
    case TESS_REDUCE_AND:
        return a & b;
    default:
        return a | b;
    }
}

#endif
