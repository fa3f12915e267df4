/* Moments in fewer bits: the dice's mean and bounds, the 8 bits beside bitsandbytes', what is read and written again,
 * and that no cut of a matrix changes a bit. */
#define CHECK_MAIN
#include "codelets/optimizers/moment_format_impl.h"
#include "codelets/shared/vector.h"
#include "tests/codelets/body.h"

/* ---- 16 bits ---- */

TEST(dice_go_to_a_neighbour_and_keep_the_mean)
{
    const tess_random_key key = tess_random_begin(5, 9, 77);
    const float x[] = {1.0f, 1.001f, -1.003f, 1e-20f, -3.3e38f, 1e-40f, 0x1.0080p0f /* half way */,
                       0.0f, -0.0f,  6.5f,    2.7e-5f};
    enum { DRAWS = 1 << 16 };
    for (size_t k = 0; k < sizeof x / sizeof *x; k++)
        for (int moment = 0; moment < 2; moment++) {
            double mean = 0;
            const float low = tess_float_of(tess_bits(x[k]) & 0xffff0000u);
            const float high = tess_float_of((tess_bits(x[k]) + 0xffffu) & 0xffff0000u);
            for (uint32_t i = 0; i < DRAWS; i++) {
                const float y = tess_from_bf16(tess_bf16_by_dice(x[k], tess_kept_dice(key, k << 20, i, moment)));
                if (y != low && y != high) CHECK_SAY("%g became %g", (double)x[k], (double)y);
                mean += (double)y / DRAWS;
            }
            /* Five deviations of a mean of draws that are a step apart. */
            CHECK_NEAR(mean, x[k], 5 * 0.5 * fabs((double)high - (double)low) / sqrt(DRAWS) + 1e-12 * fabs(mean));
        }
    /* What is too large for bf16 does not become infinite. */
    for (uint32_t dice = 0; dice < 1 << 16; dice += 4369) {
        CHECK_EQ(tess_bf16_by_dice(INFINITY, dice), 0x7f7f);
        CHECK_EQ(tess_bf16_by_dice(-3.4e38f, dice), 0xff7f);
    }
}

/* Many small steps: nearest would lose each of them. */
TEST(dice_add_up_what_is_small)
{
    const int steps = 4000;
    double sum = 0;
    for (int run = 0; run < 64; run++) {
        float x = 1;
        for (int s = 0; s < steps; s++) {
            const tess_random_key key = tess_random_begin(3, (uint64_t)s, 1);
            x = tess_from_bf16(tess_bf16_by_dice(x + 2.5e-4f, tess_kept_dice(key, (uint64_t)run, 0, 0)));
        }
        sum += x;
    }
    CHECK_NEAR(sum / 64, 2, 0.05);
    CHECK(tess_from_bf16(tess_to_bf16(1 + 2.5e-4f)) == 1);
}

/* ---- 8 bits ---- */

enum { BLOCK = 256 };
static const struct bnb_case {
    bool positive;
    float scale, x[BLOCK];
    uint8_t code[BLOCK];
} bnb[] = {
#include "tests/codelets/fixtures/int8_blocks.inc"
};
static const float map_of[2][256] = {
#include "tests/codelets/fixtures/int8_map.inc"
};

TEST(codes_are_those_of_bitsandbytes)
{
    for (int positive = 0; positive < 2; positive++)
        for (int code = 0; code < 256; code++) {
            const float share = tess_int8_share(code, positive);
            CHECK_NEAR(share, map_of[positive][code], 2.4e-7 * fabs((double)map_of[positive][code]));
            CHECK_EQ(tess_int8_code(share, positive), code);
        }
    /* Blocks are divided by their largest magnitude; ours has its sign, so it is taken off. What is above 0 stays. */
    for (size_t k = 0; k < sizeof bnb / sizeof *bnb; k++) {
        float most = 0, least = 0;
        for (int i = 0; i < BLOCK; i++) most = fmaxf(most, bnb[k].x[i]), least = fminf(least, bnb[k].x[i]);
        const float scale = tess_int8_scale(most, least);
        CHECK(fabsf(scale) == bnb[k].scale);
        for (int i = 0; i < BLOCK; i++) {
            const int code = tess_int8_of(bnb[k].x[i], fabsf(scale), bnb[k].positive), want = bnb[k].code[i];
            if (code != want && !(bnb[k].positive && code == 1 && want == 0 && bnb[k].x[i] > 0))
                CHECK_SAY("block %zu, element %d, %.9g of %.9g: code %d, expected %d", k, i, (double)bnb[k].x[i],
                          (double)bnb[k].scale, code, want);
        }
    }
}

/* The nearest of all, for shares everywhere: to what fp32 can tell of a middle. */
TEST(codes_are_the_nearest)
{
    for (int positive = 0; positive < 2; positive++)
        for (double s = 1e-9; s < 1.0; s *= 1.0007)
            for (int sign = positive ? 1 : -1; sign < 2; sign += 2) {
                const float share = (float)(sign * s);
                const int code = tess_int8_code(share, positive);
                const double off = fabs((double)tess_int8_share(code, positive) - (double)share);
                for (int near = code - 1; near < code + 2; near += 2) {
                    if (near < 0 || near > 255 || (positive && near == 0)) continue; /* what is above 0 stays */
                    const double other = fabs((double)tess_int8_share(near, positive) - (double)share);
                    if (off > other + 3e-7 * s) CHECK_SAY("%g: code %d, %d is nearer", (double)share, code, near);
                }
            }
}

static float drawn(int kind, bool positive)
{
    double x = roll() + roll() + roll();
    if (kind % 4 == 1) x *= pow(10, 8 * roll());
    if (kind % 4 == 2) x *= 1e-37; /* less than a scale can be */
    if (kind % 4 == 3 && roll() < 0) x = 0;
    return (float)(positive ? fabs(x) : x);
}

/* What was read and is written again has the same bits; a row is off by no more than half a step of its decade. */
TEST(read_and_written_again)
{
    static const int64_t width[] = {8, 63, 256, 257, 768, 1280};
    enum { ROWS = 5 };
    for (int kind = 0; kind < 60; kind++) {
        const bool positive = kind & 1;
        const int64_t w = width[kind / 2 % 6], n = ROWS * w;
        const tess_kept k = {.as = kind % 5 ? TESS_KEEP_INT8 : TESS_KEEP_BF16, .width = w, .whole = w};
        const size_t bytes = tess_kept_bytes(&k, ROWS);
        float *x = bytes_of((size_t)n * 4), *y = poison((size_t)n * 4);
        char *a = bytes_of(bytes), *b = bytes_of(bytes);
        for (int64_t i = 0; i < n; i++) x[i] = drawn(kind / 3 + (int)(i / w), positive);
        float *was = bytes_of((size_t)n * 4);
        memcpy(was, x, (size_t)n * 4);
        tess_kept_write(&k, a, ROWS, positive, 0, ROWS, x);
        tess_kept_read(&k, a, ROWS, positive, 0, ROWS, y);
        for (int64_t r = 0; r < ROWS && k.as == TESS_KEEP_INT8; r++) {
            float most = 0;
            for (int64_t i = r * w; i < (r + 1) * w; i++) most = fmaxf(most, fabsf(was[i]));
            for (int64_t i = r * w; i < (r + 1) * w; i++) {
                if (fabsf(y[i] - was[i]) > 0.5f * 0.9f / 64 * most + 0x1p-100f)
                    CHECK_SAY("%g of %g became %g", (double)was[i], (double)most, (double)y[i]);
                if (positive && was[i] > 0x1p-99f) CHECK(y[i] > 0);
            }
        }
        for (int64_t r = 0; r < ROWS; r += 2) { /* row by row, as pieces come */
            const int64_t rows = r + 2 < ROWS ? 2 : ROWS - r;
            tess_kept_write(&k, b, ROWS, positive, r, rows, y + r * w);
        }
        if (memcmp(a, b, bytes)) CHECK_SAY("kind %d, rows of %lld: other bits", kind, (long long)w);
        forget();
    }
}

/* Zeros are zeros, and what is not finite in fp32 any more is not lost. */
TEST(ends_of_the_range)
{
    const tess_kept k = {.as = TESS_KEEP_INT8, .width = 8, .whole = 8};
    char tile[12] = {0};
    float x[8] = {3, 3, 3, 3, 3, 3, 3, 3};
    CHECK_EQ(tess_kept_bytes(&k, 1), 12);
    tess_kept_read(&k, tile, 1, false, 0, 1, x); /* as it begins */
    for (int i = 0; i < 8; i++) CHECK(x[i] == 0 && !signbit(x[i]));
    x[2] = INFINITY;
    x[3] = -1e38f;
    tess_kept_write(&k, tile, 1, false, 0, 1, x);
    tess_kept_read(&k, tile, 1, false, 0, 1, x);
    CHECK(x[2] > 3.4e38f && isfinite(x[2]) && x[3] < -0.9e38f && x[0] == 0);
    const float extreme[8] = {-7, 1, 2, 3, 0, -1, -2, 6.9f}; /* the largest is exact on either side */
    memcpy(x, extreme, sizeof x);
    tess_kept_write(&k, tile, 1, false, 0, 1, x);
    tess_kept_read(&k, tile, 1, false, 0, 1, x);
    CHECK(x[0] == -7);
}

/* ---- cuts ---- */

/* One update of a matrix in whole, and of parts of its rows or columns: the same bits. */
enum { ROWS = 12, WIDTH = 768 };
static void run_part(const tess_optimizer *o, tess_keeping as, tess_dtype gradient, int64_t row, int64_t rows,
                     int64_t column, int64_t width, const float *p0, const float *m0, const float *v0, const float *g0,
                     float *p, float *m, float *v)
{
    const int64_t n = rows * width;
    float *part[4], *whole[] = {p, m, v};
    const float *from[] = {p0, m0, v0, g0};
    double *loss = zeros(2), *norm = zeros(1);
    *norm = 1;
    for (int k = 0; k < 4; k++) {
        part[k] = bytes_of((size_t)n * 4);
        for (int64_t r = 0; r < rows; r++)
            memcpy(part[k] + r * width, from[k] + (row + r) * WIDTH + column, (size_t)width * 4);
    }
    /* In two runs of rows, of which the second comes first in the parameter. */
    tess_update_arg a = {.n = n,
                         .optimizer = o,
                         .moments = 2,
                         .lr_scale = 1,
                         .clip = true,
                         .gradient = gradient,
                         .kept = {as, width, WIDTH, column, {{rows, row}}, 3},
                         .name = "w"};
    char *kept[2];
    for (int k = 0; k < 2; k++) {
        kept[k] = bytes_of(tess_kept_bytes(&a.kept, rows));
        if (as == TESS_KEEP_F32)
            memcpy(kept[k], part[1 + k], (size_t)n * 4);
        else
            tess_kept_write(&a.kept, kept[k], rows, k, 0, rows, part[1 + k]);
    }
    void *g = bytes_of((size_t)n * tess_dtype_size(gradient));
    tess_narrow(g, part[3], n, gradient);
    RUN(tess_update_adamw, &a, part[0], kept[0], kept[1], g, loss, norm);
    for (int k = 0; k < 2; k++)
        if (as == TESS_KEEP_F32)
            memcpy(part[1 + k], kept[k], (size_t)n * 4);
        else
            tess_kept_read(&a.kept, kept[k], rows, k, 0, rows, part[1 + k]);
    for (int k = 0; k < 3; k++)
        for (int64_t r = 0; r < rows; r++)
            memcpy(whole[k] + (row + r) * WIDTH + column, part[k] + r * width, (size_t)width * 4);
}

enum { N = ROWS * WIDTH };

/* Master, moments and gradient of an update, and room for two outcomes. */
static void draw_update(float *of[4], float *want[3], float *got[3])
{
    env.lr = 1e-3, env.beta1 = 0.9, env.beta2 = 0.99, env.bias1 = env.bias2 = 0.5, env.clip = 1;
    for (int k = 0; k < 4; k++) of[k] = real_of(new_values(N, k == 3 ? 1e-3 : 0.1), N, TESS_F32);
    for (int i = 0; i < N; i++) of[2][i] = fabsf(of[2][i]) * 1e-4f;
    for (int k = 0; k < 3; k++) want[k] = poison(N * 4), got[k] = poison(N * 4);
}

TEST(no_cut_changes_a_bit)
{
    const tess_optimizer o = tess_adamw();
    for (tess_keeping as = TESS_KEEP_BF16; as <= TESS_KEEP_INT8; as++) {
        float *of[4], *want[3], *got[3];
        draw_update(of, want, got);
        run_part(&o, as, TESS_F32, 0, ROWS, 0, WIDTH, of[0], of[1], of[2], of[3], want[0], want[1], want[2]);
        for (int cut = 1; cut < ROWS; cut += 4) {
            run_part(&o, as, TESS_F32, 0, cut, 0, WIDTH, of[0], of[1], of[2], of[3], got[0], got[1], got[2]);
            run_part(&o, as, TESS_F32, cut, ROWS - cut, 0, WIDTH, of[0], of[1], of[2], of[3], got[0], got[1], got[2]);
            for (int k = 0; k < 3; k++) CHECK(!memcmp(want[k], got[k], N * 4));
        }
        for (int ranks = 2; ranks <= 4; ranks += 2) { /* of columns: four blocks of 192 */
            for (int r = 0; r < ranks; r++)
                run_part(&o, as, TESS_F32, 0, ROWS, r * WIDTH / ranks, WIDTH / ranks, of[0], of[1], of[2], of[3],
                         got[0], got[1], got[2]);
            for (int k = 0; k < 3; k++) CHECK(!memcmp(want[k], got[k], N * 4));
        }
        env.step++; /* other dice */
        run_part(&o, as, TESS_F32, 0, ROWS, 0, WIDTH, of[0], of[1], of[2], of[3], got[0], got[1], got[2]);
        CHECK((memcmp(want[1], got[1], N * 4) != 0) == (as == TESS_KEEP_BF16));
        forget();
    }
}

/* A gradient that waits in bf16 is the same update as its numbers in fp32. */
TEST(gradient_in_bf16)
{
    const tess_optimizer o = tess_adamw();
    for (tess_keeping as = TESS_KEEP_F32; as <= TESS_KEEP_INT8; as++) {
        float *of[4], *want[3], *got[3];
        draw_update(of, want, got);
        for (int i = 0; i < N; i++) of[3][i] = tess_from_bf16(tess_to_bf16(of[3][i]));
        run_part(&o, as, TESS_F32, 0, ROWS, 0, WIDTH, of[0], of[1], of[2], of[3], want[0], want[1], want[2]);
        run_part(&o, as, TESS_BF16, 0, ROWS, 0, WIDTH, of[0], of[1], of[2], of[3], got[0], got[1], got[2]);
        for (int k = 0; k < 3; k++) CHECK(!memcmp(want[k], got[k], N * 4) && memcmp(want[k], of[k], N * 4));
        forget();
    }
}

/* Blocks cover a tile, each element once. */
TEST(blocks_cover_a_row)
{
    static const int64_t cases[][3] = {{768, 768, 0},   {384, 768, 384}, {33, 67, 34}, {1, 1600, 5},
                                       {1600, 1600, 0}, {257, 257, 0},   {8, 8, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tess_kept k = {.as = TESS_KEEP_INT8,
                             .width = cases[i][0],
                             .whole = cases[i][1],
                             .column = cases[i][2],
                             .part = {{1, 9}, {5, 40}}};
        const tess_kept_cut cut = tess_kept_cut_of(&k);
        int64_t at = 0;
        for (int64_t b = 0; b < 3 * cut.blocks; b++) {
            const tess_kept_span s = tess_kept_span_of(&k, cut, b);
            const int64_t row = b / cut.blocks;
            CHECK(s.at == at && s.n > 0 && s.n <= TESS_KEPT_BLOCK);
            CHECK_EQ(s.place, (uint64_t)((row ? 39 + row : 9) * k.whole + k.column + at - row * k.width));
            at += s.n;
        }
        CHECK_EQ(at, 3 * k.width);
    }
}
