/* delta_rule: the rule in double, and its gradients by differences of that: of several chunks, of two texts in a
 * sequence, of more heads of v than of k; and the same text in pieces, whose states are kept between them. */
#include "tests/ops/ops.h"

enum { X, TAPS, B, A, LOGS, BIASES, INPUTS };
struct problem {
    tess_delta_arg a;
    double *in[INPUTS];
    int64_t n[INPUTS];
    const int32_t *bounds;
    double *states, *earlier; /* cached: before, and then behind */
};

static int64_t channels_of(const tess_delta_arg *a)
{
    return 2 * a->groups * a->dim + a->heads * a->dim_v;
}

static int64_t wide_of(const tess_delta_arg *a)
{
    return (a->dim_v + 15) / 16 * 16;
}

/* Where row t is, and where its text begins; false: it is of none. */
static bool places(const struct problem *p, int64_t s, int64_t t, int64_t *place, int64_t *first)
{
    const int32_t *bounds = p->bounds ? p->bounds + 2 * s * p->a.sequence + t : NULL;
    *first = bounds ? bounds[0] : 0;
    *place = p->a.cached ? bounds[p->a.sequence] - 1 : t;
    return !p->a.cached || *first <= *place;
}

/* silu of what channel c's last rows make of row t. */
static double convolved(const struct problem *p, int64_t s, int64_t t, int64_t c)
{
    const tess_delta_arg *a = &p->a;
    const int64_t behind = a->taps - 1, channels = channels_of(a);
    int64_t place, first;
    double sum = 0;
    places(p, s, t, &place, &first);
    for (int64_t j = 0; j < a->taps; j++) {
        const int64_t row = t - behind + j;
        if (place - behind + j < first) continue;
        const double x = row < 0 ? p->earlier[(s * behind + behind + row) * channels + c]
                                 : p->in[X][(s * a->sequence + row) * channels + c];
        sum += p->in[TAPS][c * a->taps + j] * x;
    }
    return sum / (1 + exp(-sum));
}

static void unit(double *x, int64_t n, double length)
{
    double sum = 1e-6;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) x[i] *= length / sqrt(sum);
}

/* y (rows, heads*dim_v) of one head of one sequence. */
static void rule(const struct problem *p, int64_t s, int64_t head, double *y)
{
    const tess_delta_arg *a = &p->a;
    const int64_t group = head / (a->heads / a->groups);
    double S[64][64] = {{0}}, q[64], k[64], *kept = NULL;
    if (p->states) kept = p->states + (s * a->heads + head) * a->dim * wide_of(a);
    for (int64_t i = 0; i < a->dim && kept; i++)
        for (int64_t j = 0; j < a->dim_v; j++) S[i][j] = kept[i * wide_of(a) + j];
    for (int64_t t = 0; t < a->sequence; t++) {
        const int64_t row = s * a->sequence + t, at = row * a->heads + head;
        const double gate = log(1 + exp(p->in[A][at] + p->in[BIASES][head]));
        double decay = exp(-exp(p->in[LOGS][head]) * gate);
        int64_t place, first;
        if (!places(p, s, t, &place, &first)) continue;
        if (place == first) decay = 0;
        for (int64_t i = 0; i < a->dim; i++) {
            q[i] = convolved(p, s, t, group * a->dim + i);
            k[i] = convolved(p, s, t, (a->groups + group) * a->dim + i);
        }
        unit(q, a->dim, 1 / sqrt((double)a->dim));
        unit(k, a->dim, 1);
        for (int64_t j = 0; j < a->dim_v; j++) {
            double d = convolved(p, s, t, 2 * a->groups * a->dim + head * a->dim_v + j), sum = 0;
            for (int64_t i = 0; i < a->dim; i++) d -= k[i] * (S[i][j] *= decay);
            d /= 1 + exp(-p->in[B][at]);
            for (int64_t i = 0; i < a->dim; i++) sum += q[i] * (S[i][j] += k[i] * d);
            y[(row * a->heads + head) * a->dim_v + j] = sum;
        }
    }
    for (int64_t i = 0; i < a->dim && kept; i++)
        for (int64_t j = 0; j < a->dim_v; j++) kept[i * wide_of(a) + j] = S[i][j];
}
static void expect(const struct problem *p, double *y)
{
    for (int64_t s = 0; s < p->a.rows / p->a.sequence; s++)
        for (int64_t head = 0; head < p->a.heads; head++) rule(p, s, head, y);
}

static double loss(const struct problem *p, const double *dy, double *y)
{
    expect(p, y);
    return op_dot(dy, 1, y, 1, p->a.rows * p->a.heads * p->a.dim_v);
}

/* Draws what the task reads; the same again for its backward pass. */
static struct problem put(tess_delta_arg a, uint64_t dice, tess_dtype t)
{
    static const char *const name[] = {"x", "taps", "b", "a", "logs", "biases"};
    struct problem p = {.a = a};
    const int64_t n[] = {
        a.rows * channels_of(&a), channels_of(&a) * a.taps, a.rows * a.heads, a.rows * a.heads, a.heads, a.heads};
    op_dice = dice;
    for (int k = 0; k < INPUTS; k++) {
        p.n[k] = n[k];
        p.in[k] = op_in(name[k], n[k], k >= LOGS ? TESS_F32 : t, k == TAPS ? 0.5 : 1);
    }
    if (!a.bounded) return p;
    int32_t *b = op_raw("bounds", 2 * a.rows, TESS_I32);
    p.bounds = b;
    for (int64_t r = 0; r < a.rows; r++) { /* the second text begins within a chunk, the third sequence has one */
        const int64_t s = r / a.sequence, i = r % a.sequence, second = s == 2 ? 0 : 5 + 7 * s;
        b[2 * s * a.sequence + i] = (int32_t)(i < second ? 0 : second);
        b[(2 * s + 1) * a.sequence + i] = (int32_t)(i < second ? second : a.sequence);
    }
    return p;
}

static void backward(tess_delta_arg a, uint64_t dice, const void *states, tess_dtype t)
{
    static const char *const name[] = {"dx", "dtaps", "db", "da", "dlogs", "dbiases"};
    const int64_t n = a.rows * a.heads * a.dim_v, kept = (int64_t)tess_delta_states(&a) / 4;
    op_dice = dice + 1;
    const double *dy = op_in("dy", n, t, 1);
    struct problem p = put(a, dice, t);
    memcpy(op_raw("states", kept, TESS_F32), states, (size_t)kept * sizeof(float));
    double *y = op_zeros(n);
    const bool acc[] = {a.acc, a.acc_taps, a.acc_b, a.acc_a, a.acc_logs, a.acc_biases};
    for (int k = 0; k < INPUTS; k++) {
        double *d = op_out(name[k], p.n[k], k == X || k == B || k == A ? t : TESS_F32, acc[k]);
        if (k == LOGS || k == BIASES) op_within(1e-4); /* sums of all rows in fp32 */
        for (int64_t i = 0; i < p.n[k] && op_expects; i++) {
            const double was = p.in[k][i], step = 1e-5;
            p.in[k][i] = was + step;
            const double more = loss(&p, dy, y);
            p.in[k][i] = was - step;
            d[i] += (more - loss(&p, dy, y)) / (2 * step);
            p.in[k][i] = was;
        }
    }
    op_scratch((int64_t)tess_delta_scratch(&a, true));
    op_run(&tess_delta_rule_backward[t], &a);
}

/* A forward pass, and a backward pass that takes the CPU's states. */
static void tasks(tess_delta_arg a, tess_dtype t)
{
    const uint64_t dice = op_dice;
    const struct problem p = put(a, dice, t);
    const int64_t kept = (int64_t)tess_delta_states(&a) / 4;
    double *y = op_out("y", a.rows * a.heads * a.dim_v, t, false);
    float *states = op_any("states", kept, TESS_F32, false), *made = tess_alloc((size_t)kept * sizeof *made);
    if (op_expects) expect(&p, y);
    op_scratch((int64_t)tess_delta_scratch(&a, false));
    tess_view view[OP_BUFFERS];
    for (int i = 0; i < op_buffers; i++)
        view[i] = (tess_view){op_buffer[i].data, (size_t)op_buffer[i].n * op_size_of(op_buffer[i].type)};
    tess_delta_rule_forward[t].cpu(&(tess_work){.buf = view, .nbuf = (unsigned)op_buffers, .arg = &a, .env = &op_env});
    memcpy(made, states, (size_t)kept * sizeof *made);
    op_run(&tess_delta_rule_forward[t], &a);
    if (a.keeps) backward(a, dice, made, t);
    free(made);
}

/* Rows that go on with a text of sequence 0 at place 40; of sequence 1 a text begins behind two rows of padding, and
 * two more are behind its end. */
static void cached(tess_delta_arg a, tess_dtype t)
{
    a.cached = true, a.bounded = false;
    const int64_t behind = a.taps - 1, channels = channels_of(&a), wide = wide_of(&a), n = 2 * behind * channels;
    struct problem p = put(a, op_dice, t);
    int32_t *b = op_raw("bounds", 2 * a.rows, TESS_I32);
    p.bounds = b, p.a.bounded = true;
    for (int64_t r = 0; r < a.rows; r++) {
        const int64_t s = r / a.sequence, i = r % a.sequence, place = 40 + i;
        const bool sees = s == 0 || a.sequence == 1 || (i >= 2 && i < a.sequence - 2);
        b[2 * s * a.sequence + i] = (int32_t)(!sees ? place + 1 : s && a.sequence > 1 ? 42 : 3);
        b[(2 * s + 1) * a.sequence + i] = (int32_t)place + 1;
    }
    double *y = op_out("y", a.rows * a.heads * a.dim_v, t, false);
    double *states = op_out("states", 2 * a.heads * a.dim * wide, TESS_F32, true);
    float *stored = op_buffer[op_buffers - 1].data;
    for (int64_t i = 0; i < 2 * a.heads * a.dim * wide; i++)
        if (i % wide >= a.dim_v) states[i] = stored[i] = 0; /* columns that there are not */
    double *earlier = op_out("earlier", n, t, true), *was = op_zeros(n);
    memcpy(was, earlier, (size_t)n * sizeof *was);
    p.states = states, p.earlier = was;
    if (op_expects) expect(&p, y);
    for (int64_t s = 0; s < 2; s++)
        for (int64_t k = 0; k < behind; k++)
            for (int64_t c = 0; c < channels; c++) {
                const int64_t seen = s && a.sequence > 1 ? a.sequence - 2 : a.sequence, row = seen - behind + k;
                earlier[(s * behind + k) * channels + c] = row < 0 ? was[(s * behind + behind + row) * channels + c]
                                                                   : p.in[X][(s * a.sequence + row) * channels + c];
            }
    op_scratch((int64_t)tess_delta_scratch(&p.a, false));
    op_run(&tess_delta_rule_forward[t], &p.a);
}

OP_TASKS(delta_rule)
{
    const tess_delta_arg plain = {.rows = 21, .sequence = 7, .heads = 2, .groups = 1, .dim = 3, .dim_v = 5, .taps = 4};
    OP_EACH(t) OP_EACH_ACC(acc)
    {
        tess_delta_arg a = plain;
        a.keeps = true;
        a.acc = a.acc_taps = a.acc_b = acc;
        a.acc_a = a.acc_logs = a.acc_biases = !acc;
        if (op_speed) {
            a = (tess_delta_arg){256, 256, 4, 2, 128, 128, 4, .keeps = true};
            tasks(a, t);
            continue;
        }
        tasks(a, t);
        a.rows = 3 * 17, a.sequence = 17, a.bounded = true, a.heads = a.groups = 2, a.dim = 4, a.dim_v = 17, a.taps = 2;
        tasks(a, t);
        a.rows = a.sequence = 130, a.bounded = false, a.heads = 2, a.groups = 1, a.dim = 5, a.dim_v = 3;
        tasks(a, t);
        a.keeps = false;
        tasks(a, t);
        a = plain;
        a.rows = 2, a.sequence = 1;
        cached(a, t);
        a.rows = 2 * 75, a.sequence = 75, a.heads = 4, a.groups = 2;
        cached(a, t);
    }
}

OP_NET(delta_rule)
{
    tess_tensor *qkv = tess_linear(x, OP_PARAM("qkv", 2 * 6 + 20, 20, TESS_NORMAL(0.4f)), NULL);
    tess_tensor *b = tess_linear(x, OP_PARAM("b", 4, 20, TESS_NORMAL(0.4f)), NULL);
    tess_tensor *a = tess_linear(x, OP_PARAM("a", 4, 20, TESS_NORMAL(0.4f)), NULL);
    return tess_delta_rule(qkv, OP_PARAM("taps", 32, 4, TESS_NORMAL(0.5f)), b, a, OP_PARAM("logs", 4, 1, TESS_ZERO),
                           OP_PARAM("biases", 4, 1, TESS_ONE), (tess_delta_conf){.heads = 4, .groups = 2, .dim = 3});
}
