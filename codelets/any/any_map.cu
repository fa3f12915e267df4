/* any_map: a thread has a few elements of the index space, one behind the other. */
#include "map_cuda_impl.h"

constexpr int64_t MAP_PART = (int64_t)MAP_THREADS * MAP_EACH;

TESS_DEVICE map_value joined(const map_program &p, int64_t at, map_value v)
{
    if (!p.acc) return v;
    const map_value old = map_get(p.out, at);
    if (p.element == TESS_REAL)
        v.real = old.real + v.real;
    else
        v.whole = (int32_t)((uint32_t)old.whole + (uint32_t)v.whole);
    return v;
}

TESS_KERNEL(MAP_THREADS) any_map_kernel(TESS_KERNEL_ARG(map_program) p, uint32_t all)
{
    const uint32_t i = (blockIdx.x * (uint32_t)MAP_THREADS + threadIdx.x) * MAP_EACH;
    if (i >= all) return;
    const map_values v = map_run(p, i, all);
    if (!p.acc && map_is_wide(p.out, i, all)) {
        if (!is_half(p.out.t)) {
            *(map_values *)(p.out.x + (p.out.at + i) * 4) = v;
            return;
        }
        uint64_t word = 0;
        for (int k = 0; k < MAP_EACH; k++) {
            const float x = v.v[k].real;
            word |= (uint64_t)(p.out.t == TESS_F16 ? to_half<TESS_F16>(x) : to_half<TESS_BF16>(x)) << 16 * k;
        }
        *(uint64_t *)(p.out.x + (p.out.at + i) * 2) = word;
        return;
    }
    for (uint32_t k = 0; k < MAP_EACH && i + k < all; k++) {
        const int64_t at = map_offset(p, p.out, i + k);
        map_set(p.out, at, joined(p, at, v.v[k]));
    }
}

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
        launch(w, any_map_kernel, blocks_of(n, MAP_PART), MAP_THREADS, 0, p, (uint32_t)n);
        for (int k = 0; k < a.operands; k++) a.in[k].at += a.dim[0] * a.in[k].by[0];
        a.out.at += a.dim[0] * a.out.by[0];
    }
}
TESS_CUDA_BODY(any_map, any_map_f32, TESS_F32)
