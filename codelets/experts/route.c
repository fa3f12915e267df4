/* route: each row chooses the experts that a softmax over all of them makes likeliest, or, of scores by themselves,
 * those that are largest with a bias, and the choices are sorted by expert: what the tasks of each expert take. No
 * expert is ever full, so each row has all of its choices. */
#include "codelets/experts/order_impl.h"
#include "codelets/shared/vector.h"

size_t tess_order_bytes(int64_t rows, int64_t experts, int64_t chosen)
{
    return (size_t)(experts + 1 + 3 * rows * chosen) * sizeof(int32_t);
}

TESS_INLINE float score_of(float logit)
{
    return 1 / (1 + tess_expf(-logit));
}

/* By what expert e of row r is chosen. What is no number is chosen last. */
TESS_INLINE float rank_of(const tess_route_arg *a, const void *logits, const float *bias, int64_t r, int64_t e,
                          tess_dtype t)
{
    float x = tess_load(logits, r * a->experts + e, t);
    if (a->scored) x = score_of(x) + bias[e];
    return x == x ? x : -INFINITY;
}

/* The groups of row r that are chosen from, a bit each. */
TESS_INLINE unsigned keep_groups(const tess_route_arg *a, const void *logits, const float *bias, int64_t r,
                                 tess_dtype t)
{
    const int64_t each = a->groups ? a->experts / a->groups : 0;
    float best[TESS_ROUTE_GROUPS];
    unsigned kept = 0;
    for (int64_t g = 0; g < a->groups; g++) {
        float one = -INFINITY, two = -INFINITY;
        for (int64_t e = g * each; e < (g + 1) * each; e++) {
            const float x = rank_of(a, logits, bias, r, e, t);
            two = x > one ? one : x > two ? x : two;
            one = x > one ? x : one;
        }
        best[g] = one + two == one + two ? one + two : -INFINITY;
    }
    for (int64_t s = 0; s < a->kept; s++) {
        int64_t at = -1;
        for (int64_t g = 0; g < a->groups; g++)
            if (!(kept >> g & 1) && (at < 0 || best[g] > best[at])) at = g;
        kept |= 1u << at;
    }
    return a->groups ? kept : ~0u;
}

/* The largest of row r, in order; of equal ones the first. */
TESS_INLINE void choose(const tess_route_arg *a, const void *logits, const float *bias, int64_t r, tess_dtype t,
                        int32_t *chosen)
{
    const unsigned kept = keep_groups(a, logits, bias, r, t);
    const int64_t each = a->groups ? a->experts / a->groups : a->experts;
    float last = INFINITY;
    int64_t before = -1;
    for (int64_t s = 0; s < a->chosen; s++) {
        float best = 0;
        int64_t at = -1;
        for (int64_t e = 0; e < a->experts; e++) {
            if (!(kept >> e / each & 1)) continue;
            const float x = rank_of(a, logits, bias, r, e, t);
            const bool left = x < last || (x == last && e > before);
            if (left && (at < 0 || x > best)) best = x, at = e;
        }
        chosen[s] = (int32_t)at;
        last = best, before = at;
    }
}

/* exp(logit - most) of one, or its sigmoid. */
TESS_INLINE float share_of(const tess_route_arg *a, const void *logits, int64_t i, float most, tess_dtype t)
{
    const float x = tess_load(logits, i, t);
    return a->scored ? score_of(x) : tess_expf(x - most);
}
TESS_INLINE float scale_of(const tess_route_arg *a)
{
    return a->scale != 0 ? a->scale : 1;
}

/* What a row's shares are divided by. */
TESS_INLINE float whole_of(const tess_route_arg *a, const void *logits, int64_t r, const int32_t *chosen, tess_dtype t)
{
    const int64_t row = r * a->experts;
    const float most = tess_load(logits, row + chosen[0], t);
    if (a->normalised) {
        float whole = 0;
        for (int64_t s = 0; s < a->chosen; s++) whole += share_of(a, logits, row + chosen[s], most, t);
        return a->scored ? whole + 1e-20f : whole;
    }
    if (a->scored) return 1;
    float lane[TESS_LANES] = {0};
    TESS_EACH(e, l, a->experts, lane[l] += share_of(a, logits, row + e, most, t));
    return tess_sum16(lane);
}

/* Places in the order of experts, and of rows within one. */
TESS_INLINE void sort_choices(const tess_route_arg *a, const tess_order *o)
{
    const int64_t choices = a->rows * a->chosen;
    memset(o->offset, 0, (size_t)(a->experts + 1) * sizeof *o->offset);
    for (int64_t i = 0; i < choices; i++)
        if (o->expert[i] >= 0) o->offset[o->expert[i] + 1]++;
    for (int64_t e = 0; e < a->experts; e++) o->offset[e + 1] += o->offset[e];
    for (int64_t i = 0; i < choices;
         i++) { /* an expert's offset walks over its places, and is what the next one's was */
        const int32_t e = o->expert[i];
        o->place[i] = e < 0 ? -1 : o->offset[e]++;
        if (e >= 0) o->choice[o->place[i]] = (int32_t)i;
    }
    for (int64_t e = a->experts; e > 0; e--) o->offset[e] = o->offset[e - 1];
    o->offset[0] = 0;
    for (int64_t i = o->offset[a->experts]; i < choices; i++) o->choice[i] = -1;
}

/* A row that sees nothing is padding. */
TESS_INLINE bool is_padding(const tess_route_arg *a, const int32_t *bounds, int64_t r)
{
    const int32_t *of = bounds + r / a->sequence * 2 * a->sequence + a->place + r % a->sequence;
    return of[a->sequence] <= of[0];
}

TESS_INLINE void route_forward(const tess_work *w, tess_dtype t)
{
    const tess_route_arg *a = w->arg;
    const void *logits = w->buf[0].ptr;
    void *weights = w->buf[1].ptr;
    const tess_order o = TESS_ORDER_OF(w, 2, a);
    const float *bias = a->scored ? w->buf[3].ptr : NULL;
    for (int64_t r = 0; r < a->rows; r++) {
        int32_t *chosen = o.expert + r * a->chosen;
        const int64_t row = r * a->experts;
        if (a->bounded && is_padding(a, w->buf[a->scored ? 4 : 3].ptr, r)) {
            for (int64_t s = 0; s < a->chosen; s++) chosen[s] = -1, tess_store(weights, r * a->chosen + s, t, 0);
            continue;
        }
        choose(a, logits, bias, r, t, chosen);
        const float most = tess_load(logits, row + chosen[0], t), whole = whole_of(a, logits, r, chosen, t);
        for (int64_t s = 0; s < a->chosen; s++)
            tess_store(weights, r * a->chosen + s, t,
                       share_of(a, logits, row + chosen[s], most, t) / whole * scale_of(a));
    }
    sort_choices(a, &o);
    if (a->choice) tess_choice_make(a->choice, o.offset);
}
/* The reading of logits, over and over, is what it takes. */
static tess_cost route_forward_cost(const void *arg, tess_dtype t)
{
    const tess_route_arg *a = arg;
    return (tess_cost){.bytes = (double)(a->rows * a->experts * (a->chosen + 1)) * (double)tess_dtype_size(t)};
}
TESS_REAL_COST(route_forward)

/* With p the weights: normalised, dlogit = p (dp - sum of p dp) over the chosen; else p is of softmax over all
 * experts, and dp is 0 for those not chosen. Of scores p the slope is another: p (1 - score), and the sum is there with
 * normalised alone. */
TESS_INLINE void route_backward(const tess_work *w, tess_dtype t)
{
    const tess_route_arg *a = w->arg;
    const void *dweights = w->buf[0].ptr, *logits = w->buf[1].ptr;
    const tess_order o = TESS_ORDER_OF(w, 2, a);
    void *dlogits = w->buf[3].ptr;
    for (int64_t r = 0; r < a->rows; r++) {
        const int32_t *chosen = o.expert + r * a->chosen;
        const int64_t row = r * a->experts;
        if (!a->acc) memset(tess_at_mut(dlogits, row, t), 0, (size_t)a->experts * tess_dtype_size(t));
        if (chosen[0] < 0) continue;
        const float most = tess_load(logits, row + chosen[0], t), whole = whole_of(a, logits, r, chosen, t);
        float mean = 0;
        for (int64_t s = 0; s < a->chosen && (a->normalised || !a->scored); s++)
            mean += share_of(a, logits, row + chosen[s], most, t) / whole * tess_load(dweights, r * a->chosen + s, t);
        for (int64_t e = 0; e < a->experts && !a->normalised && !a->scored; e++) {
            float d = -mean;
            for (int64_t s = 0; s < a->chosen; s++)
                if (chosen[s] == e) d += tess_load(dweights, r * a->chosen + s, t);
            tess_accumulate(dlogits, row + e, t, a->acc,
                            share_of(a, logits, row + e, most, t) / whole * scale_of(a) * d);
        }
        for (int64_t s = 0; s < a->chosen && (a->normalised || a->scored); s++) {
            const float d = tess_load(dweights, r * a->chosen + s, t) - mean;
            const float share = share_of(a, logits, row + chosen[s], most, t);
            tess_accumulate(dlogits, row + chosen[s], t, a->acc,
                            share / whole * scale_of(a) * (a->scored ? 1 - share : 1) * d);
        }
    }
}
TESS_REAL(route_backward)
