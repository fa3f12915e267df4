/* bundle: several small tasks as one, which costs one task's coming and going: their bodies one after the other. */
#include "codelets/shared/vector.h"

TESS_INLINE void bundle(const tess_work *w, tess_dtype t)
{
    (void)t;
    const tess_bundle_arg *a = w->arg;
    tess_view view[TESS_BUNDLE_BUFFERS];
    for (unsigned k = 0; k < a->parts; k++) {
        const tess_bundle_part *p = &a->part[k];
        for (unsigned i = 0; i < p->nbuf; i++) view[i] = w->buf[p->buf[i]];
        tess_work part = *w;
        part.arg = p->arg, part.buf = view, part.nbuf = p->nbuf;
        p->cl->cpu(&part);
    }
}

static tess_cost bundle_cost(const void *arg, tess_dtype t)
{
    (void)t;
    const tess_bundle_arg *a = arg;
    tess_cost sum = {0};
    for (unsigned k = 0; k < a->parts; k++) {
        const tess_codelet *cl = a->part[k].cl;
        if (!cl->cost) continue;
        const tess_cost c = cl->cost(a->part[k].arg);
        sum.flops += c.flops, sum.bytes += c.bytes, sum.passes += c.passes, sum.lost += c.lost;
    }
    return sum;
}
TESS_REAL_COST(bundle)

/* The same bodies, where each part may run on either side. */
#define EITHER(op, name_of, t, ...)                                                                                    \
    [t] = {.name = "bundle_either",                                                                                    \
           .dtype = t,                                                                                                 \
           .cpu = op##_##name_of,                                                                                      \
           .cuda = TESS_CUDA(op##_##name_of),                                                                          \
           .cost = op##_cost_##name_of,                                                                                \
           .either = true},
tess_codelet tess_bundle_either[TESS_REAL_DTYPES] = {TESS_EACH_REAL(EITHER, bundle, )};
