/* linear's three bodies against sums in double: both dtypes, with and without bias, tiles of wider layers, += and =;
 * and with gelu in one task, also against the bits of two. */
#define CHECK_MAIN
#include "check.h"
#include "codelets.h"

static uint32_t state = 1;
static double get(const void *x, int64_t i, tess_dtype t)
{
    return t == TESS_BF16 ? tess_from_bf16(((const tess_bf16 *)x)[i]) : ((const float *)x)[i];
}
/* A new buffer of `n` elements, drawn or, with poison, of NaN. */
static tess_view buffer(int64_t n, tess_dtype t, bool poison)
{
    tess_view v = {tess_alloc((size_t)n * tess_dtype_size(t)), (size_t)n * tess_dtype_size(t)};
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        float x = poison ? NAN : (float)(state >> 8) / 8388608.0f - 1;
        if (t == TESS_BF16)
            ((tess_bf16 *)v.ptr)[i] = tess_to_bf16(x);
        else
            ((float *)v.ptr)[i] = x;
    }
    return v;
}
static tess_view copy(tess_view v)
{
    tess_view c = {tess_alloc(v.bytes), v.bytes};
    memcpy(c.ptr, v.ptr, v.bytes);
    return c;
}

/* Adds up the relative error in norm. */
typedef struct distance {
    double error, norm;
} distance;
static void compare(distance *d, double got, double want)
{
    d->error += (got - want) * (got - want);
    d->norm += want * want;
}
static void check_near(distance d, tess_dtype t, const char *what)
{
    double e = sqrt(d.error / d.norm);
    if (!(e <= (t == TESS_BF16 ? 1e-2 : 1e-5))) CHECK_SAY("%s %s: error %.3g", what, tess_dtype_name(t), e);
}

static void run(tess_codelet *cl, const tess_view *buf, unsigned n, const void *a)
{
    cl->cpu(&(tess_work){.buf = buf, .nbuf = n, .arg = a});
}

static void check_forward(tess_linear_arg a, tess_dtype t)
{
    tess_view x = buffer(a.rows * a.in, t, false), w = buffer(a.out * a.in, t, false);
    tess_view y = buffer(a.rows * a.ld, t, true), b = buffer(a.out, TESS_F32, false), before = copy(y);
    run(&tess_linear_forward[t], (tess_view[]){x, w, y, b}, a.bias ? 4 : 3, &a);
    distance d = {0, 0};
    for (int64_t r = 0; r < a.rows; r++)
        for (int64_t c = 0; c < a.ld; c++) {
            const int64_t o = c - a.col, i = r * a.ld + c;
            if (o < 0 || o >= a.out) { /* another tile's: as it was */
                const size_t size = tess_dtype_size(t);
                CHECK(!memcmp((char *)y.ptr + (size_t)i * size, (char *)before.ptr + (size_t)i * size, size));
                continue;
            }
            double sum = a.bias ? get(b.ptr, o, TESS_F32) : 0;
            for (int64_t k = 0; k < a.in; k++) sum += get(x.ptr, r * a.in + k, t) * get(w.ptr, o * a.in + k, t);
            compare(&d, get(y.ptr, i, t), sum);
        }
    check_near(d, t, "forward");
    free(x.ptr), free(w.ptr), free(y.ptr), free(b.ptr), free(before.ptr);
}

/* With a.sum dx is f32 whatever t. */
static void check_input(tess_linear_arg a, tess_dtype t)
{
    const tess_dtype out = a.sum ? TESS_F32 : t;
    tess_view dy = buffer(a.rows * a.ld, t, false), w = buffer(a.out * a.in, t, false);
    tess_view dx = buffer(a.rows * a.in, out, !a.acc), before = copy(dx);
    run(&tess_linear_backward_input[t], (tess_view[]){dy, w, dx}, 3, &a);
    distance d = {0, 0};
    for (int64_t r = 0; r < a.rows; r++)
        for (int64_t k = 0; k < a.in; k++) {
            double sum = a.acc ? get(before.ptr, r * a.in + k, out) : 0;
            for (int64_t o = 0; o < a.out; o++)
                sum += get(dy.ptr, r * a.ld + a.col + o, t) * get(w.ptr, o * a.in + k, t);
            compare(&d, get(dx.ptr, r * a.in + k, out), sum);
        }
    check_near(d, out, a.sum ? "backward_input: sum" : "backward_input");
    free(dy.ptr), free(w.ptr), free(dx.ptr), free(before.ptr);
}

static void check_weight(tess_linear_arg a, tess_dtype t)
{
    tess_view dy = buffer(a.rows * a.ld, t, false), x = buffer(a.rows * a.in, t, false);
    tess_view dw = buffer(a.out * a.in, TESS_F32, !a.acc), db = buffer(a.out, TESS_F32, !a.acc_bias);
    tess_view dw0 = copy(dw), db0 = copy(db);
    run(&tess_linear_backward_weight[t], (tess_view[]){dy, x, dw, db}, a.bias ? 4 : 3, &a);
    distance d = {0, 0}, e = {0, 0};
    for (int64_t o = 0; o < a.out; o++) {
        double sum = a.acc_bias ? get(db0.ptr, o, TESS_F32) : 0;
        for (int64_t r = 0; r < a.rows; r++) sum += get(dy.ptr, r * a.ld + a.col + o, t);
        compare(&e, get(db.ptr, o, TESS_F32), sum);
        for (int64_t k = 0; k < a.in; k++) {
            sum = a.acc ? get(dw0.ptr, o * a.in + k, TESS_F32) : 0;
            for (int64_t r = 0; r < a.rows; r++)
                sum += get(dy.ptr, r * a.ld + a.col + o, t) * get(x.ptr, r * a.in + k, t);
            compare(&d, get(dw.ptr, o * a.in + k, TESS_F32), sum);
        }
    }
    check_near(d, t, "backward_weight: dw");
    if (a.bias) check_near(e, t, "backward_weight: db");
    free(dy.ptr), free(x.ptr), free(dw.ptr), free(db.ptr), free(dw0.ptr), free(db0.ptr);
}

static void check_all(int64_t rows, int64_t in, int64_t out, int64_t ld, int64_t col)
{
    for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++)
        for (int i = 0; i < 8; i++) {
            tess_linear_arg a = {rows, in, out, ld, col, .bias = i & 1, .acc = i & 2, .acc_bias = i & 4, .sum = i & 4};
            check_forward(a, t);
            check_input(a, t);
            check_weight(a, t);
        }
}

TEST(whole_layer)
{
    check_all(64, 96, 128, 128, 0);
}
TEST(odd_layer)
{
    check_all(37, 13, 71, 71, 0);
}
TEST(first_tile)
{
    check_all(40, 64, 96, 250, 0);
}
TEST(last_tile)
{
    check_all(40, 64, 90, 250, 160);
}
TEST(one_row)
{
    check_all(1, 7, 3, 3, 0);
}

/* ---- with gelu ---- */

/* By tanh or by erf; its slope by a difference. */
static double gelu(double x, int kind)
{
    if (kind == TESS_GELU_ERF) return x / 2 * (1 + erf(x / sqrt(2)));
    return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double slope(double x, int kind)
{
    return (gelu(x + 1e-5, kind) - gelu(x - 1e-5, kind)) / 2e-5;
}

static void check_linear_gelu(tess_linear_gelu_arg a, tess_dtype t)
{
    const tess_linear_arg *l = &a.linear;
    a.gelu.n = l->rows * l->out;
    tess_view x = buffer(l->rows * l->in, t, false), w = buffer(l->out * l->in, t, false);
    tess_view pre = buffer(a.gelu.n, t, true), y = buffer(a.gelu.n, t, true), b = buffer(l->out, TESS_F32, false);
    tess_view pre2 = buffer(a.gelu.n, t, true), y2 = buffer(a.gelu.n, t, true);
    run(&tess_linear_gelu_forward[t], (tess_view[]){x, w, pre, y, b}, l->bias ? 5 : 4, &a);
    run(&tess_linear_forward[t], (tess_view[]){x, w, pre2, b}, l->bias ? 4 : 3, l);
    run(&tess_gelu_forward[t], (tess_view[]){pre2, y2}, 2, &a.gelu);
    CHECK(!memcmp(pre.ptr, pre2.ptr, pre.bytes));
    CHECK(!memcmp(y.ptr, y2.ptr, y.bytes));
    distance d = {0, 0};
    for (int64_t r = 0; r < l->rows; r++)
        for (int64_t o = 0; o < l->out; o++) {
            double sum = l->bias ? get(b.ptr, o, TESS_F32) : 0;
            for (int64_t k = 0; k < l->in; k++) sum += get(x.ptr, r * l->in + k, t) * get(w.ptr, o * l->in + k, t);
            compare(&d, get(y.ptr, r * l->out + o, t), gelu(sum, a.gelu.kind));
        }
    check_near(d, t, "linear_gelu_forward");
    free(x.ptr), free(w.ptr), free(pre.ptr), free(y.ptr), free(b.ptr), free(pre2.ptr), free(y2.ptr);
}

static void check_gelu_linear(tess_linear_gelu_arg a, tess_dtype t)
{
    const tess_linear_arg *l = &a.linear;
    a.gelu.n = l->rows * l->in;
    tess_view dy = buffer(l->rows * l->out, t, false), w = buffer(l->out * l->in, t, false);
    tess_view pre = buffer(a.gelu.n, t, false), dpre = buffer(a.gelu.n, t, true);
    tess_view dx = buffer(a.gelu.n, t, true), dpre2 = buffer(a.gelu.n, t, true);
    run(&tess_gelu_linear_backward[t], (tess_view[]){dy, w, pre, dpre}, 4, &a);
    run(&tess_linear_backward_input[t], (tess_view[]){dy, w, dx}, 3, l);
    run(&tess_gelu_backward[t], (tess_view[]){dx, pre, dpre2}, 3, &a.gelu);
    CHECK(!memcmp(dpre.ptr, dpre2.ptr, dpre.bytes));
    distance d = {0, 0};
    for (int64_t r = 0; r < l->rows; r++)
        for (int64_t k = 0; k < l->in; k++) {
            double sum = 0;
            for (int64_t o = 0; o < l->out; o++) sum += get(dy.ptr, r * l->out + o, t) * get(w.ptr, o * l->in + k, t);
            compare(&d, get(dpre.ptr, r * l->in + k, t), sum * slope(get(pre.ptr, r * l->in + k, t), a.gelu.kind));
        }
    check_near(d, t, "gelu_linear_backward");
    free(dy.ptr), free(w.ptr), free(pre.ptr), free(dpre.ptr), free(dx.ptr), free(dpre2.ptr);
}

TEST(linear_gelu)
{
    static const int64_t shape[][3] = {{64, 96, 128}, {37, 13, 71}, {1, 7, 3}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
        for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++)
            for (int i = 0; i < 4; i++) {
                const tess_linear_gelu_arg a = {{shape[k][0], shape[k][1], shape[k][2], shape[k][2], .bias = i & 1},
                                                {.kind = i / 2}};
                check_linear_gelu(a, t);
                check_gelu_linear(a, t);
            }
}

TEST(same_bits_twice)
{
    tess_linear_arg a = {.rows = 100, .in = 70, .out = 90, .ld = 90, .bias = true};
    tess_view dy = buffer(a.rows * a.ld, TESS_BF16, false), x = buffer(a.rows * a.in, TESS_BF16, false);
    tess_view dw[2], db[2];
    for (int i = 0; i < 2; i++) {
        dw[i] = buffer(a.out * a.in, TESS_F32, true), db[i] = buffer(a.out, TESS_F32, true);
        run(&tess_linear_backward_weight[TESS_BF16], (tess_view[]){dy, x, dw[i], db[i]}, 4, &a);
    }
    CHECK(!memcmp(dw[0].ptr, dw[1].ptr, dw[0].bytes));
    CHECK(!memcmp(db[0].ptr, db[1].ptr, db[0].bytes));
    for (int i = 0; i < 2; i++) free(dw[i].ptr), free(db[i].ptr);
    free(dy.ptr), free(x.ptr);
}

TEST(cost)
{
    tess_linear_arg a = {.rows = 1024, .in = 768, .out = 3072, .ld = 3072};
    CHECK_NEAR(tess_linear_forward[TESS_BF16].cost(&a).flops, 2.0 * 1024 * 768 * 3072, 0);
    CHECK_NEAR(tess_linear_forward[TESS_BF16].cost(&a).bytes, 2.0 * (1024 * 768 + 1024 * 3072 + 768 * 3072), 0);
    const tess_linear_gelu_arg up = {a, {.n = 1024 * 3072}}, down = {a, {.n = 1024 * 768}};
    CHECK_NEAR(tess_linear_gelu_forward[TESS_BF16].cost(&up).flops, 2.0 * 1024 * 768 * 3072, 0);
    CHECK_NEAR(tess_linear_gelu_forward[TESS_BF16].cost(&up).passes, 2.0 * 2 * 1024 * 3072, 0);
    CHECK_NEAR(tess_gelu_linear_backward[TESS_BF16].cost(&down).flops, 2.0 * 1024 * 768 * 3072, 0);
    CHECK_NEAR(tess_gelu_linear_backward[TESS_BF16].cost(&down).passes, 3.0 * 2 * 1024 * 768, 0);
}
