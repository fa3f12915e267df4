/* delta_rule: a block a part, whose threads are columns of a state where it moves on, and its rows where sums run over
 * columns. Plain: a state lies in memory, and no product is one of tensor cores. */
#include "codelets/attention/delta_rule_impl.h"
#include "codelets/shared/kernels.h"

constexpr int THREADS = TESS_DELTA_WIDEST;
constexpr int64_t MOST = CHUNK; /* rows of a chunk */
#define EACH(i, n) for (int64_t i = threadIdx.x; i < (n); i += THREADS)

/* ---- what the rule takes ----------------------------------------------------------------------------------------- */

template <tess_dtype T> TESS_DEVICE float convolve(const delta_part &p, int64_t t, int64_t c)
{
    const delta_row row = delta_row_of(&p.a, p.bounds, p.s, t);
    float sum = 0;
    for (int64_t j = 0; j < p.a.taps; j++) {
        const void *x = delta_input(&p.a, p.x, p.earlier, row, p.s, t, j + 1 - p.a.taps, T);
        if (x) sum += value_at<T>(p.taps, c * p.a.taps + j) * value_at<T>(x, c);
    }
    return sum;
}
/* y (rows, ld) of n channels; zeros behind them. */
template <tess_dtype T>
TESS_DEVICE void take(const delta_part &p, int64_t first, int64_t rows, int64_t c, int64_t n, float *y, int64_t ld)
{
    EACH(k, rows * ld)
    {
        const float sum = k % ld < n ? convolve<T>(p, first + k / ld, c + k % ld) : 0;
        y[k] = sum * delta_sigmoid(sum);
    }
    __syncthreads();
}
TESS_DEVICE void make_lengths(float *x, float *over, int64_t rows, int64_t n, float length)
{
    EACH(i, rows)
    {
        float sum = 0;
        for (int64_t k = 0; k < n; k++) sum += x[i * n + k] * x[i * n + k];
        over[i] = 1 / sqrtf(sum + DELTA_LENGTH_EPS);
    }
    __syncthreads();
    EACH(k, rows * n) x[k] *= over[k / n] * length;
    __syncthreads();
}
template <tess_dtype T> TESS_DEVICE void take_keys(const delta_part &p, int64_t first, int64_t rows)
{
    const int64_t d = p.a.dim;
    take<T>(p, first, rows, delta_channel(&p.a, 0, p.head), d, p.room.q, d);
    take<T>(p, first, rows, delta_channel(&p.a, 1, p.head), d, p.room.k, d);
    make_lengths(p.room.q, p.room.over_q, rows, d, 1 / sqrtf((float)d));
    make_lengths(p.room.k, p.room.over_k, rows, d, 1);
}
template <tess_dtype T> TESS_DEVICE void take_values(const delta_part &p, int64_t head, int64_t first, int64_t rows)
{
    __syncthreads();
    EACH(i, rows)
    {
        const int64_t at = (p.s * p.a.sequence + first + i) * p.a.heads + head;
        const delta_row row = delta_row_of(&p.a, p.bounds, p.s, first + i);
        const float gate = delta_softplus(value_at<T>(p.gate, at) + p.biases[head]);
        p.room.beta[i] = delta_sigmoid(value_at<T>(p.b, at));
        p.room.decay[i] = row.first == row.place ? 0 : tess_expf(-tess_expf(p.logs[head]) * gate);
    }
    take<T>(p, first, rows, delta_channel(&p.a, 2, head), p.a.dim_v, p.room.v, delta_wide(&p.a));
}

/* ---- the rule ---------------------------------------------------------------------------------------------------- */

/* Column c of the state behind row i of a chunk; returns that of y, and stores that of u. */
TESS_DEVICE float advance(const delta_part &p, int64_t i, int64_t c, const float *before, float *after, float *u)
{
    const int64_t d = p.a.dim, wide = delta_wide(&p.a);
    const float *k = p.room.k + i * d, *q = p.room.q + i * d, decay = p.room.decay[i];
    float said = 0, sum = 0;
    for (int64_t r = 0; r < d; r++) said += k[r] * (decay * before[r * wide + c]);
    said = p.room.v[i * wide + c] - said;
    for (int64_t r = 0; r < d; r++) {
        const float s = decay * before[r * wide + c] + k[r] * (p.room.beta[i] * said);
        after[r * wide + c] = s;
        sum += q[r] * s;
    }
    if (u) u[c] = said;
    return sum;
}

template <tess_dtype T>
TESS_DEVICE void retreat(const delta_part &p, int64_t i, const float *before, const float *after, const float *u,
                         const void *dy, int64_t at, float *ds, float *dv, float *shared, float *room)
{
    const int64_t d = p.a.dim, wide = delta_wide(&p.a);
    const float *k = p.room.k + i * d, *q = p.room.q + i * d, decay = p.room.decay[i], beta = p.room.beta[i];
    float gate = 0, fade = 0;
    EACH(c, wide)
    {
        float sum = 0;
        shared[c] = c < p.a.dim_v ? value_at<T>(dy, at + c) : 0;
        for (int64_t r = 0; r < d; r++) {
            ds[r * wide + c] += q[r] * shared[c];
            sum += k[r] * ds[r * wide + c];
        }
        dv[c] = beta * sum;
        gate += u[c] * sum;
    }
    __syncthreads();
    EACH(r, d)
    {
        float of_q = 0, of_k = 0;
        for (int64_t c = 0; c < wide; c++) {
            const float was = decay * before[r * wide + c];
            float x = ds[r * wide + c];
            of_q += after[r * wide + c] * shared[c];
            of_k += x * (beta * u[c]) - was * dv[c];
            x -= k[r] * dv[c];
            fade += x * was;
            ds[r * wide + c] = decay * x;
        }
        p.room.dq[i * d + r] += of_q, p.room.dk[i * d + r] += of_k;
    }
    gate = block_sum<THREADS>(gate, room), fade = block_sum<THREADS>(fade, room);
    if (threadIdx.x == 0) p.room.dbeta[i] = gate, p.room.dg[i] = fade;
    __syncthreads();
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

template <tess_dtype T> TESS_KERNEL(THREADS) forward_kernel(delta_part p, void *y, float *states)
{
    delta_begin(&p, blockIdx.x, false);
    const tess_delta_arg &a = p.a;
    const int64_t wide = delta_wide(&a), n = delta_state(&a), slots = delta_slots(&a), share = delta_share(&a);
    for (int64_t first = 0; first < a.sequence; first += CHUNK) {
        const int64_t rows = a.sequence - first < MOST ? a.sequence - first : MOST;
        __syncthreads();
        take_keys<T>(p, first, rows);
        for (int64_t head = p.head * share; head < (p.head + 1) * share; head++) {
            float *s = states + ((p.s * a.heads + head) * slots + (a.keeps ? first / CHUNK : 0)) * n;
            float *to = a.keeps ? s + n : s;
            take_values<T>(p, head, first, rows);
            EACH(c, wide)
            {
                for (int64_t r = 0; r < a.dim && first == 0 && !a.cached; r++) s[r * wide + c] = 0;
                for (int64_t i = 0; i < rows; i++) {
                    const int64_t at = ((p.s * a.sequence + first + i) * a.heads + head) * a.dim_v + c;
                    const bool sees = delta_row_of(&a, p.bounds, p.s, first + i).sees;
                    const float sum = sees ? advance(p, i, c, i ? to : s, to, NULL) : 0;
                    if (c < a.dim_v) put_at<T>(y, at, sum);
                }
            }
        }
    }
    __syncthreads();
    if (!a.cached) return;
    for (int which = 0; which < 2; which++) EACH(k, a.dim) delta_keep(&p, delta_channel(&a, which, p.head) + k, T);
    EACH(k, share * a.dim_v) delta_keep(&p, delta_channel(&a, 2, p.head * share) + k, T);
}

template <tess_dtype T> static void delta_rule_forward_body(const tess_work *w)
{
    const delta_part p = delta_task(w, false);
    const int y = BOUNDS + p.a.bounded;
    launch(w, forward_kernel<T>, p.a.rows / p.a.sequence * p.a.groups, THREADS, 0, p, buffer(w, y), buffer(w, y + 1));
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

template <tess_dtype T>
TESS_DEVICE void convolve_back(const delta_part &p, const delta_gradients &to, int64_t first, int64_t rows, int64_t c,
                               int64_t n, float *d, int64_t ld)
{
    const tess_delta_arg &a = p.a;
    const int64_t behind = a.taps - 1;
    EACH(k, rows * n) d[k / n * ld + k % n] *= delta_silu_slope(convolve<T>(p, first + k / n, c + k % n));
    __syncthreads();
    EACH(k, n * a.taps)
    {
        float sum = 0;
        for (int64_t i = 0; i < rows; i++) {
            const delta_row row = delta_row_of(&a, p.bounds, p.s, first + i);
            const void *x = delta_input(&a, p.x, NULL, row, p.s, first + i, k % a.taps - behind, T);
            if (x) sum += d[i * ld + k / a.taps] * value_at<T>(x, c + k / a.taps);
        }
        to.taps[c * a.taps + k] += sum;
    }
    EACH(k, rows * n)
    {
        const int64_t i = k / n, e = k % n;
        float sum = 0;
        for (int64_t j = 0; j < a.taps; j++) {
            const int64_t of = first + i + behind - j;
            if (of >= a.sequence || delta_row_of(&a, p.bounds, p.s, of).first > first + i) continue;
            sum += value_at<T>(p.taps, (c + e) * a.taps + j) * d[(of - first) * ld + e];
        }
        add_at<T>(to.x, (p.s * a.sequence + first + i) * delta_channels(&a) + c + e, a.acc, sum);
    }
    __syncthreads();
    EACH(k, behind * ld) d[CHUNK * ld + k] = d[k];
    __syncthreads();
}

TESS_DEVICE void lengths_back(const float *x, float *d, const float *over, int64_t rows, int64_t n, float length)
{
    EACH(i, rows)
    {
        float along = 0;
        for (int64_t k = 0; k < n; k++) along += x[i * n + k] * d[i * n + k];
        along /= length;
        for (int64_t k = 0; k < n; k++) d[i * n + k] = over[i] * (length * d[i * n + k] - x[i * n + k] * along);
    }
    __syncthreads();
}

template <tess_dtype T>
TESS_DEVICE void gates_back(const delta_part &p, const delta_gradients &to, int64_t head, int64_t first, int64_t rows)
{
    const float rate = -tess_expf(p.logs[head]);
    const int64_t at = (p.s * p.a.sequence + first) * p.a.heads + head;
    EACH(i, rows)
    {
        const float beta = p.room.beta[i], gate = value_at<T>(p.gate, at + i * p.a.heads) + p.biases[head];
        add_at<T>(to.b, at + i * p.a.heads, p.a.acc_b, p.room.dbeta[i] * beta * (1 - beta));
        add_at<T>(to.gate, at + i * p.a.heads, p.a.acc_a, p.room.dg[i] * rate * delta_sigmoid(gate));
    }
    if (threadIdx.x) return;
    float of_log = 0, of_bias = 0;
    for (int64_t i = 0; i < rows; i++) {
        const float gate = value_at<T>(p.gate, at + i * p.a.heads) + p.biases[head];
        of_log += p.room.dg[i] * rate * delta_softplus(gate);
        of_bias += p.room.dg[i] * rate * delta_sigmoid(gate);
    }
    to.logs[head] += of_log;
    to.biases[head] += of_bias;
}

template <tess_dtype T>
TESS_DEVICE void rule_back(const delta_part &p, const float *s, const void *dy, int64_t head, int64_t first,
                           int64_t rows, float *ds, float *dv, float *shared, float *room)
{
    const int64_t n = delta_state(&p.a), wide = delta_wide(&p.a), last = (rows - 1) / FEW;
    EACH(c, wide)
    for (int64_t i = 0; i < last * FEW; i++) {
        float *to = p.room.mark + i / FEW * n;
        advance(p, i, c, i % FEW ? to : i ? to - n : s, to, NULL);
    }
    for (int64_t few = last; few >= 0; few--) {
        const float *from = few ? p.room.mark + (few - 1) * n : s;
        const int64_t begin = few * FEW, end = begin + FEW < rows ? begin + FEW : rows;
        EACH(c, wide)
        for (int64_t i = begin; i < end; i++) {
            float *to = p.room.states + (i - begin) * n;
            advance(p, i, c, i > begin ? to - n : from, to, p.room.u + (i - begin) * wide);
        }
        __syncthreads();
        for (int64_t i = end - 1; i >= begin; i--) {
            const float *after = p.room.states + (i - begin) * n;
            retreat<T>(p, i, i > begin ? after - n : from, after, p.room.u + (i - begin) * wide, dy,
                       ((p.s * p.a.sequence + first + i) * p.a.heads + head) * p.a.dim_v, ds, dv + i * wide, shared,
                       room);
        }
    }
}

template <tess_dtype T>
TESS_KERNEL(THREADS)
backward_kernel(delta_part p, const void *dy, const float *states, delta_gradients to)
{
    TESS_SHARED(float, shared, [TESS_DELTA_WIDEST]);
    TESS_SHARED(float, room, [THREADS / WARP]);
    delta_begin(&p, blockIdx.x, true);
    const tess_delta_arg &a = p.a;
    const delta_room &r = p.room;
    const int64_t d = a.dim, wide = delta_wide(&a), n = delta_state(&a), slots = delta_slots(&a);
    const int64_t share = delta_share(&a), behind = CHUNK + a.taps - 1;
    for (int which = 0; which < 3 && !a.acc_taps; which++) EACH(k, (which < 2 ? d : share * a.dim_v) * a.taps)
    to.taps[delta_channel(&a, which, which < 2 ? p.head : p.head * share) * a.taps + k] = 0;
    EACH(k, a.acc_logs ? 0 : share) to.logs[p.head * share + k] = 0;
    EACH(k, a.acc_biases ? 0 : share) to.biases[p.head * share + k] = 0;
    for (p.s = 0; p.s < a.rows / a.sequence; p.s++) {
        __syncthreads();
        EACH(k, r.mark - r.ds) r.ds[k] = 0;
        for (int64_t first = (a.sequence - 1) / CHUNK * CHUNK; first >= 0; first -= CHUNK) {
            const int64_t rows = a.sequence - first < MOST ? a.sequence - first : MOST;
            __syncthreads();
            EACH(k, rows * d) r.dq[k] = r.dk[k] = 0;
            take_keys<T>(p, first, rows);
            for (int64_t k = 0; k < share; k++) {
                const int64_t head = p.head * share + k;
                float *dv = r.dv + k * behind * wide;
                take_values<T>(p, head, first, rows);
                rule_back<T>(p, states + ((p.s * a.heads + head) * slots + first / CHUNK) * n, dy, head, first, rows,
                             r.ds + k * n, dv, shared, room);
                gates_back<T>(p, to, head, first, rows);
                convolve_back<T>(p, to, first, rows, delta_channel(&a, 2, head), a.dim_v, dv, wide);
            }
            lengths_back(r.q, r.dq, r.over_q, rows, d, 1 / sqrtf((float)d));
            lengths_back(r.k, r.dk, r.over_k, rows, d, 1);
            convolve_back<T>(p, to, first, rows, delta_channel(&a, 0, p.head), d, r.dq, d);
            convolve_back<T>(p, to, first, rows, delta_channel(&a, 1, p.head), d, r.dk, d);
        }
    }
}

template <tess_dtype T> static void delta_rule_backward_body(const tess_work *w)
{
    const delta_part p = delta_task(w, true);
    launch(w, backward_kernel<T>, p.a.groups, THREADS, 0, p, buffer(w, 0), buffer(w, 1 + BOUNDS + p.a.bounded),
           delta_gradients_of(w));
}

TESS_CUDA_REAL(delta_rule_forward)
TESS_CUDA_REAL(delta_rule_backward)
