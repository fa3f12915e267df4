/* adamw_impl: one element's update and the sum of squares of a row, for CPU and CUDA bodies alike. StarPU chooses where
 * an update runs, so both must have the same bits: single fp32 operations in the order written, none contracted, with
 * division and root correctly rounded; and sums in an order that both can follow. */
#ifndef TESS_ADAMW_IMPL_H
#define TESS_ADAMW_IMPL_H
#include "codelets.h"
#include "scalar_impl.h"

/* What is the same for all elements. */
typedef struct tess_adamw_rates {
    float scale;  /* of the gradient */
    float shrink; /* of the parameter: decoupled decay */
    float l2;     /* of the parameter, into the gradient */
    float beta1, beta2, rest1, rest2;
    float step, root_bias2, eps;
} tess_adamw_rates;

/* All but the scale, which needs the norm. */
static inline tess_adamw_rates tess_adamw_rates_of(const tess_adamw_arg *a, const tess_env *env)
{
    const double decay = a->decay ? env->weight_decay : 0;
    tess_adamw_rates k = {1, 1, 0, 0, 0, 0, 0, 0, 0, 0};
    if (a->l2)
        k.l2 = (float)decay;
    else
        k.shrink = (float)(1 - env->lr * decay);
    k.beta1 = (float)env->beta1;
    k.beta2 = (float)env->beta2;
    k.rest1 = (float)(1 - (double)env->beta1);
    k.rest2 = (float)(1 - (double)env->beta2);
    k.step = (float)((double)env->lr / env->bias1);
    k.root_bias2 = (float)sqrt((double)env->bias2);
    k.eps = (float)env->eps;
    return k;
}

/* Of the gradient, by the square of the global norm; clip 0: off. */
TESS_INLINE float tess_adamw_scale(double clip, double square)
{
    const double norm = sqrt(square) + 1e-6;
    return clip > 0 && clip < norm ? (float)(clip / norm) : 1.0f;
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

/* The sum of squares of a row of a gradient, which goes into an exact sum. In pieces, element i of one in lane i % 64,
 * the lanes in a tree; the pieces' sums in the same way. On a GPU that is 64 threads. */
enum { TESS_SQUARE_LANES = 64, TESS_SQUARE_PIECE = 8192 };

TESS_INLINE double tess_sum64d(double lane[TESS_SQUARE_LANES])
{
    for (int half = TESS_SQUARE_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}
TESS_INLINE int64_t tess_square_pieces(int64_t n)
{
    return (n + TESS_SQUARE_PIECE - 1) / TESS_SQUARE_PIECE;
}
#endif
