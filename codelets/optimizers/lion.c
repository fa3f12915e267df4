/* lion: Lion's step on a run of a parameter's elements. */
#include "codelets/optimizers/lion_impl.h"
#include "codelets/optimizers/update_span_impl.h"

TESS_UPDATE_CODELET(lion, 1, 0)

static tess_status check(const tess_optimizer *o)
{
    if (o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1) return TESS_OK;
    return tess_error(TESS_INVALID, "optimizer", "betas %g and %g (they are 0 to less than 1)", o->beta1, o->beta2);
}

const tess_optimizer_kind tess_lion_kind = {
    .name = "Lion", .update = tess_update_lion, .moment = {"exp_avg"}, .check = check};
