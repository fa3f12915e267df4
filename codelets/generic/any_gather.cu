/* any_gather, any_scatter: where slices begin is found first, a thread a place, and kept in the worker's room. To
 * gather, a thread has an element. To scatter, a thread has an element of all slices and goes through the places in
 * their order, so sums have one order; where slices are the same or do not meet, blocks share them out by where they
 * begin. */
#include "codelets/generic/map_cuda.h"

constexpr int GATHER_THREADS = 128;
constexpr int64_t SHARES = 64, GATHER_ROOM = 16 << 20;

struct gather_place {
    int64_t x, y; /* -1: outside of x */
};
/* The dimensions of a slice. */
struct gather_slice {
    divisor dim[TESS_RANK_MOST * 2];
    int64_t x[TESS_RANK_MOST * 2], y[TESS_RANK_MOST * 2];
    int rank;
    uint32_t size;
};

TESS_KERNEL(GATHER_THREADS)
places_kernel(TESS_KERNEL_ARG(tess_any_gather_arg) a, const int32_t *index, gather_place *to, int64_t first, int64_t n)
{
    const int64_t k = (int64_t)blockIdx.x * GATHER_THREADS + threadIdx.x;
    int64_t left = first + k, v = 0;
    gather_place p = {a.x_at, a.y_at};
    bool inside = true;
    if (k >= n) return;
    for (int d = a.places - 1; d >= 0; left /= a.dim[d--]) {
        const int64_t at = left % a.dim[d];
        v += at * a.index[d], p.x += at * a.x[d], p.y += at * a.y[d];
    }
    for (int j = 0; j < a.along; j++) {
        int64_t i = index[v + j * a.index_by];
        inside = inside && (a.clip || (i >= 0 && i <= a.most[j]));
        i = i < 0 ? 0 : i > a.most[j] ? a.most[j] : i;
        p.x += i * a.step[j];
    }
    if (!inside) p.x = -1;
    to[k] = p;
}

TESS_DEVICE void slice_at(const gather_slice &s, uint32_t i, int64_t *x, int64_t *y)
{
    for (int d = s.rank - 1; d >= 0; d--) {
        const uint32_t at = take_modulo(i, s.dim[d]);
        *x += at * s.x[d], *y += at * s.y[d];
    }
}

TESS_KERNEL(GATHER_THREADS)
gather_kernel(TESS_KERNEL_ARG(gather_slice) s, const map_value *x, map_value *y, const gather_place *place, int64_t all,
              map_value fill, bool adds)
{
    const int64_t i = (int64_t)blockIdx.x * GATHER_THREADS + threadIdx.x;
    if (i >= all) return;
    gather_place at = place[i / s.size];
    const bool inside = at.x >= 0;
    slice_at(s, (uint32_t)(i % s.size), &at.x, &at.y);
    if (adds && inside)
        y[at.y].real += x[at.x].real;
    else if (!adds)
        y[at.y] = inside ? x[at.x] : fill;
}

TESS_DEVICE map_value scattered(tess_scattering fn, bool real, map_value d, map_value s)
{
    switch (fn) {
    case TESS_SCATTER_SET:
        return s;
    case TESS_SCATTER_ADD:
        if (real)
            d.real += s.real;
        else
            d.whole = (int32_t)((uint32_t)d.whole + (uint32_t)s.whole);
        return d;
    case TESS_SCATTER_MUL:
        if (real)
            d.real *= s.real;
        else
            d.whole = (int32_t)((uint32_t)d.whole * (uint32_t)s.whole);
        return d;
    case TESS_SCATTER_MIN:
        return (real ? d.real < s.real : d.whole < s.whole) ? d : s;
    default:
        return (real ? d.real > s.real : d.whole > s.whole) ? d : s;
    }
}

TESS_KERNEL(GATHER_THREADS)
scatter_kernel(TESS_KERNEL_ARG(gather_slice) s, map_value *x, const map_value *y, const gather_place *place,
               int64_t places, tess_scattering fn, bool real)
{
    const uint32_t i = blockIdx.x / (uint32_t)SHARES * GATHER_THREADS + threadIdx.x;
    int64_t of_x = 0, of_y = 0;
    if (i >= s.size) return;
    slice_at(s, i, &of_x, &of_y);
    for (int64_t k = 0; k < places; k++) {
        const gather_place at = place[k];
        if (at.x < 0 || (((uint64_t)at.x * 0x9e3779b97f4a7c15u) >> 32) % SHARES != blockIdx.x % SHARES) continue;
        x[at.x + of_x] = scattered(fn, real, x[at.x + of_x], y[at.y + of_y]);
    }
}
/* Slices that overlap, one after the other, by one block. */
TESS_KERNEL(GATHER_THREADS)
scatter_slices_kernel(TESS_KERNEL_ARG(gather_slice) s, map_value *x, const map_value *y, const gather_place *place,
                      int64_t places, tess_scattering fn, bool real)
{
    for (int64_t k = 0; k < places; k++) {
        const gather_place from = place[k];
        for (uint32_t i = threadIdx.x; i < s.size && from.x >= 0; i += GATHER_THREADS) {
            gather_place at = from;
            slice_at(s, i, &at.x, &at.y);
            x[at.x] = scattered(fn, real, x[at.x], y[at.y]);
        }
        __syncthreads();
    }
}

/* Slices that begin at different places have no element in common: none of their dimensions is one that places go
 * along. */
static bool are_apart(const tess_any_gather_arg *a)
{
    for (int d = a->places; d < a->rank; d++)
        for (int k = 0; k < a->along; k++)
            if (a->dim[d] > 1 && a->x[d] == a->step[k]) return false;
    for (int d = 0; d < a->places; d++)
        for (int k = a->places; k < a->rank; k++)
            if (a->dim[d] > 1 && a->dim[k] > 1 && a->x[d] == a->x[k]) return false;
    return true;
}

static void run_gather(const tess_work *w, bool scatters)
{
    const tess_any_gather_arg *a = arg_of(w);
    const int64_t places = map_size(a->dim, a->places), each = GATHER_ROOM / (int64_t)sizeof(gather_place);
    const int64_t size = map_size(a->dim + a->places, a->rank - a->places);
    gather_slice s = {};
    gather_place *room = (gather_place *)room_of(w, GATHER_ROOM);
    map_value fill;
    if (!room) return;
    if (size > INT32_MAX) {
        tess_work_fail(w, "CUDA: slices of %lld elements are too large (use smaller tiles)", (long long)size);
        return;
    }
    fill.whole = a->fill.whole;
    s.size = (uint32_t)size;
    for (int d = a->places; d < a->rank; d++) {
        s.dim[s.rank] = divisor_of(a->dim[d]);
        s.x[s.rank] = a->x[d], s.y[s.rank++] = a->y[d];
    }
    const bool apart = are_apart(a);
    for (int64_t first = 0; first < places; first += each) {
        const int64_t n = places - first < each ? places - first : each;
        launch(w, places_kernel, blocks_of(n, GATHER_THREADS), GATHER_THREADS, 0, *a, buffer(w, 1), room, first, n);
        if (scatters)
            launch(w, apart ? scatter_kernel : scatter_slices_kernel,
                   apart ? blocks_of(size, GATHER_THREADS) * SHARES : 1, GATHER_THREADS, 0, s, buffer(w, 0),
                   buffer(w, 2), room, n, a->fn, a->element == TESS_REAL);
        else
            launch(w, gather_kernel, blocks_of(n * size, GATHER_THREADS), GATHER_THREADS, 0, s, buffer(w, 0),
                   buffer(w, 2), room, n * size, fill, a->acc && a->element == TESS_REAL);
    }
}

template <tess_dtype T> static void any_gather_body(const tess_work *w)
{
    run_gather(w, false);
}
template <tess_dtype T> static void any_scatter_body(const tess_work *w)
{
    run_gather(w, true);
}
TESS_CUDA_BODY(any_gather, any_gather_f32, TESS_F32)
TESS_CUDA_BODY(any_scatter, any_scatter_f32, TESS_F32)
