/* adamw: torch.optim.AdamW's step (Adam's with l2) on a run of a parameter's elements, in one pass over master, moments
 * and gradient, which also rounds the copy in 16 bits.
 *
 * A gradient that is not finite must leave everything as it was, so a norm is known before the first element changes:
 * with clip the global one, without that of these elements. */
#include "adamw_impl.h"
#include "update_span_impl.h"

TESS_INLINE void update(const tess_update_view *u, tess_adamw_rates k, int64_t n, tess_dtype copy)
{
    float *p = u->master, *m = u->moment[0], *v = u->moment[1];
    const float *grad = u->grad;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        tess_adamw_update(&k, &p[i], &m[i], &v[i], grad[i]);
        if (copy != TESS_F32) tess_store(u->copy, i, copy, p[i]);
    }
}

TESS_INLINE void loop(const tess_update_view *u, const void *rates, int64_t n)
{
    const tess_adamw_rates *k = rates;
    if (u->a->copy == TESS_BF16)
        update(u, *k, n, TESS_BF16);
    else if (u->a->copy == TESS_F16)
        update(u, *k, n, TESS_F16);
    else
        update(u, *k, n, TESS_F32);
}

enum { POSITIVE = 1u << 1 }; /* the second moment */

TESS_UPDATE_BODY(adamw, POSITIVE)

TESS_CUDA_DECLARE(adamw_f32)
tess_codelet tess_update_adamw[] = {[TESS_F32] = {.name = "adamw",
                                                  .dtype = TESS_F32,
                                                  .cpu = adamw,
                                                  .parts = tess_update_parts_of,
                                                  .cuda = TESS_CUDA(adamw_f32),
                                                  .either = true}};

static tess_status check(const tess_optimizer *o)
{
    if (o->beta1 == 0 && o->beta2 == 0 && o->eps == 0)
        return tess_error(TESS_INVALID, "optimizer", "betas and eps are all 0 (tess_adamw() has the usual ones)");
    if (o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1 && o->eps >= 0 && isfinite(o->eps))
        return TESS_OK;
    return tess_error(TESS_INVALID, "optimizer",
                      "betas %g and %g, eps %g (betas are 0 to less than 1, eps is no less than 0)", o->beta1, o->beta2,
                      o->eps);
}

const tess_optimizer_kind tess_adamw_kind = {.name = "AdamW",
                                             .update = tess_update_adamw,
                                             .moment = {"exp_avg", "exp_avg_sq"},
                                             .positive = POSITIVE,
                                             .check = check};
