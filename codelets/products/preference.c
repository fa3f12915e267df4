/* preference: what a model learns of pairs of sequences, from their scores alone: a loss, numbers beside it, and the
 * gradient of each score. It is a few hundred flops, and in double. */
#include "codelets/codelets.h"
#include "codelets/shared/vector.h"
#include <math.h>

/* Of a sequence: where its parts are, one in each of `spans` tiles. */
struct place {
    unsigned tile; /* the first of them */
    int64_t at;    /* in each of them */
};

static int64_t sequences_in(const tess_view *v)
{
    return (int64_t)(v->bytes / (2 * sizeof(float)));
}

/* Moves on to the next sequence; false: there is none. */
static bool next(const tess_work *w, struct place *p)
{
    const tess_preference_arg *a = w->arg;
    if (++p->at < sequences_in(&w->buf[1 + p->tile])) return true;
    *p = (struct place){.tile = p->tile + a->spans};
    return p->tile < a->tiles;
}

/* What is known of a sequence: the sum over its targets, and their number; the sum by the reference. */
struct score {
    double sum, targets, reference, mean;
};

static struct score score_of(const tess_work *w, struct place p)
{
    const tess_preference_arg *a = w->arg;
    struct score s = {0};
    for (unsigned k = p.tile; k < p.tile + a->spans; k++) {
        const float *part = (const float *)w->buf[1 + k].ptr + 2 * p.at;
        s.sum += (double)part[0];
        s.targets += (double)part[1];
    }
    if (a->reference) s.reference = (double)((const float *)w->buf[1 + a->tiles + p.tile / a->spans].ptr)[p.at];
    s.mean = s.targets > 0 ? s.sum / s.targets : 0;
    return s;
}

static void put_gradient(const tess_work *w, struct place p, double by)
{
    const tess_preference_arg *a = w->arg;
    for (unsigned k = p.tile; k < p.tile + a->spans && a->grad; k++) {
        float *d = (float *)w->buf[1 + a->tiles + (a->reference ? a->tiles / a->spans : 0) + k].ptr + 2 * p.at;
        d[0] = (float)by;
        d[1] = 0;
    }
}

static double minus_log_sigmoid(double x)
{
    return x > 0 ? log1p(exp(-x)) : log1p(exp(x)) - x;
}
static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The logarithm of p / (1 - p) of a mean log-probability, and its slope. */
static double log_odds(double mean, double *slope)
{
    const double rest = fmax(-expm1(mean), 1e-300);
    *slope = 1 / rest;
    return mean - log(rest);
}

/* A loss, and how it moves with the two sums; the rewards of both, which a pair's margin is the difference of. */
struct outcome {
    double loss, d_chosen, d_rejected, chosen, rejected;
};

static struct outcome judge(const tess_preference_conf *c, const struct score *y, const struct score *n)
{
    const double beta = (double)c->beta, smoothing = (double)c->smoothing, nll = (double)c->nll;
    double h, weight = 1, slope_y = beta, slope_n = beta; /* of h by the two sums */
    struct outcome o = {.chosen = beta * y->mean, .rejected = beta * n->mean};
    if (c->kind == TESS_PREFERENCE_DPO) {
        o.chosen = beta * (y->sum - y->reference), o.rejected = beta * (n->sum - n->reference);
        h = o.chosen - o.rejected;
    } else if (c->kind == TESS_PREFERENCE_SIMPO) {
        h = o.chosen - o.rejected - (double)c->gamma;
        slope_y /= y->targets, slope_n /= n->targets;
    } else {
        h = log_odds(y->mean, &slope_y) - log_odds(n->mean, &slope_n);
        slope_y /= y->targets, slope_n /= n->targets;
        weight = beta;
    }
    const double d = weight * (smoothing * sigmoid(h) - (1 - smoothing) * sigmoid(-h));
    o.loss = weight * ((1 - smoothing) * minus_log_sigmoid(h) + smoothing * minus_log_sigmoid(-h)) - nll * y->mean;
    o.d_chosen = d * slope_y - nll / y->targets;
    o.d_rejected = -d * slope_n;
    return o;
}

/* A pair without targets is no pair, and counts for nothing. */
static void preference_loss(const tess_work *w)
{
    const tess_preference_arg *a = w->arg;
    double *loss = w->buf[0].ptr;
    int64_t pairs = 0;
    for (unsigned k = 0; k < a->tiles; k += a->spans) pairs += sequences_in(&w->buf[1 + k]);
    pairs /= 2;
    for (int k = 0; k < 2 * (1 + (a->numbers ? TESS_PREFERENCE_NUMBERS : 0)); k++) loss[k] = 0;
    struct place p = {0};
    for (int64_t i = 0; i < pairs; i++, next(w, &p)) {
        struct place chosen = p;
        next(w, &p);
        const struct score y = score_of(w, chosen), n = score_of(w, p);
        const bool counts = y.targets > 0 && n.targets > 0;
        const struct outcome o = counts ? judge(&a->conf, &y, &n) : (struct outcome){0};
        const double scale = (double)w->env->loss_scale[0] / (double)pairs, margin = o.chosen - o.rejected;
        put_gradient(w, chosen, o.d_chosen * scale);
        put_gradient(w, p, o.d_rejected * scale);
        const double all[] = {o.loss, counts && margin > 0, margin, o.chosen, o.rejected};
        for (int k = 0; k < 1 + (a->numbers ? TESS_PREFERENCE_NUMBERS : 0); k++)
            loss[2 * k] += all[k], loss[2 * k + 1] += counts;
    }
}
tess_codelet tess_preference_loss[] = {
    {.name = "preference_loss", .dtype = TESS_F32, .cpu = preference_loss, .cpu_alone = true}};
