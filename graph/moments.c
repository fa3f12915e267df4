/* The optimizer's moments of a parameter: how many there are is known when a step is to train it. What asks for them
 * before, a checkpoint of what was never trained or a program's own look, finds those of AdamW, which are replaced when
 * a step says otherwise. */
#include "param_impl.h"
#include <math.h>

static const tess_optimizer *unsaid(void)
{
    static const tess_optimizer adamw = {.type = TESS_OPTIMIZER_ADAMW};
    return &adamw;
}

static void make(tess_tensor *p, int moments)
{
    struct tess_param *h = p->held;
    for (int64_t i = 0; i < h->states; i++) {
        struct tess_state *s = &h->state[i];
        for (int m = 0; m < TESS_MOMENTS_MOST; m++) {
            tess_tile_free(s->moment[m]);
            s->moment[m] = NULL;
            s->begun[TESS_MOMENT1 + m] = false;
            if (m < moments)
                s->moment[m] = tess_tile_new(4 * (size_t)tess_state_elements(p, s), TESS_ROLE_MOMENT, p->name);
        }
    }
    h->moments = moments;
}

tess_status tess_param_moments(tess_tensor *p, const tess_optimizer *o, bool trains)
{
    if (tess_is_frozen(p)) return TESS_OK; /* it has none */
    if (!o) o = unsaid();
    struct tess_param *h = p->held;
    const tess_optimizer_kind *kind = tess_optimizer_kind_of(o);
    const int moments = tess_optimizer_moments(o);
    const float begins = kind->begins ? (float)kind->begins(o) : 0;
    if (h->optimizer && (h->trained || !trains)) {
        if (!trains || (h->optimizer == kind && h->moments == moments && h->begins == begins)) return TESS_OK;
        return tess_error(TESS_INVALID, "optimizer",
                          "%s with %d moments, but another step of the graph trains %s by %s with %d (one graph, one "
                          "optimizer)",
                          kind->name, moments, p->name, h->optimizer->name, h->moments);
    }
    if (h->optimizer != kind || h->moments != moments) make(p, moments);
    h->optimizer = kind;
    h->begins = begins;
    h->trained = trains;
    return TESS_OK;
}

tess_status tess_param_set_rates(tess_tensor *p, double lr_scale, double weight_decay)
{
    if (!p || p->kind != TESS_KIND_PARAM)
        return tess_error(TESS_INVALID, p ? p->name : "tess_param_set_rates", "is no parameter");
    if (!(lr_scale >= 0) || isinf(lr_scale) || !isfinite(weight_decay))
        return tess_error(TESS_INVALID, p->name,
                          "lr_scale %g, weight_decay %g (both are finite, lr_scale not negative)", lr_scale,
                          weight_decay);
    p->held->own_rates = true;
    p->held->lr_scale = lr_scale;
    p->held->weight_decay = weight_decay;
    return TESS_OK;
}

/* What counts is said of the parameter, then by no_decay_1d. */
double tess_param_decay(const tess_tensor *p, const tess_optimizer *o)
{
    if (p->held->own_rates && p->held->weight_decay >= 0) return p->held->weight_decay;
    return o->no_decay_1d && p->rank == 1 ? 0 : o->weight_decay;
}

int tess_param_parts(const tess_tensor *p)
{
    if (tess_is_frozen(p)) return TESS_MOMENT1;
    return TESS_MOMENT1 + (p->held->optimizer ? p->held->moments : tess_optimizer_moments(unsaid()));
}

const char *tess_param_part_name(const tess_tensor *p, tess_part part)
{
    const tess_optimizer_kind *kind = p->held->optimizer ? p->held->optimizer : tess_optimizer_kind_of(unsaid());
    return part == TESS_MASTER ? NULL : kind->moment[part - TESS_MOMENT1];
}

const char *tess_graph_optimizer(const tess_graph *g, int *moments)
{
    for (int k = 0; k < g->params; k++) {
        const struct tess_param *h = g->param[k]->held;
        if (!h->trained) continue;
        *moments = h->moments;
        return h->optimizer->name;
    }
    *moments = tess_optimizer_moments(unsaid());
    return tess_optimizer_kind_of(unsaid())->name;
}
