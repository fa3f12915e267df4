/* any_window: a thread has a window or, backward, an element of x and all windows that it is in. */
#include "codelets/generic.h"
#include "codelets/shared/kernels.h"

constexpr int WINDOW_THREADS = 256;

union window_value {
    float real;
    int32_t whole;
};

/* Returns where x has place `t` of the window at `o`, by dimension; false: nothing is there. */
TESS_DEVICE bool window_meets(const tess_any_window_arg &a, const int64_t *o, const int64_t *t, int64_t *at)
{
    int64_t to = 0;
    for (int d = 0; d < a.rank; d++) {
        const int64_t up = o[d] * a.step[d] + t[d] * a.apart[d] - a.pad[d], i = up / a.between[d];
        if (up < 0 || i * a.between[d] != up || i >= a.in[d]) return false;
        to += i * a.x[d];
    }
    *at = to;
    return true;
}
TESS_DEVICE void window_index(int64_t i, const int64_t *dim, int rank, int64_t *at)
{
    for (int d = rank - 1; d >= 0; i /= dim[d--]) at[d] = i % dim[d];
}
TESS_DEVICE int64_t window_offset(const int64_t *at, const int64_t *by, int rank)
{
    int64_t to = 0;
    for (int d = 0; d < rank; d++) to += at[d] * by[d];
    return to;
}

/* Whether x comes into the place of `best`: of what is no number the first stays. */
TESS_DEVICE bool window_takes(const tess_any_window_arg &a, window_value x, window_value best)
{
    const bool most = a.fn == TESS_REDUCE_MAX;
    if (a.element != TESS_REAL) return most ? x.whole > best.whole : x.whole < best.whole;
    return best.real == best.real && ((most ? x.real > best.real : x.real < best.real) || x.real != x.real);
}

/* What the window at `o` makes of x; stores where the first of the most or least is. */
TESS_DEVICE window_value window_of(const tess_any_window_arg &a, const window_value *x, int64_t places,
                                   const int64_t *o, int64_t *where)
{
    window_value best;
    best.whole = 0;
    *where = -1;
    if (a.fn != TESS_REDUCE_SUM && a.element == TESS_REAL) best.real = a.fn == TESS_REDUCE_MAX ? -INFINITY : INFINITY;
    if (a.fn != TESS_REDUCE_SUM && a.element != TESS_REAL) best.whole = a.fn == TESS_REDUCE_MAX ? INT32_MIN : INT32_MAX;
    for (int64_t k = 0; k < places; k++) {
        int64_t t[TESS_RANK_MOST] = {}, at;
        window_index(k, a.size, a.rank, t);
        if (!window_meets(a, o, t, &at)) continue;
        const window_value v = x[at];
        if (a.fn != TESS_REDUCE_SUM) {
            if (*where < 0 || window_takes(a, v, best)) best = v, *where = at;
        } else if (a.element == TESS_REAL) {
            best.real += v.real;
        } else {
            best.whole = (int32_t)((uint32_t)best.whole + (uint32_t)v.whole);
        }
    }
    return best;
}

TESS_KERNEL(WINDOW_THREADS)
window_kernel(TESS_KERNEL_ARG(tess_any_window_arg) a, const window_value *x, window_value *y, int64_t all,
              int64_t places)
{
    const int64_t i = (int64_t)blockIdx.x * WINDOW_THREADS + threadIdx.x;
    int64_t o[TESS_RANK_MOST] = {}, where;
    if (i >= all) return;
    window_index(i, a.out, a.rank, o);
    y[window_offset(o, a.y, a.rank)] = window_of(a, x, places, o, &where);
}

TESS_KERNEL(WINDOW_THREADS)
window_back_kernel(TESS_KERNEL_ARG(tess_any_window_arg) a, const window_value *x, const float *dy, float *dx,
                   int64_t all, int64_t places)
{
    const int64_t i = (int64_t)blockIdx.x * WINDOW_THREADS + threadIdx.x;
    int64_t in[TESS_RANK_MOST] = {}, t[TESS_RANK_MOST] = {}, o[TESS_RANK_MOST] = {}, where;
    float sum = 0;
    if (i >= all) return;
    window_index(i, a.in, a.rank, in);
    const int64_t at = window_offset(in, a.x, a.rank);
    for (int64_t k = places - 1; k >= 0; k--) { /* windows in their order */
        bool met = true;
        window_index(k, a.size, a.rank, t);
        for (int d = 0; d < a.rank && met; d++) {
            const int64_t up = in[d] * a.between[d] + a.pad[d] - t[d] * a.apart[d];
            o[d] = up / a.step[d];
            met = up >= 0 && o[d] * a.step[d] == up && o[d] < a.out[d];
        }
        if (!met) continue;
        if (a.fn != TESS_REDUCE_SUM) window_of(a, x, places, o, &where);
        if (a.fn == TESS_REDUCE_SUM || where == at) sum += dy[window_offset(o, a.y, a.rank)];
    }
    dx[at] += sum;
}

static int64_t window_size(const int64_t *dim, int rank)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= dim[d];
    return n;
}

template <tess_dtype T> static void any_window_body(const tess_work *w)
{
    const tess_any_window_arg *a = arg_of(w);
    const int64_t all = window_size(a->out, a->rank);
    launch(w, window_kernel, blocks_of(all, WINDOW_THREADS), WINDOW_THREADS, 0, *a, buffer(w, 0), buffer(w, 1), all,
           window_size(a->size, a->rank));
}
template <tess_dtype T> static void any_window_backward_body(const tess_work *w)
{
    const tess_any_window_arg *a = arg_of(w);
    const int64_t all = window_size(a->in, a->rank);
    launch(w, window_back_kernel, blocks_of(all, WINDOW_THREADS), WINDOW_THREADS, 0, *a, buffer(w, 0), buffer(w, 1),
           buffer(w, 2), all, window_size(a->size, a->rank));
}
TESS_CUDA_BODY(any_window, any_window_f32, TESS_F32)
TESS_CUDA_BODY(any_window_backward, any_window_backward_f32, TESS_F32)
