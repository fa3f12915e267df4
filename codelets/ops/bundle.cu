/* bundle: several small tasks as one. Each body puts its kernels on the task's stream, where they follow each other;
 * parts that may be done at once are one call of their body. */
#include "codelets/shared/kernels.h"

#ifdef TESS_EMULATED
extern "C" tess_body emulated_body_of(const tess_codelet *cl);
#endif
static tess_body body_of(const tess_codelet *cl)
{
#ifdef TESS_EMULATED
    return emulated_body_of(cl);
#else
    return cl->cuda;
#endif
}

template <tess_dtype T> static void bundle_body(const tess_work *w)
{
    const tess_bundle_arg *a = arg_of(w);
    constexpr unsigned VIEWS = 4 * TESS_BUNDLE_BUFFERS;
    tess_view view[VIEWS];
    tess_work part[TESS_BUNDLE_PARTS];
    for (unsigned k = 0, n; k < a->parts; k += n) {
        tess_codelet *cl = a->part[k].cl;
        unsigned views = 0;
        for (n = 0; k + n < a->parts && (n == 0 || cl->together); n++) {
            const tess_bundle_part *p = &a->part[k + n];
            if (p->cl != cl || views + p->nbuf > VIEWS) break;
            part[n] = *w;
            part[n].arg = p->arg, part[n].buf = view + views, part[n].nbuf = p->nbuf;
            for (unsigned i = 0; i < p->nbuf; i++) view[views++] = w->buf[p->buf[i]];
            if (n) part[n - 1].next = &part[n];
        }
        body_of(cl)(part);
    }
}
TESS_CUDA_REAL(bundle)
