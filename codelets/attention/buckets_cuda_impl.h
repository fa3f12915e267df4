/* buckets: which row of the table of biases a distance has, on a GPU: as tess_attention_bucket says, asked once for
 * all. */
#ifndef TESS_BUCKETS_CUDA_IMPL_H
#define TESS_BUCKETS_CUDA_IMPL_H
#include "codelets/attention/heads_impl.h"
#include "codelets/shared/kernels.h"

/* `exact` buckets of one element, then those that begin at start[]. */
struct buckets {
    int all, side, exact; /* side: of one direction */
    bool both;
    int start[TESS_MOST_BUCKETS];
};
TESS_DEVICE int bucket_of(const buckets &b, int distance)
{
    const int base = b.both && distance > 0 ? b.side : 0;
    const int far = distance < 0 ? -distance : b.both ? distance : 0;
    int i = b.exact;
    if (far < b.exact) return base + far;
    while (i + 1 < b.side && b.start[i + 1] <= far) i++;
    return base + i;
}
static inline buckets buckets_of(int64_t all, int64_t reach, bool causal)
{
    buckets b = {};
    TESS_ASSERT(all <= TESS_MOST_BUCKETS);
    b.all = (int)all, b.both = !causal;
    b.side = b.both ? b.all / 2 : b.all;
    b.exact = b.side / 2;
    tess_attention_arg a = {};
    a.buckets = all, a.reach = reach, a.causal = causal;
    for (int i = b.exact, far = b.exact; i < b.side; i++) {
        while (tess_attention_bucket(&a, -far) < i && far < reach) far++;
        b.start[i] = far;
    }
    return b;
}

#endif
