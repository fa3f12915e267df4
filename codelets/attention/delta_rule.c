/* delta_rule: linear attention by the gated delta rule. x holds heads of q, k and v side by side. Each channel becomes
 * silu of a sum over its last few rows (a causal convolution), q and k get the length 1, q is over sqrt(dim); beta =
 * sigmoid(b) and g = -exp(log) softplus(a + bias) are gates of each head of v. A head's state S, (dim of k, dim of v),
 * is zeros where a text begins, and at each of its rows
 *
 *     S = exp(g) S + k d^T    d = beta u    u = v - (exp(g) S)^T k    y = S^T q
 *
 * Forward keeps S at the beginning of each chunk of rows. Backward goes over the chunks from the last to the first,
 * with dS from one row to the one before:
 *
 *     dS += q dy^T    dv = beta dS^T k    dbeta = u dS^T k    dq = S dy    dk = dS d - exp(g) S_before dv
 *     dS -= k dv^T    dg = sum of dS exp(g) S_before    dS = exp(g) dS
 *
 * A part is a head of k with its heads of v: forward of a sequence, backward of all, since it adds up what parameters
 * get. Where rows go on with a text that earlier steps began (cached), its S and its last rows of x are in tiles. */
#include "codelets/attention/delta_rule_impl.h"
#include "codelets/shared/parts.h"

size_t tess_delta_scratch(const tess_delta_arg *a, bool backward)
{
    delta_room r;
    const int64_t parts = backward ? a->groups : a->rows / a->sequence * a->groups;
    return (size_t)(parts * delta_room_of(a, NULL, backward, &r)) * sizeof(float);
}
size_t tess_delta_states(const tess_delta_arg *a)
{
    return (size_t)(a->rows / a->sequence * a->heads * delta_slots(a) * delta_state(a)) * sizeof(float);
}

/* ---- what the rule takes ----------------------------------------------------------------------------------------- */

/* The taps of the part's channels, one behind the other for each row that they look back. */
TESS_INLINE void take_taps(const delta_part *p, tess_dtype type)
{
    const tess_delta_arg *a = &p->a;
    const int64_t n = 2 * a->dim + delta_share(a) * a->dim_v;
    for (int64_t i = 0; i < n; i++) {
        const int64_t which = i < a->dim ? 0 : i < 2 * a->dim ? 1 : 2;
        const int64_t c =
            delta_channel(a, (int)which, which < 2 ? p->head : p->head * delta_share(a)) + i - which * a->dim;
        for (int64_t j = 0; j < a->taps; j++) p->room.taps[j * n + i] = tess_load(p->taps, c * a->taps + j, type);
    }
}
/* Those of n channels from c on, at j. */
TESS_INLINE const float *taps_at(const delta_part *p, int64_t c, int64_t j)
{
    const tess_delta_arg *a = &p->a;
    const int64_t k = c - a->groups * a->dim, v = k - a->groups * a->dim, share = delta_share(a);
    const float *taps = p->room.taps + j * (2 * a->dim + share * a->dim_v);
    if (k < 0) return taps + c - p->head * a->dim;
    return v < 0 ? taps + a->dim + k - p->head * a->dim : taps + 2 * a->dim + v - p->head * share * a->dim_v;
}

/* The sums of n channels over their last rows, at row t. */
TESS_INLINE void convolve(const delta_part *p, int64_t t, int64_t c, int64_t n, float *y, tess_dtype type)
{
    const tess_delta_arg *a = &p->a;
    const delta_row row = delta_row_of(a, p->bounds, p->s, t);
    for (int64_t i = 0; i < n; i++) y[i] = 0;
    for (int64_t j = 0; j < a->taps; j++) {
        const void *x = delta_input(a, p->x, p->earlier, row, p->s, t, j + 1 - a->taps, type);
        const float *tap = taps_at(p, c, j);
        if (!x) continue;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] += tap[i] * tess_load(x, c + i, type);
    }
}
TESS_INLINE void convolved(const delta_part *p, int64_t t, int64_t c, int64_t n, float *y, tess_dtype type)
{
    convolve(p, t, c, n, y, type);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] *= delta_sigmoid(y[i]);
}
/* Makes a row as long as `length`; returns 1 / what it was. */
TESS_INLINE float make_length(float *x, int64_t n, float length)
{
    float lane[TESS_LANES] = {0};
    TESS_EACH(i, l, n, lane[l] += x[i] * x[i]);
    const float over = 1 / sqrtf(tess_sum16(lane) + DELTA_LENGTH_EPS);
    for (int64_t i = 0; i < n; i++) x[i] *= over * length;
    return over;
}
TESS_INLINE void take_keys(const delta_part *p, int64_t first, int64_t rows, tess_dtype type)
{
    const int64_t d = p->a.dim;
    const float size = 1 / sqrtf((float)d);
    for (int64_t i = 0; i < rows; i++) {
        convolved(p, first + i, delta_channel(&p->a, 0, p->head), d, p->room.q + i * d, type);
        convolved(p, first + i, delta_channel(&p->a, 1, p->head), d, p->room.k + i * d, type);
        p->room.over_q[i] = make_length(p->room.q + i * d, d, size);
        p->room.over_k[i] = make_length(p->room.k + i * d, d, 1);
    }
}
TESS_INLINE void take_values(const delta_part *p, int64_t head, int64_t first, int64_t rows, tess_dtype type)
{
    const tess_delta_arg *a = &p->a;
    const int64_t wide = delta_wide(a);
    const float rate = -tess_expf(p->logs[head]);
    for (int64_t i = 0; i < rows; i++) {
        float *v = p->room.v + i * wide;
        const int64_t at = (p->s * a->sequence + first + i) * a->heads + head;
        const delta_row row = delta_row_of(a, p->bounds, p->s, first + i);
        convolved(p, first + i, delta_channel(a, 2, head), a->dim_v, v, type);
        for (int64_t j = a->dim_v; j < wide; j++) v[j] = 0;
        p->room.beta[i] = delta_sigmoid(tess_load(p->b, at, type));
        p->room.decay[i] = tess_expf(rate * delta_softplus(tess_load(p->gate, at, type) + p->biases[head]));
        if (row.first == row.place) p->room.decay[i] = 0; /* another text begins */
    }
}

/* ---- the rule ---------------------------------------------------------------------------------------------------- */

/* The state behind row i of a chunk, of the one before it, which may be the same; u and y (wide), or NULL. */
TESS_INLINE void advance(const delta_part *p, int64_t i, const float *before, float *after, float *u, float *y)
{
    const int64_t d = p->a.dim, wide = delta_wide(&p->a);
    const float *k = p->room.k + i * d, *q = p->room.q + i * d, *v = p->room.v + i * wide;
    const float decay = p->room.decay[i], beta = p->room.beta[i];
    for (int64_t c = 0; c < wide; c += COLUMNS) {
        float said[COLUMNS] = {0}, add[COLUMNS], sum[COLUMNS] = {0};
        for (int64_t r = 0; r < d; r++) {
            const float *s = before + r * wide + c;
#pragma omp simd
            for (int l = 0; l < COLUMNS; l++) said[l] += k[r] * (decay * s[l]);
        }
        for (int l = 0; l < COLUMNS; l++) said[l] = v[c + l] - said[l], add[l] = beta * said[l];
        for (int64_t r = 0; r < d; r++) {
            const float *s = before + r * wide + c;
            float *to = after + r * wide + c;
#pragma omp simd
            for (int l = 0; l < COLUMNS; l++) {
                to[l] = decay * s[l] + k[r] * add[l];
                sum[l] += q[r] * to[l];
            }
        }
        if (u) memcpy(u + c, said, sizeof said);
        if (y) memcpy(y + c, sum, sizeof sum);
    }
}

/* dS of before row i of that of behind it; leaves dv and what gates get, and adds to dq and dk. */
TESS_INLINE void retreat(const delta_part *p, int64_t i, const float *before, const float *after, const float *u,
                         const float *dy, float *ds, float *dv)
{
    const int64_t d = p->a.dim, wide = delta_wide(&p->a);
    const float *k = p->room.k + i * d, *q = p->room.q + i * d;
    const float decay = p->room.decay[i], beta = p->room.beta[i];
    float *dq = p->room.dq + i * d, *dk = p->room.dk + i * d, gate[COLUMNS] = {0}, fade[COLUMNS] = {0};
    for (int64_t c = 0; c < wide; c += COLUMNS) {
        float *to = dv + c, sum[COLUMNS] = {0};
        for (int64_t r = 0; r < d; r++) {
            float *x = ds + r * wide + c;
#pragma omp simd
            for (int l = 0; l < COLUMNS; l++) {
                x[l] += q[r] * dy[c + l];
                sum[l] += k[r] * x[l];
            }
        }
        for (int l = 0; l < COLUMNS; l++) to[l] = beta * sum[l], gate[l] += u[c + l] * sum[l];
    }
    for (int64_t r = 0; r < d; r++) {
        float of_q[COLUMNS] = {0}, of_k[COLUMNS] = {0};
        for (int64_t c = 0; c < wide; c += COLUMNS) {
            const float *s = before + r * wide + c, *t = after + r * wide + c;
            float *x = ds + r * wide + c;
#pragma omp simd
            for (int l = 0; l < COLUMNS; l++) {
                const float was = decay * s[l];
                of_q[l] += t[l] * dy[c + l];
                of_k[l] += x[l] * (beta * u[c + l]) - was * dv[c + l];
                x[l] -= k[r] * dv[c + l];
                fade[l] += x[l] * was;
                x[l] *= decay;
            }
        }
        dq[r] += tess_sum16(of_q), dk[r] += tess_sum16(of_k);
    }
    p->room.dbeta[i] = tess_sum16(gate), p->room.dg[i] = tess_sum16(fade);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* x (rows,channels), taps (channels,taps), b, a (rows,heads), logs f32, biases f32 (heads)[, bounds], y
 * (rows,heads*dim_v), states f32[, earlier (sequences,taps-1,channels)], scratch */
TESS_INLINE void delta_rule_forward_part(const tess_work *w, int64_t part, tess_dtype t)
{
    delta_part p = delta_task(w, false);
    const tess_delta_arg *a = &p.a;
    const int64_t wide = delta_wide(a), n = delta_state(a), slots = delta_slots(a), share = delta_share(a);
    const tess_view *out = w->buf + BOUNDS + a->bounded;
    float row[TESS_DELTA_WIDEST];
    delta_begin(&p, part, false);
    take_taps(&p, t);
    for (int64_t first = 0; first < a->sequence; first += CHUNK) {
        const int64_t rows = least(CHUNK, a->sequence - first);
        take_keys(&p, first, rows, t);
        for (int64_t head = p.head * share; head < (p.head + 1) * share; head++) {
            float *s = (float *)out[1].ptr + ((p.s * a->heads + head) * slots + (a->keeps ? first / CHUNK : 0)) * n;
            float *to = a->keeps ? s + n : s;
            if (first == 0 && !a->cached) memset(s, 0, (size_t)n * sizeof *s);
            take_values(&p, head, first, rows, t);
            for (int64_t i = 0; i < rows; i++) {
                void *y = tess_at_mut(out[0].ptr, ((p.s * a->sequence + first + i) * a->heads + head) * a->dim_v, t);
                if (delta_row_of(a, p.bounds, p.s, first + i).sees)
                    advance(&p, i, i ? to : s, to, NULL, row);
                else
                    memset(row, 0, (size_t)wide * sizeof *row);
                tess_narrow(y, row, a->dim_v, t);
            }
        }
    }
    for (int64_t k = 0; k < (a->cached ? a->dim : 0); k++)
        for (int which = 0; which < 2; which++) delta_keep(&p, delta_channel(a, which, p.head) + k, t);
    for (int64_t k = 0; k < (a->cached ? share * a->dim_v : 0); k++)
        delta_keep(&p, delta_channel(a, 2, p.head * share) + k, t);
}
TESS_PART_BODIES(delta_rule_forward_part)
static int64_t delta_rule_forward_parts(const tess_codelet *cl, const void *arg)
{
    const tess_delta_arg *a = arg;
    (void)cl;
    return a->rows / a->sequence * a->groups;
}
TESS_INLINE void delta_rule_forward(const tess_work *w, tess_dtype t)
{
    tess_parts_run(delta_rule_forward_parts(NULL, w->arg), TESS_PART_BODY(delta_rule_forward_part, t), (void *)w);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Of `d`, gradients of n channels that were convolved, of a chunk and of taps - 1 rows behind it: dx of the chunk, and
 * what the taps get. Then those of its first rows lie behind the chunk before. */
TESS_INLINE void convolve_back(const delta_part *p, const delta_gradients *to, int64_t first, int64_t rows, int64_t c,
                               int64_t n, float *d, int64_t ld, tess_dtype type)
{
    const tess_delta_arg *a = &p->a;
    const int64_t behind = a->taps - 1, channels = delta_channels(a);
    float row[TESS_DELTA_WIDEST];
    for (int64_t i = 0; i < rows; i++) {
        convolve(p, first + i, c, n, row, type);
#pragma omp simd
        for (int64_t k = 0; k < n; k++) d[i * ld + k] *= delta_silu_slope(row[k]);
    }
    for (int64_t j = 0; j < a->taps; j++) {
        memset(row, 0, (size_t)n * sizeof *row);
        for (int64_t i = 0; i < rows; i++) {
            const delta_row of = delta_row_of(a, p->bounds, p->s, first + i);
            const void *x = delta_input(a, p->x, NULL, of, p->s, first + i, j - behind, type);
#pragma omp simd
            for (int64_t k = 0; k < (x ? n : 0); k++) row[k] += d[i * ld + k] * tess_load(x, c + k, type);
        }
        for (int64_t k = 0; k < n; k++) to->taps[(c + k) * a->taps + j] += row[k];
    }
    for (int64_t i = 0; i < rows; i++) {
        memset(row, 0, (size_t)n * sizeof *row);
        for (int64_t j = 0; j < a->taps; j++) {
            const int64_t of = first + i + behind - j;
            if (of >= a->sequence || delta_row_of(a, p->bounds, p->s, of).first > first + i) continue;
            const float *tap = taps_at(p, c, j), *from = d + (of - first) * ld;
#pragma omp simd
            for (int64_t k = 0; k < n; k++) row[k] += tap[k] * from[k];
        }
        void *dx = tess_at_mut(to->x, (p->s * a->sequence + first + i) * channels + c, type);
#pragma omp simd
        for (int64_t k = 0; k < n; k++) tess_accumulate(dx, k, type, a->acc, row[k]);
    }
    for (int64_t i = behind - 1; i >= 0; i--) memmove(d + (CHUNK + i) * ld, d + i * ld, (size_t)ld * sizeof *d);
}

/* The gradient of a row before it was made so long, of the one behind. */
TESS_INLINE void length_back(const float *x, float *d, int64_t n, float over, float length)
{
    float lane[TESS_LANES] = {0};
    TESS_EACH(i, l, n, lane[l] += x[i] * d[i]);
    const float along = tess_sum16(lane) / length;
    for (int64_t i = 0; i < n; i++) d[i] = over * (length * d[i] - x[i] * along);
}

TESS_INLINE void gates_back(const delta_part *p, const delta_gradients *to, int64_t head, int64_t first, int64_t rows,
                            tess_dtype t)
{
    const tess_delta_arg *a = &p->a;
    const float rate = -tess_expf(p->logs[head]);
    double of_log = 0, of_bias = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t at = (p->s * a->sequence + first + i) * a->heads + head;
        const float beta = p->room.beta[i], gate = tess_load(p->gate, at, t) + p->biases[head];
        const float d = p->room.dg[i] * rate * delta_sigmoid(gate);
        tess_accumulate(to->b, at, t, a->acc_b, p->room.dbeta[i] * beta * (1 - beta));
        tess_accumulate(to->gate, at, t, a->acc_a, d);
        of_log += (double)(p->room.dg[i] * rate * delta_softplus(gate));
        of_bias += (double)d;
    }
    to->logs[head] += (float)of_log;
    to->biases[head] += (float)of_bias;
}

/* A head of v in a chunk, whose first state is `s`. */
TESS_INLINE void rule_back(const delta_part *p, const float *s, const void *dy, int64_t head, int64_t first,
                           int64_t rows, float *ds, float *dv, tess_dtype t)
{
    const tess_delta_arg *a = &p->a;
    const int64_t n = delta_state(a), wide = delta_wide(a), last = (rows - 1) / FEW;
    float row[TESS_DELTA_WIDEST] = {0};
    for (int64_t i = 0; i < last * FEW; i++) {
        float *to = p->room.mark + i / FEW * n;
        advance(p, i, i % FEW ? to : i ? to - n : s, to, NULL, NULL);
    }
    for (int64_t few = last; few >= 0; few--) {
        const float *from = few ? p->room.mark + (few - 1) * n : s;
        const int64_t begin = few * FEW, end = least(begin + FEW, rows);
        for (int64_t i = begin; i < end; i++) {
            float *to = p->room.states + (i - begin) * n;
            advance(p, i, i > begin ? to - n : from, to, p->room.u + (i - begin) * wide, NULL);
        }
        for (int64_t i = end - 1; i >= begin; i--) {
            const float *after = p->room.states + (i - begin) * n;
            tess_widen(row, tess_at(dy, ((p->s * a->sequence + first + i) * a->heads + head) * a->dim_v, t), a->dim_v,
                       t);
            retreat(p, i, i > begin ? after - n : from, after, p->room.u + (i - begin) * wide, row, ds, dv + i * wide);
        }
    }
}

TESS_INLINE void chunk_back(const delta_part *p, const delta_gradients *to, const float *states, const void *dy,
                            int64_t first, tess_dtype t)
{
    const tess_delta_arg *a = &p->a;
    const delta_room *r = &p->room;
    const int64_t d = a->dim, wide = delta_wide(a), n = delta_state(a), slots = delta_slots(a), share = delta_share(a);
    const int64_t rows = least(CHUNK, a->sequence - first), behind = CHUNK + a->taps - 1;
    const float size = 1 / sqrtf((float)d);
    take_keys(p, first, rows, t);
    memset(r->dq, 0, (size_t)(rows * d) * sizeof *r->dq);
    memset(r->dk, 0, (size_t)(rows * d) * sizeof *r->dk);
    for (int64_t k = 0; k < share; k++) {
        const int64_t head = p->head * share + k;
        float *dv = r->dv + k * behind * wide;
        take_values(p, head, first, rows, t);
        rule_back(p, states + ((p->s * a->heads + head) * slots + first / CHUNK) * n, dy, head, first, rows,
                  r->ds + k * n, dv, t);
        gates_back(p, to, head, first, rows, t);
        convolve_back(p, to, first, rows, delta_channel(a, 2, head), a->dim_v, dv, wide, t);
    }
    for (int64_t i = 0; i < rows; i++) {
        length_back(r->q + i * d, r->dq + i * d, d, r->over_q[i], size);
        length_back(r->k + i * d, r->dk + i * d, d, r->over_k[i], 1);
    }
    convolve_back(p, to, first, rows, delta_channel(a, 0, p->head), d, r->dq, d, t);
    convolve_back(p, to, first, rows, delta_channel(a, 1, p->head), d, r->dk, d, t);
}

static void clear(const delta_part *p, const delta_gradients *to)
{
    const tess_delta_arg *a = &p->a;
    const int64_t share = delta_share(a);
    const size_t wide = (size_t)(a->dim * a->taps) * sizeof(float), heads = (size_t)share * sizeof(float);
    for (int which = 0; which < 2 && !a->acc_taps; which++)
        memset(to->taps + delta_channel(a, which, p->head) * a->taps, 0, wide);
    if (!a->acc_taps)
        memset(to->taps + delta_channel(a, 2, p->head * share) * a->taps, 0, heads * (size_t)(a->dim_v * a->taps));
    if (!a->acc_logs) memset(to->logs + p->head * share, 0, heads);
    if (!a->acc_biases) memset(to->biases + p->head * share, 0, heads);
}

/* dy, x, taps, b, a, logs, biases[, bounds], states, dx +=, dtaps f32 +=, db +=, da +=, dlogs f32 +=, dbiases f32 +=,
 * scratch */
TESS_INLINE void delta_rule_backward_part(const tess_work *w, int64_t part, tess_dtype t)
{
    delta_part p = delta_task(w, true);
    const tess_delta_arg *a = &p.a;
    const delta_gradients to = delta_gradients_of(w);
    const float *states = w->buf[1 + BOUNDS + a->bounded].ptr;
    const int64_t last = (a->sequence - 1) / CHUNK * CHUNK;
    delta_begin(&p, part, true);
    clear(&p, &to);
    take_taps(&p, t);
    for (p.s = 0; p.s < a->rows / a->sequence; p.s++) {
        memset(p.room.dq, 0, (size_t)(p.room.mark - p.room.dq) * sizeof(float));
        for (int64_t first = last; first >= 0; first -= CHUNK) chunk_back(&p, &to, states, w->buf[0].ptr, first, t);
    }
}
TESS_PART_BODIES(delta_rule_backward_part)
static int64_t delta_rule_backward_parts(const tess_codelet *cl, const void *arg)
{
    (void)cl;
    return ((const tess_delta_arg *)arg)->groups;
}
TESS_INLINE void delta_rule_backward(const tess_work *w, tess_dtype t)
{
    tess_parts_run(delta_rule_backward_parts(NULL, w->arg), TESS_PART_BODY(delta_rule_backward_part, t), (void *)w);
}

/* ---- cost -------------------------------------------------------------------------------------------------------- */

/* A row of a head passes over its state so often, with a multiplication and an addition an element. */
static tess_cost delta_cost(const tess_delta_arg *a, tess_dtype t, double passes, double copies)
{
    const double rows = (double)a->rows, flops = 2 * passes * rows * (double)(a->heads * a->dim * a->dim_v);
    return (tess_cost){.flops = flops,
                       .lost = flops * (TESS_ATTENTION_SLOWER - 1),
                       .bytes = copies * rows * (double)((size_t)delta_channels(a) * tess_dtype_size(t)) +
                                (double)tess_delta_states(a)};
}
static tess_cost delta_rule_forward_cost(const void *arg, tess_dtype t)
{
    return delta_cost(arg, t, 3, 2);
}
static tess_cost delta_rule_backward_cost(const void *arg, tess_dtype t)
{
    return delta_cost(arg, t, 10, 3);
}
TESS_PART_COST(delta_rule_forward)
TESS_PART_COST(delta_rule_backward)
