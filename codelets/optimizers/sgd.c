/* sgd: torch.optim.SGD's step on a run of a parameter's elements, in one pass over master, momentum, if any, and
 * gradient, which also rounds the copy in 16 bits; left out as adamw's is. */
#include "sgd_impl.h"
#include "update_span_impl.h"

TESS_INLINE void update(const tess_update_view *u, tess_sgd_rates k, int64_t n, bool momentum, tess_dtype copy)
{
    float *p = u->master, *m = u->moment[0];
    const float *grad = u->grad;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        tess_sgd_update(&k, &p[i], momentum ? &m[i] : NULL, grad[i]);
        if (copy != TESS_F32) tess_store(u->copy, i, copy, p[i]);
    }
}

TESS_INLINE void either(const tess_update_view *u, tess_sgd_rates k, int64_t n, tess_dtype copy)
{
    if (u->a->moments)
        update(u, k, n, true, copy);
    else
        update(u, k, n, false, copy);
}

TESS_INLINE void loop(const tess_update_view *u, const void *rates, int64_t n)
{
    const tess_sgd_rates *k = rates;
    if (u->a->copy == TESS_BF16)
        either(u, *k, n, TESS_BF16);
    else if (u->a->copy == TESS_F16)
        either(u, *k, n, TESS_F16);
    else
        either(u, *k, n, TESS_F32);
}

TESS_UPDATE_BODY(sgd, 0)

TESS_CUDA_DECLARE(sgd_f32)
tess_codelet tess_update_sgd[] = {[TESS_F32] = {.name = "sgd",
                                                .dtype = TESS_F32,
                                                .cpu = sgd,
                                                .parts = tess_update_parts_of,
                                                .cuda = TESS_CUDA(sgd_f32),
                                                .either = true}};

static int moments(const tess_optimizer *o)
{
    return o->momentum > 0;
}

static tess_status check(const tess_optimizer *o)
{
    if (!(o->momentum >= 0) || isinf(o->momentum) || !isfinite(o->dampening))
        return tess_error(TESS_INVALID, "optimizer",
                          "momentum %g, dampening %g (both are finite, momentum not negative)", o->momentum,
                          o->dampening);
    if (o->nesterov && (o->momentum == 0 || o->dampening != 0))
        return tess_error(TESS_INVALID, "optimizer",
                          "nesterov with momentum %g and dampening %g (it needs momentum, and "
                          "no dampening)",
                          o->momentum, o->dampening);
    return TESS_OK;
}

const tess_optimizer_kind tess_sgd_kind = {
    .name = "SGD", .update = tess_update_sgd, .moment = {"momentum_buffer"}, .moments = moments, .check = check};
