/* lion: Lion's update of one element, as DeepSpeed has it but that where momentum and gradient cancel out, or both
 * are 0, the element stays: its CPU and its GPU body step to different sides there. */
#ifndef TESS_LION_IMPL_H
#define TESS_LION_IMPL_H
#include "codelets/shared/update.h"

/* What is the same for all elements. */
typedef struct tess_lion_rates {
    float scale;  /* of the gradient */
    float shrink; /* of the parameter: decoupled decay */
    float step;
    float beta1, beta2, rest1, rest2;
} tess_lion_rates;

/* All but the scale, which needs the norm. */
static inline tess_lion_rates tess_lion_rates_of(const tess_update_view *u)
{
    const double lr = u->env->lr * u->a->lr_scale;
    tess_lion_rates k;
    k.scale = 1;
    k.shrink = (float)(1 - lr * u->a->weight_decay);
    k.step = (float)lr;
    k.beta1 = (float)u->env->beta1;
    k.beta2 = (float)u->env->beta2;
    k.rest1 = (float)(1 - u->env->beta1);
    k.rest2 = (float)(1 - u->env->beta2);
    return k;
}

TESS_INLINE void tess_lion_update(const tess_lion_rates *k, float *p, float *m, float *unused, float grad)
{
    (void)unused;
    float g = grad * k->scale, towards = k->beta1 * *m + k->rest1 * g;
    float step = towards > 0 ? k->step : towards < 0 ? -k->step : 0.0f;
    *p = *p * k->shrink - step;
    *m = k->beta2 * *m + k->rest2 * g;
}
#endif
