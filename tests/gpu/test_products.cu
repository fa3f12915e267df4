/* Products as mm.cu makes them, against a kernel that sums in double, compared where they are: the shapes of a layer's
 * tasks and of the head's, each as plain as it may be and with all that its epilogue does, each twice for the same
 * bits, and of ones, whose sums must be k to the last bit. Built twice: on a GPU at the sizes of models, where the
 * library takes the kernels that count, and over the emulated library, which refuses what it may. Exit 77 without a
 * GPU. */
#include "codelets/shared/kernels.h"
#define main check_main
#define CHECK_MAIN
#include "tests/check.h"
#undef main
extern "C" {
#include "tests/gpu/device.h"
}
#ifdef TESS_EMULATED
#include "tests/gpu/emulated_lt.h"
#else
#include <cublasLt.h>
#endif
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <vector>

extern "C" void TESS_CUDA_NAME(matrix_rate)(const tess_work *w);
static char failure[400];
static tess_work work;

extern "C" void tess_work_fail(const tess_work *, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(failure, sizeof failure, format, ap);
    va_end(ap);
}

/* ---- the plain way ---- */

enum { FORWARD, INPUT, INPUT_SUM, WEIGHT, HEAD, HEAD_GRADIENT, GELU, SLOPE, KINDS };
static const char *const kind_name[] = {"forward", "input",           "input +=", "weight",
                                        "head",    "head's gradient", "gelu",     "slope"};

struct reference {
    tess_cuda_mm d;
    const void *a, *b, *old, *aux;
    double *want, *pre; /* (m,n) */
    int kind;
};
template <tess_dtype T> TESS_DEVICE double element(const void *x, int64_t i)
{
    float v[1];
    load<T, 1>(v, x, i);
    return v[0];
}
template <tess_dtype IN, tess_dtype OUT> TESS_KERNEL(256) reference_kernel(reference r)
{
    const int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x, i = at / r.d.n, j = at % r.d.n;
    if (i >= r.d.m) return;
    double sum = 0;
    for (int64_t l = 0; l < r.d.k; l++)
        sum += element<IN>(r.a, r.d.ta ? l * r.d.lda + i : i * r.d.lda + l) *
               element<IN>(r.b, r.d.tb ? j * r.d.ldb + l : l * r.d.ldb + j);
    if (r.d.acc) sum += element<OUT>(r.old, i * r.d.ldc + j);
    if (r.d.bias) sum += r.d.bias[j];
    r.pre[at] = sum;
    const double root = 0.7978845608028654, x = r.kind == SLOPE ? element<OUT>(r.aux, i * r.d.ldc + j) : sum;
    const double t = tanh(root * (x + 0.044715 * x * x * x));
    if (r.kind == GELU) sum = x / 2 * (1 + t);
    if (r.kind == SLOPE) sum *= (1 + t) / 2 + x / 2 * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
    r.want[at] = sum;
}
static void run_reference(const reference &r)
{
    const int64_t blocks = blocks_of(r.d.m * r.d.n, 256);
    auto kernel = r.d.in == TESS_F32     ? reference_kernel<TESS_F32, TESS_F32>
                  : r.d.in == TESS_F16   ? r.d.out == TESS_F16 ? reference_kernel<TESS_F16, TESS_F16>
                                                               : reference_kernel<TESS_F16, TESS_F32>
                    : r.d.out == TESS_BF16 ? reference_kernel<TESS_BF16, TESS_BF16>
                                         : reference_kernel<TESS_BF16, TESS_F32>;
    launch(&work, kernel, blocks, 256, 0, r);
}

/* Small numbers, or ones. */
struct drawing {
    void *x;
    tess_dtype type;
    uint64_t seed;
    bool ones;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        const tess_random_key key = {(uint32_t)seed, 9};
        float v[K];
        for (int k = 0; k < K; k++) v[k] = ones ? 1 : (float)(int32_t)tess_random_at(key, (uint64_t)(i + k)) * 0x1p-31f;
        if (type == TESS_BF16)
            store<TESS_BF16, K>(x, i, v);
        else if (type == TESS_F16)
            store<TESS_F16, K>(x, i, v);
        else
            store<TESS_F32, K>(x, i, v);
    }
};
static void *drawn(int64_t n, tess_dtype t, bool ones)
{
    static uint64_t seed;
    void *x = device_new((size_t)n * tess_dtype_size(t));
    map(&work, drawing{x, t, ++seed, ones}, n, true);
    return x;
}
template <class T> static std::vector<T> fetched(const void *x, int64_t n)
{
    std::vector<T> v((size_t)n);
    device_get(v.data(), x, (size_t)n * sizeof(T));
    return v;
}
#ifdef TESS_EMULATED
static double number(const void *x, int64_t i, tess_dtype t)
{
    return t == TESS_F32   ? ((const float *)x)[i]
           : t == TESS_F16 ? tess_from_f16(((const uint16_t *)x)[i])
                           : tess_from_bf16(((const uint16_t *)x)[i]);
}
#endif

/* ---- one product ---- */

struct shape {
    int64_t rows, in, out;
};
struct product {
    tess_cuda_mm d;
    int64_t size_a, size_b, size_c;
    void *a, *b, *c, *pre;
    float *bias;
};

static int64_t padded(int64_t n)
{
    return (n + 63) / 64 * 64;
}
static product describe(int kind, const shape &s, tess_dtype t)
{
    product p = {};
    tess_cuda_mm &d = p.d;
    d.in = t;
    d.out = kind == INPUT_SUM || kind == WEIGHT || kind == HEAD || kind == HEAD_GRADIENT ? TESS_F32 : t;
    d.tb = kind == FORWARD || kind == HEAD || kind == GELU;
    d.ta = kind == WEIGHT;
    d.m = s.rows, d.n = d.tb ? s.out : s.in, d.k = d.tb ? s.in : s.out;
    if (kind == WEIGHT) d.m = s.out, d.n = s.in, d.k = s.rows;
    d.lda = d.ta ? d.m : kind == HEAD_GRADIENT ? padded(d.k) : d.k;
    d.ldb = d.tb ? d.k : d.n;
    d.ldc = kind == HEAD ? padded(d.n) : d.n;
    d.acc = kind == INPUT_SUM || kind == HEAD_GRADIENT;
    p.size_a = (d.ta ? d.k : d.m) * d.lda, p.size_b = (d.tb ? d.n : d.k) * d.ldb, p.size_c = d.m * d.ldc;
    return p;
}

/* Whether the library could. */
static bool run_product(const product &p, int kind)
{
    if (kind == GELU) return tess_cuda_mm_gelu(&work, &p.d, p.a, p.b, p.pre, p.c);
    if (kind == SLOPE) return tess_cuda_mm_slope(&work, &p.d, p.a, p.b, p.pre, p.c);
    tess_cuda_mm_run(&work, &p.d, p.a, p.b, p.c);
    return true;
}

/* What C is beside what is wanted, found where both are: a part a block. */
struct parts {
    double off, size;   /* squares of what it is off by, and of what is wanted */
    double other, most; /* elements that are not `same`'s, and the most that one is off by */
};
struct compared {
    const void *got, *same; /* same: or NULL */
    const double *want;
    int64_t m, n, ld, each;
    parts *part;
};
template <tess_dtype T> TESS_KERNEL(256) compare_kernel(compared c)
{
    TESS_SHARED(parts, room, [256]);
    const int64_t first = blockIdx.x * c.each, end = first + c.each < c.m * c.n ? first + c.each : c.m * c.n;
    parts p = {0, 0, 0, 0};
    for (int64_t i = first + threadIdx.x; i < end; i += 256) {
        const int64_t at = i / c.n * c.ld + i % c.n;
        const double x = element<T>(c.got, at), y = c.want[i], off = x > y ? x - y : y - x;
        p.off += off * off;
        p.size += y * y;
        p.other += c.same && x != element<T>(c.same, at);
        if (!(off <= p.most)) p.most = off; /* what is no number, too */
    }
    room[threadIdx.x] = p;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int k = 1; k < 256; k++) {
        p.off += room[k].off, p.size += room[k].size, p.other += room[k].other;
        if (!(room[k].most <= p.most)) p.most = room[k].most;
    }
    c.part[blockIdx.x] = p;
}
/* p.off and p.size are roots then. */
static parts compare(const void *got, const void *same, const double *want, int64_t m, int64_t n, int64_t ld,
                     tess_dtype t)
{
    const int64_t each = m * n < 1024 * 256 ? 256 : blocks_of(m * n, 1024), blocks = blocks_of(m * n, each);
    parts *part = (parts *)device_new((size_t)blocks * sizeof *part), all = {0, 0, 0, 0};
    launch(&work,
           t == TESS_F32   ? compare_kernel<TESS_F32>
           : t == TESS_F16 ? compare_kernel<TESS_F16>
                           : compare_kernel<TESS_BF16>,
           blocks, 256, 0, compared{got, same, want, m, n, ld, each, part});
    for (const parts &p : fetched<parts>(part, blocks)) {
        all.off += p.off, all.size += p.size, all.other += p.other;
        if (!(p.most <= all.most)) all.most = p.most;
    }
    device_free(part);
    return parts{sqrt(all.off), sqrt(all.size > 0 ? all.size : 1), all.other, all.most};
}

static void check_product(int kind, const shape &s, tess_dtype t, bool ones)
{
    char what[120];
    snprintf(what, sizeof what, "%s %s %lld x %lld x %lld%s", kind_name[kind], tess_dtype_name(t), (long long)s.rows,
             (long long)s.in, (long long)s.out, ones ? " of ones" : "");
    product p = describe(kind, s, t);
    tess_cuda_mm &d = p.d;
    const size_t bytes = (size_t)p.size_c * tess_dtype_size(d.out), elements = (size_t)(d.m * d.n) * sizeof(double);
    p.a = drawn(p.size_a, t, ones), p.b = drawn(p.size_b, t, ones);
    p.c = drawn(p.size_c, d.out, ones && kind == HEAD_GRADIENT), p.pre = drawn(p.size_c, d.out, false);
    if (kind == FORWARD || kind == GELU) d.bias = p.bias = (float *)drawn(d.n, TESS_F32, false);
    void *before = device_new(bytes), *first = device_new(bytes);
    copy_bytes(&work, before, p.c, bytes);
    reference r = {d, p.a, p.b, before, p.pre, (double *)device_new(elements), (double *)device_new(elements), kind};
    run_reference(r);
    failure[0] = 0;
    const bool ran = run_product(p, kind);
    if (failure[0]) CHECK_SAY("%s: %s", what, failure);
    const char *error = device_error();
    if (error) {
        printf("%s: %s\n", what, error);
        exit(1);
    }
    copy_bytes(&work, first, p.c, bytes);
    /* sums in fp32 lose with their length */
    const double limit = d.out == TESS_F32 ? 2e-5 + 4e-9 * (double)d.k : d.out == TESS_F16 ? 1e-3 : 6e-3;
    const parts is = compare(p.c, NULL, r.want, d.m, d.n, d.ldc, d.out);
    if (ran && !(is.off <= limit * is.size)) CHECK_SAY("%s: off by %g", what, is.off / is.size);
    const parts pre = compare(p.pre, NULL, r.pre, d.m, d.n, d.ldc, d.out);
    if (kind == GELU && ran && !(pre.off <= limit * pre.size)) CHECK_SAY("%s: what gelu reads is off", what);
    if (ones && ran && (kind == HEAD || kind == HEAD_GRADIENT) && is.most != 0) /* exact in fp32, in whatever order */
        CHECK_SAY("%s: a sum of %lld ones is off by %g", what, (long long)(d.k + d.acc), is.most);
    copy_bytes(&work, p.c, before, bytes);
    if (ran) run_product(p, kind);
    const double other = ran ? compare(p.c, first, r.pre, d.m, d.n, d.ldc, d.out).other : 0;
    if (other > 0) CHECK_SAY("%s: %g elements have other bits the second time", what, other);
    device_free(first);
    for (void *x : {p.a, p.b, p.c, p.pre, (void *)p.bias, before, (void *)r.want, (void *)r.pre})
        if (x) device_free(x);
}

/* ---- cases ---- */

#ifdef TESS_EMULATED
constexpr int64_t YARD = 64;
static const shape shapes[] = {{40, 24, 72}, {33, 20, 7}, {17, 600, 1000}, {9, 40, 640}};
static const shape heads[] = {{5, 16, 1001}, {4, 600, 257}};
#else
constexpr int64_t YARD = 8192;
static const shape shapes[] = {{8192, 768, 3072}, {8192, 1600, 6400}, {8192, 4096, 4096}, {8191, 768, 2304}};
static const shape heads[] = {{256, 768, 50257}, {2048, 1600, 31457}};
#endif

/* Of ones too, whose sums in fp16 say no more than those in bf16. */
static void layer(const shape &s)
{
    for (int ones = 0; ones < 2; ones++)
        for (tess_dtype t : {TESS_F32, TESS_BF16, TESS_F16})
            for (int kind = 0; kind < KINDS && !(ones && t == TESS_F16); kind++)
                if (kind != HEAD && kind != HEAD_GRADIENT && !(kind >= GELU && t == TESS_F32))
                    check_product(kind, s, t, ones);
}
static void head(const shape &s)
{
    for (int ones = 0; ones < 2; ones++)
        for (tess_dtype t : {TESS_F32, TESS_BF16, TESS_F16}) {
            if (ones && t == TESS_F16) continue;
            check_product(HEAD, s, t, ones);
            check_product(HEAD_GRADIENT, s, t, ones);
        }
}

/* First, since a device that is reset forgets what was allocated. Whoever measured before StarPU's start has products
 * after it. */
TEST(a_reset_between_products)
{
    tess_gpu_rate rate = {};
    rate.dtype = TESS_BF16;
    rate.n = YARD;
    tess_work w = {};
    w.arg = &rate;
    TESS_CUDA_NAME(matrix_rate)(&w);
    CHECK(rate.rate > 0);
#ifdef TESS_EMULATED
    CHECK_EQ(emulated_library.descriptions, 0);
    CHECK_EQ(emulated_library.handles, 0);
    emulated_library.era++;
    device_free(work.room);
#else
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
#endif
    work.room = device_new(64 << 20);
    work.room_bytes = 64 << 20;
    /* First the product that was measured, whose key is known. */
    tess_cuda_mm d = {YARD, YARD, YARD, YARD, YARD, YARD, TESS_BF16, TESS_BF16};
    d.tb = true;
    void *x = drawn(YARD * YARD, TESS_BF16, false), *y = device_new(YARD * YARD * sizeof(uint16_t));
    failure[0] = 0;
    tess_cuda_mm_run(&work, &d, x, x, y);
    CHECK_STR(failure, "");
    device_free(x);
    device_free(y);
    check_product(INPUT, shapes[0], TESS_BF16, false);
}

/* Of one-hot rows and a quantized matrix: the very values that the CPU reads, of all columns at once and of 64 at a
 * time, forward and backward. */
TEST(quantized_matrices)
{
    constexpr int64_t K = 128, N = 320;
    for (tess_dtype of : {TESS_NF4, TESS_INT8})
        for (tess_dtype t : {TESS_F32, TESS_BF16, TESS_F16})
            for (int way = 0; way < 4; way++) {
                const size_t size = tess_dtype_size(t), bytes = tess_dtype_bytes(of, K * N);
                tess_cuda_mm d = {K, N, K, K, way & 1 ? K : N, N, t, t};
                d.b = of, d.tb = way & 1;
                std::vector<float> x((size_t)(K * N));
                std::vector<char> codes(bytes), values(K * N * size), one(K * K * size), got(K * N * size);
                for (size_t i = 0; i < x.size(); i++) x[i] = (float)sin((double)(i * i)) * (float)(1 + i / 64 % 7);
                tess_quantize_write(codes.data(), of, x.data(), K * N, TESS_F32);
                tess_quantize_read(values.data(), t, codes.data(), of, K * N);
                for (int64_t i = 0; i < K; i++) {
                    const float f = 1;
                    const uint16_t h = t == TESS_F16 ? tess_to_f16(1) : tess_to_bf16(1);
                    memcpy(&one[(size_t)(i * K + i) * size], t == TESS_F32 ? (const void *)&f : &h, size);
                }
                void *a = device_new(one.size()), *b = device_new(bytes), *c = device_new(got.size());
                device_put(a, one.data(), one.size());
                device_put(b, codes.data(), bytes);
                tess_work w = work;
                if (way & 2) w.room_bytes = TESS_CUDA_MM_ROOM + K * 64 * size;
                failure[0] = 0;
                tess_cuda_mm_run(&w, &d, a, b, c);
                CHECK_STR(failure, "");
                device_get(got.data(), c, got.size());
                for (int64_t i = 0; i < K * N; i++) {
                    const int64_t from = d.tb ? i % N * K + i / N : i;
                    if (memcmp(&got[(size_t)i * size], &values[(size_t)from * size], size))
                        CHECK_SAY("%s of %s, way %d: element %lld is another", tess_dtype_name(t), tess_dtype_name(of),
                                  way, (long long)i);
                }
                device_free(a), device_free(b), device_free(c);
            }
}

/* A shape a case, so that one that takes long costs no other its time. */
TEST(of_a_small_layer)
{
    layer(shapes[0]);
}
TEST(of_a_layer)
{
    layer(shapes[1]);
}
TEST(of_a_wide_layer)
{
    layer(shapes[2]);
}
TEST(of_ragged_rows)
{
    layer(shapes[3]);
}
TEST(of_a_head)
{
    head(heads[0]);
}
TEST(of_a_wide_head)
{
    head(heads[1]);
#ifdef TESS_EMULATED
    CHECK_EQ(emulated_library.ragged, 0);
#endif
}

#ifdef TESS_EMULATED
/* What the heuristic offered and the product refuses is done another way, or said. */
TEST(refusals)
{
    for (int refuses = 1; refuses <= 3; refuses++) {
        emulated_library.refuses = refuses;
        const shape s = {16 + refuses, 24, 32};
        for (int kind = 0; kind < KINDS; kind++) check_product(kind, s, TESS_BF16, false);
        check_product(FORWARD, s, TESS_F16, false);
        check_product(FORWARD, s, TESS_F32, false);
    }
    emulated_library.plain_too = true;
    emulated_library.refuses = 2;
    check_product(INPUT, shape{13, 8, 24}, TESS_BF16, false); /* the third does */
    emulated_library.refuses = 3;
    product p = describe(INPUT, shape{14, 8, 24}, TESS_BF16);
    p.a = drawn(p.size_a, TESS_BF16, false), p.b = drawn(p.size_b, TESS_BF16, false);
    p.c = drawn(p.size_c, TESS_BF16, false);
    failure[0] = 0;
    run_product(p, INPUT);
    CHECK_HAS(failure, "14 x 8 x 24");
    for (void *x : {p.a, p.b, p.c}) device_free(x);
    emulated_library.refuses = emulated_library.plain_too = 0;
}

/* A long evaluation or a generation has more shapes than there is room for plans. */
TEST(more_shapes_than_plans)
{
    constexpr int64_t SHAPES = 5000, MOST_ROWS = 5, MOST_K = 10;
    void *a = drawn(MOST_ROWS * MOST_K, TESS_F32, true), *b = drawn(MOST_K, TESS_F32, true);
    float *c = (float *)device_new(MOST_ROWS * SHAPES * sizeof *c);
    int most = 0;
    failure[0] = 0;
    for (int64_t i = 1; i <= SHAPES; i++) {
        tess_cuda_mm d = {};
        d.m = 1 + i % MOST_ROWS, d.k = d.lda = d.ldb = 1 + i % MOST_K, d.n = 1, d.ldc = i, d.tb = true;
        tess_cuda_mm_run(&work, &d, a, b, c);
        CHECK_NEAR(c[(d.m - 1) * d.ldc], (double)d.k, 0);
        if (emulated_library.descriptions > most) most = emulated_library.descriptions;
    }
    CHECK_STR(failure, "");
    CHECK(most < 4 * 4096);
    for (void *x : {a, b, (void *)c}) device_free(x);
}

/* A ragged end of a deep k is a product of its own, so that the rest may be summed in parts. */
TEST(a_ragged_end)
{
    const uint64_t *did = emulated_library.products;
    const int64_t deep[] = {8192 + 57, 8192 + 128, 57};
    for (int k = 0; k < 3; k++) {
        const uint64_t before = did[CUBLASLT_EPILOGUE_DEFAULT], parts = emulated_library.split;
        check_product(HEAD_GRADIENT, shape{3, 16, deep[k]}, TESS_BF16, true); /* twice */
        CHECK_EQ(did[CUBLASLT_EPILOGUE_DEFAULT] - before, k == 0 ? 4 : 2);
        CHECK_EQ(emulated_library.split - parts, k == 2 ? 0 : 2);
    }
    check_product(HEAD_GRADIENT, shape{3, 16, deep[0]}, TESS_F32, false);
    CHECK_EQ(emulated_library.ragged, 0);
}

/* Of 8 bits: by codes from Ada on, for sides that are multiples of 16; in bf16 else, where the library has no offer for
 * codes, and where it refuses what it has offered: of the same numbers each time, so with the same result. */
TEST(products_of_8_bits)
{
    enum { CODES, ODD_SIDE, NO_OFFER, REFUSED, WAYS };
    const int64_t rows = 96, in = 64, most = 80 + 16 * WAYS;
    void *x = drawn(rows * in, TESS_BF16, false), *y = device_new((size_t)(rows * most) * 2);
    std::vector<double> first;
    for (int way = 0; way < WAYS; way++) { /* each has a plan of its own, by the distance of C's rows */
        const uint64_t before = emulated_library.codes;
        tess_cuda_mm d = {rows, way == ODD_SIDE ? 40 : 80, in, in, in, 80 + 16 * way, TESS_BF16, TESS_BF16};
        d.tb = true, d.fp8 = TESS_E4M3;
        emulated_library.no_codes = way < NO_OFFER ? 0 : way - 1;
        failure[0] = 0;
        tess_cuda_mm_run(&work, &d, x, x, y);
        CHECK_STR(failure, "");
        CHECK_EQ(emulated_library.codes - before, emulate::architecture() >= 89 && way == CODES);
        for (int64_t i = 0; i < rows * 80; i++) {
            const double got = number(y, i / 80 * d.ldc + i % 80, TESS_BF16);
            if (way == CODES) first.push_back(got);
            if (i % 80 < d.n) CHECK_NEAR(got, first[(size_t)i], 0.01 * fabs(first[(size_t)i]) + 1e-3);
        }
    }
    emulated_library.no_codes = 0;
    ((uint16_t *)x)[5] = 0x7f80; /* an overflow is seen */
    for (int way = CODES; way <= ODD_SIDE; way++) {
        tess_cuda_mm d = {rows, way == ODD_SIDE ? 40 : 80, in, in, in, 80, TESS_BF16, TESS_BF16};
        d.tb = true, d.fp8 = TESS_E5M2;
        tess_cuda_mm_run(&work, &d, x, x, y);
        for (int64_t i = 0; i < rows * 80; i++) CHECK(i % 80 >= d.n || isnan(number(y, i, TESS_BF16)));
    }
    device_free(x), device_free(y);
}

/* Gelu is in epilogues on Hopper alone. */
TEST(where_gelu_pays)
{
    const uint64_t *did = emulated_library.products;
    const uint64_t before = did[CUBLASLT_EPILOGUE_GELU_AUX_BIAS], slopes = did[CUBLASLT_EPILOGUE_DGELU];
    check_product(GELU, shapes[0], TESS_BF16, false);
    check_product(SLOPE, shapes[0], TESS_F16, false);
    CHECK_EQ(did[CUBLASLT_EPILOGUE_GELU_AUX_BIAS] > before, emulate::architecture() == 90);
    CHECK_EQ(did[CUBLASLT_EPILOGUE_DGELU] > slopes, emulate::architecture() == 90);
}

/* Elements beyond 2^31 of a tile: rows that lie half a GiB apart, in memory that nobody touches in between. */
extern "C" void TESS_CUDA_NAME(linear_backward_bias_f32)(const tess_work *w);
extern "C" void TESS_CUDA_NAME(linear_backward_bias_bf16)(const tess_work *w);
extern "C" void TESS_CUDA_NAME(linear_backward_bias_f16)(const tess_work *w);
TEST(elements_beyond_2_to_the_31)
{
    constexpr int64_t ROWS = 6, APART = (1ll << 29) + 8, OUT = 8;
    const size_t bytes = (size_t)((ROWS - 1) * APART + OUT) * sizeof(float);
    const tess_body bodies[] = {TESS_CUDA_NAME(linear_backward_bias_f32), TESS_CUDA_NAME(linear_backward_bias_bf16),
                                TESS_CUDA_NAME(linear_backward_bias_f16)};
    const tess_dtype types[] = {TESS_F32, TESS_BF16, TESS_F16};
    char *far = (char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (far == MAP_FAILED) SKIP("there is no address space of 11 GiB");
    for (int k = 0; k < 3; k++) {
        const tess_dtype t = types[k];
        memset(far, 0, 4096);
        for (int64_t i = 0; i < ROWS * OUT; i++) {
            const int64_t at = i / OUT * APART + i % OUT;
            if (t == TESS_F32)
                ((float *)far)[at] = (float)(i + 1);
            else
                ((uint16_t *)far)[at] = t == TESS_F16 ? tess_to_f16((float)(i + 1)) : tess_to_bf16((float)(i + 1));
        }
        float *db = (float *)device_new(OUT * sizeof *db);
        tess_linear_arg a = {};
        a.rows = ROWS, a.in = 1, a.out = OUT, a.ld = APART, a.bias = true;
        tess_view view[] = {{far, bytes}, {db, OUT * sizeof *db}};
        tess_work w = work;
        w.buf = view;
        w.nbuf = 2;
        w.arg = &a;
        bodies[k](&w);
        for (int64_t j = 0; j < OUT; j++) CHECK_NEAR(db[j], ROWS * (j + 1) + OUT * ROWS * (ROWS - 1) / 2, 0);
        /* C of a product there */
        tess_cuda_mm d = {};
        d.m = ROWS, d.n = OUT, d.k = 1, d.lda = 1, d.ldb = OUT, d.ldc = APART, d.in = d.out = t;
        void *ones = drawn(64, t, true);
        failure[0] = 0;
        tess_cuda_mm_run(&work, &d, ones, ones, far);
        CHECK_STR(failure, "");
        for (int64_t i = 0; i < ROWS; i++) CHECK_NEAR(number(far, i * APART + OUT - 1, t), 1, 0);
        device_free(ones);
        device_free(db);
    }
    munmap(far, bytes);
}

/* A rank measures its own device. */
TEST(the_rate_of_another_device)
{
    int device = 0;
    tess_gpu_rate rate = {};
    rate.n = 64;
    rate.device = 1;
    tess_work w = {};
    w.arg = &rate;
    TESS_CUDA_NAME(matrix_rate)(&w);
    cudaGetDevice(&device);
    CHECK_EQ(device, 1);
    CHECK(rate.rate > 0);
    cudaSetDevice(0);
}
#endif

int main(int argc, char **argv)
{
#ifndef TESS_EMULATED
    if (argc > 1 && !strcmp(argv[1], "--library")) { /* for who looks for it */
        char name[40];
        snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
        puts(dlopen(name, RTLD_NOW) ? name : "no cublasLt");
        return 0;
    }
#endif
    if (argc > 1 && !strcmp(argv[1], "--list")) { /* for who runs them one by one */
        for (const struct check_case *c = check_first; c; c = c->next) puts(c->name);
        return 0;
    }
    if (!device_is_there()) {
        printf("skipped: no GPU\n0 passed, 0 failed, 1 skipped\n");
        return 77;
    }
    printf("%s\n", device_name());
    work.room = device_new(64 << 20);
    work.room_bytes = 64 << 20;
    const int status = check_main(argc, argv);
    device_free(work.room);
    return status;
}
