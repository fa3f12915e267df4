/* rope: how fast a pair turns, for CPU and CUDA bodies alike. */
#ifndef TESS_ROPE_IMPL_H
#define TESS_ROPE_IMPL_H
#include "codelets/codelets.h"
#include "codelets/shared/scalar.h"

/* base^(-2 pair / rotary) in fp32 as the published models compute it. What scaling makes of it is computed in double
 * and rounded once: the last bits of a double, in which pow and contraction may differ, hardly ever show. */
TESS_INLINE float tess_rope_speed(const tess_rope_arg *a, int64_t pair)
{
    const tess_rope_scaling *s = &a->scaling;
    const float wave = (float)pow((double)a->base, (double)((float)(2 * pair) / (float)a->rotary)), plain = 1 / wave;
    if (s->kind == TESS_ROPE_PLAIN) return plain;
    if (s->kind == TESS_ROPE_LONG) return 1 / (s->pair[pair] * wave);
    const double speed = (double)plain, slow = speed / s->factor;
    if (s->kind == TESS_ROPE_LINEAR) return (float)slow;
    if (s->kind == TESS_ROPE_YARN) {
        const double along = ((double)pair - s->low) / (s->high - s->low), ramp = along < 0 ? 0 : along > 1 ? 1 : along;
        return (float)(slow * ramp + speed * (1 - ramp));
    }
    const double turns = s->length * speed * 0.15915494309189535; /* of 2 pi */
    if (turns < s->low) return (float)slow;
    if (turns > s->high) return plain;
    const double smooth = (turns - s->low) / (s->high - s->low);
    return (float)((1 - smooth) * slow + smooth * speed);
}
/* A v among heads that lie side by side. */
TESS_INLINE bool tess_rope_stays(const tess_rope_arg *a, int64_t head)
{
    return a->of && head % a->of >= a->turning;
}
/* How large a pair becomes. */
TESS_INLINE float tess_rope_size(const tess_rope_arg *a)
{
    return a->scaling.size > 0 ? a->scaling.size : 1;
}

#endif
