/* Products of matrices against sums in double: every form, odd sizes, parts of wider matrices, packed operands. */
#define CHECK_MAIN
#include "codelets/codelets.h"
#include "codelets/products/mm.h"
#include "tests/check.h"
#include <pthread.h>
#include <unistd.h>

static uint32_t state = 1;
static float draw(void)
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1;
}
static double get(const void *x, int64_t i, tess_dtype t)
{
    if (t == TESS_F16) return tess_from_f16(((const tess_f16 *)x)[i]);
    return t == TESS_BF16 ? tess_from_bf16(((const tess_bf16 *)x)[i]) : ((const float *)x)[i];
}
/* A new matrix of `n` elements, drawn or, with poison, of NaN. */
static void *matrix(int64_t n, tess_dtype t, bool poison)
{
    void *x = tess_alloc((size_t)n * tess_dtype_size(t));
    for (int64_t i = 0; i < n; i++) {
        float v = poison ? NAN : draw();
        if (t == TESS_BF16)
            ((tess_bf16 *)x)[i] = tess_to_bf16(v);
        else if (t == TESS_F16)
            ((tess_f16 *)x)[i] = tess_to_f16(v);
        else
            ((float *)x)[i] = v;
    }
    return x;
}

/* The matrix in double, so that row r of it (of rows, or of columns if `turned`) lies in one piece of `length`. */
static double *in_double(const void *x, tess_dtype t, int64_t rows, int64_t length, int64_t ld, bool turned)
{
    double *y = tess_alloc((size_t)(rows * length) * sizeof *y);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < length; k++) y[r * length + k] = get(x, turned ? k * ld + r : r * ld + k, t);
    return y;
}
static double dot(const double *x, const double *y, int64_t n)
{
    double sum[8] = {0};
    int64_t k = 0;
    for (; k + 8 <= n; k += 8)
        for (int l = 0; l < 8; l++) sum[l] += x[k + l] * y[k + l];
    for (; k < n; k++) sum[0] += x[k] * y[k];
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/* The relative error in norm of one product, of a large one that of every seventh element; and whether everything
 * beside C stayed as it was. */
static double error_of(tess_mm d)
{
    const int64_t rows_a = d.ta ? d.k : d.m, rows_b = d.tb ? d.n : d.k;
    void *a = matrix(rows_a * d.lda, d.in, false), *b = matrix(rows_b * d.ldb, d.in, false);
    void *c = matrix(d.m * d.ldc, d.out, !d.acc), *before = tess_alloc((size_t)(d.m * d.ldc) * 4);
    memcpy(before, c, (size_t)(d.m * d.ldc) * tess_dtype_size(d.out));
    tess_mm_run(&d, a, b, c);
    double *x = in_double(a, d.in, d.m, d.k, d.lda, d.ta), *y = in_double(b, d.in, d.n, d.k, d.ldb, !d.tb);
    const int64_t each = d.m * d.n * d.k > 1 << 27 ? 7 : 1;
    double error = 0, norm = 0;
    bool beside = true;
    for (int64_t i = 0; i < d.m; i++) {
        for (int64_t j = i % each; j < d.n; j += each) {
            double sum = (d.bias ? (double)d.bias[j] : 0) + (d.acc ? get(before, i * d.ldc + j, d.out) : 0);
            sum += dot(x + i * d.k, y + j * d.k, d.k);
            double off = get(c, i * d.ldc + j, d.out) - sum;
            error += off * off, norm += sum * sum;
        }
        const size_t size = tess_dtype_size(d.out), at = (size_t)(i * d.ldc + d.n) * size;
        beside = beside && !memcmp((char *)c + at, (char *)before + at, (size_t)(d.ldc - d.n) * size);
    }
    CHECK(beside);
    free(a), free(b), free(c), free(before), free(x), free(y);
    return sqrt(error / norm);
}

static void check_forms(int64_t m, int64_t n, int64_t k, int64_t wider)
{
    float *bias = matrix(n, TESS_F32, false);
    for (int i = 0; i < 96; i++) { /* the last 32 are fp16's */
        tess_mm d = {.m = m, .n = n, .k = k, .in = i >= 64 ? TESS_F16 : i & 1 ? TESS_BF16 : TESS_F32};
        d.out = i & 2 ? d.in : TESS_F32;
        d.ta = i & 4, d.tb = i & 8, d.acc = i & 16;
        if (i & 32) d.bias = bias;
        d.lda = (d.ta ? m : k) + wider, d.ldb = (d.tb ? k : n) + wider, d.ldc = n + wider;
        double error = error_of(d), most = d.out == TESS_BF16 ? 4e-3 : d.out == TESS_F16 ? 5e-4 : 4e-6;
        if (!(error <= most))
            CHECK_SAY("m %lld n %lld k %lld +%lld form %d: error %.3g", (long long)m, (long long)n, (long long)k,
                      (long long)wider, i, error);
    }
    free(bias);
}

static long resident(void)
{
    long pages = 0, unused;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%ld %ld", &unused, &pages) == 2);
    if (f) fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Before all others, whose freed memory would hide it: more shapes than the tables hold take no more than the bound. */
TEST(kernels_stay_within_the_bound)
{
    float *x = calloc(1 << 20, 4), *c = calloc(1 << 20, 4);
    long before = resident();
    for (int i = 0; i < 400; i++) {
        tess_mm d = {.m = 16 + i % 7 * 32 + i % 3, .n = 64 * (1 + i % 11) + i % 2, .k = 64 * (1 + i % 19)};
        d.in = i & 4 ? TESS_BF16 : TESS_F32, d.out = i & 8 ? d.in : TESS_F32;
        d.tb = true, d.lda = d.ldb = d.k, d.ldc = d.n;
        tess_mm_run(&d, x, x, c);
    }
    long grown = resident() - before;
    printf("400 shapes took %.1f MiB, the bound is %.1f MiB\n", (double)grown / (1 << 20),
           (double)tess_mm_bytes(1, TESS_BF16) / (1 << 20));
#ifndef __SANITIZE_ADDRESS__ /* which holds freed memory back */
    CHECK(grown <= (long)tess_mm_bytes(1, TESS_BF16));
#endif
    free(x), free(c);
}

TEST(one_of_all)
{
    check_forms(1, 1, 1, 0);
}
TEST(odd_sizes)
{
    check_forms(37, 13, 7, 0);
}
TEST(odd_parts)
{
    check_forms(37, 71, 80, 5);
}
TEST(whole_blocks)
{
    check_forms(64, 128, 64, 0);
}
TEST(parts_of_wider)
{
    check_forms(33, 64, 96, 32);
}
TEST(several_pieces)
{
    check_forms(300, 20, 37, 3);
}

/* B is packed in several parts, A made dense in several. */
TEST(many_panels)
{
    for (int i = 0; i < 8; i++) {
        tess_mm d = {.m = 270, .n = 700, .k = 900, .in = TESS_BF16, .out = i & 1 ? TESS_BF16 : TESS_F32};
        d.ta = d.acc = i & 2, d.tb = i & 4;
        d.lda = d.ta ? d.m : d.k, d.ldb = d.tb ? d.k : d.n, d.ldc = d.n;
        CHECK_NEAR(error_of(d), 0, d.out == TESS_BF16 ? 4e-3 : 2e-6);
    }
}

/* C is cut by rows and by columns, evenly or not, in its own rows or a part of wider ones; of a deep product too. */
TEST(parts_by_columns)
{
    const int64_t shape[][3] = {{270, 1000, 768}, {140, 700, 2624}, {257, 600, 3072}, {130, 2304, 300}};
    for (int i = 0; i < 32; i++) {
        const int64_t *s = shape[i % 4];
        tess_mm d = {.m = s[0], .n = s[1], .k = s[2], .in = i & 4 ? TESS_BF16 : TESS_F32};
        float *bias = matrix(d.n, TESS_F32, false);
        d.out = i & 8 ? d.in : TESS_F32;
        d.tb = i & 8, d.acc = i & 16;
        if (i & 16) d.bias = bias;
        d.lda = d.k, d.ldb = d.tb ? d.k : d.n, d.ldc = d.n + (i & 4);
        CHECK_NEAR(error_of(d), 0, d.out == TESS_BF16 ? 4e-3 : 4e-6);
        free(bias);
    }
}

/* Deep products are sums of several. */
TEST(deep)
{
    for (int i = 0; i < 16; i++) {
        tess_mm d = {.m = 33, .n = 65, .k = 2600, .in = TESS_BF16, .out = i & 1 ? TESS_BF16 : TESS_F32};
        float *bias = matrix(d.n, TESS_F32, false);
        d.acc = i & 2, d.tb = i & 4;
        if (i & 8) d.bias = bias;
        d.lda = d.k, d.ldb = d.tb ? d.k : d.n, d.ldc = d.n + (i & 8);
        CHECK_NEAR(error_of(d), 0, d.out == TESS_BF16 ? 4e-3 : 4e-6);
        free(bias);
    }
}

/* Beyond what one product of the library may be deep, with A and B as they are, transposed, and parts of wider. */
TEST(deepest)
{
    for (int i = 0; i < 32; i++) {
        tess_mm d = {.m = 20, .n = 70, .k = 17000, .in = i & 1 ? TESS_BF16 : TESS_F32};
        float *bias = matrix(d.n, TESS_F32, false);
        d.out = i & 2 ? d.in : TESS_F32;
        d.ta = i & 4, d.tb = i & 8, d.acc = i & 16;
        if (i & 2) d.bias = bias;
        d.lda = d.ta ? d.m : d.k, d.ldb = d.tb ? d.k : d.n, d.ldc = d.n + (i & 16);
        CHECK_NEAR(error_of(d), 0, d.out == TESS_BF16 ? 4e-3 : 8e-6);
        free(bias);
    }
}

/* Sums that are cut into several blocks, by columns and, at the end, by rows. */
TEST(deep_and_large)
{
    enum { SOME = 997 }; /* every so manieth element is compared */
    for (int tall = 0; tall < 2; tall++) {
        tess_mm d = {.m = tall ? 16500 : 5000, .n = tall ? 64 : 300, .k = 2600, .in = TESS_BF16, .out = TESS_BF16};
        d.lda = d.k, d.ldb = d.n, d.ldc = d.n + 1, d.acc = true;
        tess_bf16 *a = matrix(d.m * d.lda, d.in, false), *b = matrix(d.k * d.ldb, d.in, false);
        tess_bf16 *c = matrix(d.m * d.ldc, d.out, false), *before = tess_alloc((size_t)(d.m * d.ldc) * 2);
        memcpy(before, c, (size_t)(d.m * d.ldc) * 2);
        tess_mm_run(&d, a, b, c);
        for (int64_t at = 0; at < d.m * d.n; at += SOME) {
            int64_t i = at / d.n, j = at % d.n;
            double sum = tess_from_bf16(before[i * d.ldc + j]);
            for (int64_t k = 0; k < d.k; k++)
                sum += (double)tess_from_bf16(a[i * d.lda + k]) * tess_from_bf16(b[k * d.ldb + j]);
            CHECK_NEAR(tess_from_bf16(c[i * d.ldc + j]), sum, 0.004 * fabs(sum) + 0.01);
        }
        free(a), free(b), free(c), free(before);
    }
}

/* What lies beyond the end of a row is not a part of the sum, be it NaN. */
TEST(neighbours_do_not_leak)
{
    enum { M = 5, N = 9, K = 37, LD = 64 };
    tess_bf16 *a = matrix(M * LD, TESS_BF16, true), *b = matrix(N * LD, TESS_BF16, true);
    for (int i = 0; i < M; i++)
        for (int k = 0; k < K; k++) a[i * LD + k] = tess_to_bf16(1);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < K; k++) b[i * LD + k] = tess_to_bf16(1);
    float c[M * N];
    tess_mm_run(&(tess_mm){.m = M, .n = N, .k = K, .lda = LD, .ldb = LD, .ldc = N, .tb = true, .in = TESS_BF16}, a, b,
                c);
    for (int i = 0; i < M * N; i++) CHECK_NEAR(c[i], K, 0);
    free(a), free(b);
}

typedef struct job {
    const void *a, *b;
    void *c;
} job;
static void *run_job(void *arg)
{
    job *j = arg;
    tess_mm d = {.m = 128, .n = 128, .k = 100, .lda = 100, .ldb = 128, .ldc = 128, .in = TESS_BF16, .out = TESS_F32};
    tess_mm_run(&d, j->a, j->b, j->c);
    return NULL;
}
TEST(same_bits_on_every_thread)
{
    void *a = matrix(128 * 100, TESS_BF16, false), *b = matrix(100 * 128, TESS_BF16, false);
    job jobs[3];
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) {
        jobs[i] = (job){a, b, matrix(128 * 128, TESS_F32, true)};
        if (i) CHECK_EQ(pthread_create(&thread[i], NULL, run_job, &jobs[i]), 0);
    }
    run_job(&jobs[0]);
    for (int i = 1; i < 3; i++) {
        pthread_join(thread[i], NULL);
        CHECK(!memcmp(jobs[0].c, jobs[i].c, 128 * 128 * 4));
    }
    for (int i = 0; i < 3; i++) free(jobs[i].c);
    free(a), free(b);
}

/* Large and deep products of every form: the buffers of a thread stay within the bound, and come near it. *most is the
 * dtype beside fp32. */
static void *hold_buffers(void *most)
{
    static const int64_t size[][3] = {{1024, 768, 3072}, {16, 6282, 10000}, {6282, 64, 768}, {20000, 64, 2600},
                                      {40, 1600, 10000}, {70, 100, 20000},  {300, 3000, 64}};
    float *x = calloc(64u << 20, 4), *c = calloc(8u << 20, 4);
    const tess_dtype half = (tess_dtype) * (size_t *)most;
    for (size_t s = 0; s < sizeof size / sizeof *size; s++)
        for (int i = 0; i < 16; i++) {
            tess_mm d = {.m = size[s][0], .n = size[s][1], .k = size[s][2], .in = i & 1 ? half : TESS_F32};
            d.out = i & 2 ? d.in : TESS_F32;
            d.ta = i & 4, d.tb = i & 8;
            d.lda = d.ta ? d.m : d.k, d.ldb = d.tb ? d.k : d.n,
            d.ldc = d.n + ((i ^ i >> 1 ^ i >> 2 ^ (int)s) & 1 ? 8 : 0);
            tess_mm_run(&d, x, x, c);
        }
    free(x), free(c);
    *(size_t *)most = tess_mm_held();
    return NULL;
}
TEST(buffers_stay_within_the_bound)
{
    for (tess_dtype t = TESS_BF16; t <= TESS_F16; t++) {
        const size_t each = tess_mm_bytes(2, t) - tess_mm_bytes(1, t);
        size_t held = (size_t)t;
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, hold_buffers, &held), 0);
        pthread_join(thread, NULL);
        printf("%s: a thread holds %.1f MiB of buffers, the bound is %.1f MiB\n", tess_dtype_name(t),
               (double)held / (1 << 20), (double)each / (1 << 20));
        CHECK(held <= each);
        CHECK(held >= each / 2);
        CHECK(each <= (t == TESS_F16 ? 20 : 16) << 20);
    }
}

/* The table of primitives starts over when it is full. */
TEST(more_shapes_than_the_table_holds)
{
    float x[600] = {1}, y;
    x[599] = 2;
    for (int k = 1; k <= 600; k++) {
        tess_mm d = {.m = 1, .n = 1, .k = k, .lda = k + 1000, .ldb = 1, .ldc = 1 + k};
        d.plain = true;
        tess_mm_run(&d, x, x, &y);
    }
    CHECK_NEAR(y, 5, 0);
}
