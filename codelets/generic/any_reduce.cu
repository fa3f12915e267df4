/* any_reduce: a fold of what lies there, and where the most or the least of it is. */
#include "codelets/generic/fold_cuda.h"

constexpr int FIND_THREADS = 128;

struct found {
    map_value v;
    int32_t at; /* -1: nothing */
};
/* Of equals, and of what is no number, the first. */
TESS_DEVICE bool is_before(const fold &f, const found &a, const found &b)
{
    if (a.at < 0 || b.at < 0) return b.at < 0;
    const bool most = f.fn == TESS_REDUCE_ARGMAX;
    bool more, less;
    if (f.element == TESS_REAL) {
        const bool no_a = a.v.real != a.v.real, no_b = b.v.real != b.v.real;
        if (no_a || no_b) return no_a && (!no_b || a.at < b.at);
        more = a.v.real > b.v.real, less = a.v.real < b.v.real;
    } else {
        more = a.v.whole > b.v.whole, less = a.v.whole < b.v.whole;
    }
    return (most ? more : less) || (!more && !less && a.at < b.at);
}

TESS_KERNEL(FIND_THREADS) find_kernel(TESS_KERNEL_ARG(map_program) p, TESS_KERNEL_ARG(fold) f)
{
    TESS_SHARED(found, room, [FIND_THREADS]);
    const uint32_t row = blockIdx.x * f.over;
    const int t = (int)threadIdx.x;
    found best = {{0}, -1};
    for (uint32_t i = threadIdx.x; i < f.over; i += FIND_THREADS) {
        const found one = {map_get(p.in[0], map_offset(p, p.in[0], row + i)), (int32_t)i};
        if (is_before(f, one, best)) best = one;
    }
    room[t] = best;
    __syncthreads();
    for (int half = FIND_THREADS / 2; half > 0; half /= 2) {
        if (t < half && is_before(f, room[t + half], room[t])) room[t] = room[t + half];
        __syncthreads();
    }
    map_value at;
    at.whole = room[0].at;
    if (t == 0) map_set(p.out, p.out.at + blockIdx.x, at);
}

/* The dimensions that are reduced come first where results lie one behind the other and what is reduced does not. */
template <tess_dtype T> static void any_reduce_body(const tess_work *w)
{
    const tess_any_reduce_arg *a = arg_of(w);
    const int over = a->rank - a->kept;
    const bool finds = a->fn >= TESS_REDUCE_ARGMAX;
    const bool last = !finds && a->kept > 0 && over > 0 && a->in.by[a->kept - 1] == 1 && a->in.by[a->rank - 1] != 1;
    tess_strides in = a->in, out = {};
    int64_t dim[TESS_RANK_MOST];
    map_program p;
    for (int d = 0; d < a->rank; d++) {
        const int from = !last ? d : d < over ? a->kept + d : d - over;
        dim[d] = a->dim[from], in.by[d] = a->in.by[from];
    }
    if (!map_space(w, &p, dim, a->rank)) return;
    out.t = finds || a->element != TESS_REAL ? TESS_F32 : a->to;
    map_copies(&p, map_place_of(&in, w->buf[0].ptr, dim, a->rank), map_place_of(&out, w->buf[1].ptr, dim, a->rank),
               a->acc && !finds);
    const fold f = {a->fn, a->element, last, (uint32_t)map_size(a->dim, a->kept),
                    (uint32_t)map_size(a->dim + a->kept, over)};
    if (finds)
        launch(w, find_kernel, f.kept, FIND_THREADS, 0, p, f);
    else
        fold_run(w, p, f);
}
TESS_CUDA_BODY(any_reduce, any_reduce_f32, TESS_F32)
