/* sgd: torch.optim.SGD's step on a run of a parameter's elements. */
#include "codelets/optimizers/sgd_impl.h"
#include "codelets/optimizers/update_span_impl.h"

TESS_UPDATE_CODELET(sgd, u->a->moments ? 1 : 0, 0)

static int moments(const tess_optimizer *o)
{
    return o->momentum > 0;
}

static tess_status check(const tess_optimizer *o)
{
    if (!(o->momentum >= 0) || isinf(o->momentum) || !isfinite(o->dampening))
        return tess_error(TESS_INVALID, "optimizer",
                          "momentum %g, dampening %g (both are finite, momentum not negative)", o->momentum,
                          o->dampening);
    if (o->nesterov && (o->momentum == 0 || o->dampening != 0))
        return tess_error(TESS_INVALID, "optimizer",
                          "nesterov with momentum %g and dampening %g (it needs momentum, and "
                          "no dampening)",
                          o->momentum, o->dampening);
    return TESS_OK;
}

const tess_optimizer_kind tess_sgd_kind = {
    .name = "SGD", .update = tess_update_sgd, .moment = {"momentum_buffer"}, .moments = moments, .check = check};
