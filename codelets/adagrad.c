/* adagrad: torch.optim.Adagrad's step on a run of a parameter's elements, in one pass over master, sum of squares and
 * gradient, which also rounds the bf16 copy; left out as adamw's is. */
#include "adagrad_impl.h"
#include "vector_impl.h"

TESS_INLINE void update(const tess_update_view *u, tess_adagrad_rates k, int64_t n, bool copy)
{
    float *p = u->master, *m = u->moment[0];
    const float *grad = u->grad;
    tess_bf16 *rounded = u->copy;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        tess_adagrad_update(&k, &p[i], &m[i], grad[i]);
        if (copy) rounded[i] = tess_to_bf16(p[i]);
    }
}

TESS_CLONES static void adagrad(const tess_work *w)
{
    const tess_update_view u = tess_update_view_of(w);
    tess_adagrad_rates k = tess_adagrad_rates_of(&u);
    if (!tess_update_begins(w, &u, &k.scale)) return;
    if (u.copy)
        update(&u, k, u.a->n, true);
    else
        update(&u, k, u.a->n, false);
}

TESS_CUDA_DECLARE(adagrad_f32)
tess_codelet tess_adagrad[] = {
    [TESS_F32] = {
        .name = "adagrad", .dtype = TESS_F32, .cpu = adagrad, .cuda = TESS_CUDA(adagrad_f32), .either = true}};

static double begins(const tess_optimizer *o)
{
    return o->initial;
}

static tess_status check(const tess_optimizer *o)
{
    if (o->eps >= 0 && isfinite(o->eps) && o->lr_decay >= 0 && isfinite(o->lr_decay) && o->initial >= 0 &&
        isfinite(o->initial))
        return TESS_OK;
    return tess_error(TESS_INVALID, "optimizer", "eps %g, lr_decay %g, initial %g (each is finite, and no less than 0)",
                      o->eps, o->lr_decay, o->initial);
}

const tess_optimizer_kind tess_adagrad_kind = {
    .name = "Adagrad", .update = tess_adagrad, .moment = {"sum"}, .begins = begins, .check = check};
