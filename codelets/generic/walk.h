/* walk: goes through an index space in row-major order, a run along its last dimension at a time. */
#ifndef TESS_WALK_H
#define TESS_WALK_H
#include "codelets/generic.h"
#include "codelets/shared/vector.h"

enum { TESS_WALK_RANK = 16 };

typedef struct walk {
    int rank;
    const int64_t *dim;
    int64_t at[TESS_WALK_RANK];
} walk;

TESS_INLINE int64_t walk_size(const int64_t *dim, int rank)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= dim[d];
    return n;
}
/* Begins with the element of that number. */
TESS_INLINE walk walk_begin(const int64_t *dim, int rank, int64_t first)
{
    walk w = {.rank = rank, .dim = dim};
    for (int d = rank - 1; d >= 0; d--) {
        w.at[d] = first % dim[d];
        first /= dim[d];
    }
    return w;
}
/* Returns how many elements of at most `n` follow in the last dimension. */
TESS_INLINE int64_t walk_run(const walk *w, int64_t n)
{
    return w->rank ? least(n, w->dim[w->rank - 1] - w->at[w->rank - 1]) : least(n, 1);
}
/* Returns how far the element is from the first one, by strides. */
TESS_INLINE int64_t walk_at(const walk *w, const int64_t *by)
{
    int64_t at = 0;
    for (int d = 0; d < w->rank; d++) at += w->at[d] * by[d];
    return at;
}
/* Goes on by no more than the run. */
TESS_INLINE void walk_on(walk *w, int64_t n)
{
    int d = w->rank - 1;
    if (d < 0) return;
    w->at[d] += n;
    for (; d > 0 && w->at[d] == w->dim[d]; d--) {
        w->at[d] = 0;
        w->at[d - 1]++;
    }
}
/* Goes on by any number of elements. */
TESS_INLINE void walk_over(walk *w, int64_t n)
{
    for (int64_t run; n; n -= run) walk_on(w, run = w->rank ? walk_run(w, n) : n);
}
/* Between floats of any dtype, a stride apart from element `at` on, and n of fp32. */
TESS_INLINE void walk_load(float *to, const void *x, int64_t at, int64_t by, int64_t n, tess_dtype t)
{
    if (by == 1)
        tess_widen(to, tess_at(x, at, t), n, t);
    else
        for (int64_t i = 0; i < n; i++) to[i] = tess_load(x, at + i * by, t);
}
TESS_INLINE void walk_store(void *x, int64_t at, int64_t by, const float *from, int64_t n, bool acc, tess_dtype t)
{
    void *to = tess_at_mut(x, at, t);
    if (by == 1)
        for (int64_t i = 0; i < n; i++) tess_accumulate(to, i, t, acc, from[i]);
    else
        for (int64_t i = 0; i < n; i++) tess_accumulate(to, i * by, t, acc, from[i]);
}
/* The same, of a dtype that is not known when they are compiled. */
void tess_walk_load(float *to, const void *x, int64_t at, int64_t by, int64_t n, tess_dtype t);
void tess_walk_store(void *x, int64_t at, int64_t by, const float *from, int64_t n, bool acc, tess_dtype t);
/* Returns the one stride that dimensions have together, or -1. */
TESS_INLINE int64_t walk_joint(const int64_t *dim, const int64_t *by, int rank)
{
    int64_t stride = 0, next = 0;
    for (int d = rank - 1; d >= 0; d--) {
        if (dim[d] == 1) continue;
        if (stride && by[d] != next) return -1;
        if (!stride) stride = by[d];
        if (stride <= 0) return -1;
        next = by[d] * dim[d];
    }
    return stride ? stride : 1;
}
/* Returns which of n elements, `between` places from one to the next, is at a place, or -1 where none is. */
TESS_INLINE int64_t walk_meet(int64_t at, int64_t between, int64_t n)
{
    return at < 0 || at % between || at / between >= n ? -1 : at / between;
}
/* Of the n positions from o on, exactly those in [o + *begin, o + *end) have position * step - low in [0, elements). */
TESS_INLINE void walk_span(int64_t step, int64_t low, int64_t elements, int64_t o, int64_t n, int64_t *begin,
                           int64_t *end)
{
    const int64_t high = low + elements, first = low / step + (low % step > 0) - o,
                  last = high / step + (high % step > 0) - o;
    *begin = first < 0 ? 0 : least(first, n);
    *end = last < *begin ? *begin : least(last, n);
}
/* Stores where the slice of a place begins in x; false: outside. */
TESS_INLINE bool walk_place(const tess_any_gather_arg *a, const int32_t *index, const walk *w, int64_t *at)
{
    const int32_t *v = index + walk_at(w, a->index);
    *at = a->x_at + walk_at(w, a->x);
    for (int k = 0; k < a->along; k++) {
        int64_t i = v[k * a->index_by];
        if (i < 0 || i > a->most[k]) {
            if (!a->clip) return false;
            i = i < 0 ? 0 : a->most[k];
        }
        *at += i * a->step[k];
    }
    return true;
}

#endif
