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
    env.eps = c->eps;
    env.weight_decay = c->weight_decay;
    env.clip = c->clip;
}

TEST(torch)
{
    for (size_t i = 0; i < sizeof torch / sizeof *torch; i++) {
        const struct torch_case *c = &torch[i];
        double start[N];
        memcpy(start, first, sizeof start);
        float *p = real_of(start, N, TESS_F32), *m = bytes_of(N * 4), *v = bytes_of(N * 4);
        tess_bf16 *copy = poison(N * 2);
        double *loss = zeros(2), *norm = zeros(1);
        tess_adamw_arg a = {.n = N, .decay = true, .l2 = c->l2, .copy = true, .clip = c->clip > 0, .name = "w"};
        for (int s = 0; s < STEPS; s++) {
            double g[N], square = 0;
            memcpy(g, gradient[s], sizeof g);
            void *pg = real_of(g, N, TESS_F32);
            for (int k = 0; k < N; k++) square += g[k] * g[k];
            *norm = a.clip ? square : NAN;
            set_env(c, s);
            RUN(tess_adamw, &a, p, m, v, pg, loss, norm, copy);
            CHECK_NEAR(*norm, square, 1e-12);
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
    set_env(&torch[0], 4);
    for (int kind = 0; kind < 4; kind++) {
        double *x = new_values(M, 1), *dx = new_values(M, 1), *one = new_values(M, 0.1), *two = new_values(M, 0.1);
        double *want = zeros(M), *loss = zeros(2), *norm = zeros(1), square = 0;
        for (int i = 0; i < M; i++) two[i] = fabs(two[i]);
        float *p = real_of(x, M, TESS_F32), *g = real_of(dx, M, TESS_F32);
        float *m = real_of(one, M, TESS_F32), *v = real_of(two, M, TESS_F32);
        tess_bf16 *copy = poison(M * 2);
        tess_adamw_arg a = {.n = M, .decay = kind & 1, .copy = kind & 2, .name = "w"};
        for (int i = 0; i < M; i++) {
            double mi = 0.9 * one[i] + 0.1 * dx[i], vi = 0.999 * two[i] + 0.001 * dx[i] * dx[i];
            double decayed = x[i] * (a.decay ? 1 - 1e-3 * 0.1 : 1);
            want[i] = decayed - 1e-3 / (1 - pow(0.9, 5)) * mi / (sqrt(vi / (1 - pow(0.999, 5))) + 1e-8);
            square += dx[i] * dx[i];
        }
        RUN(tess_adamw, &a, p, m, v, g, loss, norm, copy);
        CHECK(distance(p, TESS_F32, want, M) < 1e-6);
        CHECK_NEAR(*norm, square, 1e-12 * square);
        for (int i = 0; i < M; i++) CHECK_EQ(copy[i], a.copy ? tess_to_bf16(p[i]) : 0xffff);
        forget();
    }
}

/* Nothing changes when the loss or the norm is not finite; the norm fails the task. */
TEST(not_finite)
{
    set_env(&torch[2], 0);
    for (int kind = 0; kind < 4; kind++) {
        double x[N] = {1, 2, 3, 4}, *loss = zeros(2), *norm = zeros(1);
        float *p = real_of(x, N, TESS_F32), *m = bytes_of(N * 4), *v = bytes_of(N * 4), *g = bytes_of(N * 4);
        float *before = copy_of(p, N * 4), zero[N] = {0};
        tess_bf16 *copy = poison(N * 2);
        tess_adamw_arg a = {.n = N, .copy = true, .clip = kind & 1, .name = "h.0.w"};
        g[3] = 1;
        if (kind < 2)
            g[3] = kind ? 1 : INFINITY, *norm = NAN;
        else
            *loss = NAN;
        failure[0] = 0;
        RUN(tess_adamw, &a, p, m, v, g, loss, norm, copy);
        CHECK_STR(failure, kind < 2 ? "h.0.w: the gradient is not finite" : "");
        CHECK(!memcmp(p, before, N * 4) && !memcmp(m, zero, N * 4) && !memcmp(v, zero, N * 4));
        for (int i = 0; i < N; i++) CHECK_EQ(copy[i], 0xffff);
        forget();
    }
}

/* ---- sums and the search for what is not finite -------------------------------------------------------------------
 */

TEST(square_sum)
{
    for (int64_t n = 0; n < 5000; n = 2 * n + 1) {
        double *x = new_values(n, 1e-3), want = 0, *got = zeros(1);
        float *px = real_of(x, n, TESS_F32);
        *got = NAN;
        for (int64_t i = 0; i < n; i++) want += x[i] * x[i];
        tess_count_arg a = {.n = n};
        RUN(tess_square_sum, &a, px, got);
        CHECK_NEAR(*got, want, 1e-13 * want);
        forget();
    }
    /* A square beyond fp32 is no reason to stop. */
    float *big = bytes_of(4);
    double *got = zeros(1);
    *big = 1e30f;
    tess_count_arg a = {.n = 1};
    RUN(tess_square_sum, &a, big, got);
    CHECK_NEAR(*got, 1e60, 1e54);
    forget();
}

TEST(scalar_sum)
{
    double *s = zeros(2), *a = zeros(2), *b = zeros(2), *c = zeros(2);
    s[0] = s[1] = NAN;
    a[0] = 1, b[0] = 2, c[0] = 4, a[1] = 1e16, b[1] = 1, c[1] = -1e16;
    tess_count_arg arg = {.n = 2};
    RUN(tess_scalar_sum, &arg, s, a, b, c);
    CHECK(s[0] == 7 && s[1] == (1e16 + 1) - 1e16);
    forget();
}

TEST(finite)
{
    EACH_REAL(t)
    {
        for (int64_t n = 1; n < 100; n += 33) {
            double *x = new_values(n, 1e30);
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
