/* Random bits, and the normal numbers that are drawn from them. */
#define CHECK_MAIN
#include "codelets/shared/vector.h"
#include "tests/codelets/body.h"

enum { DRAWS = 1 << 16 };

/* Draws that go along one of the four coordinates. */
static uint32_t draw(int along, uint64_t i)
{
    uint64_t c[4] = {7, 5, 3, 1};
    c[along] += i;
    return tess_random(c[0], c[1], (uint32_t)c[2], c[3]);
}

TEST(mean_bits_and_neighbours)
{
    for (int along = 0; along < 4; along++) {
        double mean = 0, product = 0, ones[32] = {0}, same[32] = {0};
        uint32_t before = draw(along, DRAWS);
        for (uint64_t i = 0; i < DRAWS; i++) {
            uint32_t x = draw(along, i);
            mean += x * 0x1p-32 / DRAWS;
            product += (x * 0x1p-32 - 0.5) * (before * 0x1p-32 - 0.5) * 12 / DRAWS;
            for (int b = 0; b < 32; b++) ones[b] += x >> b & 1, same[b] += (x ^ before) >> b & 1;
            before = x;
        }
        /* Five deviations. */
        CHECK_NEAR(mean, 0.5, 5 * sqrt(1.0 / 12 / DRAWS));
        CHECK_NEAR(product, 0, 5 / sqrt(DRAWS));
        for (int b = 0; b < 32; b++) {
            CHECK_NEAR(ones[b] / DRAWS, 0.5, 2.5 / sqrt(DRAWS));
            CHECK_NEAR(same[b] / DRAWS, 0.5, 2.5 / sqrt(DRAWS));
        }
    }
}

/* One bit turned in any coordinate turns each bit of the result half of the time. */
TEST(avalanche)
{
    enum { TRIES = 2048 };
    const int width[4] = {64, 64, 32, 64};
    double worst = 0;
    for (int along = 0; along < 4; along++)
        for (int in = 0; in < width[along]; in++) {
            int turned[32] = {0};
            for (uint64_t i = 0; i < TRIES; i++) {
                uint64_t c[4] = {i, 3 * i, i % 64, 1000 * i}, d[4];
                memcpy(d, c, sizeof d);
                d[along] ^= (uint64_t)1 << in;
                uint32_t x = tess_random(c[0], c[1], (uint32_t)c[2], c[3]);
                x ^= tess_random(d[0], d[1], (uint32_t)d[2], d[3]);
                for (int b = 0; b < 32; b++) turned[b] += x >> b & 1;
            }
            for (int b = 0; b < 32; b++) { /* gcc 12 for Arm breaks down over fmax here */
                const double off = fabs(turned[b] / (double)TRIES - 0.5);
                if (off > worst) worst = off;
            }
        }
    CHECK(worst < 0.08);
}

/* Cells of (x, next x) and of (x, x of the next op), 64 to a side. */
TEST(pairs)
{
    for (int along = 1; along < 4; along++) {
        int *cell = bytes_of(4096 * sizeof *cell);
        for (uint64_t i = 0; i < 16 * DRAWS; i++) {
            uint64_t place = i * (along == 3 ? 2 : 1);
            uint32_t x = tess_random(9, 2, 4, place);
            uint32_t y = tess_random(9, 2 + (along == 1), 4 + (along == 2), place + (along == 3));
            cell[(x >> 26) * 64 + (y >> 26)]++;
        }
        double chi = 0, want = 16.0 * DRAWS / 4096;
        for (int i = 0; i < 4096; i++) chi += (cell[i] - want) * (cell[i] - want) / want;
        CHECK_NEAR(chi, 4095, 5 * sqrt(2 * 4095.0));
        forget();
    }
}

/* The numbers are part of the format: masks must not change between versions and devices. */
TEST(known_numbers)
{
    CHECK_EQ(tess_random(0, 0, 0, 0), 812007561);
    CHECK_EQ(tess_random(1, 2, 3, 4), 1778010806);
    CHECK_EQ(tess_random(UINT64_MAX, 1, 7, (uint64_t)5 << 32 | 9), 2267019934);
    const tess_random_key key = tess_random_begin(1, 2, 3);
    const uint64_t place = 0x2fffffff0;
    for (uint32_t i = 0; i < 32; i++) CHECK(tess_random_after(key, place, i) == tess_random(1, 2, 3, place + i));
}

/* What attention's dropout keeps of every pair of places, seen through a v that has the place of a key in each row: as
 * many as it says, scaled by what that leaves, and none by what becomes of a neighbour or of another head. */
TEST(attention_drops)
{
    enum { T = 64, HEADS = 64, ALL = HEADS * T * T };
    static const float rates[] = {0.1f, 0.5f, 0.001f, 0.999f, 1};
    static const int dropped[] = {26, 128, 1, 255, 256};
    double *at = zeros(HEADS * T * T);
    void *none = real_of(at, HEADS * T * T, TESS_F32);
    for (int i = 0; i < T * HEADS; i++) at[i * T + i / HEADS] = 1;
    void *v = real_of(at, HEADS * T * T, TESS_F32);
    float *y = poison(HEADS * T * T * sizeof *y), *lse = poison(HEADS * T * sizeof *lse);
    for (int r = 0; r < 5; r++) {
        const tess_attention_arg a = {.rows = T,
                                      .sequence = T,
                                      .heads = HEADS,
                                      .groups = HEADS,
                                      .dim = T,
                                      .scale = 1,
                                      .dropout = rates[r],
                                      .op = 9};
        RUN(&tess_attention_forward[TESS_F32], &a, none, none, v, y, lse, poison(tess_attention_scratch(&a, TESS_F32)));
        const double p = 1 - dropped[r] / 256.0;
        double rate = 0, scale = 0, pairs[2][2][2] = {0};
        for (int i = 0; i < T * HEADS; i++)
            for (int j = 0; j < T; j++) {
                const double x = (double)y[i * T + j];
                const bool kept = x != 0;
                rate += kept;
                scale = fmax(scale, fabs(x * T * p - kept));
                for (int of = 0; of < 8; of++) { /* beside it, or in the same word; in the next head */
                    const int side = of & 1 ? 8 : 1, down = of & 2 ? side : 0, next = of & 4;
                    const int64_t other = ((int64_t)i + (next ? 1 : down * HEADS)) % (T * HEADS) * T + (j + side) % T;
                    pairs[of & 1][of >> 1 & 1][next > 0] += ((double)kept - p) * ((double)(y[other] != 0) - p);
                }
            }
        CHECK_NEAR(rate / ALL, p, 5 * sqrt(p * (1 - p) / ALL));
        CHECK(scale < 1e-6);
        for (int of = 0; of < 8; of++) CHECK_NEAR((&pairs[0][0][0])[of] / ALL, 0, 5 * p * (1 - p) / sqrt(ALL));
    }
    forget();
}

TEST(fill_normal)
{
    enum { N = 1 << 20 };
    float *x = poison(N * 4), *part = poison(101 * 4);
    tess_count_arg a = {.n = N, .value = 0.5f, .op = 3};
    RUN(tess_fill_normal, &a, x);
    double m[5] = {0};
    int64_t beyond = 0;
    for (int i = 0; i < N; i++) {
        double z = x[i] / 0.5;
        for (int k = 1; k < 5; k++) m[k] += pow(z, k) / N;
        beyond += fabs(z) > 2;
    }
    CHECK_NEAR(m[1], 0, 5 / sqrt(N));
    CHECK_NEAR(m[2], 1, 5 * sqrt(2.0 / N));
    CHECK_NEAR(m[3], 0, 5 * sqrt(15.0 / N));
    CHECK_NEAR(m[4], 3, 5 * sqrt(96.0 / N));
    CHECK_NEAR((double)beyond / N, erfc(sqrt(2)), 5 * sqrt(0.0455 / N));
    /* By Box and Muller in double. */
    double off = 0;
    for (uint64_t i = 0; i < 4096; i++) {
        double u = ((double)(tess_random(env.seed, UINT64_MAX, 3, 2 * i) >> 8) + 1) * 0x1p-24;
        double v = tess_random(env.seed, UINT64_MAX, 3, 2 * i + 1) * 0x1p-32;
        off = fmax(off, fabs(x[i] / 0.5 - sqrt(-2 * log(u)) * cos(2 * M_PI * v)));
    }
    CHECK(off < 2e-6);
    a = (tess_count_arg){.n = 101, .value = 0.5f, .op = 3, .first = 1234};
    RUN(tess_fill_normal, &a, part);
    CHECK(memcmp(part, x + 1234, 101 * 4) == 0);
    forget();
}
