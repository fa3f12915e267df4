/* cached_attention: rows appended to tiles, and queries that see several of them, in one task and in two; with windows,
 * caps, biases, padding, packed and not, few queries and many. */
#include "tests/ops/ops.h"

enum { BLOCK = 32, MOST_TILES = 3 };

/* Row i of sequence s is at place `last` - queries + 1 + i, and sees from `first` on; the first row of the last
 * sequence is padding. */
static int32_t *put_bounds(const tess_cached_arg *a, int64_t last)
{
    int32_t *b = op_raw("bounds", 2 * a->sequences * a->queries, TESS_I32);
    for (int64_t s = 0; s < a->sequences; s++)
        for (int64_t i = 0; i < a->queries; i++) {
            const int64_t place = last - a->queries + 1 + i;
            const bool pads = s == a->sequences - 1 && i == 0 && a->queries > 1;
            b[2 * s * a->queries + i] = (int32_t)(pads ? place + 1 : 3 * s);
            b[(2 * s + 1) * a->queries + i] = (int32_t)place + 1;
        }
    return b;
}

static int64_t part_at(const tess_cached_arg *a, int part, int64_t r, int64_t head)
{
    const int64_t wide = a->heads * a->dim, narrow = a->groups * a->dim, row = r * (wide + 2 * narrow);
    if (!a->packed) return r * (part ? narrow : wide) + head * a->dim;
    if (a->by_head) return row + (3 * head + part) * a->dim;
    return row + (part ? wide + (part - 1) * narrow : 0) + head * a->dim;
}

static void append(tess_cached_arg a, int64_t last, tess_dtype t)
{
    a.tiles = 1, a.first = last / BLOCK * BLOCK;
    const int64_t rows = a.sequences * a.queries, narrow = a.groups * a.dim;
    const int64_t all = a.sequences * narrow * BLOCK;
    const double *k = op_in("k", rows * (a.packed ? a.heads * a.dim + 2 * narrow : narrow), t, 1);
    const double *v = a.packed ? k : op_in("v", rows * narrow, t, 1);
    const int32_t *bounds = a.own ? put_bounds(&a, last) : NULL;
    double *keys = op_out("keys", all, t, true), *values = op_out("values", all, t, true);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t s = r / a.queries, i = r % a.queries;
        const int64_t place = (bounds ? bounds[(2 * s + 1) * a.queries + i] - 1 : i) - a.first;
        if (bounds && bounds[2 * s * a.queries + i] > bounds[(2 * s + 1) * a.queries + i] - 1) continue; /* padding */
        for (int64_t e = 0; e < narrow && place >= 0 && place < BLOCK; e++) {
            const int64_t g = e / a.dim, d = e % a.dim, at = (s * a.groups + g) * a.dim * BLOCK;
            keys[at + d * BLOCK + place] = k[part_at(&a, 1, r, g) + d];
            values[at + place * a.dim + d] = v[part_at(&a, 2, r, g) + d];
        }
    }
    op_run(&tess_cache_append[t], &a);
}

/* y of one query of a head, in double. */
static void attend_one(const tess_cached_arg *a, const double *q, const int32_t *bounds, const double *bias,
                       const double *sinks, double *const *keys, double *const *values, int64_t s, int64_t i,
                       int64_t head, double *y)
{
    const int64_t group = head / (a->heads / a->groups), at = (s * a->groups + group) * a->dim * BLOCK;
    const int64_t end = bounds[(2 * s + 1) * a->queries + i];
    int64_t first = bounds[2 * s * a->queries + i];
    if (a->window && end - a->window > first) first = end - a->window;
    const tess_attention_arg by = {.buckets = a->buckets, .reach = a->reach, .causal = a->causal};
    double sum = sinks ? exp(sinks[head]) : 0;
    for (int64_t d = 0; d < a->dim; d++) y[d] = 0;
    for (int64_t k = first; k < end; k++) {
        const int64_t tile = (k - a->first) / BLOCK, in = (k - a->first) % BLOCK;
        double logit = 0;
        for (int64_t d = 0; d < a->dim; d++)
            logit += q[part_at(a, 0, s * a->queries + i, head) + d] * keys[tile][at + d * BLOCK + in];
        logit *= (double)a->scale;
        if (a->cap > 0) logit = (double)a->cap * tanh(logit / (double)a->cap);
        if (bias) logit += bias[tess_attention_bucket(&by, k - (end - 1)) * a->heads + head];
        sum += exp(logit);
        for (int64_t d = 0; d < a->dim; d++) y[d] += exp(logit) * values[tile][at + in * a->dim + d];
    }
    for (int64_t d = 0; d < a->dim && sum > 0; d++) y[d] /= sum;
}

static void attend(tess_cached_arg a, int64_t last, tess_dtype t)
{
    const int64_t rows = a.sequences * a.queries, all = a.sequences * a.groups * a.dim * BLOCK;
    const int64_t share = a.heads / a.groups, width = a.some * share * a.dim;
    a.first = 0, a.tiles = last / BLOCK + 1, a.begins = a.ends = true;
    const double *q = op_in("q", rows * (a.packed ? (a.heads + 2 * a.groups) * a.dim : a.heads * a.dim), t, 1);
    const int32_t *bounds = put_bounds(&a, last);
    const double *bias = a.buckets ? op_in("bias", a.buckets * a.heads, t, 1) : NULL;
    const double *sinks = a.sinks ? op_in("sinks", a.heads, TESS_F32, 2) : NULL;
    double *keys[MOST_TILES], *values[MOST_TILES];
    for (int64_t k = 0; k < a.tiles; k++) keys[k] = op_in("keys", all, t, 1);
    for (int64_t k = 0; k < a.tiles; k++) values[k] = op_in("values", all, t, 1);
    double *y = op_out("y", rows * width, t, false);
    for (int64_t r = 0; r < rows && op_expects; r++)
        for (int64_t h = 0; h < a.some * share; h++)
            attend_one(&a, q, bounds, bias, sinks, keys, values, r / a.queries, r % a.queries, a.group0 * share + h,
                       y + r * width + h * a.dim);
    op_scratch((int64_t)tess_cached_scratch(&a, t));
    op_run(&tess_cached_attention[t], &a);
}

OP_TASKS(cached_attention)
{
    const tess_cached_arg plain = {.sequences = 2,
                                   .queries = 3,
                                   .heads = 4,
                                   .groups = 2,
                                   .dim = 12,
                                   .block = BLOCK,
                                   .some = 2,
                                   .scale = 0.3f,
                                   .own = true,
                                   .causal = true};
    if (op_speed) return;
    OP_EACH(t)
    {
        tess_cached_arg a = plain;
        append(a, 40, t), attend(a, 40, t);
        attend(a, 70, t); /* three tiles */
        a.window = 35;
        attend(a, 70, t);
        a.window = 0, a.cap = 2;
        attend(a, 70, t);
        a.cap = 0, a.buckets = 8, a.reach = 20;
        attend(a, 70, t);
        a.sinks = true;
        attend(a, 70, t);
        a.buckets = 0, a.queries = 20, a.group0 = 1, a.some = 1;
        attend(a, 70, t);
        a = plain, a.packed = true;
        append(a, 40, t), attend(a, 40, t);
        a.groups = a.heads, a.some = 3, a.group0 = 1, a.by_head = true;
        append(a, 40, t), attend(a, 40, t);
        a = plain, a.own = false, a.queries = 20;
        append(a, 20, t);
        a = plain, a.queries = 20, a.dim = 64;
        attend(a, 70, t);
        a.queries = 1, a.sequences = 3;
        attend(a, 0, t), attend(a, 95, t);
    }
}

/* It has no backward pass: generation's networks have tests of their own. */
OP_NET(cached_attention)
{
    return x;
}
