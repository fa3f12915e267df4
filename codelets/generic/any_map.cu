/* any_map: what a program makes of each element, where strides say.
 *
 * On a GPU a map is a program of scalar functions (expressions.def has each once, for both devices) that threads
 * interpret, four elements at a time. It lies among the kernel's arguments, 8 bytes a step and 384 steps at most, so
 * nothing is copied before a launch. A step costs some 6 instructions an element, which memory hides up to 20 steps by
 * count on an H100. Kernels compiled by NVRTC would be faster for long formulas, but take seconds at the start, and
 * loading them between messages of NCCL can wait for ever. Products of any tensors are cublasLt's and convolutions in
 * bf16 cuDNN's, after a trial at the start; patches take six times the product's time for 64 channels, by count.
 * Sorting and a few more ops stay on the CPU, and the run names them. */
#include "codelets/generic/store_cuda.h"

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
