/* adamw against torch's numbers, its refusals, and the sums that feed it. */
#define CHECK_MAIN
#include "body.h"

enum { N = 4, STEPS = 3 };

static const double first[N] = {1, -0.5, 0.25, 3};
static const double gradient[STEPS][N] = {{0.1, -0.2, 0.003, 4}, {-0.3, 0.1, 0.002, 1}, {0.25, 0, -0.001, -2}};

static const struct torch_case {
    bool l2;
    double lr, beta1, beta2, eps, weight_decay, clip;
    struct {
        double p[N], m[N], v[N];
    } after[STEPS];
} torch[] = {
#include "fixtures/adamw.inc"
};

static void set_env(const struct torch_case *c, int step)
{
    env.lr = c->lr;
    env.beta1 = c->beta1;
    env.beta2 = c->beta2;
    env.bias1 = 1 - pow(c->beta1, step + 1);
    env.bias2 = 1 - pow(c->beta2, step + 1);
    env.clip = c->clip;
}

static tess_optimizer optimizer_of(const struct torch_case *c)
{
    return (tess_optimizer){.eps = c->eps, .l2 = c->l2};
}

TEST(torch)
{
    for (size_t i = 0; i < sizeof torch / sizeof *torch; i++) {
        const struct torch_case *c = &torch[i];
        double start[N];
        memcpy(start, first, sizeof start);
        float *p = real_of(start, N, TESS_F32), *m = bytes_of(N * 4), *v = bytes_of(N * 4);
        tess_bf16 *copy = poison(N * 2);
        double *loss = zeros(2), *norm = bytes_of(tess_exact_bytes());
        const tess_optimizer o = optimizer_of(c);
        tess_update_arg a = {.n = N,
                             .optimizer = &o,
                             .moments = 2,
                             .weight_decay = c->weight_decay,
                             .lr_scale = 1,
                             .copy = TESS_BF16,
                             .clip = c->clip > 0,
                             .name = "w"};
        for (int s = 0; s < STEPS; s++) {
            double g[N], square = 0;
            memcpy(g, gradient[s], sizeof g);
            void *pg = real_of(g, N, TESS_F32);
            for (int k = 0; k < N; k++) square += g[k] * g[k];
            *norm = square;
            if (!a.clip) RUN(tess_square_sum, (&(tess_square_arg){.n = N, .row = N}), pg, norm);
            set_env(c, s);
            RUN(tess_update_adamw, &a, p, m, v, pg, loss, norm, copy);
            for (int k = 0; k < N; k++) {
                /* 1 - beta is as good as the beta of env. */
                double room = fabs((1 - (double)env.beta2) / (1 - c->beta2) - 1);
                CHECK_NEAR(p[k], c->after[s].p[k], 1e-6 * fabs(c->after[s].p[k]));
                CHECK_NEAR(m[k], c->after[s].m[k], 1e-6 * fabs(c->after[s].m[k]) + 1e-12);
                CHECK_NEAR(v[k], c->after[s].v[k], (1e-6 + room) * fabs(c->after[s].v[k]));
                CHECK_EQ(copy[k], tess_to_bf16(p[k]));
            }
        }
        forget();
    }
}

/* A long tile of odd size, with and without copy and decay, in single fp32 operations. */
TEST(odd_size)
{
    enum { M = 37 * 5 * 13 };
    const tess_optimizer o = optimizer_of(&torch[0]);
    set_env(&torch[0], 4);
    for (int kind = 0; kind < 4; kind++) {
        double *x = new_values(M, 1), *dx = new_values(M, 1), *one = new_values(M, 0.1), *two = new_values(M, 0.1);
        double *want = zeros(M), *loss = zeros(2), square = 0;
        void *norm = poison(tess_exact_bytes());
        for (int i = 0; i < M; i++) two[i] = fabs(two[i]);
        float *p = real_of(x, M, TESS_F32), *g = real_of(dx, M, TESS_F32);
        float *m = real_of(one, M, TESS_F32), *v = real_of(two, M, TESS_F32);
        tess_bf16 *copy = poison(M * 2);
        tess_update_arg a = {.n = M,
                             .optimizer = &o,
                             .moments = 2,
                             .weight_decay = kind & 1 ? 0.1 : 0,
                             .lr_scale = 1,
                             .copy = kind & 2 ? TESS_BF16 : TESS_F32,
                             .name = "w"};
        for (int i = 0; i < M; i++) {
            double mi = 0.9 * one[i] + 0.1 * dx[i], vi = 0.999 * two[i] + 0.001 * dx[i] * dx[i];
            double decayed = x[i] * (1 - 1e-3 * a.weight_decay);
            want[i] = decayed - 1e-3 / (1 - pow(0.9, 5)) * mi / (sqrt(vi / (1 - pow(0.999, 5))) + 1e-8);
            square += dx[i] * dx[i];
        }
        RUN(tess_square_sum, (&(tess_square_arg){.n = M, .row = 37}), g, norm);
        RUN(tess_update_adamw, &a, p, m, v, g, loss, norm, copy);
        CHECK(distance(p, TESS_F32, want, M) < 1e-6);
        CHECK_NEAR(tess_exact_value(norm), square, 1e-12 * square);
        for (int i = 0; i < M; i++) CHECK_EQ(copy[i], a.copy == TESS_BF16 ? tess_to_bf16(p[i]) : 0xffff);
        forget();
    }
}

/* Nothing changes when the loss or the norm is not finite; the norm fails the task. */
TEST(not_finite)
{
    const tess_optimizer o = optimizer_of(&torch[2]);
    set_env(&torch[2], 0);
    for (int kind = 0; kind < 4; kind++) {
        double x[N] = {1, 2, 3, 4}, *loss = zeros(2), *norm = bytes_of(tess_exact_bytes());
        float *p = real_of(x, N, TESS_F32), *m = bytes_of(N * 4), *v = bytes_of(N * 4), *g = bytes_of(N * 4);
        float *before = copy_of(p, N * 4), zero[N] = {0};
        tess_bf16 *copy = poison(N * 2);
        tess_update_arg a = {
            .n = N, .optimizer = &o, .moments = 2, .lr_scale = 1, .copy = TESS_BF16, .clip = kind & 1, .name = "h.0.w"};
        g[3] = 1;
        if (kind < 2)
            g[3] = kind ? 1 : INFINITY, *norm = NAN;
        else
            *loss = NAN;
        failure[0] = 0;
        if (!a.clip) RUN(tess_square_sum, (&(tess_square_arg){.n = N, .row = 2}), g, norm);
        RUN(tess_update_adamw, &a, p, m, v, g, loss, norm, copy);
        CHECK_STR(failure, kind < 2 ? "h.0.w: the gradient is not finite" : "");
        CHECK(!memcmp(p, before, N * 4) && !memcmp(m, zero, N * 4) && !memcmp(v, zero, N * 4));
        for (int i = 0; i < N; i++) CHECK_EQ(copy[i], 0xffff);
        forget();
    }
}

/* ---- sums and the search for what is not finite -------------------------------------------------------------------
 */

static double value_of(double x)
{
    void *sum = bytes_of(tess_exact_bytes());
    RUN(tess_exact_add, (&(tess_exact_arg){.n = 1, .doubles = true}), sum, copy_of(&x, sizeof x));
    return tess_exact_value(sum);
}

/* What goes in alone comes out, from the smallest double to the largest, of either sign. */
TEST(exact_one)
{
    const double x[] = {
        0, 1, -1, 0.1, -0.1, 5e-324, -5e-324, 2.2250738585072014e-308, 1e-310, 1.7976931348623157e308, -1e300};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) CHECK(value_of(x[i]) == x[i]);
    CHECK(isnan(value_of(INFINITY)) && isnan(value_of(NAN)));
    forget();
}

/* No order and no grouping of the terms changes a bit, though doubles would lose them. */
TEST(exact_order)
{
    enum { TERMS = 300 };
    double *x[TERMS], *forth = zeros(1);
    for (int i = 0; i < TERMS; i++) *(x[i] = zeros(1)) = ldexp(((i * 7919) % 1000) - 499.5, (i * 31) % 400 - 200);
    void *all = poison(tess_exact_bytes()), *part = poison(tess_exact_bytes()), *sum = poison(tess_exact_bytes());
    tess_exact_arg one = {.n = 1, .doubles = true}, more = one, add = {.n = 1, .acc = true};
    more.acc = true;
    for (int i = 0; i < TERMS; i++) RUN(tess_exact_add, i ? &more : &one, all, x[i]);
    for (int cut = 1; cut < TERMS; cut += 37) {
        for (int i = cut - 1; i >= 0; i--) RUN(tess_exact_add, i == cut - 1 ? &one : &more, part, x[i]);
        for (int i = TERMS - 1; i >= cut; i--) RUN(tess_exact_add, i == TERMS - 1 ? &one : &more, sum, x[i]);
        RUN(tess_exact_add, &add, sum, part);
        CHECK(!memcmp(all, sum, tess_exact_bytes()));
    }
    RUN(tess_exact_round, &one, forth, all);
    CHECK(*forth == tess_exact_value(all));
    *x[0] = 1e300, *x[1] = 1e-300, *x[2] = -1e300; /* in doubles the small one would be gone */
    RUN(tess_exact_add, &one, all, x[0], x[1], x[2]);
    CHECK(tess_exact_value(all) == 1e-300);
    forget();
}

TEST(square_sum)
{
    for (int64_t rows = 1; rows < 90; rows = 2 * rows + 1) {
        enum { WIDE = 61 };
        int64_t n = rows * WIDE;
        double *x = new_values(n, 1e-3), want = 0;
        float *px = real_of(x, n, TESS_F32);
        void *got = poison(tess_exact_bytes()), *up = poison(tess_exact_bytes()), *low = poison(tess_exact_bytes());
        for (int64_t i = 0; i < n; i++) want += x[i] * x[i];
        RUN(tess_square_sum, (&(tess_square_arg){.n = n, .row = WIDE}), px, got);
        CHECK_NEAR(tess_exact_value(got), want, 1e-13 * want);
        int64_t cut = rows / 2 * WIDE; /* in two pieces of whole rows: the same bits */
        RUN(tess_square_sum, (&(tess_square_arg){.n = cut, .row = WIDE}), px, up);
        RUN(tess_square_sum, (&(tess_square_arg){.n = n - cut, .first = cut, .row = WIDE}), px, low);
        RUN(tess_exact_add, (&(tess_exact_arg){.n = 1, .acc = true}), low, up);
        CHECK(!memcmp(got, low, tess_exact_bytes()));
        forget();
    }
    /* A square beyond fp32 is no reason to stop. */
    float *big = bytes_of(4);
    void *got = poison(tess_exact_bytes());
    *big = 1e30f;
    RUN(tess_square_sum, (&(tess_square_arg){.n = 1, .row = 1}), big, got);
    CHECK_NEAR(tess_exact_value(got), 1e60, 1e54);
    forget();
}

/* However the leaves of the tree are handed in, summed already or not, the sum has the same bits. */
TEST(tree_sum)
{
    enum { LEAVES = 7, LONG = 5000 };
    float *leaf[LEAVES], *pair = bytes_of(LONG * 4), *four = bytes_of(LONG * 4);
    for (int i = 0; i < LEAVES; i++) leaf[i] = real_of(new_values(LONG, 1), LONG, TESS_F32);
    float *all = poison(LONG * 4), *some = poison((LONG + 3) * 4);
    tess_tree_part seven[LEAVES], grouped[] = {{1, 2, 0}, {2, 1, 0}, {3, 0, 0}};
    for (int i = 0; i < LEAVES; i++) seven[i] = (tess_tree_part){(unsigned)i + 1, 0, 0};
    RUN(tess_tree_sum, (&(tess_tree_arg){.n = LONG, .parts = LEAVES, .part = seven}), all, leaf[0], leaf[1], leaf[2],
        leaf[3], leaf[4], leaf[5], leaf[6]);
    for (int i = 0; i < LONG; i++) {
        float a = (leaf[0][i] + leaf[1][i]) + (leaf[2][i] + leaf[3][i]), b = leaf[4][i] + leaf[5][i];
        if (all[i] != a + (b + leaf[6][i])) CHECK_EQ(i, -1);
    }
    RUN(tess_tree_sum, (&(tess_tree_arg){.n = LONG, .parts = 4, .part = seven}), four, leaf[0], leaf[1], leaf[2],
        leaf[3]);
    RUN(tess_tree_sum, (&(tess_tree_arg){.n = LONG, .parts = 2, .part = seven}), pair, leaf[4], leaf[5]);
    RUN(tess_tree_sum, (&(tess_tree_arg){.n = LONG, .out = 3, .parts = 3, .part = grouped}), some, four, pair, leaf[6]);
    CHECK(!memcmp(all, some + 3, LONG * 4));
    forget();
}

TEST(finite)
{
    EACH_REAL(t)
    {
        for (int64_t n = 1; n < 100; n += 33) {
            double *x = new_values(n, t == TESS_F16 ? 1e4 : 1e30);
            void *fine = real_of(x, n, t);
            tess_count_arg a = {.n = n, .name = "x"};
            failure[0] = 0;
            RUN(&tess_finite[t], &a, fine);
            CHECK_STR(failure, "");
            for (int64_t at = 0; at < n; at += 11) {
                double was = x[at], bad[] = {INFINITY, -INFINITY, NAN};
                for (int k = 0; k < 3; k++) {
                    x[at] = bad[k];
                    failure[0] = 0;
                    RUN(&tess_finite[t], &a, real_of(x, n, t));
                    char want[64];
                    snprintf(want, sizeof want, "x: element %lld is %g", (long long)at, bad[k]);
                    CHECK_STR(failure, want);
                }
                x[at] = was;
            }
            forget();
        }
    }
}
