/* any_gather, any_scatter: slices of x whose places an array of index vectors says, into y or, added and the like, from
 * it. Scattering goes through the places in their order, so its sums have one order. */
#include "codelets/generic.h"
#include "codelets/generic/walk.h"

static void gather_run(const tess_any_gather_arg *a, const void *x, int64_t by, void *y, int64_t y_by, int64_t n)
{
    const float *from = x;
    const int32_t *from_whole = x;
    float *to = y;
    int32_t *to_whole = y;
    if (a->acc && a->element == TESS_REAL)
        for (int64_t i = 0; i < n; i++) to[i * y_by] += from[i * by];
    else if (by == 1 && y_by == 1)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        for (int64_t i = 0; i < n; i++) to_whole[i * y_by] = from_whole[i * by];
}

static void fill_run(const tess_any_gather_arg *a, int32_t *y, int64_t by, int64_t n)
{
    for (int64_t i = 0; i < n && !a->acc; i++) y[i * by] = a->fill.whole;
}

#define EACH(to, from, ...)                                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        __typeof__(*(to)) *d = &(to)[i * by], s = (from)[i * y_by];                                                    \
        *d = (__VA_ARGS__);                                                                                            \
    }                                                                                                                  \
    break
#define SCATTER(to, from)                                                                                              \
    switch (a->fn) {                                                                                                   \
    case TESS_SCATTER_SET:                                                                                             \
        EACH(to, from, s);                                                                                             \
    case TESS_SCATTER_ADD:                                                                                             \
        EACH(to, from, *d + s);                                                                                        \
    case TESS_SCATTER_MUL:                                                                                             \
        EACH(to, from, *d *s);                                                                                         \
    case TESS_SCATTER_MIN:                                                                                             \
        EACH(to, from, *d < s ? *d : s);                                                                               \
    case TESS_SCATTER_MAX:                                                                                             \
        EACH(to, from, *d > s ? *d : s);                                                                               \
    }
TESS_CLONES static void scatter_run(const tess_any_gather_arg *a, void *x, int64_t by, const void *y, int64_t y_by,
                                    int64_t n)
{
    float *real = x;
    int32_t *whole = x;
    const float *from = y;
    const int32_t *from_whole = y;
    if (a->element == TESS_REAL && by == 1 && y_by == 1 && a->fn == TESS_SCATTER_ADD) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) real[i] += from[i];
    } else if (a->element == TESS_REAL) {
        SCATTER(real, from)
    } else {
        SCATTER(whole, from_whole)
    }
}

/* The slice of place w. */
static void slice(const tess_any_gather_arg *a, const tess_work *w, const walk *place, bool scatters)
{
    const int p = a->places, over = a->rank - p;
    int64_t at;
    const bool inside = walk_place(a, w->buf[1].ptr, place, &at);
    const int64_t all = walk_size(a->dim + p, over), y_at = a->y_at + walk_at(place, a->y);
    if (!inside && scatters) return;
    walk s = walk_begin(a->dim + p, over, 0);
    for (int64_t done = 0; done < all;) {
        const int64_t run = walk_run(&s, all - done), by = over ? a->x[a->rank - 1] : 1,
                      y_by = over ? a->y[a->rank - 1] : 1;
        int32_t *y = (int32_t *)w->buf[2].ptr + y_at + walk_at(&s, a->y + p);
        int32_t *x = (int32_t *)w->buf[0].ptr + (inside ? at + walk_at(&s, a->x + p) : 0);
        if (!inside)
            fill_run(a, y, y_by, run);
        else if (scatters)
            scatter_run(a, x, by, y, y_by, run);
        else
            gather_run(a, x, by, y, y_by, run);
        walk_on(&s, run);
        done += run;
    }
}

static void run(const tess_work *w, bool scatters)
{
    const tess_any_gather_arg *a = w->arg;
    const int64_t places = walk_size(a->dim, a->places);
    walk p = walk_begin(a->dim, a->places, 0);
    for (int64_t k = 0; k < places; k++) {
        slice(a, w, &p, scatters);
        walk_on(&p, 1);
    }
}

static void any_gather(const tess_work *w)
{
    run(w, false);
}
static void any_scatter(const tess_work *w)
{
    run(w, true);
}
TESS_F32_CODELET(any_gather, )
TESS_F32_CODELET(any_scatter, )
