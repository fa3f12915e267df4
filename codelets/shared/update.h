/* update: what the updates of all optimizers share, for CPU and CUDA bodies alike, and the sum of squares of a
 * row. StarPU chooses where an update runs, so both must have the same bits: single fp32 operations in the order
 * written, none contracted, with division and root correctly rounded; and sums in an order that both can follow.
 *
 * An optimizer's own header, NAME_impl.h, has its numbers as they are for all elements, and one element's update. */
#ifndef TESS_UPDATE_H
#define TESS_UPDATE_H
#include "codelets/codelets.h"
#include "codelets/shared/scalar.h"

/* The buffers of an update, where its elements begin. */
typedef struct tess_update_view {
    const tess_update_arg *a;
    const tess_env *env; /* that of the update */
    float *master, *moment[TESS_MOMENTS_MOST];
    const float *grad;   /* or, where that is NULL: */
    const uint16_t *few; /* in bf16 */
    uint16_t *copy;      /* or NULL */
    const double *loss;
    const void *norm; /* with clip a double, else an exact sum */
} tess_update_view;

static inline tess_update_view tess_update_view_of(const tess_work *w)
{
    const tess_update_arg *a = (const tess_update_arg *)w->arg;
    const tess_view *rest = w->buf + 1 + a->moments;
    tess_update_view v;
    v.a = a;
    v.env = a->late ? w->env->before : w->env;
    v.master = (float *)w->buf[0].ptr + a->at_master;
    for (int m = 0; m < TESS_MOMENTS_MOST; m++) v.moment[m] = m < a->moments ? (float *)w->buf[1 + m].ptr : NULL;
    v.grad = a->gradient == TESS_F32 ? (const float *)rest[0].ptr + a->at_gradient : NULL;
    v.few = a->gradient == TESS_F32 ? NULL : (const uint16_t *)rest[0].ptr + a->at_gradient;
    v.loss = (const double *)rest[1].ptr;
    v.norm = rest[2].ptr;
    v.copy = a->copy != TESS_F32 ? (uint16_t *)rest[3].ptr + a->at_copy : NULL;
    return v;
}

/* Whether the square of the global norm lets an update be made. */
TESS_INLINE bool tess_update_sound(double square, double unscale, double most_norm)
{
    return isfinite(square) && !(most_norm > 0 && sqrt(square) * unscale > most_norm);
}

/* Of the gradient, which is to be multiplied by `unscale`, by the square of the global norm before that; clip 0: off.
 */
TESS_INLINE float tess_update_scale(double clip, double unscale, double square)
{
    const double norm = sqrt(square) * unscale + 1e-6;
    return (float)(clip > 0 && clip < norm ? clip / norm * unscale : unscale);
}

/* On the CPU: false where nothing may change, else the gradient's scale. */
static inline bool tess_update_begins(const tess_work *w, const tess_update_view *v, float *scale)
{
    const double norm = v->a->clip ? *(const double *)v->norm : tess_exact_value(v->norm);
    if (!isfinite(*v->loss)) return false;
    if (v->a->clip ? !tess_update_sound(norm, v->env->unscale, v->env->most_norm) : !isfinite(norm)) {
        if (!v->a->skips) tess_work_fail(w, "%s: the gradient is not finite", v->a->name);
        return false;
    }
    *scale = v->a->clip ? tess_update_scale(v->env->clip, v->env->unscale, norm) : (float)v->env->unscale;
    return true;
}

/* The sum of squares of a row of a gradient, which goes into an exact sum. In pieces, element i of one in lane i % 64,
 * the lanes in a tree; the pieces' sums in the same way. On a GPU that is 64 threads. */
enum { TESS_SQUARE_LANES = 64, TESS_SQUARE_PIECE = 8192 };

TESS_INLINE double tess_sum64d(double lane[TESS_SQUARE_LANES])
{
    for (int half = TESS_SQUARE_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}
TESS_INLINE int64_t tess_square_pieces(int64_t n)
{
    return (n + TESS_SQUARE_PIECE - 1) / TESS_SQUARE_PIECE;
}
#endif
