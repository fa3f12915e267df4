/* update_span: CPU bodies of updates. Where moments are kept in fewer bits, or the gradient is, they are brought to
 * fp32 block by block, the optimizer's own loop runs over them, and moments go back. Blocks know nothing of each other.
 */
#ifndef TESS_UPDATE_SPAN_IMPL_H
#define TESS_UPDATE_SPAN_IMPL_H
#include "codelets/optimizers/moment_format_impl.h"
#include "codelets/shared/parts.h"

/* An optimizer's loop over n elements from those on that the view begins with; rates are its own. */
typedef void tess_update_loop(const tess_update_view *u, const void *rates, int64_t n);

/* `positive` is a constant wherever these are called, or the loops would have branches. */
TESS_INLINE void tess_int8_read_as(float *x, const uint8_t *code, float scale, int64_t n, bool positive)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] = tess_int8_share(code[i], positive) * scale;
}
TESS_INLINE float tess_int8_write_as(uint8_t *code, float *x, int64_t n, bool positive)
{
    float most = 0, least = 0;
#pragma omp simd reduction(max : most) reduction(min : least)
    for (int64_t i = 0; i < n; i++) {
        x[i] = tess_int8_held(x[i]);
        most = x[i] > most ? x[i] : most;
        least = x[i] < least ? x[i] : least;
    }
    const float scale = tess_int8_scale(most, positive ? 0 : least), by = scale != 0 ? scale : 1;
    if (scale == 0) memset(x, 0, (size_t)n * sizeof *x);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) code[i] = (uint8_t)tess_int8_code(x[i] / by, positive);
    return scale;
}
TESS_INLINE void tess_int8_read(float *x, const uint8_t *code, float scale, int64_t n, bool positive)
{
    if (scale == 0)
        memset(x, 0, (size_t)n * sizeof *x);
    else if (positive)
        tess_int8_read_as(x, code, scale, n, true);
    else
        tess_int8_read_as(x, code, scale, n, false);
}
TESS_INLINE float tess_int8_write(uint8_t *code, float *x, int64_t n, bool positive)
{
    return positive ? tess_int8_write_as(code, x, n, true) : tess_int8_write_as(code, x, n, false);
}

/* The view from element `by` on, but for its moments. */
TESS_INLINE tess_update_view tess_update_from(const tess_update_view *u, int64_t by)
{
    tess_update_view v = *u;
    v.master += by;
    if (v.few)
        v.few += by;
    else
        v.grad += by;
    if (v.copy) v.copy += by;
    return v;
}

/* The gradient of at most a block of elements comes to fp32 in `room`. */
TESS_INLINE void tess_update_widen(tess_update_view *v, float room[TESS_KEPT_BLOCK], int64_t n)
{
    if (!v->few) return;
    tess_widen(room, v->few, n, TESS_BF16);
    v->grad = room;
}

/* Of moment m, with `positive` bit m says that it is never below 0. */
TESS_INLINE void tess_update_span(const tess_update_view *u, tess_kept_cut cut, int64_t i, tess_update_loop *loop,
                                  const void *rates, unsigned positive, tess_keeping as)
{
    float room[TESS_MOMENTS_MOST][TESS_KEPT_BLOCK], gradient[TESS_KEPT_BLOCK];
    const tess_update_arg *a = u->a;
    const tess_kept_span s = tess_kept_span_of(&a->kept, cut, i);
    const int64_t scales = tess_kept_scales(a->n);
    tess_update_view v = tess_update_from(u, s.at);
    tess_update_widen(&v, gradient, s.n);
    for (int m = 0; m < a->moments; m++) {
        char *kept = (char *)u->moment[m];
        v.moment[m] = room[m];
        if (as == TESS_KEEP_BF16)
            tess_widen(room[m], (uint16_t *)kept + s.at, s.n, TESS_BF16);
        else
            tess_int8_read(room[m], (uint8_t *)kept + s.at, ((float *)(kept + scales))[i], s.n, positive >> m & 1);
    }
    loop(&v, rates, s.n);
    const tess_random_key key = tess_random_begin(u->env->seed, (uint64_t)u->env->step, a->kept.dice);
    for (int m = 0; m < a->moments; m++) {
        char *kept = (char *)u->moment[m];
        uint16_t *half = (uint16_t *)kept + s.at;
        if (as == TESS_KEEP_INT8) {
            ((float *)(kept + scales))[i] = tess_int8_write((uint8_t *)kept + s.at, room[m], s.n, positive >> m & 1);
            continue;
        }
#pragma omp simd
        for (int64_t k = 0; k < s.n; k++)
            half[k] = tess_bf16_by_dice(room[m][k], tess_kept_dice(key, s.place, (uint32_t)k, m));
    }
}

/* Parts of an update (parts.h): elements where moments are fp32, else whole spans. */
static inline int64_t tess_update_spans_each(const tess_update_arg *a)
{
    return TESS_PART_ELEMENTS / tess_kept_cut_of(&a->kept).block;
}
static inline int64_t tess_update_parts(const tess_update_arg *a)
{
    if (a->kept.as == TESS_KEEP_F32) return tess_parts_of(a->n, TESS_PART_ELEMENTS);
    const int64_t spans = a->n / a->kept.width * tess_kept_cut_of(&a->kept).blocks;
    return tess_parts_of(spans, tess_update_spans_each(a));
}

static inline int64_t tess_update_parts_of(const tess_codelet *cl, const void *arg)
{
    (void)cl;
    return tess_update_parts(arg);
}

TESS_INLINE void tess_update_part(const tess_update_view *u, int64_t k, tess_update_loop *loop, const void *rates,
                                  unsigned positive)
{
    const tess_update_arg *a = u->a;
    if (a->kept.as == TESS_KEEP_F32) {
        float gradient[TESS_KEPT_BLOCK];
        const int64_t begin = k * TESS_PART_ELEMENTS, stop = least(begin + TESS_PART_ELEMENTS, a->n);
        const int64_t each = u->few ? TESS_KEPT_BLOCK : TESS_PART_ELEMENTS;
        for (int64_t at = begin; at < stop; at += each) {
            const int64_t n = least(each, stop - at);
            tess_update_view v = tess_update_from(u, at);
            for (int m = 0; m < a->moments; m++) v.moment[m] += at;
            tess_update_widen(&v, gradient, n);
            loop(&v, rates, n);
        }
        return;
    }
    const tess_kept_cut cut = tess_kept_cut_of(&a->kept);
    const int64_t spans = a->n / a->kept.width * cut.blocks, each = tess_update_spans_each(a);
    const int64_t first = k * each, end = spans - first < each ? spans : first + each;
    if (a->kept.as == TESS_KEEP_BF16)
        for (int64_t i = first; i < end; i++) tess_update_span(u, cut, i, loop, rates, positive, TESS_KEEP_BF16);
    else
        for (int64_t i = first; i < end; i++) tess_update_span(u, cut, i, loop, rates, positive, TESS_KEEP_INT8);
}

/* tess_update_NAME, from tess_NAME_rates, what makes them, and tess_NAME_update of one element; how many moments
 * it has, of `u`, and which of them are never below 0. Master, moments and gradient are passed over once, and the copy
 * in 16 bits is rounded on the way.
 *
 * A gradient that is not finite must leave everything as it was, so a norm is known before the first element changes:
 * with clip the global one, without that of these elements. */
#define TESS_UPDATE_CODELET(name, moments, positive)                                                                   \
    TESS_INLINE void name##_elements(const tess_update_view *u, tess_##name##_rates k, int64_t n, int count,           \
                                     tess_dtype copy)                                                                  \
    {                                                                                                                  \
        float *p = u->master, *m = u->moment[0], *v = u->moment[1];                                                    \
        const float *grad = u->grad;                                                                                   \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++)                                                            \
        {                                                                                                              \
            tess_##name##_update(&k, &p[i], count > 0 ? &m[i] : NULL, count > 1 ? &v[i] : NULL, grad[i]);              \
            if (copy != TESS_F32) tess_store(u->copy, i, copy, p[i]);                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    TESS_INLINE void name##_copied(const tess_update_view *u, tess_##name##_rates k, int64_t n, tess_dtype copy)       \
    {                                                                                                                  \
        if ((moments) > 1)                                                                                             \
            name##_elements(u, k, n, 2, copy);                                                                         \
        else if ((moments) > 0)                                                                                        \
            name##_elements(u, k, n, 1, copy);                                                                         \
        else                                                                                                           \
            name##_elements(u, k, n, 0, copy);                                                                         \
    }                                                                                                                  \
    TESS_INLINE void name##_loop(const tess_update_view *u, const void *rates, int64_t n)                              \
    {                                                                                                                  \
        const tess_##name##_rates *k = rates;                                                                          \
        TESS_BY_DTYPE(u->a->copy, name##_copied, u, *k, n);                                                            \
    }                                                                                                                  \
    struct name##_whole {                                                                                              \
        tess_update_view u;                                                                                            \
        tess_##name##_rates k;                                                                                         \
    };                                                                                                                 \
    TESS_CLONES static void name##_part(void *of, int64_t k)                                                           \
    {                                                                                                                  \
        const struct name##_whole *all = of;                                                                           \
        tess_update_part(&all->u, k, name##_loop, &all->k, positive);                                                  \
    }                                                                                                                  \
    TESS_CUDA_DECLARE(name##_f32)                                                                                      \
    static void name##_f32(const tess_work *w)                                                                         \
    {                                                                                                                  \
        struct name##_whole all = {.u = tess_update_view_of(w)};                                                       \
        all.k = tess_##name##_rates_of(&all.u);                                                                        \
        if (tess_update_begins(w, &all.u, &all.k.scale))                                                               \
            tess_parts_run(tess_update_parts(all.u.a), name##_part, &all);                                             \
    }                                                                                                                  \
    tess_codelet tess_update_##name[] = {                                                                              \
        TESS_CODELET(name, f32, TESS_F32, name, .parts = tess_update_parts_of, .either = true, .together = true)};
#endif
