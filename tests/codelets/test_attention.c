/* attention against softmax and its gradient in double: odd sizes, shared heads, packed and not, causal and not,
 * dropout, += and =; and how it holds up when sequences span several blocks of keys. */
#define CHECK_MAIN
#include "check.h"
#include "codelets.h"

static uint32_t state = 1;
static double get(const void *x, int64_t i, tess_dtype t)
{
    return (double)tess_load(x, i, t);
}
/* A new buffer of `n` elements, drawn or, with poison, of NaN. */
static tess_view buffer(int64_t n, tess_dtype t, bool poison)
{
    tess_view v = {tess_alloc((size_t)n * tess_dtype_size(t)), (size_t)n * tess_dtype_size(t)};
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        float x = poison ? NAN : (float)(state >> 8) / 8388608.0f - 1;
        tess_store(v.ptr, i, t, x);
    }
    return v;
}
static void check_near(const char *what, const void *got, const double *want, int64_t n, tess_dtype t, double most)
{
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double off = get(got, i, t) - want[i];
        error += off * off, norm += want[i] * want[i];
    }
    error = sqrt(error / (norm > 0 ? norm : (double)n)); /* of a gradient that is 0: absolute */
    if (!(error <= most)) CHECK_SAY("%s %s: error %.3g", what, tess_dtype_name(t), error);
}

/* One head of one sequence in double; rows of q, k, v, ... are `ld` apart. */
typedef struct head {
    int64_t length, keys, dim, ld_q, ld_k;
    bool causal;
    double scale, drop;
    uint64_t first; /* place of query 0, key 0 */
    const tess_env *env;
    uint32_t op;
    int64_t window;
    double cap;
    const int32_t *bounds;      /* (2 length), or NULL */
    const double *bias;         /* (buckets) of this head, `ld` apart, or NULL */
    int64_t buckets, reach, ld; /* of the table and its gradient */
} head;

/* T5's: half of the buckets are exact, the others go by the logarithm; with both sides half are for what lies behind.
 */
static int64_t bucket(const head *h, int64_t distance)
{
    int64_t n = h->causal ? h->buckets : h->buckets / 2, base = !h->causal && distance > 0 ? n : 0;
    int64_t far = distance < 0 ? -distance : h->causal ? 0 : distance, exact = n / 2;
    if (far < exact) return base + far;
    int64_t log_bucket = exact + (int64_t)(logf((float)far / (float)exact) /
                                           (float)log((double)h->reach / (double)exact) * (float)(n - exact));
    return base + (log_bucket < n - 1 ? log_bucket : n - 1);
}
static bool sees(const head *h, int64_t i, int64_t j)
{
    if (h->causal && j > i) return false;
    if (h->window && j <= i - h->window) return false;
    return !h->bounds || (j >= h->bounds[i] && j < h->bounds[h->length + i]);
}

static double keep(const head *h, int64_t i, int64_t j)
{
    if (h->drop == 0 || !h->env->train) return 1;
    uint32_t r = tess_random(h->env->seed, (uint64_t)h->env->step, h->op, h->first + (uint64_t)(i * h->keys + j));
    return r >= h->drop * 4294967296.0 ? 1 / (1 - h->drop) : 0;
}
/* p (keys): the softmax of query i, slope (keys) what a logit comes to by what bends it; returns its lse. */
static double softmax(const head *h, int64_t i, const double *q, const double *k, double *p, double *slope)
{
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < h->keys; j++) {
        p[j] = 0;
        for (int64_t c = 0; c < h->dim; c++) p[j] += q[i * h->ld_q + c] * k[j * h->ld_k + c];
        p[j] *= h->scale;
        slope[j] = h->scale;
        if (h->bias) p[j] += h->bias[bucket(h, j - i) * h->ld];
        if (h->cap > 0) {
            const double bent = tanh(p[j] / h->cap);
            p[j] = h->cap * bent;
            slope[j] *= 1 - bent * bent;
        }
        if (!sees(h, i, j)) p[j] = -INFINITY;
        if (p[j] > most) most = p[j];
    }
    if (most == -INFINITY) {
        for (int64_t j = 0; j < h->keys; j++) p[j] = 0;
        return INFINITY;
    }
    for (int64_t j = 0; j < h->keys; j++) sum += p[j] = exp(p[j] - most);
    for (int64_t j = 0; j < h->keys; j++) p[j] /= sum;
    return most + log(sum);
}
static void oracle_forward(const head *h, const double *q, const double *k, const double *v, double *y, double *lse,
                           int64_t ld_lse)
{
    double *p = tess_alloc((size_t)h->keys * sizeof *p), *slope = tess_alloc((size_t)h->keys * sizeof *slope);
    for (int64_t i = 0; i < h->length; i++) {
        lse[i * ld_lse] = softmax(h, i, q, k, p, slope);
        for (int64_t c = 0; c < h->dim; c++) y[i * h->ld_q + c] = 0;
        for (int64_t j = 0; j < h->keys; j++)
            for (int64_t c = 0; c < h->dim; c++) y[i * h->ld_q + c] += p[j] * keep(h, i, j) * v[j * h->ld_k + c];
    }
    free(p), free(slope);
}
static void oracle_backward(const head *h, const double *dy, const double *q, const double *k, const double *v,
                            double *dq, double *dk, double *dv, double *dbias)
{
    double *p = tess_alloc((size_t)h->keys * sizeof *p), *dp = tess_alloc((size_t)h->keys * sizeof *p);
    double *slope = tess_alloc((size_t)h->keys * sizeof *slope);
    for (int64_t i = 0; i < h->length; i++) {
        softmax(h, i, q, k, p, slope);
        double delta = 0;
        for (int64_t j = 0; j < h->keys; j++) {
            dp[j] = 0;
            for (int64_t c = 0; c < h->dim; c++) {
                dp[j] += dy[i * h->ld_q + c] * v[j * h->ld_k + c];
                dv[j * h->ld_k + c] += p[j] * keep(h, i, j) * dy[i * h->ld_q + c];
            }
            dp[j] *= keep(h, i, j);
            delta += p[j] * dp[j];
        }
        for (int64_t j = 0; j < h->keys; j++) {
            if (dbias) dbias[bucket(h, j - i) * h->ld] += p[j] * (dp[j] - delta);
            for (int64_t c = 0; c < h->dim; c++) {
                double ds = p[j] * (dp[j] - delta) * slope[j];
                dq[i * h->ld_q + c] += ds * k[j * h->ld_k + c];
                dk[j * h->ld_k + c] += ds * q[i * h->ld_q + c];
            }
        }
    }
    free(p), free(dp), free(slope);
}

enum { Q, K, V };
static const tess_env env = {.seed = 7, .step = 3, .train = true};

static int64_t width(const tess_attention_arg *a, int which)
{
    return (which == Q ? a->heads : a->groups) * a->dim;
}
static int64_t keys(const tess_attention_arg *a)
{
    return a->keys ? a->keys : a->sequence;
}
/* Where row r of q, k or v lies among them side by side: head h of it, by_head or not. */
static int64_t place(const tess_attention_arg *a, int64_t r, int which, int64_t h)
{
    const int64_t row = r * (width(a, Q) + 2 * width(a, K));
    if (a->by_head) return row + (3 * h + which) * a->dim;
    return row + (which == Q ? 0 : width(a, Q) + (which - 1) * width(a, K)) + h * a->dim;
}
/* Three matrices side by side, (rows, wide + 2 narrow), from three. */
static tess_view side_by_side(const tess_attention_arg *a, const tess_view m[3], tess_dtype t)
{
    const size_t size = tess_dtype_size(t);
    const int64_t all = width(a, Q) + 2 * width(a, K);
    tess_view v = {tess_alloc((size_t)(a->rows * all) * size), (size_t)(a->rows * all) * size};
    for (int64_t r = 0; r < a->rows; r++)
        for (int i = 0; i < 3; i++)
            for (int64_t h = 0; h < width(a, i) / a->dim; h++)
                memcpy((char *)v.ptr + (size_t)place(a, r, i, h) * size,
                       (char *)m[i].ptr + (size_t)(r * width(a, i) + h * a->dim) * size, (size_t)a->dim * size);
    return v;
}
static double *in_double(tess_view v, int64_t n, tess_dtype t)
{
    double *d = tess_alloc((size_t)n * sizeof *d);
    for (int64_t i = 0; v.ptr && i < n; i++) d[i] = get(v.ptr, i, t);
    return d;
}

/* Bounds of sequences: with as many keys as queries documents, the last of them padding, which sees nothing; else a
 * number of keys, which the last queries, padding, do not see either. */
static tess_view draw_bounds(const tess_attention_arg *a)
{
    const int64_t n = a->rows / a->sequence, T = a->sequence, K = keys(a);
    tess_view v = {tess_alloc((size_t)(2 * a->rows) * sizeof(int32_t)), (size_t)(2 * a->rows) * sizeof(int32_t)};
    for (int64_t s = 0; s < n; s++) {
        int32_t *first = (int32_t *)v.ptr + 2 * s * T, *end = first + T;
        const int64_t real = T - T * s / (n + 1), middle = real / 3;
        for (int64_t i = 0; i < T; i++) {
            const bool early = i < middle;
            first[i] = (int32_t)(K != T || early || i >= real ? 0 : middle);
            end[i] = (int32_t)(i >= real ? 0 : K != T ? K - s : early ? middle : real);
        }
    }
    return v;
}

/* Runs forward and backward; y, lse and the gradients must be near the oracle's. */
static void check(tess_attention_arg a, tess_dtype t)
{
    const int64_t sequences = a.rows / a.sequence, wide = a.rows * width(&a, Q), lse_n = a.rows * a.heads;
    const int64_t narrow = sequences * keys(&a) * width(&a, K), table_n = a.buckets * a.heads;
    const int64_t n[3] = {wide, narrow, narrow};
    tess_view in[3], grad[3], bounds = {NULL, 0}, table = buffer(table_n, t, false);
    tess_view dtable = buffer(table_n, TESS_F32, !a.acc_bias);
    double *x[3], *want[3], *table_x = in_double(table, table_n, t);
    double *dtable_want = in_double(a.acc_bias ? dtable : (tess_view){NULL, 0}, table_n, TESS_F32);
    for (int i = 0; i < 3; i++) {
        in[i] = buffer(n[i], t, false), grad[i] = buffer(n[i], t, !a.acc);
        x[i] = in_double(in[i], n[i], t);
        want[i] = in_double(a.acc ? grad[i] : (tess_view){NULL, 0}, n[i], t);
    }
    if (a.bounded) bounds = draw_bounds(&a);
    tess_view dy = buffer(wide, t, false), y = buffer(wide, t, true), lse = buffer(lse_n, TESS_F32, true);
    tess_view scratch = buffer((int64_t)tess_attention_scratch(&a, t), TESS_F32, true);
    scratch.bytes = tess_attention_scratch(&a, t);
    double *dy_x = in_double(dy, wide, t), *y_want = in_double((tess_view){NULL, 0}, wide, t);
    double *lse_want = in_double((tess_view){NULL, 0}, lse_n, t);
    tess_view qkv = {NULL, 0}, dqkv = {NULL, 0}, forward[8], backward[13];
    unsigned f = 0, b = 0;
    backward[b++] = dy;
    if (a.packed) {
        qkv = side_by_side(&a, in, t), dqkv = side_by_side(&a, grad, t);
        forward[f++] = backward[b++] = qkv;
    }
    for (int i = 0; i < 3 && !a.packed; i++) forward[f++] = backward[b++] = in[i];
    if (a.bounded) forward[f++] = backward[b++] = bounds;
    if (a.buckets) forward[f++] = backward[b++] = table;
    forward[f++] = backward[b++] = y;
    forward[f++] = backward[b++] = lse;
    forward[f++] = scratch;
    if (a.packed) backward[b++] = dqkv;
    for (int i = 0; i < 3 && !a.packed; i++) backward[b++] = grad[i];
    if (a.buckets) backward[b++] = dtable;
    backward[b++] = scratch;
    tess_work work = {.buf = forward, .nbuf = f, .arg = &a, .env = &env};
    tess_attention_forward[t].cpu(&work);
    work.buf = backward, work.nbuf = b;
    tess_attention_backward[t].cpu(&work);

    for (int64_t s = 0; s < sequences; s++)
        for (int64_t i = 0; i < a.heads; i++) {
            const int64_t group = i / (a.heads / a.groups);
            head h = {.length = a.sequence,
                      .keys = keys(&a),
                      .dim = a.dim,
                      .ld_q = width(&a, Q),
                      .ld_k = width(&a, K),
                      .causal = a.causal,
                      .scale = (double)a.scale,
                      .drop = (double)a.dropout,
                      .env = &env,
                      .op = a.op,
                      .window = a.window,
                      .cap = (double)a.cap,
                      .bounds = a.bounded ? (const int32_t *)bounds.ptr + 2 * s * a.sequence : NULL,
                      .bias = a.buckets ? table_x + i : NULL,
                      .buckets = a.buckets,
                      .reach = a.reach,
                      .ld = a.heads};
            h.first = (uint64_t)(((a.row0 / a.sequence + s) * a.heads + i) * a.sequence * keys(&a));
            const int64_t atq = s * a.sequence * h.ld_q + i * a.dim, atk = s * h.keys * h.ld_k + group * a.dim;
            oracle_forward(&h, x[Q] + atq, x[K] + atk, x[V] + atk, y_want + atq,
                           lse_want + s * a.sequence * a.heads + i, a.heads);
            oracle_backward(&h, dy_x + atq, x[Q] + atq, x[K] + atk, x[V] + atk, want[Q] + atq, want[K] + atk,
                            want[V] + atk, a.buckets ? dtable_want + i : NULL);
        }
    const double most = t == TESS_BF16 ? 1e-2 : t == TESS_F16 ? 2e-3 : 1e-5;
    for (int64_t i = 0; i < lse_n; i++) /* of a query that sees nothing it is infinite */
        if (isinf(lse_want[i])) {
            CHECK(isinf(((float *)lse.ptr)[i]));
            lse_want[i] = 0, ((float *)lse.ptr)[i] = 0;
        }
    check_near("y", y.ptr, y_want, wide, t, most);
    check_near("lse", lse.ptr, lse_want, lse_n, TESS_F32, 1e-5);
    if (a.buckets) check_near("dbias", dtable.ptr, dtable_want, table_n, TESS_F32, t == TESS_F32 ? 1e-5 : 1.5e-2);
    if (a.packed) {
        double *all = tess_alloc((size_t)(wide + 2 * narrow) * sizeof *all);
        for (int64_t r = 0; r < a.rows; r++)
            for (int i = 0; i < 3; i++)
                for (int64_t g = 0; g < width(&a, i) / a.dim; g++)
                    memcpy(all + place(&a, r, i, g), want[i] + r * width(&a, i) + g * a.dim,
                           (size_t)a.dim * sizeof *all);
        check_near("dqkv", dqkv.ptr, all, wide + 2 * narrow, t, most);
        free(all);
    } else {
        for (int i = 0; i < 3; i++)
            check_near((const char *[]){"dq", "dk", "dv"}[i], grad[i].ptr, want[i], n[i], t, most);
    }
    for (int i = 0; i < 3; i++) free(in[i].ptr), free(grad[i].ptr), free(x[i]), free(want[i]);
    free(dy.ptr), free(y.ptr), free(lse.ptr), free(scratch.ptr), free(qkv.ptr), free(dqkv.ptr), free(bounds.ptr);
    free(dy_x), free(y_want), free(lse_want), free(table.ptr), free(dtable.ptr), free(table_x), free(dtable_want);
}

TEST(packed_by_head)
{
    for (int i = 0; i < 4; i++)
        for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++)
            check((tess_attention_arg){.rows = 2 * 37,
                                       .sequence = 37,
                                       .heads = 3,
                                       .groups = 3,
                                       .dim = i & 2 ? 64 : 10,
                                       .scale = 0.3f,
                                       .causal = true,
                                       .packed = true,
                                       .by_head = true,
                                       .acc = i & 1},
                  t);
}

/* Both dtypes, causal and not, packed and not, += and =. */
static void check_all(int64_t sequences, int64_t length, int64_t heads, int64_t groups, int64_t dim, float dropout)
{
    for (int i = 0; i < 8; i++)
        for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++)
            check((tess_attention_arg){.rows = sequences * length,
                                       .sequence = length,
                                       .heads = heads,
                                       .groups = groups,
                                       .dim = dim,
                                       .scale = 1 / sqrtf((float)dim),
                                       .dropout = dropout,
                                       .op = 5,
                                       .row0 = 2 * length,
                                       .causal = i & 1,
                                       .packed = i & 2,
                                       .acc = i & 4},
                  t);
}

/* Sanitized, which is slow, no more than it takes to have several blocks of queries (128) or of keys (512). */
#ifdef __SANITIZE_ADDRESS__
#define LONG(n, least) (least)
#else
#define LONG(n, least) (n)
#endif

/* All dtypes on heads as they are common: whole blocks and what is left of one, of queries and of keys, with what
 * blocks between them see: all, a window's two edges, nothing; and logits that rise from block to block, so that what
 * was summed shrinks. */
TEST(heads_of_models)
{
    const int64_t length = LONG(200, 161);
    for (int i = 0; i < 8; i++)
        for (tess_dtype t = TESS_F32; t <= TESS_F16; t++)
            check((tess_attention_arg){.rows = length,
                                       .sequence = length,
                                       .heads = 2,
                                       .groups = 1,
                                       .dim = i & 4 ? 128 : 64,
                                       .scale = i & 1 ? 2 : 0.125f,
                                       .window = i & 2 ? 70 : 0,
                                       .causal = i & 3,
                                       .packed = true,
                                       .acc = i & 1},
                  t);
}
TEST(odd)
{
    check_all(3, 37, 5, 5, 7, 0);
}
TEST(shared_by_all)
{
    check_all(2, 37, 5, 1, 64, 0);
}
TEST(shared_by_two)
{
    check_all(1, LONG(150, 130), 4, 2, LONG(80, 20), 0);
}
TEST(one_token)
{
    check_all(2, 1, 2, 1, 8, 0);
}
TEST(dropout)
{
    check_all(2, 45, 2, 1, 16, 0.25f);
}
TEST(blocks)
{
    check_all(1, LONG(700, 530), 1, 1, LONG(16, 5), 0);
}
/* Forward these are two parts, of which the first sees only some of the keys where it is causal; backward two parts
 * with keys of their own, the first of which alone is seen by the first queries. */
TEST(parts_of_a_sequence)
{
    check_all(1, LONG(1100, 1030), 2, 1, LONG(8, 3), 0);
}
TEST(blocks_and_dropout)
{
    check_all(1, LONG(600, 530), 1, 1, LONG(8, 3), 0.5f);
}

/* Queries that see a part of the keys: a window, documents and padding, both; over one block of keys and over several.
 */
TEST(ranges)
{
    for (int i = 0; i < 16; i++)
        for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++)
            check((tess_attention_arg){.rows = i & 8 ? 3 * 300 : 3 * 61,
                                       .sequence = i & 8 ? 300 : 61,
                                       .heads = 2,
                                       .groups = 1,
                                       .dim = 24,
                                       .scale = 0.4f,
                                       .dropout = i & 4 ? 0.2f : 0,
                                       .op = 5,
                                       .window = i & 1 ? (i & 8 ? 97 : 7) : 0,
                                       .bounded = !(i & 1) || i & 2,
                                       .causal = i & 3,
                                       .packed = i & 2,
                                       .acc = i & 4},
                  t);
}
/* Keys of another sequence, fewer and more than there are queries, all of them or what is no padding. */
TEST(across)
{
    for (int i = 0; i < 8; i++)
        for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++)
            check((tess_attention_arg){.rows = 2 * (i & 1 ? 160 : 20),
                                       .sequence = i & 1 ? 160 : 20,
                                       .keys = i & 2 ? 33 : 570,
                                       .heads = 4,
                                       .groups = 2,
                                       .dim = 16,
                                       .scale = 0.25f,
                                       .dropout = 0.1f,
                                       .op = 5,
                                       .row0 = i & 1 ? 320 : 40,
                                       .bounded = i & 4,
                                       .acc = i & 2},
                  t);
}
/* The same in three parts, some of which have nothing to do with some queries. */
TEST(parts_of_ranges)
{
    const int64_t length = LONG(1600, 1540);
    for (int i = 0; i < LONG(8, 4); i++)
        for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++)
            check((tess_attention_arg){.rows = length,
                                       .sequence = length,
                                       .heads = 2,
                                       .groups = i & 1 ? 1 : 2,
                                       .dim = 4,
                                       .scale = 0.4f,
                                       .cap = i == 5 ? 3 : 0,
                                       .dropout = i & 4 ? 0.2f : 0,
                                       .op = 5,
                                       .window = i & 1 ? 311 : 0,
                                       .bounded = !(i & 1) || i & 2,
                                       .causal = i & 3,
                                       .packed = i & 2,
                                       .acc = i & 4},
                  t);
}
TEST(parts_of_keys_of_another_sequence)
{
    for (int i = 0; i < 4; i++)
        for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++)
            check((tess_attention_arg){.rows = 2 * (i & 1 ? 160 : 20),
                                       .sequence = i & 1 ? 160 : 20,
                                       .keys = 1100,
                                       .heads = 4,
                                       .groups = 2,
                                       .dim = 8,
                                       .scale = 0.25f,
                                       .bounded = i & 2,
                                       .acc = i & 1},
                  t);
}
TEST(capped_logits)
{
    for (int i = 0; i < 8; i++)
        for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++)
            check((tess_attention_arg){.rows = 2 * 140,
                                       .sequence = 140,
                                       .heads = 2,
                                       .groups = 1,
                                       .dim = 8,
                                       .scale = 2,
                                       .cap = 3,
                                       .dropout = i & 1 ? 0.2f : 0,
                                       .window = i & 2 ? 31 : 0,
                                       .causal = true,
                                       .bounded = i & 4},
                  t);
}
/* A bias by distance and its gradient: one side and both, near and far, padding, and keys of another sequence. */
TEST(bias_by_distance)
{
    for (int i = 0; i < 8; i++)
        for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++)
            check((tess_attention_arg){.rows = 2 * 150,
                                       .sequence = 150,
                                       .keys = i == 4 ? 60 : 0,
                                       .heads = 3,
                                       .groups = 3,
                                       .dim = 8,
                                       .scale = 1,
                                       .buckets = 32,
                                       .reach = i & 1 ? 128 : 40,
                                       .dropout = i & 2 ? 0.2f : 0,
                                       .causal = i & 1,
                                       .bounded = i & 4,
                                       .acc_bias = i & 2},
                  t);
}

/* Logits in the hundreds, rising and falling along the keys: the running maximum must follow. */
TEST(large_logits)
{
    for (int falling = 0; falling < 2; falling++) {
        tess_attention_arg a = {.rows = 1100, .sequence = 1100, .heads = 1, .groups = 1, .dim = 4, .scale = 1};
        tess_view q = buffer(a.rows * 4, TESS_F32, false), k = buffer(a.rows * 4, TESS_F32, false);
        tess_view v = buffer(a.rows * 4, TESS_F32, false), y = buffer(a.rows * 4, TESS_F32, true);
        tess_view lse = buffer(a.rows, TESS_F32, true), scratch = {NULL, tess_attention_scratch(&a, TESS_F32)};
        scratch.ptr = tess_alloc(scratch.bytes);
        for (int64_t i = 0; i < a.rows; i++) {
            ((float *)q.ptr)[4 * i] = 1;
            ((float *)k.ptr)[4 * i] = (falling ? -0.7f : 0.7f) * (float)i;
        }
        tess_attention_forward[TESS_F32].cpu(
            &(tess_work){.buf = (tess_view[]){q, k, v, y, lse, scratch}, .nbuf = 6, .arg = &a, .env = &env});
        double *x[3] = {in_double(q, a.rows * 4, TESS_F32), in_double(k, a.rows * 4, TESS_F32),
                        in_double(v, a.rows * 4, TESS_F32)};
        double *want = tess_alloc((size_t)a.rows * 4 * sizeof *want), *lse_want = tess_alloc((size_t)a.rows * 8);
        oracle_forward(
            &(head){.length = a.rows, .keys = a.rows, .dim = 4, .ld_q = 4, .ld_k = 4, .scale = 1, .env = &env}, x[0],
            x[1], x[2], want, lse_want, 1);
        check_near("y", y.ptr, want, a.rows * 4, TESS_F32, 1e-4); /* logits near 770 are known to 6e-5 */
        check_near("lse", lse.ptr, lse_want, a.rows, TESS_F32, 1e-6);
        for (int i = 0; i < 3; i++) free(x[i]);
        free(want), free(lse_want), free(q.ptr), free(k.ptr), free(v.ptr), free(y.ptr), free(lse.ptr);
        free(scratch.ptr);
    }
}

TEST(evaluation_drops_nothing)
{
    tess_attention_arg a = {
        .rows = 40, .sequence = 40, .heads = 2, .groups = 2, .dim = 8, .scale = 0.3f, .packed = true};
    tess_env eval = env;
    eval.train = false;
    tess_view qkv = buffer(40 * 48, TESS_F32, false), lse = buffer(80, TESS_F32, true), y[2];
    tess_view scratch = {NULL, tess_attention_scratch(&a, TESS_F32)};
    scratch.ptr = tess_alloc(scratch.bytes);
    for (int i = 0; i < 2; i++) {
        y[i] = buffer(40 * 16, TESS_F32, true);
        a.dropout = i ? 0.5f : 0;
        tess_attention_forward[TESS_F32].cpu(
            &(tess_work){.buf = (tess_view[]){qkv, y[i], lse, scratch}, .nbuf = 4, .arg = &a, .env = &eval});
    }
    CHECK(!memcmp(y[0].ptr, y[1].ptr, y[0].bytes));
    free(qkv.ptr), free(lse.ptr), free(y[0].ptr), free(y[1].ptr), free(scratch.ptr);
}

TEST(same_bits_twice)
{
    tess_attention_arg a = {.rows = 2 * 200,
                            .sequence = 200,
                            .heads = 4,
                            .groups = 2,
                            .dim = 32,
                            .scale = 0.2f,
                            .dropout = 0.1f,
                            .causal = true,
                            .packed = true};
    tess_view qkv = buffer(400 * 256, TESS_BF16, false), dy = buffer(400 * 128, TESS_BF16, false), y[2], lse[2], d[2];
    tess_view scratch = {NULL, tess_attention_scratch(&a, TESS_BF16)};
    scratch.ptr = tess_alloc(scratch.bytes);
    for (int i = 0; i < 2; i++) {
        memset(scratch.ptr, 0xff * i, scratch.bytes);
        y[i] = buffer(400 * 128, TESS_BF16, true), lse[i] = buffer(400 * 4, TESS_F32, true);
        d[i] = buffer(400 * 256, TESS_BF16, true);
        tess_view forward[] = {qkv, y[i], lse[i], scratch}, backward[] = {dy, qkv, y[i], lse[i], d[i], scratch};
        tess_attention_forward[TESS_BF16].cpu(&(tess_work){.buf = forward, .nbuf = 4, .arg = &a, .env = &env});
        tess_attention_backward[TESS_BF16].cpu(&(tess_work){.buf = backward, .nbuf = 6, .arg = &a, .env = &env});
    }
    CHECK(!memcmp(y[0].ptr, y[1].ptr, y[0].bytes));
    CHECK(!memcmp(lse[0].ptr, lse[1].ptr, lse[0].bytes));
    CHECK(!memcmp(d[0].ptr, d[1].ptr, d[0].bytes));
    for (int i = 0; i < 2; i++) free(y[i].ptr), free(lse[i].ptr), free(d[i].ptr);
    free(qkv.ptr), free(dy.ptr), free(scratch.ptr);
}

/* Nothing grows with the square of the sequence. */
TEST(scratch_of_long_sequences)
{
    tess_attention_arg a = {.rows = 32768, .sequence = 32768, .heads = 12, .groups = 12, .dim = 64};
    CHECK(tess_attention_scratch(&a, TESS_BF16) < 32u << 20);
    a.rows = a.sequence = 1024;
    CHECK(tess_attention_scratch(&a, TESS_BF16) < 9u << 20); /* with sums of dq of parts, of all heads */
}
