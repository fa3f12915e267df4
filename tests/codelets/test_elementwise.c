/* gelu, silu, sums and products, and the functions they are made of, against the C library in double. */
#define CHECK_MAIN
#include "body.h"
#include "vector_impl.h"

static double gelu_tanh(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_erf(double x)
{
    return x / 2 * (1 + erf(x / sqrt(2)));
}
static double silu(double x)
{
    return x / (1 + exp(-x));
}
static double slope(double (*f)(double), double x)
{
    return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;
}

enum { N = 37 * 5 * 13 };

static void check_map(tess_codelet *forward, tess_codelet *backward, int kind, double (*f)(double))
{
    EACH_REAL(t)
    {
        for (int64_t n = 1; n <= N; n = n == 1 ? 7 : n == 7 ? N : N + 1) {
            double *x = new_values(n, 3), *dy = new_values(n, 1), *was = new_values(n, 1);
            void *in = real_of(x, n, t), *slopes = real_of(dy, n, t), *into = real_of(was, n, t);
            double *y = zeros(n), *dx = zeros(n), *sum = zeros(n);
            for (int64_t i = 0; i < n; i++) {
                y[i] = f(x[i]);
                dx[i] = dy[i] * slope(f, x[i]);
                sum[i] = was[i] + dx[i];
            }
            void *out = poison((size_t)n * tess_dtype_size(t)), *over = poison((size_t)n * tess_dtype_size(t));
            tess_map_arg arg = {.n = n, .kind = kind};
            RUN(&forward[t], &arg, in, out);
            CHECK(near(out, t, y, n));
            RUN(&backward[t], &arg, slopes, in, over);
            CHECK(near(over, t, dx, n));
            arg.acc = true;
            RUN(&backward[t], &arg, slopes, in, into);
            CHECK(near(into, t, sum, n));
            forget();
        }
    }
}

TEST(gelu_tanh)
{
    check_map(tess_gelu_forward, tess_gelu_backward, TESS_GELU_TANH, gelu_tanh);
}
TEST(gelu_erf)
{
    check_map(tess_gelu_forward, tess_gelu_backward, TESS_GELU_ERF, gelu_erf);
}
TEST(silu)
{
    check_map(tess_silu_forward, tess_silu_backward, 0, silu);
}

/* Far from 0 they are 0 or x, with slope 0 or 1; a NaN stays one. */
TEST(ends)
{
    const float far[] = {-1e4f, -90, -30, 30, 90, 1e4f};
    for (int kind = 0; kind < 3; kind++) {
        tess_map_arg arg = {.n = 7, .kind = kind % 2};
        float *x = bytes_of(7 * 4), *dy = bytes_of(7 * 4), *y = poison(7 * 4), *dx = poison(7 * 4);
        memcpy(x, far, sizeof far);
        x[6] = NAN;
        for (int i = 0; i < 7; i++) dy[i] = 1;
        RUN(kind < 2 ? tess_gelu_forward : tess_silu_forward, &arg, x, y);
        RUN(kind < 2 ? tess_gelu_backward : tess_silu_backward, &arg, dy, x, dx);
        for (int i = 0; i < 6; i++) {
            CHECK_NEAR(y[i], x[i] > 0 ? x[i] : 0, 1e-10);
            CHECK_NEAR(dx[i], x[i] > 0, 1e-10);
        }
        CHECK(isnan(y[6]) && isnan(dx[6]));
        forget();
    }
}

TEST(sums_and_products)
{
    EACH_REAL(t)
    {
        for (int64_t n = 1; n <= N; n = n == 1 ? 7 : n == 7 ? N : N + 1) {
            size_t bytes = (size_t)n * tess_dtype_size(t);
            double *a = new_values(n, 1), *b = new_values(n, 1), *was = new_values(n, 1);
            void *pa = real_of(a, n, t), *pb = real_of(b, n, t), *into = real_of(was, n, t);
            void *again = copy_of(into, bytes), *out = poison(bytes);
            double *add = zeros(n), *mul = zeros(n), *into_add = zeros(n), *into_mul = zeros(n);
            for (int64_t i = 0; i < n; i++) {
                add[i] = a[i] + b[i];
                mul[i] = a[i] * b[i];
                into_add[i] = was[i] + a[i];
                into_mul[i] = was[i] + mul[i];
            }
            tess_map_arg over = {.n = n}, acc = {.n = n, .acc = true};
            RUN(&tess_add_forward[t], &over, pa, pb, out);
            CHECK(near(out, t, add, n));
            RUN(&tess_mul_forward[t], &over, pa, pb, memset(out, 0xff, bytes));
            CHECK(near(out, t, mul, n));
            RUN(&tess_add_into[t], &over, pa, memset(out, 0xff, bytes));
            CHECK(memcmp(out, pa, bytes) == 0);
            RUN(&tess_mul_backward[t], &over, pa, pb, memset(out, 0xff, bytes));
            CHECK(near(out, t, mul, n));
            RUN(&tess_add_into[t], &acc, pa, into);
            CHECK(near(into, t, into_add, n));
            RUN(&tess_mul_backward[t], &acc, pa, pb, again);
            CHECK(near(again, t, into_mul, n));
            forget();
        }
    }
}

/* A part of y, from element 5 on, gets a sum in f32, rounded once; its neighbours stay as they are. */
TEST(sums_in_f32)
{
    enum { BEFORE = 5, AFTER = 3 };
    EACH_REAL(t)
    {
        for (int64_t n = 1; n <= N; n = n == 1 ? 7 : n == 7 ? N : N + 1) {
            const int64_t all = BEFORE + n + AFTER;
            double *x = new_values(n, 1), *was = new_values(all, 1);
            float *sum = real_of(x, n, TESS_F32);
            void *over = real_of(was, all, t), *into = copy_of(over, (size_t)all * tess_dtype_size(t));
            RUN(&tess_add_sum[t], &((tess_map_arg){.n = n, .first = BEFORE}), sum, over);
            RUN(&tess_add_sum[t], &((tess_map_arg){.n = n, .first = BEFORE, .acc = true}), sum, into);
            for (int64_t i = 0; i < all; i++) {
                const bool inside = i >= BEFORE && i < BEFORE + n;
                const float a = inside ? sum[i - BEFORE] : (float)was[i], b = inside ? (float)was[i] + a : a;
                CHECK(element(over, i, t) == (t == TESS_BF16 ? tess_from_bf16(tess_to_bf16(a)) : a));
                CHECK(element(into, i, t) == (t == TESS_BF16 ? tess_from_bf16(tess_to_bf16(b)) : b));
            }
            forget();
        }
    }
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

static double ulps(float got, double want)
{
    double ulp = fabs(want) < 0x1p-126 ? 0x1p-149 : ldexp(1, ilogb(want) - 23);
    return fabs(got - want) / ulp;
}

TEST(exp)
{
    double worst = 0;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 4099) {
        float x = tess_float_of((uint32_t)bits), y = tess_expf(x);
        double want = exp((double)x);
        if (isnan(x))
            CHECK(isnan(y));
        else if (want > 0x1.ffffffp127)
            CHECK(y == INFINITY);
        else if (ulps(y, want) > worst)
            worst = ulps(y, want);
    }
    CHECK(worst < 1.1);
    CHECK(tess_expf(-INFINITY) == 0 && tess_expf(INFINITY) == INFINITY && tess_expf(0) == 1);
    CHECK(tess_expf(-103.9f) > 0 && tess_expf(-104.1f) == 0);
}

TEST(exp2_and_sigmoid)
{
    double exp_off = 0, sigmoid_off = 0, slope_off = 0;
    for (float x = -125; x < 125; x += 1e-3f) {
        float slope, s = tess_sigmoidf(-x, &slope);
        double y = 1 / (1 + exp2(-(double)x)), rate = y / (1 + exp2((double)x));
        exp_off = fmax(exp_off, fabs(tess_exp2f(x) / exp2((double)x) - 1));
        sigmoid_off = fmax(sigmoid_off, fabs(s / y - 1));
        slope_off = fmax(slope_off, fabs(slope / rate - 1));
    }
    CHECK(exp_off < 2.5e-7);
    CHECK(sigmoid_off < 4e-7);
    CHECK(slope_off < 8e-7);
    CHECK(tess_exp2f(-INFINITY) == 0x1p-125f && tess_exp2f(INFINITY) == 0x1p125f);
}

TEST(sine_and_cosine)
{
    double off = 0;
    for (int q = 0; q < 8; q++)
        for (float r = -0.7853f; r < 0.7854f; r += 1e-3f) {
            float s, c;
            tess_sincosf((uint32_t)q, r, &s, &c);
            double a = q * M_PI_2 + (double)r;
            if (fabs(s - sin(a)) > off) off = fabs(s - sin(a));
            if (fabs(c - cos(a)) > off) off = fabs(c - cos(a));
        }
    CHECK(off < 1.3e-7);
}

TEST(widen_and_narrow)
{
    tess_bf16 *half = bytes_of(65536 * 2), *back = bytes_of(65536 * 2);
    float *wide = bytes_of(65536 * 4);
    for (int i = 0; i < 65536; i++) half[i] = (tess_bf16)i;
    tess_widen(wide, half, 65536);
    tess_narrow(back, wide, 65536);
    int off = 0;
    for (int i = 0; i < 65536; i++) off += isnan(wide[i]) ? !isnan(tess_from_bf16(back[i])) : back[i] != half[i];
    CHECK_EQ(off, 0);
    const float ties[] = {0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, 0x1.ffp127f};
    tess_narrow(back, ties, 4);
    CHECK(tess_from_bf16(back[0]) == 1 && tess_from_bf16(back[1]) == 0x1.04p0f);
    CHECK(tess_from_bf16(back[2]) == 0x1.02p0f && tess_from_bf16(back[3]) == INFINITY);
    forget();
}

TEST(sums_in_lanes)
{
    for (int64_t n = 0; n < 100; n++) {
        float *x = bytes_of((size_t)n * 4), lane[TESS_LANES] = {0}, want[TESS_LANES] = {0};
        for (int64_t i = 0; i < n; i++) x[i] = (float)roll();
        TESS_EACH(i, l, n, lane[l] += x[i]);
        for (int64_t i = 0; i < n; i++) want[i % 16] += x[i];
        for (int h = 8; h > 0; h /= 2)
            for (int l = 0; l < h; l++) want[l] += want[l + h];
        CHECK(tess_sum16(lane) == want[0]);
        forget();
    }
}
