/* The functions that bodies are made of, against the C library in double; and what codelets do far from what
 * tests/ops/ describes. */
#define CHECK_MAIN
#include "codelets/generic.h"
#include "codelets/products/mm.h"
#include "codelets/shared/vector.h"
#include "tests/codelets/body.h"
#include "tests/fp8.h"

/* ---- a GPU's attention ------------------------------------------------------------------------------------------- */

TEST(attention_is_on_tensor_cores)
{
    /* Of GPT-2, BERT and T5; GPT 2.7B; Phi-3 and GPT-NeoX; Llama, Mistral and Qwen; Megatron 530B; Gemma 2. */
    static const int64_t dim[] = {64, 80, 96, 128, 160, 256}, tile[] = {64, 128, 128, 128, 256, 256};
    static const int64_t none[] = {1, 4, 12, 36, 100, 132, 264, 512};
    tess_attention_arg a = {.rows = 1024, .sequence = 1024, .heads = 2, .groups = 1, .causal = true, .scale = 0.1f};
    for (tess_dtype t = TESS_F32; t <= TESS_F16; t++) {
        const bool half = t != TESS_F32;
        for (a.dim = 8; a.dim <= TESS_ATTENTION_WIDEST; a.dim += 8) {
            const tess_attention_kernels k = tess_attention_kernels_of(&a, t, true);
            CHECK_EQ(k.tile > 0, half);
            CHECK_EQ(k.library, half);
            CHECK(!half || (k.tile >= a.dim && k.tile <= (a.dim <= 64 ? 64 : 2 * a.dim)));
            CHECK(tess_attention_slower(&a, t, true) == (half ? 1 : TESS_ATTENTION_SLOWER));
            const tess_cost c = tess_attention_backward[t].cost(&a);
            CHECK(c.flops > 0 && c.lost == (half ? 0 : (TESS_ATTENTION_SLOWER - 1) * c.flops));
        }
        for (size_t i = 0; i < sizeof dim / sizeof *dim; i++) {
            a.dim = dim[i];
            CHECK_EQ(tess_attention_kernels_of(&a, t, true).tile, half ? tile[i] : 0);
        }
        for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
            a.dim = none[i];
            const tess_attention_kernels k = tess_attention_kernels_of(&a, t, true);
            CHECK(!k.tile && !k.library);
            CHECK(tess_attention_slower(&a, t, false) == TESS_ATTENTION_SLOWER);
        }
    }
}

/* Of what has tiles the library is not asked for all. */
TEST(attention_is_the_librarys)
{
    const tess_attention_arg plain = {.sequence = 256, .heads = 2, .groups = 1, .dim = 80, .causal = true, .scale = 1};
    tess_attention_arg a[10];
    for (int i = 0; i < 10; i++) a[i] = plain;
    a[1].window = 100, a[2].dropout = 0.1f, a[3].causal = false, a[4].cap = 30, a[5].bounded = true;
    a[6].buckets = 32, a[7].whole = 512, a[8].sequence = 200, a[9].keys = 512;
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(tess_attention_kernels_of(&a[i], TESS_BF16, true).library, i < 2);
        CHECK_EQ(tess_attention_kernels_of(&a[i], TESS_BF16, false).library, i < 3);
        CHECK_EQ(tess_attention_kernels_of(&a[i], TESS_BF16, true).tile, 128);
        CHECK_EQ(tess_attention_slower(&a[i], TESS_BF16, true) > 1, i == 6 || i == 2);
        CHECK_EQ(tess_attention_slower(&a[i], TESS_BF16, false) > 1, i == 2);
    }
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

static double ulps(float got, double want)
{
    double ulp = fabs(want) < 0x1p-126 ? 0x1p-149 : ldexp(1, ilogb(want) - 23);
    return fabs(got - want) / ulp;
}

/* Each number of 8 bits, the middles between neighbours and what is next to those, of both signs. */
TEST(numbers_of_8_bits)
{
    for (tess_fp8 as = TESS_E4M3; as <= TESS_E5M2; as++) {
        double list[128];
        const int count = fp8_list(as == TESS_E4M3 ? 3 : 2, list);
        const float last = (float)list[count - 1];
        CHECK(last == (as == TESS_E4M3 ? 448 : 57344));
        for (int k = 0; k < 2 * count; k++) {
            const int code = k / 2;
            const float sign = k % 2 ? -1 : 1, x = sign * (float)list[code];
            CHECK(tess_bits(tess_fp8_round(x, as)) == tess_bits(x));
            CHECK_EQ(tess_fp8_code(x, as), code | (k % 2 ? 128 : 0));
            if (code + 1 == count) continue;
            const float below = (float)list[code], above = (float)list[code + 1], middle = (below + above) / 2;
            CHECK(tess_fp8_round(sign * middle, as) == sign * (code % 2 ? above : below));
            CHECK(tess_fp8_round(sign * nextafterf(middle, 0), as) == sign * below);
            CHECK(tess_fp8_round(sign * nextafterf(middle, INFINITY), as) == sign * above);
        }
        CHECK(tess_fp8_round(1.01f * last, as) == last && tess_fp8_round(-INFINITY, as) == -last);
        for (uint32_t bits = 0; bits < 0x7f800000u; bits += 65521) {
            const float most = tess_float_of(bits), scale = tess_fp8_scale(bits, as), code = most / scale;
            int e;
            CHECK(frexpf(scale, &e) == 0.5f && code <= last && (2 * code > last || scale == 0x1p-100f));
            const float value = tess_fp8_round(code, as) * scale;
            CHECK(tess_from_bf16(tess_to_bf16(value)) == value);
        }
        CHECK(isnan(tess_fp8_scale(0x7f800000u, as)) && isnan(tess_fp8_scale(0x7fc00000u, as)));
    }
}

/* How far a product of 8 bits is from that of its operands; rows that change nothing have no say in it, and what is not
 * finite spoils all of it. */
TEST(products_of_8_bits)
{
    enum { M = 192, N = 80, K = 320 };
    static uint16_t a[M * K], b[N * K], given[M * K];
    static float plain[M * N], few[M * N], again[M * N];
    tess_idle idle = {.rows = M, .kept = M - 64, .blocks = 3, .idle = {false, true, false}, .at = {0, 2}};
    tess_mm d = {.m = M, .n = N, .k = K, .lda = K, .ldb = K, .ldc = N, .in = TESS_BF16, .out = TESS_F32, .tb = true};
    for (uint64_t i = 0; i < M * K; i++) a[i] = tess_to_bf16((float)(int32_t)tess_random(1, 1, 1, i) * 0x1p-31f);
    for (uint64_t i = 0; i < N * K; i++) b[i] = tess_to_bf16((float)(int32_t)tess_random(1, 1, 2, i) * 0x1p-36f);
    tess_mm_run(&d, a, b, plain);
    for (d.fp8 = TESS_E4M3; d.fp8 <= TESS_E5M2; d.fp8++) {
        double off = 0, all = 0;
        tess_mm_run(&d, a, b, few);
        for (int i = 0; i < M * N; i++) {
            const double x = few[i] - plain[i];
            off += x * x, all += (double)plain[i] * plain[i];
        }
        CHECK(sqrt(off / all) > 0.02 && sqrt(off / all) < (d.fp8 == TESS_E4M3 ? 0.05 : 0.08));
        memcpy(given, a, sizeof a);
        for (int i = 64 * K; i < 128 * K; i++) given[i] = tess_to_bf16(1e30f);
        d.idle = &idle;
        tess_mm_run(&d, given, b, again);
        d.idle = NULL;
        for (int i = 0; i < M * N; i++) CHECK(i / N / 64 == 1 || again[i] == few[i]);
        memcpy(given, a, sizeof a);
        given[7] = tess_to_bf16(INFINITY);
        tess_mm_run(&d, given, b, again);
        for (int i = 0; i < M * N; i++) CHECK(isnan(again[i]));
    }
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
    tess_widen(wide, half, 65536, TESS_BF16);
    tess_narrow(back, wide, 65536, TESS_BF16);
    int off = 0;
    for (int i = 0; i < 65536; i++) off += isnan(wide[i]) ? !isnan(tess_from_bf16(back[i])) : back[i] != half[i];
    CHECK_EQ(off, 0);
    const float ties[] = {0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, 0x1.ffp127f};
    tess_narrow(back, ties, 4, TESS_BF16);
    CHECK(tess_from_bf16(back[0]) == 1 && tess_from_bf16(back[1]) == 0x1.04p0f);
    CHECK(tess_from_bf16(back[2]) == 0x1.02p0f && tess_from_bf16(back[3]) == INFINITY);
    forget();
}

/* Every number of fp16 and back; then between them. */
TEST(widen_and_narrow_fp16)
{
    tess_f16 *half = bytes_of(65536 * 2), *back = bytes_of(65536 * 2);
    float *wide = bytes_of(65536 * 4);
    for (int i = 0; i < 65536; i++) half[i] = (tess_f16)i;
    tess_widen(wide, half, 65536, TESS_F16);
    tess_narrow(back, wide, 65536, TESS_F16);
    int off = 0;
    for (int i = 0; i < 65536; i++) {
        const int exponent = i >> 10 & 31, fraction = i & 0x3ff;
        double want = ldexp(exponent ? 1024 + fraction : fraction, (exponent ? exponent : 1) - 25);
        if (exponent == 31) want = fraction ? NAN : INFINITY;
        if (i & 0x8000) want = -want;
        off += isnan(want) ? !isnan(wide[i]) || !isnan(tess_from_f16(back[i])) : wide[i] != want || back[i] != half[i];
    }
    CHECK_EQ(off, 0);
    const float between[] = {0x1.002p0f,      0x1.006p0f, 0x1.002002p0f, 65519.9f,      65520,        0x1p-25f,
                             0x1.000002p-25f, 0x1.8p-24f, 0x1p-30f,      -0x1.ffcp-15f, -0x1.ffep-15f};
    const double want[] = {1, 0x1.008p0, 0x1.004p0, 65504, INFINITY, 0, 0x1p-24, 0x1p-23, 0, -0x1p-14, -0x1p-14};
    enum { SOME = sizeof between / sizeof *between };
    tess_narrow(back, between, SOME, TESS_F16);
    for (int i = 0; i < SOME; i++)
        if (tess_from_f16(back[i]) != (float)want[i]) CHECK_SAY("%a became %a", between[i], tess_from_f16(back[i]));
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

/* ---- far out ----------------------------------------------------------------------------------------------------- */

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

/* Only the rows named are counted as moved. */
TEST(embedding_cost)
{
    tess_embedding_arg a = {.rows = 10, .width = 8, .rows_of_table = 50000, .count = 50000};
    CHECK(tess_embedding_forward[TESS_F32].cost(&a).bytes == 10 * 4 + 2 * 10 * 8 * 4);
    CHECK(tess_embedding_forward[TESS_BF16].cost(&a).bytes == 10 * 4 + 2 * 10 * 8 * 2);
    CHECK(tess_embedding_forward[TESS_F32].cost(&a).flops == 0);
}

/* Only the rows picked are. */
TEST(pick_cost)
{
    const tess_pick_arg a = {.rows = 35, .width = 65, .sequence = 7};
    EACH_REAL(t)
    {
        CHECK(tess_pick_forward[t].cost(&a).bytes == 2.0 * 5 * 65 * (double)tess_dtype_size(t));
    }
}

/* Far along a sequence the fp32 angles are still turned by to the last digits: the first pair's is exact. */
TEST(rope_far)
{
    enum { T = 131072 };
    float *x = bytes_of(T * 2 * sizeof *x), *y = poison(T * 2 * sizeof *y);
    for (int r = 0; r < T; r++) x[2 * r] = 1;
    tess_rope_arg a = {.rows = T, .sequence = T, .heads = 1, .dim = 2, .rotary = 2, .base = 10000};
    RUN(&tess_rope_forward[TESS_F32], &a, x, y);
    double off = 0;
    for (int r = 0; r < T; r++) off = fmax(off, fmax(fabs(y[2 * r] - cos(r)), fabs(y[2 * r + 1] - sin(r))));
    CHECK(off < 2e-7);
    forget();
}

/* AdamW on a long tile of odd size, with and without copy and decay, beside its formula in double. */
TEST(adamw)
{
    enum { M = 37 * 5 * 13 };
    const tess_optimizer o = {.eps = 1e-8};
    env.lr = 1e-3, env.beta1 = 0.9, env.beta2 = 0.999, env.bias1 = 1 - pow(0.9, 5), env.bias2 = 1 - pow(0.999, 5);
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

/* One task has the bits of two. */
TEST(linear_gelu)
{
    static const int64_t shape[][3] = {{64, 96, 128}, {37, 13, 71}, {1, 7, 3}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) EACH_REAL(t) for (int way = 0; way < 4; way++)
        {
            const int64_t rows = shape[k][0], in = shape[k][1], out = shape[k][2];
            tess_linear_gelu_arg a = {{rows, in, out, out, .bias = way & 1}, {.n = rows * out, .kind = way / 2}};
            const size_t size = tess_dtype_size(t), all = (size_t)(rows * out) * size,
                         part = (size_t)(rows * in) * size;
            void *x = real_of(new_values(rows * in, 1), rows * in, t),
                 *w = real_of(new_values(out * in, 1), out * in, t);
            void *b = real_of(new_values(out, 1), out, TESS_F32),
                 *dy = real_of(new_values(rows * out, 1), rows * out, t);
            void *one[] = {poison(all), poison(all), poison(part)}, *two[] = {poison(all), poison(all), poison(part)};
            void *fused[] = {x, w, one[0], one[1], b}, *product[] = {x, w, two[0], b}, *dx = poison(part);
            run_body(&tess_linear_gelu_forward[t], &a, fused, way & 1 ? 5 : 4);
            run_body(&tess_linear_forward[t], &a.linear, product, way & 1 ? 4 : 3);
            RUN(&tess_gelu_forward[t], &a.gelu, two[0], two[1]);
            a.gelu.n = rows * in;
            RUN(&tess_gelu_linear_backward[t], &a, dy, w, x, one[2]);
            RUN(&tess_linear_backward_input[t], &a.linear, dy, w, dx);
            RUN(&tess_gelu_backward[t], &a.gelu, dx, x, two[2]);
            for (int i = 0; i < 3; i++) CHECK(!memcmp(one[i], two[i], i < 2 ? all : part));
            forget();
        }
}

TEST(linear_cost)
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

/* Nothing grows with the square of the sequence. */
TEST(attention_scratch_of_long_sequences)
{
    tess_attention_arg a = {.rows = 32768, .sequence = 32768, .heads = 12, .groups = 12, .dim = 64};
    CHECK(tess_attention_scratch(&a, TESS_BF16) < 33u << 20); /* k, v and their gradients of one head, in fp32 */
    a.rows = a.sequence = 1024;
    CHECK(tess_attention_scratch(&a, TESS_BF16) < 9u << 20); /* with sums of dq of parts, of all heads */
}

/* ---- sums of maps ------------------------------------------------------------------------------------------------ */

/* The sum of (x - m)^2 over rows or within each, of x (rows, columns) and an m for each result; added to or not. */
static void fold(int64_t rows, int64_t columns, bool last, bool acc, tess_dtype t)
{
    static const tess_fn_step step[] = {{.fn = TESS_FN_load, .of = {0, -1, -1}, .at = 0},
                                        {.fn = TESS_FN_load, .of = {1, -1, -1}, .at = 1},
                                        {.fn = TESS_FN_sub, .of = {0, 1, -1}, .at = 0},
                                        {.fn = TESS_FN_square, .of = {2, -1, -1}, .at = 0}};
    static const tess_formula f = {4, 2, step};
    const int64_t kept = last ? columns : rows;
    tess_any_fold_arg a = {.kept = 1, .last = last, .sums = 1, .sum = {{.acc = acc}}};
    a.map = (tess_any_map_arg){.rank = 2, .operands = 2, .dim = {rows, columns}, .formula = &f};
    a.map.in[0] = (tess_strides){.by = {columns, 1}, .t = t};
    a.map.in[1] = (tess_strides){.by = {!last, last}};
    double *x = new_values(rows * columns, 1), *m = new_values(kept, 1), *want = new_values(kept, 1);
    void *in = real_of(x, rows * columns, t), *of = real_of(m, kept, TESS_F32), *out = real_of(want, kept, TESS_F32);
    for (int64_t k = 0; k < kept && !acc; k++) want[k] = 0;
    for (int64_t i = 0; i < rows * columns; i++) {
        const int64_t k = last ? i % columns : i / columns;
        want[k] += (x[i] - m[k]) * (x[i] - m[k]);
    }
    RUN(&tess_any_fold[0], &a, in, of, out);
    CHECK(near(out, TESS_F32, want, kept));
    forget();
}

TEST(folds)
{
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {300, 7}, {7, 300}, {70, 70}, {2, 40000}, {40000, 3}, {1, 9}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        for (int way = 0; way < 4; way++) EACH_REAL(t) fold(shapes[k][0], shapes[k][1], way & 1, way & 2, t);
}
