/* attention_bucket: which row of the table of biases is that of a distance key - query: exact up to half of the
 * buckets, then by its logarithm up to `reach`, all beyond in the last; where both sides are seen, half of the buckets
 * are for keys behind the query. */
#include "codelets/codelets.h"
#include <math.h>

int64_t tess_attention_bucket(const tess_attention_arg *a, int64_t distance)
{
    int64_t buckets = a->buckets, base = 0;
    if (!a->causal) {
        buckets /= 2;
        if (distance > 0) base = buckets;
        distance = distance < 0 ? -distance : distance;
    } else {
        distance = distance < 0 ? -distance : 0;
    }
    const int64_t exact = buckets / 2;
    if (distance < exact) return base + distance;
    const float part = logf((float)distance / (float)exact) / (float)log((double)a->reach / (double)exact);
    const int64_t bucket = exact + (int64_t)(part * (float)(buckets - exact));
    return base + (bucket < buckets ? bucket : buckets - 1);
}
