/* bundle: several small tasks as one. Each body puts its kernels on the task's stream, where they follow each other. */
#include "codelets/shared/kernels.h"

/* The emulation has bodies by name alone: of a bundle it shows which buffers each part gets. */
static tess_body body_of(const tess_codelet *cl)
{
#ifdef TESS_EMULATED
    return cl->cpu;
#else
    return cl->cuda;
#endif
}

template <tess_dtype T> static void bundle_body(const tess_work *w)
{
    const tess_bundle_arg *a = arg_of(w);
    tess_view view[TESS_BUNDLE_BUFFERS];
    for (unsigned k = 0; k < a->parts; k++) {
        const tess_bundle_part *p = &a->part[k];
        for (unsigned i = 0; i < p->nbuf; i++) view[i] = w->buf[p->buf[i]];
        tess_work part = *w;
        part.arg = p->arg, part.buf = view, part.nbuf = p->nbuf;
        body_of(p->cl)(&part);
    }
}
TESS_CUDA_REAL(bundle)
