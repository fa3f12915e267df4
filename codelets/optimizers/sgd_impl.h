/* sgd: torch.optim.SGD's update of one element. */
#ifndef TESS_SGD_IMPL_H
#define TESS_SGD_IMPL_H
#include "codelets/shared/update.h"

/* What is the same for all elements. */
typedef struct tess_sgd_rates {
    float scale; /* of the gradient */
    float l2;    /* of the parameter, into the gradient */
    float step;
    float keep, take;   /* of the momentum that there is, and of the gradient into it */
    float own, further; /* of the gradient and of the momentum in what is stepped along */
} tess_sgd_rates;

/* All but the scale, which needs the norm. The first update's momentum is its gradient, whatever dampening is. */
static inline tess_sgd_rates tess_sgd_rates_of(const tess_update_view *u)
{
    const tess_optimizer *o = u->a->optimizer;
    tess_sgd_rates k;
    k.scale = 1;
    k.l2 = (float)u->a->weight_decay;
    k.step = (float)(u->env->lr * u->a->lr_scale);
    k.keep = (float)o->momentum;
    k.take = u->env->updates > 0 ? (float)(1 - o->dampening) : 1;
    k.own = o->nesterov ? 1 : 0;
    k.further = o->nesterov ? (float)o->momentum : 1;
    return k;
}

/* m is NULL without momentum. */
TESS_INLINE void tess_sgd_update(const tess_sgd_rates *k, float *p, float *m, float *unused, float grad)
{
    (void)unused;
    float x = *p, g = grad * k->scale + k->l2 * x;
    if (m) {
        float m1 = k->keep * *m + k->take * g;
        g = k->own * g + k->further * m1;
        *m = m1;
    }
    *p = x - k->step * g;
}
#endif
