/* muon: what torch.optim.Muon does to one element, before a matrix is made orthogonal and after. */
#ifndef TESS_MUON_IMPL_H
#define TESS_MUON_IMPL_H
#include "codelets/shared/update.h"

/* What is the same for all elements. */
typedef struct tess_muon_rates {
    float scale; /* of the gradient */
    float take;  /* of the gradient into the momentum */
    bool nesterov;
} tess_muon_rates;

/* All but the scale, which needs the norm. */
static inline tess_muon_rates tess_muon_rates_of(const tess_update_view *u)
{
    return (tess_muon_rates){1, (float)(1 - u->a->optimizer->momentum), u->a->optimizer->nesterov};
}

/* x is where the matrix comes together. */
TESS_INLINE void tess_muon_update(const tess_muon_rates *k, float *x, float *m, float *unused, float grad)
{
    (void)unused;
    float g = grad * k->scale, m1 = *m + k->take * (g - *m);
    *m = m1;
    *x = k->nesterov ? m1 - (m1 - g) * k->take : m1;
}

typedef struct tess_muon_apply_rates {
    float scale;  /* of the gradient: it is in the matrix already */
    float shrink; /* of the parameter: decoupled decay */
    float step;
} tess_muon_apply_rates;

static inline tess_muon_apply_rates tess_muon_apply_rates_of(const tess_update_view *u)
{
    const double lr = u->env->lr * u->a->lr_scale;
    return (tess_muon_apply_rates){1, (float)(1 - lr * u->a->weight_decay), (float)(lr * u->a->stretch)};
}

TESS_INLINE void tess_muon_apply_update(const tess_muon_apply_rates *k, float *p, float *unused, float *neither,
                                        float orthogonal)
{
    (void)unused;
    (void)neither;
    *p = *p * k->shrink - k->step * orthogonal;
}
#endif
