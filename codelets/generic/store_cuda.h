/* store_cuda: a program stores what it makes of each element of its index space. */
#ifndef TESS_STORE_CUDA_H
#define TESS_STORE_CUDA_H
#include "codelets/generic/map_cuda.h"

TESS_DEVICE map_value map_joined(const map_program &p, int64_t at, map_value v)
{
    if (!p.acc) return v;
    const map_value old = map_get(p.out, at);
    if (p.element == TESS_REAL)
        v.real = old.real + v.real;
    else
        v.whole = (int32_t)((uint32_t)old.whole + (uint32_t)v.whole);
    return v;
}

TESS_KERNEL(MAP_THREADS) map_store_kernel(TESS_KERNEL_ARG(map_program) p, uint32_t all)
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
        map_set(p.out, at, map_joined(p, at, v.v[k]));
    }
}

/* Of n elements. */
static inline void map_store(const tess_work *w, const map_program &p, int64_t n)
{
    launch(w, map_store_kernel, blocks_of(n, (int64_t)MAP_THREADS * MAP_EACH), MAP_THREADS, 0, p, (uint32_t)n);
}

/* to [+]= from */
static inline void map_copy(const tess_work *w, const int64_t *dim, int rank, const void *x, const tess_strides &from,
                            void *y, const tess_strides &to, bool acc)
{
    map_program p;
    if (!map_space(w, &p, dim, rank)) return;
    map_copies(&p, map_place_of(&from, (void *)x, dim, rank), map_place_of(&to, y, dim, rank), acc);
    map_store(w, p, map_size(dim, rank));
}

#endif
