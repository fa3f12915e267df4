/* balance: statistics of a router, those of one before it, and the loss of them. */
#include "tests/ops/experts.h"

static int64_t numbers_of(const struct experts *k)
{
    return 2 * k->experts + 1;
}

static double share(const double *logits, int64_t experts, int64_t e)
{
    double whole = 0;
    for (int64_t i = 0; i < experts; i++) whole += exp(logits[i]);
    return exp(logits[e]) / whole;
}

/* fp16 has no room for counts of many rows. */
static double unit(tess_dtype t)
{
    return t == TESS_F16 ? 1.0 / 1024 : 1;
}

/* What is stored of a sum: the number as rounded, and what was lost, of which not more than a bit is expected. */
static void statistics(const struct experts *k, int64_t sequences, bool before, tess_dtype t)
{
    const int64_t E = k->experts, n = numbers_of(k), T = k->rows / sequences;
    double *logits = op_in("logits", k->rows * E, t, 1);
    const tess_order o = experts_put_order(k);
    double *y = op_out("statistics", sequences * 2 * n, t, false);
    double *b = before ? op_in("before", sequences * 2 * n, t, 1) : NULL;
    for (int64_t s = 0; s < sequences; s++) {
        double *sum = op_zeros(n);
        for (int64_t i = 0; i < n && before; i++) sum[i] = (b[s * 2 * n + i] + b[s * 2 * n + n + i]) / unit(t);
        for (int64_t r = s * T; r < (s + 1) * T; r++) {
            if (o.expert[r * k->chosen] < 0) continue;
            for (int64_t e = 0; e < E; e++) sum[E + e] += share(logits + r * E, E, e);
            for (int64_t c = 0; c < k->chosen; c++) sum[o.expert[r * k->chosen + c]]++;
            sum[2 * E]++;
        }
        for (int64_t i = 0; i < n; i++) {
            sum[i] *= unit(t);
            const float high = t == TESS_F32 ? (float)sum[i] : tess_from_half(t, tess_to_half(t, (float)sum[i]));
            y[s * 2 * n + i] = (double)high;
            y[s * 2 * n + n + i] = sum[i] - (double)high;
        }
    }
    op_run(&tess_balance_forward[t],
           &(tess_balance_arg){.rows = k->rows, .experts = E, .chosen = k->chosen, .sequence = T, .before = before});
}

static void gradient(const struct experts *k, int64_t sequences, bool acc, tess_dtype t)
{
    const int64_t E = k->experts, n = numbers_of(k), T = k->rows / sequences;
    double *dy = op_in("dy", sequences * 2 * n, t, 1), *logits = op_in("logits", k->rows * E, t, 1);
    const tess_order o = experts_put_order(k);
    double *dx = op_out("dlogits", k->rows * E, t, acc);
    for (int64_t r = 0; r < k->rows; r++) {
        const double *g = dy + r / T * 2 * n + E;
        double mean = 0;
        if (o.expert[r * k->chosen] < 0) continue;
        for (int64_t e = 0; e < E; e++) mean += share(logits + r * E, E, e) * g[e];
        for (int64_t e = 0; e < E; e++) dx[r * E + e] += share(logits + r * E, E, e) * (g[e] - mean);
    }
    op_run(&tess_balance_backward[t],
           &(tess_balance_arg){.rows = k->rows, .experts = E, .chosen = k->chosen, .sequence = T, .acc = acc});
}

/* Two tiles, of two sequences and of one; `told`: of the second, and of the loss, another rank takes care. All of it in
 * counts of rows as they may be. */
static void loss(int64_t E, double weight, double scale, bool told, tess_dtype t)
{
    const int64_t n = 2 * E + 1, sequences[] = {2, 1};
    double *want = op_out("loss", 2, OP_DOUBLE, false), *s[2], *sum = op_zeros(n), all = 0;
    for (int k = 0; k < 2; k++) {
        s[k] = op_zeros(sequences[k] * 2 * n);
        for (int64_t q = 0; q < sequences[k]; q++)
            for (int64_t i = 0; i < n; i++) s[k][q * 2 * n + i] = i < 2 * E ? 1 + fabs(op_roll()) : (double)E;
        op_given("statistics", sequences[k] * 2 * n, t, s[k]);
        for (int64_t q = 0; q < sequences[k]; q++)
            for (int64_t i = 0; i < n; i++) sum[i] += (s[k][q * 2 * n + i] + s[k][q * 2 * n + n + i]) / unit(t);
    }
    const double by = weight * (double)E / (sum[2 * E] * sum[2 * E]);
    for (int64_t e = 0; e < E; e++) all += sum[e] * sum[E + e];
    op_env.loss_scale[0] = (float)scale / 96;
    op_env.unscale = 1 / scale;
    want[0] = told ? 0 : by * all * 96;
    for (int k = 0; k < (told ? 1 : 2); k++) {
        double *d = op_out("gradients", sequences[k] * 2 * n, t, false);
        for (int64_t q = 0; q < sequences[k]; q++)
            for (int64_t e = 0; e < E; e++) d[q * 2 * n + E + e] = scale * by * sum[e];
    }
    op_run(&tess_balance_loss[t],
           &(tess_balance_arg){.experts = E, .tiles = 2, .own = told ? 1 : 2, .told = told, .weight = weight});
    op_env.loss_scale[0] = 0;
    op_env.unscale = 1;
}

OP_TASKS(balance)
{
    const float scale = op_env.loss_scale[0];
    OP_EACH(t)
    {
        for (int k = 0; k < EXPERTS_KINDS; k++)
            for (int how = 0; how < 2; how++) {
                const int64_t sequences = experts_kinds[k].rows == 70 ? 5 : 1;
                statistics(&experts_kinds[k], sequences, how, t);
                gradient(&experts_kinds[k], sequences, how, t);
            }
        loss(3, 0.02, 1, false, t);
        loss(40, 1, 8, false, t);
        loss(40, 1, 8, true, t);
    }
    op_env.loss_scale[0] = scale;
}

/* Its way is to the loss, past the block: test_graph has it. */
OP_NET(balance)
{
    return x;
}
