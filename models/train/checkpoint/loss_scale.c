/* The scale of the loss in fp16, by DeepSpeed's rules (runtime/fp16/loss_scaler.py of 0.19.8). A loss_scale above 0 is
 * the scale of all steps. Else the scale begins with 2^initial_scale_power. A step whose gradient is not finite is
 * skipped, and from the hysteresis-th of them on each halves the scale, down to min_loss_scale. loss_scale_window steps
 * in a row without one double it and reset that count, which with consecutive_hysteresis any step without one resets.
 *
 * Why fp16 and not bf16 in its place: fp16 has 11 bits where bf16 has 8, and models that were trained in it are
 * fine-tuned in it. Debian's oneDNN multiplies no fp16, so matrices are widened to fp32 while they are packed.
 * DeepSpeed skips a whole step if any gradient is not finite, so updates wait for the global norm as with clipping; it
 * is an exact sum, equal on all ranks, so all skip together without asking. A scale is a power of two, divided out in
 * the factor that clipping has anyway, and changes no bit. A skipped step counts its samples, but not for the
 * schedule, bias correction or decay. */
#include "models/train/checkpoint/loss_scale.h"
#include <math.h>

tess_loss_scale tess_loss_scale_begin(const tess_config *c)
{
    const bool fixed = c->fp16.loss_scale > 0;
    return (tess_loss_scale){.value = fixed ? c->fp16.loss_scale : ldexp(1, (int)c->fp16.initial_scale_power),
                             .overflow = -1,
                             .hysteresis = c->fp16.hysteresis};
}

void tess_loss_scale_resume(const tess_config *c, tess_loss_scale *s)
{
    const int64_t skipped = s->skipped;
    if (!(s->value > 0)) *s = tess_loss_scale_begin(c), s->skipped = skipped;
    if (c->fp16.loss_scale > 0) s->value = c->fp16.loss_scale; /* whatever it was before */
}

static tess_status overflowed(const tess_config *c, tess_loss_scale *s, int64_t step)
{
    char where[48];
    const double least = fmax(c->fp16.min_loss_scale, 0x1p-100); /* whose inverse fp32 has */
    if (c->fp16.loss_scale > 0) return TESS_OK;
    s->overflow = s->steps;
    if (c->fp16.hysteresis > 1 && s->hysteresis > 1) {
        s->hysteresis--;
        return TESS_OK;
    }
    if (s->value != least) { /* and one that began below it rises to it */
        s->value = fmax(s->value / 2, least);
        return TESS_OK;
    }
    snprintf(where, sizeof where, "step %lld", (long long)step + 1);
    return tess_error(TESS_FAILED, where,
                      "the gradient is not finite at the least loss scale, %g (fp16.min_loss_scale allows less; bf16 "
                      "needs none)",
                      s->value);
}

tess_status tess_loss_scale_next(const tess_config *c, tess_loss_scale *s, bool overflow, int64_t step)
{
    const double before = s->value;
    if (overflow) {
        TESS_TRY(overflowed(c, s, step));
        s->skipped++;
        if (!tess_rank())
            tess_note("step %lld: skipped, the gradient is not finite at the loss scale %.10g (the next is %.10g)",
                      (long long)step + 1, before, s->value);
    } else if (!(c->fp16.loss_scale > 0)) {
        if (c->fp16.consecutive_hysteresis) s->hysteresis = c->fp16.hysteresis;
        const int64_t stable = s->steps - s->overflow - 1;
        if (stable > 0 && stable % c->fp16.loss_scale_window == 0) {
            s->hysteresis = c->fp16.hysteresis;
            s->value *= 2;
        }
    }
    s->steps++;
    return TESS_OK;
}
