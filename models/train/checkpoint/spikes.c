/* A batch that spoils a run shows in its gradient's norm before anything has changed: with on_spike.skip its step
 * changes nothing, as one that overflows in fp16. The norm is an exact sum, equal on all ranks and in every placement,
 * so all skip together, and always the same steps. What is usual is the geometric mean of the norms that were not
 * skipped, which a spike among the first ones hardly moves; a few steps have to be seen before there is one. */
#include "models/train/checkpoint/spikes.h"
#include <math.h>

enum { SEEN = 20, MEAN = 50, ROW = 10 };

double tess_spikes_most(const tess_config *c, const tess_spikes *s)
{
    return c->on_spike.skip > 0 && s->seen >= SEEN ? c->on_spike.skip * exp(s->mean) : 0;
}

static tess_status skip(const tess_config *c, tess_spikes *s, tess_loss_scale *scale, double norm, int64_t step)
{
    const double most = tess_spikes_most(c, s);
    char where[48];
    scale->skipped++;
    if (!tess_rank())
        tess_note("step %lld: skipped, the norm of its gradient is %.4g%s%.4g", (long long)step + 1, norm,
                  most > 0 ? ", above " : ", after a mean of ", most > 0 ? most : exp(s->mean));
    if (++s->row < ROW) return TESS_OK;
    snprintf(where, sizeof where, "step %lld", (long long)step + 1);
    if (!(most > 0)) return tess_error(TESS_FAILED, where, "%d steps in a row have gradients that are not finite", ROW);
    return tess_error(
        TESS_FAILED, where,
        "%d steps in a row were skipped, their gradients' norms above %g (a lower learning rate may help, "
        "or a larger on_spike.skip)",
        ROW, most);
}

tess_status tess_spikes_next(const tess_config *c, tess_spikes *s, tess_loss_scale *scale, const tess_step_result *r,
                             int64_t step)
{
    const bool overflow = c->fp16.enabled && r->skipped && !isfinite(r->grad_norm);
    if (c->fp16.enabled) TESS_TRY(tess_loss_scale_next(c, scale, overflow, step));
    if (!(c->on_spike.skip > 0) || overflow) return TESS_OK;
    if (r->skipped) return skip(c, s, scale, r->grad_norm, step);
    s->row = 0;
    if (!(r->grad_norm > 0)) return TESS_OK;
    s->mean += (log(r->grad_norm) - s->mean) / (double)(s->seen < MEAN ? s->seen + 1 : MEAN);
    s->seen++;
    return TESS_OK;
}
