/* attention: shapes for tensor cores and for the general kernels; and, for CPUs alone, what comes in several blocks and
 * parts, beside softmax and its gradient in double. */
#include "codelets/shared/scalar.h"
#include "tests/ops/ops.h"

enum { Q, K, V };
struct shape {
    int64_t length, sequences, heads, groups, dim;
    bool causal, packed, acc;
    float dropout;
    int64_t window, keys, buckets;
    float cap;
    bool bounded, by_head, short_keys; /* short: every query sees the first few keys alone */
    bool low;                          /* logits about -128: what is past the end, a logit of 0, would be 2^185 */
    bool rising, falling;              /* logits in the hundreds: the running maximum must follow */
    float scale;                       /* 0: 1 / sqrt(dim) */
    int64_t reach;                     /* 0: 64 */
};

/* ---- where things are ---- */

static int64_t width(const tess_attention_arg *a, int which)
{
    return (which == Q ? a->heads : a->groups) * a->dim;
}
static int64_t keys_of(const tess_attention_arg *a)
{
    return a->keys ? a->keys : a->sequence;
}
static int64_t rows_of(const tess_attention_arg *a, int which)
{
    return which == Q ? a->rows : a->rows / a->sequence * keys_of(a);
}
/* Where head h of row r of q, k or v begins: in a tensor of its own, or among all three side by side. */
static int64_t place(const tess_attention_arg *a, int which, int64_t r, int64_t h)
{
    const int64_t all = r * (width(a, Q) + 2 * width(a, K));
    if (!a->packed) return r * width(a, which) + h * a->dim;
    if (a->by_head) return all + (3 * h + which) * a->dim;
    return all + (which == Q ? 0 : width(a, Q) + (which - 1) * width(a, K)) + h * a->dim;
}
/* The same of gradients: those of spans have q's by itself, and k's and v's side by side. */
static int64_t gradient_place(const tess_attention_arg *a, bool span, int which, int64_t r, int64_t h)
{
    if (!a->packed || !span) return place(a, which, r, h);
    if (which == Q) return r * width(a, Q) + h * a->dim;
    return 2 * r * width(a, K) + (a->by_head ? (2 * h + which - K) * a->dim : (which - K) * width(a, K) + h * a->dim);
}

/* ---- in double ---- */

struct problem {
    const tess_attention_arg *a;
    const double *in[3], *table; /* packed: all three are one */
    const int32_t *bounds;
    int64_t queries[2], keys[2]; /* what the gradients are of: from, to; to 0: all */
};

/* T5's: half of the buckets are exact, the others go by the logarithm; with both sides half are for what lies behind.
 */
static int64_t bucket(const tess_attention_arg *a, int64_t distance)
{
    const int64_t n = a->causal ? a->buckets : a->buckets / 2, base = !a->causal && distance > 0 ? n : 0;
    const int64_t far = distance < 0 ? -distance : a->causal ? 0 : distance, exact = n / 2;
    if (far < exact) return base + far;
    const float share = logf((float)far / (float)exact) / (float)log((double)a->reach / (double)exact);
    const int64_t log_bucket = exact + (int64_t)(share * (float)(n - exact));
    return base + (log_bucket < n - 1 ? log_bucket : n - 1);
}

/* Query i of sequence s sees key j. */
static bool sees(const struct problem *p, int64_t s, int64_t i, int64_t j)
{
    const tess_attention_arg *a = p->a;
    const int32_t *first = p->bounds + 2 * s * a->sequence;
    if ((a->causal && j > i) || (a->window && j <= i - a->window)) return false;
    return !a->bounded || (j >= first[i] && j < first[a->sequence + i]);
}

/* What dropout makes of head h's probability at a place. */
static double keep(const tess_attention_arg *a, int64_t s, int64_t h, int64_t i, int64_t j)
{
    if (a->dropout == 0 || !op_env.train) return 1;
    const int64_t heads = a->all_heads ? a->all_heads : a->heads;
    const uint64_t head = (uint64_t)((a->row0 / a->sequence + s) * heads + a->head0 + h);
    const tess_random_key op = tess_random_begin(op_env.seed, (uint64_t)op_env.step, a->op);
    const uint64_t z = tess_random_mix(((uint64_t)op.b << 32 | op.a) + head * 0x9e3779b97f4a7c15u);
    const uint64_t at = (uint64_t)(i / 16 * 8 + i % 8) << 32 | (uint64_t)(j / 16 * 8 + j % 8);
    const uint32_t r = tess_random_at((tess_random_key){(uint32_t)z, (uint32_t)(z >> 32)}, at);
    const int byte = (int)(i / 8 % 2 * 2 + j / 8 % 2);
    const double dropped = round((double)a->dropout * 256);
    return (r >> 8 * byte & 255) >= dropped ? 256 / (256 - dropped) : 0;
}

/* The probabilities (keys) of a query, and what a change of its logits is by what bends them; returns its lse. */
static double softmax(const struct problem *x, int64_t s, int64_t h, int64_t i, double *p, double *slope)
{
    const tess_attention_arg *a = x->a;
    const int64_t keys = keys_of(a), group = h / (a->heads / a->groups);
    const double *q = x->in[Q] + place(a, Q, s * a->sequence + i, h);
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        p[j] = -INFINITY;
        if (!sees(x, s, i, j)) continue;
        p[j] = (double)a->scale * op_dot(q, 1, x->in[K] + place(a, K, s * keys + j, group), 1, a->dim);
        slope[j] = (double)a->scale;
        if (a->buckets) p[j] += x->table[bucket(a, j - i) * a->heads + h];
        if (a->cap > 0) {
            const double bent = tanh(p[j] / (double)a->cap);
            p[j] = (double)a->cap * bent;
            slope[j] *= 1 - bent * bent;
        }
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < keys; j++) sum += p[j] = isinf(p[j]) ? 0 : exp(p[j] - most);
    for (int64_t j = 0; j < keys && sum > 0; j++) p[j] /= sum;
    return sum > 0 ? most + log(sum) : INFINITY;
}

static void add_row(double *to, const double *row, double times, int64_t n)
{
    for (int64_t c = 0; c < n; c++) to[c] += times * row[c];
}

static void expect_forward(const struct problem *x, double *y, double *lse)
{
    const tess_attention_arg *a = x->a;
    const int64_t keys = keys_of(a);
    double *p = op_zeros(keys), *slope = op_zeros(keys);
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t s = r / a->sequence, i = r % a->sequence, group = h / (a->heads / a->groups);
            lse[r * a->heads + h] = softmax(x, s, h, i, p, slope);
            for (int64_t j = 0; j < keys; j++)
                if (p[j] > 0)
                    add_row(y + (r * a->heads + h) * a->dim, x->in[V] + place(a, V, s * keys + j, group),
                            p[j] * keep(a, s, h, i, j), a->dim);
        }
}

/* Adds to the gradients of q, k, v and, unless it is NULL, of the table. */
static void expect_backward(const struct problem *x, const double *dy, double *const d[3], double *dtable)
{
    const tess_attention_arg *a = x->a;
    const int64_t keys = keys_of(a);
    const bool span = x->queries[1] > 0;
    double *p = op_zeros(keys), *dp = op_zeros(keys), *slope = op_zeros(keys);
    for (int64_t r = x->queries[0]; r < (x->queries[1] ? x->queries[1] : a->rows); r++)
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t s = r / a->sequence, i = r % a->sequence, group = h / (a->heads / a->groups);
            const double *of = dy + (r * a->heads + h) * a->dim;
            double delta = 0;
            softmax(x, s, h, i, p, slope);
            const int64_t from = x->keys[0], to = x->keys[1] ? x->keys[1] : keys;
            for (int64_t j = 0; j < keys; j++) {
                if (p[j] == 0) continue;
                const int64_t v = place(a, V, s * keys + j, group);
                const double kept = keep(a, s, h, i, j);
                dp[j] = kept * op_dot(of, 1, x->in[V] + v, 1, a->dim);
                delta += p[j] * dp[j];
                const int64_t dv = gradient_place(a, span, V, s * keys + j, group);
                if (j >= from && j < to) add_row(d[V] + dv, of, p[j] * kept, a->dim);
            }
            const int64_t q = place(a, Q, r, h);
            for (int64_t j = from; j < to; j++) {
                if (p[j] == 0) continue;
                const int64_t k = place(a, K, s * keys + j, group);
                const double ds = p[j] * (dp[j] - delta);
                if (dtable) dtable[bucket(a, j - i) * a->heads + h] += ds;
                add_row(d[Q] + gradient_place(a, span, Q, r, h), x->in[K] + k, ds * slope[j], a->dim);
                add_row(d[K] + gradient_place(a, span, K, s * keys + j, group), x->in[Q] + q, ds * slope[j], a->dim);
            }
        }
}

/* ---- the tasks ---- */

/* Two documents a sequence, and padding that sees nothing; of another sequence's keys all but two. */
static const int32_t *put_bounds(const tess_attention_arg *a, bool short_keys)
{
    int32_t *to = op_raw("bounds", 2 * a->rows, TESS_I32);
    const int64_t T = a->sequence, K = keys_of(a);
    for (int64_t s = 0; s < a->rows / T; s++)
        for (int64_t i = 0; i < T; i++) {
            const int64_t real = T - T * s / 5, middle = real / 3;
            const bool apart = K != T, early = apart || i < middle;
            int32_t *first = to + 2 * s * T + i, *end = first + T;
            *first = (int32_t)(short_keys || early || i >= real ? 0 : middle);
            *end = (int32_t)(short_keys ? K / 5 : i >= real ? 0 : apart ? K - 2 : early ? middle : real);
        }
    return to;
}

/* What is first in a row of q or k where logits are not to be as they come. */
static void bend(void *x, int64_t n, tess_dtype t, const tess_attention_arg *a, const struct shape *of, int which)
{
    const double ramp = of->falling ? -0.7 : 0.7;
    for (int64_t i = 0; i < n && which != V && (of->low || of->rising || of->falling); i++) {
        const bool first = i % a->dim == 0;
        if (of->low && first) op_put(x, i, (int)t, which == Q ? 32 : -32);
        if (!of->low && first) op_put(x, i, (int)t, which == Q ? 1 : ramp * (double)(i / a->dim));
    }
}

/* The buffers of what a task reads: drawn, or, where `kept` has them from before, the same again. */
static void put_inputs(tess_dtype t, const tess_attention_arg *a, const struct shape *of, void *kept[4],
                       struct problem *p)
{
    static const char *const name[] = {"q", "k", "v"};
    *p = (struct problem){.a = a};
    for (int j = 0; j < 4; j++) {
        if (j == 3 && a->bounded) p->bounds = put_bounds(a, of->short_keys);
        if ((a->packed && (j == K || j == V)) || (j == 3 && !a->buckets)) continue;
        const int64_t n = j == 3      ? a->buckets * a->heads
                          : a->packed ? a->rows * (width(a, Q) + 2 * width(a, K))
                                      : rows_of(a, j) * width(a, j);
        const size_t bytes = (size_t)n * tess_dtype_size(t);
        void *x = op_drawn(j == 3 ? "bias" : a->packed ? "qkv" : name[j], n, (int)t, 0.7);
        if (!kept[j]) {
            bend(x, n, t, a, of, j);
            kept[j] = memcpy(tess_alloc(bytes), x, bytes);
        }
        memcpy(x, kept[j], bytes);
        double *in = op_zeros(n);
        for (int64_t i = 0; i < n; i++) in[i] = op_value(x, i, (int)t);
        if (j == 3)
            p->table = in;
        else
            for (int i = j; i < (a->packed ? 3 : j + 1); i++) p->in[i] = in;
    }
}

/* Returns a copy of an output of what the CPU makes of the task. */
static void *made_by_cpu(tess_codelet *cl, const void *arg, const struct op_buffer *of)
{
    tess_view view[OP_BUFFERS];
    for (int i = 0; i < op_buffers; i++)
        view[i] = (tess_view){op_buffer[i].data, (size_t)op_buffer[i].n * op_size_of(op_buffer[i].type)};
    cl->cpu(&(tess_work){.buf = view, .nbuf = (unsigned)op_buffers, .arg = arg, .env = &op_env});
    const size_t bytes = (size_t)of->n * op_size_of(of->type);
    return memcpy(tess_alloc(bytes), of->data, bytes);
}

static void backward(tess_dtype t, const tess_attention_arg *a, const struct shape *of, void *kept[4], const void *y,
                     const void *lse)
{
    static const char *const name[] = {"dq", "dk", "dv"};
    struct problem p;
    double *d[3], *dtable = NULL;
    const int64_t wide = a->rows * width(a, Q), lse_n = a->rows * a->heads;
    const double *dy = op_in("dy", wide, (int)t, 1);
    put_inputs(t, a, of, kept, &p);
    memcpy(op_raw("y", wide, (int)t), y, (size_t)wide * tess_dtype_size(t));
    memcpy(op_raw("lse", lse_n, TESS_F32), lse, (size_t)lse_n * sizeof(float));
    for (int j = 0; j < 3; j++) {
        d[j] = j && a->packed ? d[0]
               : a->packed    ? op_out("dqkv", a->rows * (width(a, Q) + 2 * width(a, K)), (int)t, a->acc)
                              : op_out(name[j], rows_of(a, j) * width(a, j), (int)t, a->acc);
        if (of->low && j == Q) op_within(2e-2); /* k is about -32, of which little is left */
    }
    if (a->buckets) {
        dtable = op_out("dbias", a->buckets * a->heads, TESS_F32, a->acc_bias);
        if (t != TESS_F32) op_within(2.5e-2);
    }
    if (op_expects) expect_backward(&p, dy, d, dtable);
    op_scratch((int64_t)tess_attention_scratch(a, t));
    op_run(&tess_attention_backward[t], a);
}

/* A forward pass, and a backward pass that takes the CPU's y and lse. */
static void attention(tess_dtype t, tess_attention_arg a, const struct shape *of)
{
    struct problem p;
    void *kept[4] = {0};
    put_inputs(t, &a, of, kept, &p);
    double *y = op_out("y", a.rows * width(&a, Q), (int)t, false);
    const int at = op_buffers - 1;
    if (of->rising || of->falling) op_within(1e-4); /* logits near 770 are known to 6e-5 */
    double *lse = op_out("lse", a.rows * a.heads, TESS_F32, false);
    if (op_expects) expect_forward(&p, y, lse);
    op_scratch((int64_t)tess_attention_scratch(&a, t));
    void *y_made = made_by_cpu(&tess_attention_forward[t], &a, &op_buffer[at]);
    void *lse_made = made_by_cpu(&tess_attention_forward[t], &a, &op_buffer[at + 1]);
    op_run(&tess_attention_forward[t], &a);
    if (!of->rising && !of->falling) backward(t, &a, of, kept, y_made, lse_made);
    for (int j = 0; j < 4; j++) free(kept[j]);
    free(y_made);
    free(lse_made);
}

static tess_attention_arg arg_of(const struct shape *s, bool part)
{
    return (tess_attention_arg){.rows = s->length * s->sequences,
                                .sequence = s->length,
                                .heads = s->heads,
                                .groups = s->groups,
                                .dim = s->dim,
                                .scale = s->scale > 0 ? s->scale : 1 / sqrtf((float)s->dim),
                                .dropout = s->dropout,
                                .causal = s->causal,
                                .window = s->window,
                                .keys = s->keys,
                                .buckets = s->buckets,
                                .reach = s->reach ? s->reach : 64,
                                .cap = s->cap,
                                .bounded = s->bounded,
                                .acc_bias = s->acc,
                                .packed = s->packed,
                                .by_head = s->by_head,
                                .head0 = part ? 2 : 0,
                                .all_heads = part ? s->heads + 3 : 0,
                                .row0 = s->length * 3,
                                .op = 4,
                                .acc = s->acc};
}

/* ---- tasks of spans ---- */

/* What is carried from task to task in the form of y and lse: maxima rise when a body likes. */
static const tess_attention_arg *carried_of;
static void carry_form(void *data)
{
    const tess_attention_arg *a = carried_of;
    const int64_t dim = (a->dim + 31) / 32 * 32, blocks = (a->sequence + 63) / 64;
    for (int64_t i = 0; i < a->heads * blocks * 64; i++) {
        const int64_t block = i / 64, query = block % blocks * 64 + i % 64;
        float *o = (float *)data + block * (dim + 2) * 64 + i % 64, *top = o + dim * 64, *sum = top + 64;
        const bool known = query<a->sequence && * sum> 0;
        for (int64_t c = 0; c < dim; c++) o[c * 64] = known && c < a->dim ? o[c * 64] / *sum : 0;
        *top = known ? *top + log2f(*sum) : 0, *sum = 0;
    }
}

/* A sequence that is cut into spans, and what is expected of it whole. */
struct sequence {
    tess_attention_arg whole, a; /* a: of the task */
    tess_dtype t;
    double *in[3], *table, *y, *lse, *dy;
    int32_t *bounds;
    void *carry;
    int64_t rows, queries, keys; /* of a span; of these */
};

static int64_t wide(const tess_attention_arg *a, int which)
{
    return a->packed ? width(a, Q) + 2 * width(a, K) : width(a, which);
}

/* Keys k0... for queries q0... */
static void meet(struct sequence *s, int64_t q0, int64_t k0)
{
    tess_attention_arg *a = &s->a;
    const int64_t all = s->whole.sequence, oldest = q0 + 1 - a->window;
    const int64_t first = a->window && oldest > 0 ? oldest / s->rows * s->rows : 0;
    a->whole = all, a->query0 = q0, a->key0 = k0;
    a->rows = a->sequence = q0 + s->rows < all ? s->rows : all - q0;
    a->keys = k0 + s->rows < all ? s->rows : all - k0;
    a->begins = k0 == first, a->ends = a->causal ? k0 == q0 : k0 + s->rows >= all;
    a->acc = q0 > (a->causal ? k0 : 0);
}

static void put_spans(struct sequence *s)
{
    static const char *const name[] = {"q", "k", "v"};
    const tess_attention_arg *a = &s->a;
    for (int j = Q; j <= V; j++) {
        if (a->packed && (j == V || (j == K && a->query0 == a->key0))) continue;
        const int64_t n = wide(a, j);
        op_given(a->packed ? "qkv" : name[j], (j == Q ? a->sequence : a->keys) * n, (int)s->t,
                 s->in[j] + (j == Q ? a->query0 : a->key0) * n);
    }
    const size_t bytes = (size_t)(2 * a->whole) * sizeof *s->bounds;
    if (a->bounded) memcpy(op_raw("bounds", 2 * a->whole, TESS_I32), s->bounds, bytes);
    if (a->buckets) op_given("bias", a->buckets * a->heads, (int)s->t, s->table);
}

static void span_forward(struct sequence *s)
{
    const tess_attention_arg *a = &s->a;
    const int64_t n = (int64_t)tess_attention_carry(a) / 4, y = a->sequence * width(a, Q), lse = a->sequence * a->heads;
    put_spans(s);
    carried_of = a;
    if (!a->begins) memcpy(op_raw("carry", n, TESS_F32), s->carry, (size_t)n * sizeof(float));
    if (!a->begins && !a->ends) op_buffer[op_buffers - 1].kind = OP_OUT, op_buffer[op_buffers - 1].acc = true;
    if (a->begins && !a->ends) op_any("carry", n, TESS_F32, false);
    const int at = op_buffers - 1;
    if (!a->ends) op_of_form(carry_form);
    if (!a->ends && s->t != TESS_F32)
        op_within(2e-3); /* a CPU that multiplies 16 bits as fp32 rounds no probabilities */
    if (a->ends) memcpy(op_out("y", y, (int)s->t, false), s->y + a->query0 * width(a, Q), (size_t)y * sizeof(double));
    if (a->ends)
        memcpy(op_out("lse", lse, TESS_F32, false), s->lse + a->query0 * a->heads, (size_t)lse * sizeof(double));
    op_scratch((int64_t)tess_attention_scratch(a, s->t));
    void *kept = a->ends ? NULL : tess_alloc((size_t)n * sizeof(float));
    if (kept && !a->begins) memcpy(kept, s->carry, (size_t)n * sizeof(float));
    if (kept) {
        tess_view view[OP_BUFFERS];
        for (int i = 0; i < op_buffers; i++)
            view[i] = (tess_view){op_buffer[i].data, (size_t)op_buffer[i].n * op_size_of(op_buffer[i].type)};
        view[at].ptr = kept;
        tess_attention_span_forward[s->t].cpu(
            &(tess_work){.buf = view, .nbuf = (unsigned)op_buffers, .arg = a, .env = &op_env});
    }
    op_run(&tess_attention_span_forward[s->t], a);
    free(s->carry);
    s->carry = kept;
}

static int64_t gradient_width(const tess_attention_arg *a, int which)
{
    return which == K && a->packed ? 2 * width(a, K) : width(a, which);
}

/* What a task finds in a gradient and leaves stays, or, of what it is the first to write, goes. */
static double *span_gradient(const struct sequence *s, const char *name, int64_t rows, int which)
{
    const tess_attention_arg *a = &s->a;
    const int64_t n = gradient_width(a, which);
    double *d = op_out(name, rows * n, TESS_F32, true);
    if (s->t != TESS_F32) op_within(s->t == TESS_BF16 ? 1e-2 : 2e-3); /* sums of what is rounded */
    if (which == Q ? a->begins : !a->acc) memset(d, 0, (size_t)(rows * n) * sizeof *d);
    return d;
}

static void span_backward(struct sequence *s)
{
    const tess_attention_arg *a = &s->a;
    const int64_t y0 = a->query0 * width(a, Q), l0 = a->query0 * a->heads;
    op_given("dy", a->sequence * width(a, Q), (int)s->t, s->dy + y0);
    put_spans(s);
    op_given("y", a->sequence * width(a, Q), (int)s->t, s->y + y0);
    op_given("lse", a->sequence * a->heads, TESS_F32, s->lse + l0);
    double *d[3] = {span_gradient(s, "dq", a->sequence, Q)};
    d[K] = span_gradient(s, a->packed ? "dkv" : "dk", a->keys, K);
    d[V] = a->packed ? d[K] : span_gradient(s, "dv", a->keys, V);
    s->a.acc_bias = !(a->query0 == 0 && a->key0 == 0);
    double *dtable = a->buckets ? op_out("dbias", a->buckets * a->heads, TESS_F32, a->acc_bias) : NULL;
    if (dtable && s->t != TESS_F32) op_within(s->t == TESS_BF16 ? 1e-2 : 2e-3);
    if (op_expects) {
        struct problem p = {&s->whole, {s->in[Q], s->in[K], s->in[V]},       s->table,
                            s->bounds, {a->query0, a->query0 + a->sequence}, {a->key0, a->key0 + a->keys}};
        for (int j = Q; j <= V; j++)
            d[j] -= (j == Q ? a->query0 : a->key0) * gradient_width(a, j == V && a->packed ? K : j);
        expect_backward(&p, s->dy, d, dtable);
    }
    op_scratch((int64_t)tess_attention_scratch(a, s->t));
    op_run(&tess_attention_span_backward[s->t], a);
}

static double *held(const double *x, int64_t n)
{
    return memcpy(tess_alloc((size_t)n * sizeof *x), x, (size_t)n * sizeof *x);
}

/* Every task of a sequence that is cut into spans of `rows`. */
static void spans(tess_dtype t, const struct shape *of, int64_t rows)
{
    struct sequence s = {.t = t, .rows = rows};
    s.whole = s.a = arg_of(of, true);
    const int64_t length = of->length, n = length * width(&s.whole, Q), lse = length * s.whole.heads;
    for (int j = Q; j <= (s.whole.packed ? Q : V); j++) {
        const int64_t all = length * wide(&s.whole, j);
        s.in[j] = held(op_in("in", all, (int)t, 0.7), all);
    }
    for (int j = K; j <= V && s.whole.packed; j++) s.in[j] = s.in[Q];
    s.dy = held(op_in("dy", n, (int)t, 1), n);
    s.y = held(op_zeros(n), n), s.lse = held(op_zeros(lse), lse);
    const size_t bytes = (size_t)(2 * length) * sizeof *s.bounds;
    if (of->bounded) s.bounds = memcpy(tess_alloc(bytes), put_bounds(&s.whole, false), bytes);
    const int64_t biases = s.whole.buckets * s.whole.heads;
    if (biases) s.table = held(op_in("bias", biases, (int)t, 0.7), biases);
    const struct problem p = {&s.whole, {s.in[Q], s.in[K], s.in[V]}, s.table, s.bounds, {0}, {0}};
    expect_forward(&p, s.y, s.lse);
    op_forget();
    for (int pass = 0; pass < 2; pass++)
        for (int64_t q0 = 0; q0 < length; q0 += rows) {
            meet(&s, q0, 0);
            const int64_t oldest = q0 + 1 - s.a.window, end = s.a.causal ? q0 + 1 : length;
            for (int64_t k0 = s.a.window && oldest > 0 ? oldest / rows * rows : 0; k0 < end; k0 += rows) {
                meet(&s, q0, k0);
                if (pass)
                    span_backward(&s);
                else
                    span_forward(&s);
            }
        }
    for (int j = Q; j <= (s.whole.packed ? Q : V); j++) free(s.in[j]);
    free(s.dy), free(s.y), free(s.lse), free(s.bounds), free(s.table);
}

static void in_spans(void)
{
    static const struct shape kinds[] = {
        {200, 1, 2, 1, 64, .causal = true},
        {200, 1, 1, 1, 128, .causal = true, .packed = true, .dropout = 0.2f},
        {190, 1, 1, 1, 64, .packed = true, .by_head = true},
        {200, 1, 2, 1, 80, .causal = true, .packed = true},
        {140, 1, 1, 1, 160, .causal = true, .dropout = 0.2f},
        {280, 1, 1, 1, 64, .causal = true, .packed = true, .window = 140, .bounded = true},
        {140, 1, 4, 2, 24, .causal = true, .cap = 2, .dropout = 0.2f},
        {140, 1, 2, 1, 20, .packed = true, .bounded = true},
        {150, 1, 2, 2, 12, .causal = true, .buckets = 16},
        {140, 1, 2, 2, 64, .buckets = 8, .bounded = true},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (tess_dtype t = kinds[k].dim > 24 ? TESS_BF16 : TESS_F32; t <= TESS_F16; t++) spans(t, &kinds[k], 128);
}

static void on_gpus_too(void)
{
    in_spans();
    static const struct shape kinds[] = {
        /* tensor cores: one block of keys, several, lengths that fill none */
        {64, 1, 1, 1, 64, .causal = true, .packed = true},
        {150, 2, 2, 1, 64, .causal = true, .acc = true},
        {129, 1, 2, 2, 64, .packed = true},
        {70, 2, 2, 1, 64, .causal = true, .packed = true, .acc = true, .dropout = 0.2f},
        {65, 1, 1, 1, 128, .causal = true, .packed = true},
        {201, 1, 2, 1, 128, .causal = true, .acc = true},
        {130, 1, 1, 1, 128, .packed = true},
        {77, 1, 2, 2, 128, .dropout = 0.3f},
        {1, 3, 1, 1, 64, .causal = true, .packed = true},
        {70, 1, 2, 2, 64, .causal = true, .packed = true, .by_head = true},
        /* the same where queries see ranges of keys, and logits are bent */
        {135, 1, 1, 1, 64, .causal = true, .packed = true, .window = 40},
        {130, 2, 1, 1, 128, .causal = true, .acc = true, .dropout = 0.2f, .window = 70, .bounded = true, .cap = 2},
        {100, 2, 1, 1, 64, .bounded = true},
        {40, 2, 2, 1, 64, .acc = true, .keys = 100, .bounded = true},
        {130, 1, 1, 1, 64, .bounded = true, .short_keys = true},
        {70, 2, 1, 1, 64, .dropout = 0.1f, .buckets = 32, .bounded = true},
        {40, 1, 2, 2, 64, .causal = true, .acc = true, .buckets = 8},
        {40, 1, 1, 1, 128, .causal = true, .packed = true, .cap = 1.5f},
        /* keys past the end */
        {100, 1, 2, 1, 64, .low = true},
        /* heads that are narrower than their tiles */
        {70, 2, 4, 2, 80, .causal = true, .acc = true, .dropout = 0.2f},
        {130, 1, 2, 1, 96, .causal = true, .packed = true},
        {67, 1, 2, 2, 72, .causal = true, .packed = true, .by_head = true, .acc = true, .window = 40},
        {61, 2, 4, 2, 40, .causal = true, .acc = true, .dropout = 0.2f, .window = 11, .bounded = true, .cap = 2},
        {33, 1, 4, 2, 40, .causal = true, .dropout = 0.2f},
        {40, 2, 2, 1, 96, .acc = true, .keys = 100, .bounded = true},
        {40, 1, 2, 2, 80, .causal = true, .buckets = 8},
        {100, 1, 2, 1, 80, .low = true},
        {20, 2, 2, 1, 80, .packed = true},
        {33, 2, 2, 2, 8, .causal = true, .packed = true},
        /* those of 129 to 256, whose dk and dv are made apart */
        {70, 1, 2, 1, 256, .causal = true, .packed = true, .acc = true},
        {45, 1, 1, 1, 256, .causal = true, .dropout = 0.2f, .window = 20, .bounded = true, .cap = 2},
        {67, 1, 2, 2, 160, .packed = true, .by_head = true},
        {40, 1, 1, 1, 136, .keys = 70, .buckets = 8},
        /* the general kernels */
        {61, 2, 4, 2, 36, .causal = true, .acc = true, .dropout = 0.2f, .window = 11, .bounded = true, .cap = 2},
        {33, 2, 2, 2, 12, .keys = 20, .buckets = 12, .bounded = true},
        {37, 2, 5, 5, 4, .causal = true, .packed = true, .acc = true},
        {19, 2, 3, 3, 20, .causal = true, .packed = true, .acc = true, .by_head = true},
        {9, 1, 1, 1, 264, .causal = true},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (tess_dtype t = kinds[k].dim % 8 ? TESS_F32 : TESS_BF16; t <= TESS_F16; t++)
            attention(t, arg_of(&kinds[k], k % 2), &kinds[k]);
    /* fp32 with the heads that tensor cores take in bf16 */
    const struct shape fp32 = {40, 1, 2, 1, 64, .causal = true};
    attention(TESS_F32, arg_of(&fp32, false), &fp32);
}

static void in_both(struct shape s)
{
    for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++) attention(t, arg_of(&s, false), &s);
}

/* Causal and not, packed and not, += and =. There are several blocks of queries from 128 on, of keys from 512. */
static void each_way(void)
{
    static const struct shape shapes[] = {
        {37, 3, 5, 5, .dim = 7},  /* odd */
        {37, 2, 5, 1, .dim = 64}, /* one k and v for all heads, for two */
        {130, 1, 4, 2, .dim = 20},
        {1, 2, 2, 1, .dim = 8},
        {45, 2, 2, 1, 16, .dropout = 0.25f},
        {530, 1, 1, 1, .dim = 5},
        {1030, 1, 2, 1,
         .dim = 3}, /* forward two parts, of which the first sees some of the keys; backward two, by keys */
        {530, 1, 1, 1, 3, .dropout = 0.5f},
    };
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        for (int i = 0; i < 8; i++) {
            struct shape s = shapes[k];
            s.causal = i & 1, s.packed = i & 2, s.acc = i & 4;
            in_both(s);
        }
    for (int i = 0; i < 4; i++)
        in_both((struct shape){37, 2, 3, 3, i & 2 ? 64 : 10, true, true, i & 1, .by_head = true, .scale = 0.3f});
}

/* Queries that see a part of the keys: a window, documents and padding, both; over one block of keys, several, and in
 * three parts, some of which have nothing to do with some queries. */
static void ranges(void)
{
    for (int i = 0; i < 24; i++) {
        const bool parts = i >= 16, blocks = i & 8;
        if (parts && i >= 20) break;
        struct shape s = {parts    ? 1540
                          : blocks ? 300
                                   : 61,
                          parts ? 1 : 3, 2, parts && !(i & 1) ? 2 : 1, .dim = parts ? 4 : 24};
        s.causal = i & 3, s.packed = i & 2, s.acc = i & 4, s.dropout = i & 4 ? 0.2f : 0, s.scale = 0.4f;
        s.window = !(i & 1) ? 0 : parts ? 311 : blocks ? 97 : 7, s.bounded = !(i & 1) || i & 2;
        in_both(s);
    }
}

/* Keys of another sequence, fewer and more than there are queries, in one part and in several, all of them or what is
 * no padding; logits that are bent; and a bias by distance, of one side and both, near and far. */
static void the_rest(void)
{
    for (int i = 0; i < 8; i++)
        in_both((struct shape){i & 1 ? 160 : 20, 2, 4, 2, 16, .keys = i & 2 ? 33 : 570, .dropout = 0.1f,
                               .bounded = i & 4, .acc = i & 2});
    for (int i = 0; i < 4; i++)
        in_both(
            (struct shape){i & 1 ? 160 : 20, 2, 4, 2, 8, .keys = 1100, .scale = 0.25f, .bounded = i & 2, .acc = i & 1});
    for (int i = 0; i < 8; i++)
        in_both((struct shape){140, 2, 2, 1, 8, true, .scale = 2, .cap = 3, .dropout = i & 1 ? 0.2f : 0,
                               .window = i & 2 ? 31 : 0, .bounded = i & 4});
    for (int i = 0; i < 8; i++)
        in_both((struct shape){150, 2, 3, 3, 8, .keys = i == 4 ? 60 : 0, .scale = 1, .buckets = 32,
                               .reach = i & 1 ? 128 : 40, .dropout = i & 2 ? 0.2f : 0, .causal = i & 1,
                               .bounded = i & 4, .acc = i & 2});
    for (int i = 0; i < 2; i++) {
        const struct shape s = {1100, 1, 1, 1, 4, .scale = 1, .rising = !i, .falling = i};
        attention(TESS_F32, arg_of(&s, false), &s);
    }
    const struct shape drops = {40, 1, 2, 2, 8, .packed = true, .dropout = 0.5f};
    op_env.train = false; /* which drops nothing */
    attention(TESS_F32, arg_of(&drops, false), &drops);
    op_env.train = true;
}

OP_TASKS(attention)
{
    if (op_speed) return; /* bench_mm and gpu/bench_gpu.c measure it */
    on_gpus_too();
    if (!op_expects) return;
    each_way();
    ranges();
    the_rest();
}

OP_NET(attention)
{
    tess_tensor *q, *qkv;
    if (layer % 2) {
        qkv = tess_linear(x, OP_PARAM("qkv", 60, 20, TESS_NORMAL(0.3f)), NULL);
        qkv = tess_attention_packed(qkv, (tess_attention_conf){.heads = 4, .causal = true, .by_head = true});
        qkv = tess_linear(qkv, OP_PARAM("again", 40, 20, TESS_NORMAL(0.3f)), NULL);
        return tess_attention_packed(qkv, (tess_attention_conf){.heads = 2,
                                                                .groups = 1,
                                                                .causal = true,
                                                                .window = 3,
                                                                .cap = 1.5f,
                                                                .sinks = OP_PARAM("sinks", 2, 1, TESS_NORMAL(1))});
    }
    q = tess_linear(x, OP_PARAM("q", 20, 20, TESS_NORMAL(0.3f)), NULL);
    return tess_attention(
        q, x, x,
        (tess_attention_conf){
            .heads = 4, .causal = true, .bias = OP_PARAM("bias", 4, 4, TESS_NORMAL(0.3f)), .reach = 6});
}
