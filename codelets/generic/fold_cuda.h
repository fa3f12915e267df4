/* fold_cuda: elements that a program makes are joined, over the results of its index space, which are its first or its
 * last dimensions. A block has a few results and a stretch of what is joined; what it made of it goes to the worker's
 * scratch, and a second kernel joins the stretches in their order. The shapes alone say the order. */
#ifndef TESS_FOLD_CUDA_H
#define TESS_FOLD_CUDA_H
#include "codelets/generic/join.h"
#include "codelets/generic/map_cuda.h"

constexpr int FOLD_THREADS = 256;
constexpr int64_t FOLD_BLOCKS = 1024,
                  FOLD_STRETCH = 2048; /* blocks that are wished for, elements of a stretch at least */
constexpr size_t FOLD_ROOM = 16 << 20;

struct fold {
    tess_reduction fn;
    tess_element element;
    bool last;                          /* results are the last dimensions */
    uint32_t kept, over, each = 0;      /* results, elements of one, of these a stretch's */
    int groups = 1;                     /* threads of a result: a power of two */
    uint32_t blocks = 0, stretches = 0; /* blocks of a stretch */
    map_value *part = NULL;             /* (stretches, kept), or NULL */
};

TESS_DEVICE map_value fold_join(const fold &f, map_value a, map_value b)
{
    map_value y;
    if (f.element == TESS_REAL)
        y.real = tess_join_real(f.fn, a.real, b.real);
    else
        y.whole = tess_join_whole(f.fn, a.whole, b.whole);
    return y;
}
/* What changes nothing that it is joined with. */
TESS_DEVICE map_value fold_nothing(const fold &f)
{
    map_value y;
    const bool real = f.element == TESS_REAL;
    y.whole = 0;
    if (f.fn == TESS_REDUCE_MAX || f.fn == TESS_REDUCE_MIN) {
        const bool most = f.fn == TESS_REDUCE_MAX;
        if (real)
            y.real = most ? -INFINITY : INFINITY;
        else
            y.whole = most ? INT32_MIN : INT32_MAX;
    } else if (f.fn == TESS_REDUCE_PROD && real) {
        y.real = 1;
    } else if (f.fn == TESS_REDUCE_PROD) {
        y.whole = 1;
    } else if (f.fn == TESS_REDUCE_AND) {
        y.whole = -1;
    }
    return y;
}

TESS_DEVICE void fold_put(const map_program &p, const fold &f, uint32_t k, map_value v)
{
    const int64_t at = p.out.at + k;
    map_set(p.out, at, p.acc ? fold_join(f, map_get(p.out, at), v) : v);
}

/* Threads of a result lie together where its elements do, else those of the same element of several results. */
TESS_KERNEL(FOLD_THREADS) fold_kernel(TESS_KERNEL_ARG(map_program) p, TESS_KERNEL_ARG(fold) f)
{
    TESS_SHARED(map_value, room, [MAP_EACH][FOLD_THREADS]);
    const int lanes = FOLD_THREADS / f.groups, t = (int)threadIdx.x;
    const int group = f.last ? t / lanes : t % f.groups, lane = f.last ? t % lanes : t / f.groups;
    const uint32_t stretch = blockIdx.x / f.blocks, block = blockIdx.x % f.blocks;
    const uint32_t begin = stretch * f.each, end = begin + f.each < f.over ? begin + f.each : f.over;
    const uint32_t k = (block * (uint32_t)lanes + (uint32_t)lane) * (f.last ? MAP_EACH : 1);
    map_value sum[MAP_EACH];
    for (int e = 0; e < MAP_EACH; e++) sum[e] = fold_nothing(f);
    if (k < f.kept && f.last)
        for (uint32_t r = begin + (uint32_t)group; r < end; r += (uint32_t)f.groups) {
            const map_values v = map_run(p, r * f.kept + k, (r + 1) * f.kept);
            for (int e = 0; e < MAP_EACH; e++) sum[e] = fold_join(f, sum[e], v.v[e]);
        }
    if (k < f.kept && !f.last) {
        const uint32_t row = k * f.over;
        for (uint32_t i = begin + (uint32_t)group * MAP_EACH; i < end; i += (uint32_t)f.groups * MAP_EACH) {
            const map_values v = map_run(p, row + i, row + end);
            for (int e = 0; e < MAP_EACH; e++)
                if (i + e < end) sum[e] = fold_join(f, sum[e], v.v[e]);
        }
        for (int e = 1; e < MAP_EACH; e++) sum[0] = fold_join(f, sum[0], sum[e]);
    }
    const int results = f.last ? MAP_EACH : 1;
    for (int e = 0; e < results; e++) room[e][group * lanes + lane] = sum[e];
    __syncthreads();
    for (int half = f.groups / 2; half > 0; half /= 2) {
        if (group < half)
            for (int e = 0; e < results; e++)
                room[e][group * lanes + lane] =
                    fold_join(f, room[e][group * lanes + lane], room[e][(group + half) * lanes + lane]);
        __syncthreads();
    }
    for (int e = 0; e < results && group == 0; e++) {
        if (k + e >= f.kept) continue;
        if (f.part)
            f.part[(int64_t)stretch * f.kept + k + e] = room[e][lane];
        else
            fold_put(p, f, k + e, room[e][lane]);
    }
}

/* A thread a result: over its stretches, in their order. */
TESS_KERNEL(FOLD_THREADS) fold_stretches(TESS_KERNEL_ARG(map_program) p, TESS_KERNEL_ARG(fold) f)
{
    const uint32_t k = blockIdx.x * FOLD_THREADS + threadIdx.x;
    if (k >= f.kept) return;
    map_value sum = f.part[k];
    for (uint32_t s = 1; s < f.stretches; s++) sum = fold_join(f, sum, f.part[(int64_t)s * f.kept + k]);
    fold_put(p, f, k, sum);
}

/* p's space is (kept, over) or, f.last, (over, kept); its `out` is dense. */
static inline void fold_run(const tess_work *w, const map_program &p, fold f)
{
    const uint32_t elements = f.last ? 1 : MAP_EACH; /* that a thread has of a result at a time */
    while (f.groups < FOLD_THREADS && (int64_t)f.groups * elements < f.over) f.groups *= 2;
    if (f.last && f.groups > FOLD_THREADS / 8) f.groups = FOLD_THREADS / 8; /* 8 threads read a line of 128 bytes */
    const int64_t results = FOLD_THREADS / f.groups * (f.last ? MAP_EACH : 1);
    f.blocks = (uint32_t)blocks_of(f.kept, results);
    int64_t n = blocks_of(FOLD_BLOCKS, f.blocks);
    const int64_t most = f.over / (f.last ? FOLD_STRETCH / 8 : FOLD_STRETCH);
    const int64_t room = (int64_t)(FOLD_ROOM / sizeof(map_value)) / f.kept;
    n = n < most ? n : most;
    n = n < room ? n : room;
    f.each = (uint32_t)(blocks_of(blocks_of(f.over, n > 1 ? n : 1), MAP_EACH) * MAP_EACH);
    f.stretches = (uint32_t)blocks_of(f.over, f.each);
    f.part = f.stretches > 1 ? (map_value *)room_of(w, sizeof(map_value) * f.stretches * f.kept) : NULL;
    if (f.stretches > 1 && !f.part) return;
    launch(w, fold_kernel, (int64_t)f.stretches * f.blocks, FOLD_THREADS, 0, p, f);
    if (f.part) launch(w, fold_stretches, blocks_of(f.kept, FOLD_THREADS), FOLD_THREADS, 0, p, f);
}

#endif
