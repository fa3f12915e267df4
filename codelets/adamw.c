/* adamw: torch.optim.AdamW's step (Adam's with l2) on a run of a parameter's elements, in one pass over master, moments
 * and gradient, which also rounds the bf16 copy.
 *
 * A gradient that is not finite must leave everything as it was, so a norm is known before the first element changes:
 * with clip the global one, without that of these elements. */
#include "adamw_impl.h"
#include "vector_impl.h"

TESS_INLINE void update(const tess_work *w, tess_adamw_rates k, int64_t n, bool copy)
{
    const tess_adamw_arg *a = w->arg;
    float *p = (float *)w->buf[0].ptr + a->at_master, *m = w->buf[1].ptr, *v = w->buf[2].ptr;
    const float *grad = (const float *)w->buf[3].ptr + a->at_gradient;
    tess_bf16 *rounded = copy ? (tess_bf16 *)w->buf[6].ptr + a->at_copy : NULL;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        tess_adamw_update(&k, &p[i], &m[i], &v[i], grad[i]);
        if (copy) rounded[i] = tess_to_bf16(p[i]);
    }
}

TESS_CLONES static void adamw(const tess_work *w)
{
    const tess_adamw_arg *a = w->arg;
    const double *loss = w->buf[4].ptr;
    const double norm = a->clip ? *(const double *)w->buf[5].ptr : tess_exact_value(w->buf[5].ptr);
    if (!isfinite(*loss)) return;
    if (!isfinite(norm)) {
        tess_work_fail(w, "%s: the gradient is not finite", a->name);
        return;
    }
    const tess_env *env = a->late ? w->env->before : w->env;
    tess_adamw_rates k = tess_adamw_rates_of(a, env);
    if (a->clip) k.scale = tess_adamw_scale(env->clip, norm);
    if (a->copy)
        update(w, k, a->n, true);
    else
        update(w, k, a->n, false);
}

TESS_CUDA_DECLARE(adamw_f32)
tess_codelet tess_adamw[] = {
    [TESS_F32] = {.name = "adamw", .dtype = TESS_F32, .cpu = adamw, .cuda = TESS_CUDA(adamw_f32), .either = true}};
