/* adamw: torch.optim.AdamW's step, and Adam's with l2, on a run of a parameter's elements. */
#include "codelets/optimizers/adamw_impl.h"
#include "codelets/optimizers/update_span_impl.h"

enum { POSITIVE = 1u << 1 }; /* the second moment */

TESS_UPDATE_CODELET(adamw, 2, POSITIVE)

static tess_status check(const tess_optimizer *o)
{
    if (o->beta1 == 0 && o->beta2 == 0 && o->eps == 0)
        return tess_error(TESS_INVALID, "optimizer", "betas and eps are all 0 (tess_adamw() has the usual ones)");
    if (o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1 && o->eps >= 0 && isfinite(o->eps))
        return TESS_OK;
    return tess_error(TESS_INVALID, "optimizer",
                      "betas %g and %g, eps %g (betas are 0 to less than 1, eps is no less than 0)", o->beta1, o->beta2,
                      o->eps);
}

const tess_optimizer_kind tess_adamw_kind = {.name = "AdamW",
                                             .update = tess_update_adamw,
                                             .moment = {"exp_avg", "exp_avg_sq"},
                                             .positive = POSITIVE,
                                             .check = check};
