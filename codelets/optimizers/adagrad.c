/* adagrad: torch.optim.Adagrad's step on a run of a parameter's elements. */
#include "codelets/optimizers/adagrad_impl.h"
#include "codelets/optimizers/update_span_impl.h"

TESS_UPDATE_CODELET(adagrad, 1, 1u << 0)

static double begins(const tess_optimizer *o)
{
    return o->initial;
}

static tess_status check(const tess_optimizer *o)
{
    if (o->keeping == TESS_KEEP_INT8)
        return tess_error(TESS_INVALID, "moments",
                          "Adagrad's sum of squares in 8 bits would lose what most steps add to it (bf16 keeps that in "
                          "the mean)");
    if (o->eps >= 0 && isfinite(o->eps) && o->lr_decay >= 0 && isfinite(o->lr_decay) && o->initial >= 0 &&
        isfinite(o->initial))
        return TESS_OK;
    return tess_error(TESS_INVALID, "optimizer", "eps %g, lr_decay %g, initial %g (each is finite, and no less than 0)",
                      o->eps, o->lr_decay, o->initial);
}

const tess_optimizer_kind tess_adagrad_kind = {.name = "Adagrad",
                                               .update = tess_update_adagrad,
                                               .moment = {"sum"},
                                               .begins = begins,
                                               .positive = 1,
                                               .check = check};
