/* cum: one step of what stands up to each place of a dimension, and of its gradients, which are recurrences that go the
 * other way:
 *
 *     prod        dx[i] = y[i - 1] s[i],           s[i] = dy[i] + x[i + 1] s[i + 1]          (no division: x may be 0)
 *     logsumexp   dx[i] = exp(x[i] - y[i]) s[i],   s[i] = dy[i] + exp(y[i] - y[i + 1]) s[i + 1]
 *     max, min    dx[i] = s[i] where x[i] is the most so far, and s starts again from 0 before it
 *
 * They carry doubles. */
#ifndef TESS_CUM_IMPL_H
#define TESS_CUM_IMPL_H
#include "codelets/generic.h"
#include "codelets/shared/scalar.h"

TESS_INLINE double tess_cum_join(tess_cumulation fn, double s, double x)
{
    switch (fn) {
    case TESS_CUM_SUM:
        return s + x;
    case TESS_CUM_PROD:
        return s * x;
    case TESS_CUM_MAX:
        return x >= s || x != x ? x : s;
    case TESS_CUM_MIN:
        return x <= s || x != x ? x : s;
    default: { /* the larger one outside */
        const double most = x > s ? x : s, other = x > s ? s : x;
        return most == other && isinf(most) ? most : most + log1p(exp(other - most));
    }
    }
}

TESS_INLINE int32_t tess_cum_join_whole(tess_cumulation fn, int32_t s, int32_t x)
{
    switch (fn) {
    case TESS_CUM_SUM:
        return (int32_t)((uint32_t)s + (uint32_t)x);
    case TESS_CUM_PROD:
        return (int32_t)((uint32_t)s * (uint32_t)x);
    case TESS_CUM_MAX:
        return x > s ? x : s;
    default:
        return x < s ? x : s;
    }
}

/* One step back: what place i passes on, and, returned, its dx. `more` says that there is a place behind it. */
TESS_INLINE double tess_cum_back(tess_cumulation fn, const float *xs, const float *ys, const float *dys, int64_t k,
                                 int64_t before, int64_t behind, bool first, bool more, double *s)
{
    const double x = (double)xs[k], y = (double)ys[k], dy = (double)dys[k];
    switch (fn) {
    case TESS_CUM_PROD:
        *s = more ? dy + (double)xs[behind] * *s : dy;
        return (first ? 1 : (double)ys[before]) * *s;
    case TESS_CUM_LOGSUMEXP:
        *s = more && y > -INFINITY ? dy + exp(y - (double)ys[behind]) * *s : dy;
        return x > -INFINITY ? exp(x - y) * *s : 0;
    default: {
        const double all = more ? dy + *s : dy;
        const bool most = x == y || x != x;
        *s = most ? 0 : all;
        return most ? all : 0;
    }
    }
}

#endif
