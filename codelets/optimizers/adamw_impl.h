/* adamw: torch.optim.AdamW's update of one element, and Adam's with l2. */
#ifndef TESS_ADAMW_IMPL_H
#define TESS_ADAMW_IMPL_H
#include "codelets/shared/update.h"

/* What is the same for all elements. */
typedef struct tess_adamw_rates {
    float scale;  /* of the gradient */
    float shrink; /* of the parameter: decoupled decay */
    float l2;     /* of the parameter, into the gradient */
    float beta1, beta2, rest1, rest2;
    float step, root_bias2, eps;
} tess_adamw_rates;

/* All but the scale, which needs the norm. */
static inline tess_adamw_rates tess_adamw_rates_of(const tess_update_view *u)
{
    const double lr = u->env->lr * u->a->lr_scale;
    tess_adamw_rates k = {1, 1, 0, 0, 0, 0, 0, 0, 0, 0};
    if (u->a->optimizer->l2)
        k.l2 = (float)u->a->weight_decay;
    else
        k.shrink = (float)(1 - lr * u->a->weight_decay);
    k.beta1 = (float)u->env->beta1;
    k.beta2 = (float)u->env->beta2;
    k.rest1 = (float)(1 - u->env->beta1);
    k.rest2 = (float)(1 - u->env->beta2);
    k.step = (float)(lr / u->env->bias1);
    k.root_bias2 = (float)sqrt(u->env->bias2);
    k.eps = (float)u->a->optimizer->eps;
    return k;
}

TESS_INLINE void tess_adamw_update(const tess_adamw_rates *k, float *p, float *m, float *v, float grad)
{
    float x = *p, g = grad * k->scale + k->l2 * x;
    float m1 = k->beta1 * *m + k->rest1 * g;
    float v1 = k->beta2 * *v + k->rest2 * (g * g);
    *p = x * k->shrink - k->step * (m1 / (sqrtf(v1) / k->root_bias2 + k->eps));
    *m = m1;
    *v = v1;
}
#endif
