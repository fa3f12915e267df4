/* balance: how evenly rows choose among the experts of all routers, and a loss of it, as in the Switch Transformer: the
 * number of experts times the sum over them of (choices of it a row) times (its mean share of softmax). Statistics add
 * up from router to router; the loss is one task over those of all tiles. */
#include "codelets/experts/balance_impl.h"
#include "codelets/shared/vector.h"

TESS_INLINE double stored(const void *y, int64_t i, int64_t numbers, tess_dtype t)
{
    return ((double)tess_load(y, i, t) + (double)tess_load(y, i + numbers, t)) / tess_balance_unit(t);
}
TESS_INLINE void put(void *y, int64_t i, int64_t numbers, double v, tess_dtype t)
{
    v *= tess_balance_unit(t);
    tess_store(y, i, t, (float)v);
    tess_store(y, i + numbers, t, (float)(v - (double)tess_load(y, i, t)));
}

/* exp(logit - most) of a row's, and their sum. */
TESS_INLINE float row_shares(const void *logits, int64_t row, int64_t experts, tess_dtype t, float *most)
{
    float lane[TESS_LANES], sum[TESS_LANES] = {0};
    for (int l = 0; l < TESS_LANES; l++) lane[l] = -INFINITY;
    TESS_EACH(e, l, experts,
              lane[l] = tess_load(logits, row + e, t) > lane[l] ? tess_load(logits, row + e, t) : lane[l]);
    *most = tess_max16(lane);
    TESS_EACH(e, l, experts, sum[l] += tess_expf(tess_load(logits, row + e, t) - *most));
    return tess_sum16(sum);
}

/* The sum over a sequence's rows of expert e's share of softmax, down the rows. */
TESS_INLINE void balance_forward(const tess_work *w, tess_dtype t)
{
    const tess_balance_arg *a = w->arg;
    const void *logits = w->buf[0].ptr;
    const tess_order o = TESS_ORDER_OF(w, 1, a);
    const int64_t E = a->experts, numbers = tess_balance_numbers(E);
    for (int64_t s = 0; s < a->rows / a->sequence; s++) {
        void *y = tess_at_mut(w->buf[2].ptr, s * 2 * numbers, t);
        const void *before = a->before ? tess_at(w->buf[3].ptr, s * 2 * numbers, t) : NULL;
        const int64_t r0 = s * a->sequence, r1 = r0 + a->sequence;
        for (int64_t i = 0; i < numbers; i++) put(y, i, numbers, before ? stored(before, i, numbers, t) : 0, t);
        int64_t rows = 0;
        for (int64_t e0 = 0; e0 < E; e0 += TESS_LANES) {
            const int64_t n = E - e0 < TESS_LANES ? E - e0 : TESS_LANES;
            double share[TESS_LANES] = {0}, choices[TESS_LANES] = {0};
            rows = 0;
            for (int64_t r = r0; r < r1; r++) {
                float most;
                if (o.expert[r * a->chosen] < 0) continue;
                rows++;
                const float whole = row_shares(logits, r * E, E, t, &most);
                for (int64_t l = 0; l < n; l++)
                    share[l] += (double)(tess_expf(tess_load(logits, r * E + e0 + l, t) - most) / whole);
                for (int64_t k = 0; k < a->chosen; k++) {
                    const int64_t l = o.expert[r * a->chosen + k] - e0;
                    if (l >= 0 && l < n) choices[l]++;
                }
            }
            for (int64_t l = 0; l < n; l++) {
                put(y, e0 + l, numbers, stored(y, e0 + l, numbers, t) + choices[l], t);
                put(y, E + e0 + l, numbers, stored(y, E + e0 + l, numbers, t) + share[l], t);
            }
        }
        put(y, 2 * E, numbers, stored(y, 2 * E, numbers, t) + (double)rows, t);
    }
}

/* dlogit = p (g - sum of p g), with g the gradient of the sums of softmax. */
TESS_INLINE void balance_backward(const tess_work *w, tess_dtype t)
{
    const tess_balance_arg *a = w->arg;
    const void *logits = w->buf[1].ptr;
    const tess_order o = TESS_ORDER_OF(w, 2, a);
    const int64_t E = a->experts, numbers = tess_balance_numbers(E);
    void *dlogits = w->buf[3].ptr;
    for (int64_t r = 0; r < a->rows; r++) {
        const void *g = tess_at(w->buf[0].ptr, r / a->sequence * 2 * numbers + E, t);
        float most, mean[TESS_LANES] = {0};
        if (o.expert[r * a->chosen] < 0) {
            for (int64_t e = 0; e < E; e++) tess_accumulate(dlogits, r * E + e, t, a->acc, 0);
            continue;
        }
        const float whole = row_shares(logits, r * E, E, t, &most);
        TESS_EACH(e, l, E, mean[l] += tess_expf(tess_load(logits, r * E + e, t) - most) / whole * tess_load(g, e, t));
        const float all = tess_sum16(mean);
        for (int64_t e = 0; e < E; e++)
            tess_accumulate(dlogits, r * E + e, t, a->acc,
                            tess_expf(tess_load(logits, r * E + e, t) - most) / whole * (tess_load(g, e, t) - all));
    }
}

/* The sum of number i over all sequences. */
TESS_INLINE double total(const tess_work *w, int64_t i, tess_dtype t)
{
    const tess_balance_arg *a = w->arg;
    const int64_t numbers = tess_balance_numbers(a->experts);
    double sum = 0;
    for (unsigned k = 0; k < a->tiles; k++) {
        const tess_view *v = &w->buf[1 + k];
        const int64_t sequences = (int64_t)(v->bytes / tess_dtype_size(t)) / (2 * numbers);
        for (int64_t s = 0; s < sequences; s++) sum += stored(v->ptr, s * 2 * numbers + i, numbers, t);
    }
    return sum;
}

/* A part of the loss is divided by the targets of the step, so that it is multiplied by them here; its gradient has the
 * scale of the loss, as the others have. */
TESS_INLINE void balance_loss(const tess_work *w, tess_dtype t)
{
    const tess_balance_arg *a = w->arg;
    const int64_t E = a->experts, numbers = tess_balance_numbers(E);
    const double rows = total(w, 2 * E, t), by = rows > 0 ? a->weight * (double)E / (rows * rows) : 0;
    double sum = 0, *loss = w->buf[0].ptr;
    for (int64_t e = 0; e < E; e++) {
        const double choices = total(w, e, t);
        sum += choices * total(w, E + e, t);
        for (unsigned k = 0; k < a->own; k++) {
            const tess_view *v = &w->buf[1 + a->tiles + k];
            const int64_t sequences = (int64_t)(v->bytes / tess_dtype_size(t)) / (2 * numbers);
            for (int64_t s = 0; s < sequences; s++)
                tess_store(v->ptr, s * 2 * numbers + E + e, t, (float)(by * choices / w->env->unscale));
        }
    }
    for (unsigned k = 0; k < a->own; k++) { /* of what is no share of softmax there is none */
        const tess_view *v = &w->buf[1 + a->tiles + k];
        const int64_t n = (int64_t)(v->bytes / tess_dtype_size(t));
        for (int64_t i = 0; i < n; i++)
            if (i % (2 * numbers) < E || i % (2 * numbers) >= 2 * E) tess_store(v->ptr, i, t, 0);
    }
    const double per_target = (double)w->env->loss_scale[0] * w->env->unscale;
    loss[0] = per_target > 0 && !a->told ? by * sum / per_target : 0;
    loss[1] = 0;
}

TESS_REAL(balance_forward)
TESS_REAL(balance_backward)
TESS_REAL(balance_loss)
