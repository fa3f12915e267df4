/* any_map: what a program makes of each element, where strides say. */
#include "codelets/any/store_cuda.h"

/* An index space of too many elements goes in pieces of its first dimension. */
template <tess_dtype T> static void any_map_body(const tess_work *w)
{
    tess_any_map_arg a = *(const tess_any_map_arg *)w->arg;
    const int64_t all = map_size(a.dim, a.rank), rest = a.rank ? map_size(a.dim + 1, a.rank - 1) : 1;
    const int64_t most = all > INT32_MAX && rest < INT32_MAX ? INT32_MAX / rest : a.rank ? a.dim[0] : 1;
    const int64_t rows = a.rank ? a.dim[0] : 1;
    for (int64_t first = 0; first < rows; first += most) {
        map_program p;
        a.dim[0] = rows - first < most ? rows - first : most;
        if (!map_program_of(w, &a, &p)) return;
        const int64_t n = a.rank ? a.dim[0] * rest : 1;
        map_store(w, p, n);
        for (int k = 0; k < a.operands; k++) a.in[k].at += a.dim[0] * a.in[k].by[0];
        a.out.at += a.dim[0] * a.out.by[0];
    }
}
TESS_CUDA_BODY(any_map, any_map_f32, TESS_F32)
