/* bundle: several small tasks as one, which costs one task's coming and going: their bodies one after the other. */
#include "vector.h"

static void bundle(const tess_work *w)
{
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

static tess_cost bundle_cost(const void *arg)
{
    const tess_bundle_arg *a = arg;
    tess_cost sum = {0};
    for (unsigned k = 0; k < a->parts; k++) {
        const tess_codelet *cl = a->part[k].cl;
        if (!cl->cost) continue;
        const tess_cost c = cl->cost(a->part[k].arg);
        sum.flops += c.flops, sum.bytes += c.bytes, sum.passes += c.passes;
    }
    return sum;
}

TESS_CUDA_DECLARE(bundle_f32)
TESS_CUDA_DECLARE(bundle_bf16)
TESS_CUDA_DECLARE(bundle_f16)
tess_codelet tess_bundle[TESS_REAL_DTYPES] = {
    [TESS_F32] =
        {.name = "bundle", .dtype = TESS_F32, .cpu = bundle, .cuda = TESS_CUDA(bundle_f32), .cost = bundle_cost},
    [TESS_BF16] =
        {.name = "bundle", .dtype = TESS_BF16, .cpu = bundle, .cuda = TESS_CUDA(bundle_bf16), .cost = bundle_cost},
    [TESS_F16] =
        {.name = "bundle", .dtype = TESS_F16, .cpu = bundle, .cuda = TESS_CUDA(bundle_f16), .cost = bundle_cost},
};
