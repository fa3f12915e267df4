/* lion: Lion's step on a run of a parameter's elements, in one pass over master, momentum and gradient, which also
 * rounds the bf16 copy; left out as adamw's is. */
#include "lion_impl.h"
#include "update_span_impl.h"

TESS_INLINE void update(const tess_update_view *u, tess_lion_rates k, int64_t n, tess_dtype copy)
{
    float *p = u->master, *m = u->moment[0];
    const float *grad = u->grad;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        tess_lion_update(&k, &p[i], &m[i], grad[i]);
        if (copy != TESS_F32) tess_store(u->copy, i, copy, p[i]);
    }
}

TESS_INLINE void loop(const tess_update_view *u, const void *rates, int64_t n)
{
    const tess_lion_rates *k = rates;
    if (u->a->copy == TESS_BF16)
        update(u, *k, n, TESS_BF16);
    else if (u->a->copy == TESS_F16)
        update(u, *k, n, TESS_F16);
    else
        update(u, *k, n, TESS_F32);
}

TESS_UPDATE_BODY(lion, 0)

TESS_CUDA_DECLARE(lion_f32)
tess_codelet tess_update_lion[] = {[TESS_F32] = {.name = "lion",
                                                 .dtype = TESS_F32,
                                                 .cpu = lion,
                                                 .parts = tess_update_parts_of,
                                                 .cuda = TESS_CUDA(lion_f32),
                                                 .either = true}};

static tess_status check(const tess_optimizer *o)
{
    if (o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1) return TESS_OK;
    return tess_error(TESS_INVALID, "optimizer", "betas %g and %g (they are 0 to less than 1)", o->beta1, o->beta2);
}

const tess_optimizer_kind tess_lion_kind = {
    .name = "Lion", .update = tess_update_lion, .moment = {"exp_avg"}, .check = check};
