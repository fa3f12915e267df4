/* The optimizers that there are, by their type. */
#include "codelets/shared/update.h"
#include <math.h>

#define OPTIMIZER(id, kind, name, params) extern const tess_optimizer_kind tess_##kind##_kind;
#include "codelets/optimizers.def"

static const tess_optimizer_kind *const kinds[TESS_OPTIMIZERS] = {
#define OPTIMIZER(id, kind, name, params) [TESS_OPTIMIZER_##id] = &tess_##kind##_kind,
#include "codelets/optimizers.def"
};

/* A mean over micro-batches of what each made, which fp16 may have scaled. */
static void replace_f32(const tess_work *w)
{
    const tess_update_view u = tess_update_view_of(w);
    float scale;
    if (!tess_update_begins(w, &u, &scale)) return;
    const float unscale = (float)u.env->unscale; /* it is not clipped */
    for (int64_t i = 0; i < u.a->n; i++) u.master[i] = u.grad[i] * unscale;
}
static tess_codelet update_replace[] = {
    [TESS_F32] = {.name = "replace", .dtype = TESS_F32, .cpu = replace_f32, .cpu_alone = true}};
const tess_optimizer_kind tess_replace_kind = {.name = "replacement", .update = update_replace};

tess_optimizer tess_adamw(void)
{
    return (tess_optimizer){.type = TESS_OPTIMIZER_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
}

tess_optimizer tess_sgd(double momentum)
{
    return (tess_optimizer){.type = TESS_OPTIMIZER_SGD, .momentum = momentum};
}

tess_optimizer tess_lion(void)
{
    return (tess_optimizer){.type = TESS_OPTIMIZER_LION, .beta1 = 0.9, .beta2 = 0.999};
}

tess_optimizer tess_adagrad(void)
{
    return (tess_optimizer){.type = TESS_OPTIMIZER_ADAGRAD, .eps = 1e-10};
}

tess_optimizer tess_muon(void)
{
    tess_optimizer o = tess_adamw();
    o.type = TESS_OPTIMIZER_MUON;
    o.momentum = 0.95, o.nesterov = true, o.ns_steps = 5;
    return o;
}

tess_optimizer tess_adafactor(void)
{
    return (tess_optimizer){.type = TESS_OPTIMIZER_ADAFACTOR,
                            .eps = 1e-30,
                            .eps2 = 1e-3,
                            .clip_threshold = 1,
                            .decay_rate = -0.8,
                            .scale_parameter = true,
                            .relative_step = true};
}

const tess_optimizer_kind *tess_optimizer_kind_of(const tess_optimizer *o)
{
    return o->type >= 0 && o->type < TESS_OPTIMIZERS ? kinds[o->type] : NULL;
}

bool tess_codelet_updates(const tess_codelet *cl)
{
    for (int k = 0; k < TESS_OPTIMIZERS; k++)
        if (cl == &kinds[k]->update[TESS_F32]) return true;
    return cl == &update_replace[TESS_F32];
}

int tess_optimizer_moments(const tess_optimizer *o)
{
    return tess_optimizer_kind_moments(tess_optimizer_kind_of(o), o);
}

int tess_optimizer_kind_moments(const tess_optimizer_kind *kind, const tess_optimizer *o)
{
    int named = 0;
    while (named < TESS_MOMENTS_MOST && kind->moment[named]) named++;
    return kind->moments ? kind->moments(o) : named;
}

tess_status tess_optimizer_check(const tess_optimizer *o)
{
    const tess_optimizer_kind *kind = tess_optimizer_kind_of(o);
    if (!kind)
        return tess_error(TESS_INVALID, "optimizer", "type %d (expected one of tess_optimizer_type)", (int)o->type);
    if (!isfinite(o->weight_decay) || !(o->clip >= 0) || isinf(o->clip))
        return tess_error(TESS_INVALID, "optimizer", "weight_decay %g, clip %g (both are finite, clip is not negative)",
                          o->weight_decay, o->clip);
    TESS_TRY(kind->check(o));
    if (o->keeping < TESS_KEEP_F32 || o->keeping > TESS_KEEP_INT8)
        return tess_error(TESS_INVALID, "moments", "keeping %d (expected one of tess_keeping)", (int)o->keeping);
    if (o->gradients != TESS_F32 && o->gradients != TESS_BF16)
        return tess_error(TESS_INVALID, "gradients", "dtype %d (expected TESS_F32 or TESS_BF16)", (int)o->gradients);
    if (o->keeping != TESS_KEEP_F32 && tess_optimizer_moments(o) == 0)
        return tess_error(TESS_INVALID, "moments", "%s without momentum has no states to keep in fewer bits",
                          kind->name);
    return TESS_OK;
}
