/* adagrad: torch.optim.Adagrad's step on a run of a parameter's elements, in one pass over master, sum of squares and
 * gradient, which also rounds the copy in 16 bits; left out as adamw's is. */
#include "adagrad_impl.h"
#include "update_span_impl.h"

TESS_INLINE void update(const tess_update_view *u, tess_adagrad_rates k, int64_t n, tess_dtype copy)
{
    float *p = u->master, *m = u->moment[0];
    const float *grad = u->grad;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        tess_adagrad_update(&k, &p[i], &m[i], grad[i]);
        if (copy != TESS_F32) tess_store(u->copy, i, copy, p[i]);
    }
}

TESS_INLINE void loop(const tess_update_view *u, const void *rates, int64_t n)
{
    const tess_adagrad_rates *k = rates;
    if (u->a->copy == TESS_BF16)
        update(u, *k, n, TESS_BF16);
    else if (u->a->copy == TESS_F16)
        update(u, *k, n, TESS_F16);
    else
        update(u, *k, n, TESS_F32);
}

enum { POSITIVE = 1u << 0 };

TESS_UPDATE_BODY(adagrad, POSITIVE)

TESS_CUDA_DECLARE(adagrad_f32)
tess_codelet tess_update_adagrad[] = {[TESS_F32] = {.name = "adagrad",
                                                    .dtype = TESS_F32,
                                                    .cpu = adagrad,
                                                    .parts = tess_update_parts_of,
                                                    .cuda = TESS_CUDA(adagrad_f32),
                                                    .either = true}};

static double begins(const tess_optimizer *o)
{
    return o->initial;
}

static tess_status check(const tess_optimizer *o)
{
    if (o->keeping == TESS_KEEP_INT8)
        return tess_error(TESS_INVALID, "moments",
                          "Adagrad's sum of squares in 8 bits would lose what most steps add to it (bf16 keeps that in "
                          "the mean)");
    if (o->eps >= 0 && isfinite(o->eps) && o->lr_decay >= 0 && isfinite(o->lr_decay) && o->initial >= 0 &&
        isfinite(o->initial))
        return TESS_OK;
    return tess_error(TESS_INVALID, "optimizer", "eps %g, lr_decay %g, initial %g (each is finite, and no less than 0)",
                      o->eps, o->lr_decay, o->initial);
}

const tess_optimizer_kind tess_adagrad_kind = {.name = "Adagrad",
                                               .update = tess_update_adagrad,
                                               .moment = {"sum"},
                                               .begins = begins,
                                               .positive = POSITIVE,
                                               .check = check};
