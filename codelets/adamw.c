/* adamw: torch.optim.AdamW's step (Adam's with l2) on one tile of a parameter, in one pass over master, moments and
 * gradient, which also rounds the bf16 copy.
 *
 * A gradient that is not finite must leave everything as it was, so its norm is known before the first element changes:
 * with clip the global norm is given; without, the tile's own sum of squares takes a pass over the gradient first, 4
 * bytes an element beside the update's 30. All operations are single fp32 ones, none contracted, in the order written:
 * another device that does the same has the same bits. */
#include "vector_impl.h"

/* What is the same for all elements. */
typedef struct rates {
    float scale;  /* of the gradient */
    float shrink; /* of the parameter: decoupled decay */
    float l2;     /* of the parameter, into the gradient */
    float beta1, beta2, rest1, rest2;
    float step, root_bias2, eps;
} rates;

static rates rates_of(const tess_adamw_arg *a, const tess_env *env, double norm)
{
    const double decay = a->decay ? env->weight_decay : 0;
    rates k = {.scale = 1, .shrink = 1};
    if (a->clip && env->clip > 0 && env->clip < norm + 1e-6) k.scale = (float)(env->clip / (norm + 1e-6));
    if (a->l2)
        k.l2 = (float)decay;
    else
        k.shrink = (float)(1 - env->lr * decay);
    k.beta1 = (float)env->beta1;
    k.beta2 = (float)env->beta2;
    k.rest1 = (float)(1 - (double)env->beta1);
    k.rest2 = (float)(1 - (double)env->beta2);
    k.step = (float)((double)env->lr / env->bias1);
    k.root_bias2 = (float)sqrt((double)env->bias2);
    k.eps = (float)env->eps;
    return k;
}

TESS_INLINE void update(const tess_work *w, rates k, int64_t n, bool copy)
{
    float *p = w->buf[0].ptr, *m = w->buf[1].ptr, *v = w->buf[2].ptr;
    const float *grad = w->buf[3].ptr;
    tess_bf16 *rounded = copy ? w->buf[6].ptr : NULL;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = p[i], g = grad[i] * k.scale + k.l2 * x;
        float m1 = k.beta1 * m[i] + k.rest1 * g;
        float v1 = k.beta2 * v[i] + k.rest2 * (g * g);
        x = x * k.shrink - k.step * (m1 / (sqrtf(v1) / k.root_bias2 + k.eps));
        m[i] = m1;
        v[i] = v1;
        p[i] = x;
        if (copy) rounded[i] = tess_to_bf16(x);
    }
}

TESS_CLONES static void adamw(const tess_work *w)
{
    const tess_adamw_arg *a = w->arg;
    const double *loss = w->buf[4].ptr;
    double *norm = w->buf[5].ptr;
    if (!a->clip) *norm = tess_squares(w->buf[3].ptr, a->n);
    if (!isfinite(*loss)) return;
    if (!isfinite(*norm)) {
        tess_work_fail(w, "%s: the gradient is not finite", a->name);
        return;
    }
    const rates k = rates_of(a, a->late ? w->env->before : w->env, sqrt(*norm));
    if (a->copy)
        update(w, k, a->n, true);
    else
        update(w, k, a->n, false);
}

tess_codelet tess_adamw[] = {[TESS_F32] = {.name = "adamw", .dtype = TESS_F32, .cpu = adamw}};
