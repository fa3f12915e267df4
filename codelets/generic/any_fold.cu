/* any_fold: sums of what a program makes of each element, one after the other. */
#include "codelets/generic/fold_cuda.h"

template <tess_dtype T> static void any_fold_body(const tess_work *w)
{
    const tess_any_fold_arg *a = arg_of(w);
    const int over = a->map.rank - a->kept;
    map_program p;
    if (!map_program_of(w, &a->map, &p)) return;
    const int64_t kept = map_size(a->map.dim + (a->last ? over : 0), a->kept);
    const fold f = {TESS_REDUCE_SUM, TESS_REAL, a->last, (uint32_t)kept,
                    (uint32_t)map_size(a->map.dim + (a->last ? 0 : a->kept), over)};
    for (int j = 0; j < a->sums; j++) {
        tess_strides to = {};
        to.t = a->sum[j].t;
        p.out = map_place_of(&to, w->buf[(int)w->nbuf - a->sums + j].ptr, a->map.dim, 0);
        p.acc = a->sum[j].acc, p.last = a->sum[j].at;
        fold_run(w, p, f);
    }
}
TESS_CUDA_BODY(any_fold, any_fold_f32, TESS_F32)
