/* layernorm and rmsnorm against doubles; dx by finite differences. */
#define CHECK_MAIN
#include "body.h"

enum { EPS_INVERSE = 100000 };
static const struct {
    int64_t rows, width;
} shapes[] = {{111, 1}, {111, 7}, {37, 65}, {5, 768}};

/* y of one row; centered: layernorm's. Returns the mean and 1/std, or 0 and 1/rms. */
static void norm_row(const double *x, const double *gain, const double *bias, double *y, int64_t n, bool centered,
                     double stats[2])
{
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n && centered; i++) mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / (double)n;
    double scale = 1 / sqrt(square + 1.0 / EPS_INVERSE);
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * scale * gain[i] + (bias ? bias[i] : 0);
    stats[0] = mean;
    stats[1] = scale;
}

/* The dot product of dy and y of one row. */
static double dot_row(const double *x, const double *dy, const double *gain, int64_t n, bool centered)
{
    double y[768], stats[2], dot = 0;
    norm_row(x, gain, NULL, y, n, centered, stats);
    for (int64_t i = 0; i < n; i++) dot += dy[i] * y[i];
    return dot;
}

static void check_forward(int64_t rows, int64_t n, tess_dtype t, bool centered)
{
    size_t size = (size_t)(rows * n) * tess_dtype_size(t);
    double *x = new_values(rows * n, 2), *gain = new_values(n, 1), *bias = new_values(n, 1);
    for (int64_t i = 0; i < rows * n; i++) x[i] += 1;
    void *px = real_of(x, rows * n, t), *pgain = real_of(gain, n, TESS_F32), *pbias = real_of(bias, n, TESS_F32);
    double *want = zeros(rows * n), *want_stats = zeros(rows * 2);
    for (int64_t r = 0; r < rows; r++) {
        double stats[2];
        norm_row(x + r * n, gain, centered ? bias : NULL, want + r * n, n, centered, stats);
        if (centered)
            memcpy(want_stats + 2 * r, stats, sizeof stats);
        else
            want_stats[r] = stats[1];
    }
    tess_norm_arg arg = {.rows = rows, .width = n, .eps = 1.0f / EPS_INVERSE};
    void *y = poison(size), *stats = poison((size_t)rows * 8);
    if (centered)
        RUN(&tess_layernorm_forward[t], &arg, px, pgain, pbias, y, stats);
    else
        RUN(&tess_rmsnorm_forward[t], &arg, px, pgain, y, stats);
    CHECK(near(y, t, want, rows * n));
    CHECK(near(stats, TESS_F32, want_stats, rows * (centered ? 2 : 1)));
    forget();
}

static void check_backward(int64_t rows, int64_t n, tess_dtype t, bool centered, bool acc)
{
    const int64_t all = rows * n;
    double *x = new_values(all, 2), *dy = new_values(all, 1), *gain = new_values(n, 1), *was = new_values(all, 1);
    double *was_gain = new_values(n, 1), *was_bias = new_values(n, 1), *stats = zeros(2 * rows);
    double *dx = zeros(all), *dgain = zeros(n), *dbias = zeros(n);
    void *px = real_of(x, all, t), *pdy = real_of(dy, all, t), *pgain = real_of(gain, n, TESS_F32);
    void *pdx = acc ? real_of(was, all, t) : poison((size_t)all * tess_dtype_size(t));
    void *pdgain = acc ? real_of(was_gain, n, TESS_F32) : poison((size_t)n * 4);
    void *pdbias = acc ? real_of(was_bias, n, TESS_F32) : poison((size_t)n * 4);
    for (int64_t i = 0; i < n && acc; i++) dgain[i] = was_gain[i], dbias[i] = was_bias[i];
    for (int64_t r = 0; r < rows; r++) {
        double y[768], ones[768], two[2], *row = x + r * n;
        for (int64_t i = 0; i < n; i++) ones[i] = 1;
        norm_row(row, ones, NULL, y, n, centered, two);
        if (centered)
            memcpy(stats + 2 * r, two, sizeof two);
        else
            stats[r] = two[1];
        for (int64_t i = 0; i < n; i++) {
            const double at = row[i];
            row[i] = at + 1e-5;
            double above = dot_row(row, dy + r * n, gain, n, centered);
            row[i] = at - 1e-5;
            double below = dot_row(row, dy + r * n, gain, n, centered);
            row[i] = at;
            dx[r * n + i] = (acc ? was[r * n + i] : 0) + (above - below) / 2e-5;
            dgain[i] += dy[r * n + i] * y[i];
            dbias[i] += dy[r * n + i];
        }
    }
    void *pstats = real_of(stats, rows * (centered ? 2 : 1), TESS_F32);
    tess_norm_arg arg = {.rows = rows, .width = n, .eps = 1.0f / EPS_INVERSE, .acc = acc, .acc_param = acc};
    if (centered) {
        RUN(&tess_layernorm_backward[t], &arg, pdy, px, pgain, pstats, pdx, pdgain, pdbias);
        CHECK(near(pdbias, TESS_F32, dbias, n));
    } else
        RUN(&tess_rmsnorm_backward[t], &arg, pdy, px, pgain, pstats, pdx, pdgain);
    /* The norm of one number is a constant: its dx is noise around 0. */
    if (n > 1 || acc) CHECK(near(pdx, t, dx, all));
    CHECK(near(pdgain, TESS_F32, dgain, n));
    forget();
}

static void check_norm(bool centered)
{
    EACH_REAL(t)
    {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            check_forward(shapes[s].rows, shapes[s].width, t, centered);
            check_backward(shapes[s].rows, shapes[s].width, t, centered, false);
            check_backward(shapes[s].rows, shapes[s].width, t, centered, true);
        }
    }
}

TEST(layernorm)
{
    check_norm(true);
}
TEST(rmsnorm)
{
    check_norm(false);
}

/* A large mean takes no digits off the variance: two passes. */
TEST(layernorm_far_from_zero)
{
    enum { W = 768 };
    float *x = bytes_of(W * 4), *gain = bytes_of(W * 4), *bias = bytes_of(W * 4), *y = poison(W * 4);
    float *stats = poison(8);
    for (int i = 0; i < W; i++) x[i] = 4096 + (float)(i % 2), gain[i] = 1;
    tess_norm_arg arg = {.rows = 1, .width = W};
    RUN(&tess_layernorm_forward[TESS_F32], &arg, x, gain, bias, y, stats);
    CHECK_NEAR(stats[0], 4096.5, 1e-3);
    CHECK_NEAR(y[0], -1, 1e-5);
    CHECK_NEAR(y[1], 1, 1e-5);
    forget();
}
