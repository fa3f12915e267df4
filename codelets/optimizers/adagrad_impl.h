/* adagrad: torch.optim.Adagrad's update of one element. */
#ifndef TESS_ADAGRAD_IMPL_H
#define TESS_ADAGRAD_IMPL_H
#include "codelets/shared/update.h"

/* What is the same for all elements. */
typedef struct tess_adagrad_rates {
    float scale; /* of the gradient */
    float l2;    /* of the parameter, into the gradient */
    float step, eps;
} tess_adagrad_rates;

/* All but the scale, which needs the norm. */
static inline tess_adagrad_rates tess_adagrad_rates_of(const tess_update_view *u)
{
    const tess_optimizer *o = u->a->optimizer;
    tess_adagrad_rates k;
    k.scale = 1;
    k.l2 = (float)u->a->weight_decay;
    k.step = (float)(u->env->lr * u->a->lr_scale / (1 + (double)u->env->updates * o->lr_decay));
    k.eps = (float)o->eps;
    return k;
}

TESS_INLINE void tess_adagrad_update(const tess_adagrad_rates *k, float *p, float *sum, float *unused, float grad)
{
    (void)unused;
    float x = *p, g = grad * k->scale + k->l2 * x;
    float squares = *sum + g * g;
    *p = x - k->step * (g / (sqrtf(squares) + k->eps));
    *sum = squares;
}
#endif
