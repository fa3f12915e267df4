/* Matrices in 4 and 8 bits: codes, scales and values beside bitsandbytes', what is not finite, and products: of a
 * quantized matrix they are those of the values that it stands for. */
#define CHECK_MAIN
#include "tests/codelets/body.h"
#include <math.h>

enum { BLOCK = TESS_QUANTIZED_BLOCK };
static const struct {
    tess_dtype as;
    uint32_t scale, x[BLOCK];
    uint8_t code[BLOCK];
    uint32_t value[BLOCK];
    uint16_t rounded[BLOCK];
} bnb[] = {
#include "tests/codelets/fixtures/quantized.inc"
};

TEST(blocks_are_those_of_bitsandbytes)
{
    for (size_t k = 0; k < sizeof bnb / sizeof *bnb; k++) {
        const size_t codes = bnb[k].as == TESS_NF4 ? BLOCK / 2 : BLOCK;
        unsigned char made[4 + BLOCK];
        float x[BLOCK], y[BLOCK];
        uint16_t z[BLOCK];
        memcpy(x, bnb[k].x, sizeof x);
        CHECK_EQ(tess_dtype_bytes(bnb[k].as, BLOCK), 4 + codes);
        tess_quantize_write(made, bnb[k].as, x, BLOCK, TESS_F32);
        CHECK(!memcmp(made, &bnb[k].scale, 4));
        for (size_t i = 0; i < codes; i++)
            if (made[4 + i] != bnb[k].code[i])
                CHECK_SAY("block %zu, byte %zu: code %d, expected %d", k, i, made[4 + i], bnb[k].code[i]);
        tess_quantize_read(y, TESS_F32, made, bnb[k].as, BLOCK);
        tess_quantize_read(z, TESS_BF16, made, bnb[k].as, BLOCK);
        for (int i = 0; i < BLOCK; i++) /* -0 is 0 */
            CHECK(!memcmp(&y[i], &bnb[k].value[i], 4) || (y[i] == 0 && !(bnb[k].value[i] << 1)));
        for (int i = 0; i < BLOCK; i++) CHECK(z[i] == bnb[k].rounded[i] || !((z[i] | bnb[k].rounded[i]) & 0x7fff));
        /* What was read comes to the same codes again, but where the dynamic code, which lacks -1, has shrunk a block.
         */
        unsigned char again[sizeof made];
        tess_quantize_write(again, bnb[k].as, y, BLOCK, TESS_F32);
        CHECK(bnb[k].as == TESS_INT8 || bnb[k].scale < 0x00800000u || !memcmp(again, made, 4 + codes));
    }
}

TEST(values_are_rounded_before_and_what_is_not_finite_shows)
{
    for (tess_dtype as = TESS_NF4; as <= TESS_INT8; as++) {
        unsigned char made[4 + BLOCK], rounded[4 + BLOCK];
        float x[BLOCK], y[BLOCK], z[BLOCK];
        for (int i = 0; i < BLOCK; i++) x[i] = (float)roll(), y[i] = tess_from_bf16(tess_to_bf16(x[i]));
        tess_quantize_write(made, as, x, BLOCK, TESS_BF16);
        tess_quantize_write(rounded, as, y, BLOCK, TESS_F32);
        CHECK(!memcmp(made, rounded, tess_dtype_bytes(as, BLOCK)));
        for (int k = 0; k < 2; k++) {
            x[17] = k ? INFINITY : NAN;
            tess_quantize_write(made, as, x, BLOCK, TESS_F32);
            tess_quantize_read(z, TESS_F32, made, as, BLOCK);
            for (int i = 0; i < BLOCK; i++) CHECK(isnan(z[i]));
        }
    }
}

/* What codes of a sum lack is kept beside them; parts in codes add up as the values that they stand for. */
TEST(what_codes_lack_is_kept_and_codes_add_up)
{
    enum { N = 70 * BLOCK, TIMES = 3, FROM = 5 * BLOCK };
    const tess_count_arg a = {.n = N, .as = TESS_INT8};
    const tess_tree_part part[TIMES] = {{1, 0, FROM, TESS_INT8}, {2, 0, FROM, TESS_INT8}, {3, 0, FROM, TESS_INT8}};
    const tess_tree_arg sum = {.n = N - FROM, .parts = TIMES, .part = part};
    float *x = bytes_of(4 * N), *rest = memset(bytes_of(4 * N), 0, 4 * N), *value[TIMES], *all = bytes_of(4 * N);
    void *codes[TIMES], *want = bytes_of(tess_dtype_bytes(TESS_INT8, N));
    double lacks = 0, drawn = 0;
    for (int k = 0; k < TIMES; k++) {
        codes[k] = bytes_of(tess_dtype_bytes(TESS_INT8, N)), value[k] = bytes_of(4 * N);
        for (int i = 0; i < N; i++) x[i] = (float)roll() - 0.5f, all[i] = x[i] + rest[i], drawn += fabs(x[i]);
        tess_quantize_write(want, TESS_INT8, all, N, TESS_F32);
        tess_quantize_read(value[k], TESS_F32, want, TESS_INT8, N);
        RUN(&tess_quantize_rest[TESS_F32], &a, x, rest, codes[k]);
        CHECK(!memcmp(codes[k], want, tess_dtype_bytes(TESS_INT8, N)));
        for (int i = 0; i < N; i++) lacks += fabs(rest[i]);
        for (int i = 0; i < N; i++) CHECK(rest[i] == all[i] - value[k][i]);
    }
    CHECK(lacks > 0 && lacks < 0.02 * drawn);
    RUN(&tess_tree_sum[TESS_F32], &sum, all, codes[0], codes[1], codes[2]);
    for (int i = 0; i < N - FROM; i++) CHECK(all[i] == value[2][FROM + i] + (value[0][FROM + i] + value[1][FROM + i]));
    EACH_REAL(t) /* there and back, in the dtypes of weights */
    {
        const size_t size = tess_dtype_size(t);
        void *w = bytes_of(N * size), *back = bytes_of(N * size), *again = bytes_of(N * size);
        for (int i = 0; i < N; i++) tess_store(w, i, t, x[i]);
        const tess_count_arg rounds = {.n = N, .as = TESS_INT8, .of = t};
        RUN(&tess_quantize[t], &rounds, w, codes[0]);
        RUN(&tess_dequantize[t], &a, codes[0], back);
        for (int i = 0; i < N; i++) x[i] = tess_load(w, i, t);
        tess_quantize_write(want, TESS_INT8, x, N, TESS_F32);
        tess_quantize_read(again, t, want, TESS_INT8, N);
        CHECK(!memcmp(back, again, N * size));
    }
    forget();
}

/* y = x w^T and dx = dy w of codes and of what they stand for. With the kernel that all machines have, bit for bit. */
static void multiply(tess_dtype t, tess_dtype as, tess_linear_arg a, bool same_bits)
{
    const int64_t n = a.in * a.out;
    const size_t size = tess_dtype_size(t), wide = a.sum ? 4 : size;
    float *drawn = bytes_of((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) drawn[i] = (float)(roll() * roll());
    void *codes = bytes_of(tess_dtype_bytes(as, n)), *w = bytes_of((size_t)n * size);
    tess_quantize_write(codes, as, drawn, n, t);
    tess_quantize_read(w, t, codes, as, n);
    double *draws = new_values(a.rows * (a.in > a.ld ? a.in : a.ld), 1), *bias = new_values(a.out, 1);
    void *x = real_of(draws, a.rows * a.in, t), *dy = real_of(draws, a.rows * a.ld, t),
         *b = real_of(bias, a.out, TESS_F32);
    void *y[2], *dx[2];
    for (int k = 0; k < 2; k++) {
        tess_linear_arg of = a;
        of.w = k ? as : TESS_F32;
        y[k] = memset(bytes_of((size_t)(a.rows * a.ld) * size), 0, (size_t)(a.rows * a.ld) * size);
        dx[k] = memset(bytes_of((size_t)(a.rows * a.in) * wide), 0, (size_t)(a.rows * a.in) * wide);
        RUN(&tess_linear_forward[t], &of, x, k ? codes : w, y[k], b);
        of.bias = of.few = false;
        RUN(&tess_linear_backward_input[t], &of, dy, k ? codes : w, dx[k]);
    }
    const tess_dtype to = a.sum ? TESS_F32 : t;
    double off[2] = {0}, all[2] = {0};
    for (int64_t i = 0; i < a.rows * a.ld; i++)
        off[0] += fabs(tess_load(y[0], i, t) - tess_load(y[1], i, t)), all[0] += fabs(tess_load(y[0], i, t));
    for (int64_t i = 0; i < a.rows * a.in; i++)
        off[1] += fabs(tess_load(dx[0], i, to) - tess_load(dx[1], i, to)), all[1] += fabs(tess_load(dx[0], i, to));
    CHECK(all[0] > 0 && all[1] > 0);
    if (!(off[0] <= (same_bits ? 0 : 1e-3 * all[0]) && off[1] <= (same_bits ? 0 : 1e-3 * all[1])))
        CHECK_SAY("%s of %s, %lld x %lld x %lld: y is off by %g of %g, dx by %g of %g", tess_dtype_name(t),
                  tess_dtype_name(as), (long long)a.rows, (long long)a.in, (long long)a.out, off[0], all[0], off[1],
                  all[1]);
    forget();
}

TEST(products_are_those_of_the_values)
{
    static const int64_t shape[][3] = {{1, 64, 64}, {5, 192, 70}, {300, 448, 200}, {33, 3200, 90}, {130, 64, 1700}};
    for (int across = 1; across >= 0; across--) {
        const bool same = tess_matrix_across(across) && across;
        for (tess_dtype as = TESS_NF4; as <= TESS_INT8; as++)
            for (tess_dtype t = TESS_F32; t <= TESS_F16; t++)
                for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
                    tess_linear_arg a = {.rows = shape[k][0],
                                         .in = shape[k][1],
                                         .out = shape[k][2],
                                         .ld = shape[k][2] + 6,
                                         .col = 4,
                                         .bias = true,
                                         .acc = k % 2,
                                         .sum = k % 3 == 2};
                    multiply(t, as, a, same);
                    a.few = a.rows <= TESS_FEW_ROWS;
                    if (a.few) multiply(t, as, a, same);
                }
    }
}
