/* any_fold: the sum of what a program makes of each element. */
#include "fold_cuda_impl.h"

template <tess_dtype T> static void any_fold_body(const tess_work *w)
{
    const tess_any_fold_arg *a = arg_of(w);
    const int over = a->map.rank - a->kept;
    map_program p;
    if (!map_program_of(w, &a->map, &p)) return;
    const int64_t kept = map_size(a->map.dim + (a->last ? over : 0), a->kept);
    fold_run(w, p,
             {TESS_REDUCE_SUM, TESS_REAL, a->last, (uint32_t)kept,
              (uint32_t)map_size(a->map.dim + (a->last ? 0 : a->kept), over)});
}
TESS_CUDA_BODY(any_fold, any_fold_f32, TESS_F32)
