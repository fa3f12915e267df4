/* preference: what a model learns of pairs of sequences, or of ones with a label, from their scores alone: a loss,
 * numbers beside it, and the gradient of each score. It is a few hundred flops, and in double. */
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
    double bound; /* KTO: k, */
    bool good;    /* and whether it is a good one */
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
    const float *said = a->reference ? w->buf[1 + a->tiles + p.tile / a->spans].ptr : NULL;
    if (a->conf.kind == TESS_PREFERENCE_KTO) {
        said += TESS_KTO_REFERENCE * p.at;
        s.bound = (double)said[1], s.good = said[2] > 0;
    } else if (said)
        said += p.at;
    if (said) s.reference = (double)said[0];
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

enum { VALUES = 1 + TESS_PREFERENCE_NUMBERS }; /* the loss, and the numbers beside it */

static void add_values(const tess_work *w, const double value[static VALUES], const bool counts[static VALUES])
{
    const tess_preference_arg *a = w->arg;
    double *loss = w->buf[0].ptr;
    for (int k = 0; k < (a->numbers ? VALUES : 1); k++)
        if (counts[k]) loss[2 * k] += value[k], loss[2 * k + 1] += 1;
}

/* KTO. A sequence without targets counts for nothing. */
static void judge_each(const tess_work *w, int64_t sequences)
{
    const tess_preference_arg *a = w->arg;
    const double beta = (double)a->conf.beta;
    struct place p = {0};
    for (int64_t i = 0; i < sequences; i++, next(w, &p)) {
        const struct score s = score_of(w, p);
        const bool counts = s.targets > 0;
        const double sign = s.good ? 1 : -1, weight = (double)(s.good ? a->conf.desirable : a->conf.undesirable);
        const double reward = beta * (s.sum - s.reference), h = sign * (reward - beta * s.bound);
        const double slope = -weight * sign * beta * sigmoid(h) * sigmoid(-h);
        put_gradient(w, p, counts ? slope * (double)w->env->loss_scale[0] / (double)sequences : 0);
        add_values(w, (double[]){weight * sigmoid(-h), h > 0, s.bound, reward, reward},
                   (bool[]){counts, counts, counts, counts && s.good, counts && !s.good});
    }
}

/* A pair without targets is no pair, and counts for nothing. */
static void judge_pairs(const tess_work *w, int64_t pairs)
{
    const tess_preference_arg *a = w->arg;
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
        add_values(w, (double[]){o.loss, margin > 0, margin, o.chosen, o.rejected},
                   (bool[]){counts, counts, counts, counts, counts});
    }
}

static void preference_loss(const tess_work *w)
{
    const tess_preference_arg *a = w->arg;
    double *loss = w->buf[0].ptr;
    int64_t sequences = 0;
    for (unsigned k = 0; k < a->tiles; k += a->spans) sequences += sequences_in(&w->buf[1 + k]);
    for (int k = 0; k < 2 * (a->numbers ? VALUES : 1); k++) loss[k] = 0;
    if (a->conf.kind == TESS_PREFERENCE_KTO)
        judge_each(w, sequences);
    else
        judge_pairs(w, sequences / 2);
}
tess_codelet tess_preference_loss[] = {
    {.name = "preference_loss", .dtype = TESS_F32, .cpu = preference_loss, .cpu_alone = true}};
