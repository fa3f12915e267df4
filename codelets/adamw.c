/* adamw: torch.optim.AdamW's step (Adam's with l2) on a run of a parameter's elements, in one pass over master, moments
 * and gradient, which also rounds the copy in 16 bits.
 *
 * A gradient that is not finite must leave everything as it was, so a norm is known before the first element changes:
 * with clip the global one, without that of these elements. */
#include "adamw_impl.h"
#include "vector_impl.h"

enum { SPAN = 64 << 10 }; /* elements of a part */

TESS_INLINE void update(const tess_update_view *u, tess_adamw_rates k, int64_t first, int64_t end, tess_dtype copy)
{
    float *p = u->master, *m = u->moment[0], *v = u->moment[1];
    const float *grad = u->grad;
#pragma omp simd
    for (int64_t i = first; i < end; i++) {
        tess_adamw_update(&k, &p[i], &m[i], &v[i], grad[i]);
        if (copy != TESS_F32) tess_store(u->copy, i, copy, p[i]);
    }
}

struct spans {
    tess_update_view u;
    tess_adamw_rates k;
};
TESS_CLONES static void update_part(void *of, int64_t part)
{
    const struct spans *s = of;
    const tess_update_view *u = &s->u;
    const int64_t first = part * SPAN, end = u->a->n - first < SPAN ? u->a->n : first + SPAN;
    if (u->a->copy == TESS_BF16)
        update(u, s->k, first, end, TESS_BF16);
    else if (u->a->copy == TESS_F16)
        update(u, s->k, first, end, TESS_F16);
    else
        update(u, s->k, first, end, TESS_F32);
}

static void adamw(const tess_work *w)
{
    struct spans s = {.u = tess_update_view_of(w)};
    s.k = tess_adamw_rates_of(&s.u);
    if (!tess_update_begins(w, &s.u, &s.k.scale)) return;
    tess_parts_run((s.u.a->n + SPAN - 1) / SPAN, update_part, &s);
}

TESS_CUDA_DECLARE(adamw_f32)
tess_codelet tess_adamw[] = {
    [TESS_F32] = {.name = "adamw", .dtype = TESS_F32, .cpu = adamw, .cuda = TESS_CUDA(adamw_f32), .either = true}};

static tess_status check(const tess_optimizer *o)
{
    if (o->beta1 == 0 && o->beta2 == 0 && o->eps == 0)
        return tess_error(TESS_INVALID, "optimizer", "betas and eps are all 0 (TESS_ADAMW has the usual ones)");
    if (o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1 && o->eps >= 0 && isfinite(o->eps))
        return TESS_OK;
    return tess_error(TESS_INVALID, "optimizer",
                      "betas %g and %g, eps %g (betas are 0 to less than 1, eps is no less than 0)", o->beta1, o->beta2,
                      o->eps);
}

const tess_optimizer_kind tess_adamw_kind = {
    .name = "AdamW", .update = tess_adamw, .moment = {"exp_avg", "exp_avg_sq"}, .check = check};
