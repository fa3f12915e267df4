/* What a GPU and its ways do alone, and what our attention does: the ceilings of tests/gpu/prove's table. One line a
 * figure, "NAME VALUE UNIT", medians of several runs.
 *
 *     bench_gpu            all that
 *     bench_gpu pinning    how fast fresh RAM is had and pinned by all threads at once, which is what fills tiles first
 */
#include "codelets/generic.h"
#include "codelets/shared/cudnn_choice.h"
#include <cuda_runtime_api.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void tess_cuda_linear_forward_bf16(const tess_work *w), tess_cuda_attention_forward_bf16(const tess_work *w),
    tess_cuda_attention_backward_bf16(const tess_work *w), tess_cuda_fill_normal_f32(const tess_work *w),
    tess_cuda_all_round_bf16(const tess_work *w), tess_cuda_gelu_forward_bf16(const tess_work *w),
    tess_cuda_linear_gelu_forward_bf16(const tess_work *w), tess_cuda_linear_backward_weight_bf16(const tess_work *w),
    tess_cuda_linear_backward_input_bf16(const tess_work *w), tess_cuda_attention_library(const tess_work *w),
    tess_cuda_conv_cudnn(const tess_work *w), tess_cuda_any_conv_bf16(const tess_work *w),
    tess_cuda_any_conv_input_bf16(const tess_work *w), tess_cuda_any_conv_weight_bf16(const tess_work *w);

enum { RUNS = 9, ROOM = 64 << 20 };
static tess_env env = {.seed = 1, .train = true};
static tess_work work = {.env = &env};

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "bench_gpu: %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}
static void *device(size_t bytes)
{
    void *p;
    check(cudaMalloc(&p, bytes), "cudaMalloc");
    return p;
}
/* bf16, normal. */
static void *drawn(int64_t n, float size)
{
    float *x = device((size_t)n * sizeof *x);
    void *y = device((size_t)n * 2);
    tess_count_arg a = {.n = n, .value = size};
    tess_view view[] = {{x, (size_t)n * 4}, {y, (size_t)n * 2}};
    work.arg = &a;
    work.buf = view;
    work.nbuf = 2;
    tess_cuda_fill_normal_f32(&work);
    tess_cuda_all_round_bf16(&work);
    check(cudaDeviceSynchronize(), "drawing");
    check(cudaFree(x), "cudaFree");
    return y;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* Median seconds of `run` on the default stream, each time of several calls. */
static double seconds_of(void (*run)(void *), void *arg, int calls)
{
    cudaEvent_t start, end;
    double seconds[RUNS];
    check(cudaEventCreate(&start), "event");
    check(cudaEventCreate(&end), "event");
    run(arg);
    for (int k = 0; k < RUNS; k++) {
        float ms;
        check(cudaEventRecord(start, 0), "event");
        for (int i = 0; i < calls; i++) run(arg);
        check(cudaEventRecord(end, 0), "event");
        check(cudaEventSynchronize(end), "kernels");
        check(cudaEventElapsedTime(&ms, start, end), "event");
        seconds[k] = ms * 1e-3 / calls;
    }
    qsort(seconds, RUNS, sizeof *seconds, ascending);
    return seconds[RUNS / 2];
}

/* Memory that a body is to fill, and whether it did: one that failed would be fast. */
static void *poisoned(size_t bytes)
{
    void *p = device(bytes);
    check(cudaMemset(p, 0xff, bytes), "memset");
    return p;
}
static void check_written(const void *p, size_t bytes)
{
    uint16_t end;
    check(cudaMemcpy(&end, (const char *)p + bytes - sizeof end, sizeof end, cudaMemcpyDeviceToHost), "copy");
    if (end != 0xffff) return;
    fprintf(stderr, "bench_gpu: a body did not write its output\n");
    exit(1);
}

/* ---- matrices ---- */

struct task {
    tess_body body;
    const void *arg;
    tess_view view[12];
    unsigned n;
};
static void run_task(void *p)
{
    const struct task *t = p;
    work.arg = t->arg;
    work.buf = t->view;
    work.nbuf = t->n;
    t->body(&work);
}

static void matrices(void)
{
    const int64_t n = 8192;
    tess_linear_arg a = {.rows = n, .in = n, .out = n, .ld = n};
    struct task t = {tess_cuda_linear_forward_bf16,
                     &a,
                     {{drawn(n * n, 1), 0}, {drawn(n * n, 1), 0}, {poisoned((size_t)(n * n) * 2), 0}},
                     3};
    double s = seconds_of(run_task, &t, 10);
    printf("matrix_bf16 %.1f TFLOP/s\n", 2e-12 * (double)n * (double)n * (double)n / s);
    check_written(t.view[2].ptr, (size_t)(n * n) * 2);
    for (int i = 0; i < 3; i++) check(cudaFree(t.view[i].ptr), "cudaFree");
}

/* ---- what a product has beside it: in its epilogue, or as a pass of its own ---- */

enum { ROWS = 8192, IN = 1600, OUT = 6400, VOCAB = 50257, HEAD_ROWS = 2048 };

static void rate(const char *name, double flops, double seconds)
{
    printf("%s %.1f TFLOP/s\n", name, flops * 1e-12 / seconds);
}

static void epilogues(void)
{
    const double flops = 2.0 * ROWS * IN * OUT;
    void *x = drawn((int64_t)ROWS * IN, 1), *w = drawn((int64_t)OUT * IN, 1), *dy = drawn((int64_t)ROWS * OUT, 1);
    void *pre = poisoned((size_t)ROWS * OUT * 2), *y = poisoned((size_t)ROWS * OUT * 2);
    float *b = device(OUT * sizeof *b), *dw = device(sizeof *dw * IN * OUT);
    check(cudaMemset(b, 0, OUT * sizeof *b), "memset");
    tess_linear_gelu_arg both = {.linear = {.rows = ROWS, .in = IN, .out = OUT, .ld = OUT, .bias = true},
                                 .gelu = {.n = (int64_t)ROWS * OUT, .kind = TESS_GELU_TANH}};
    struct task fused = {tess_cuda_linear_gelu_forward_bf16, &both, {{x, 0}, {w, 0}, {pre, 0}, {y, 0}, {b, 0}}, 5};
    struct task product = {tess_cuda_linear_forward_bf16, &both.linear, {{x, 0}, {w, 0}, {pre, 0}, {b, 0}}, 4};
    struct task gelu = {tess_cuda_gelu_forward_bf16, &both.gelu, {{pre, 0}, {y, 0}}, 2};
    rate("gelu_epilogue", flops, seconds_of(run_task, &fused, 5));
    rate("gelu_own", flops, seconds_of(run_task, &product, 5) + seconds_of(run_task, &gelu, 5));
    tess_linear_arg with = both.linear, without = both.linear;
    without.bias = false;
    struct task weight = {tess_cuda_linear_backward_weight_bf16, &with, {{dy, 0}, {x, 0}, {dw, 0}, {b, 0}}, 4};
    struct task alone = {tess_cuda_linear_backward_weight_bf16, &without, {{dy, 0}, {x, 0}, {dw, 0}}, 3};
    rate("weight_alone", flops, seconds_of(run_task, &alone, 5));
    rate("weight_and_bias", flops, seconds_of(run_task, &weight, 5));
    void *all[] = {x, w, dy, pre, y, b, dw};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check(cudaFree(all[i]), "cudaFree");
}

/* dw of the head, from rows of logits that lie an odd number apart, and a multiple of 64. */
static void head(void)
{
    const int64_t ld[] = {VOCAB, (VOCAB + 63) / 64 * 64};
    void *dy = drawn(HEAD_ROWS * ld[1], 1), *x = drawn((int64_t)HEAD_ROWS * 768, 1);
    float *dw = device(sizeof *dw * 768 * VOCAB);
    for (int k = 0; k < 2; k++) {
        tess_linear_arg a = {.rows = HEAD_ROWS, .in = 768, .out = VOCAB, .ld = ld[k]};
        struct task weight = {tess_cuda_linear_backward_weight_bf16, &a, {{dy, 0}, {x, 0}, {dw, 0}}, 3};
        rate(k ? "head_padded" : "head_odd", 2.0 * HEAD_ROWS * 768 * VOCAB, seconds_of(run_task, &weight, 5));
    }
    /* dx: a ragged k, whose end is a product of its own, and one that is not */
    void *weight = drawn((int64_t)VOCAB * 768, 1);
    float *dx = device(sizeof *dx * HEAD_ROWS * 768);
    for (int k = 0; k < 2; k++) {
        tess_linear_arg a = {
            .rows = HEAD_ROWS, .in = 768, .out = k ? VOCAB / 128 * 128 : VOCAB, .ld = ld[1], .sum = true};
        struct task input = {tess_cuda_linear_backward_input_bf16, &a, {{dy, 0}, {weight, 0}, {dx, 0}}, 3};
        rate(k ? "head_dx_whole" : "head_dx_ragged", 2.0 * HEAD_ROWS * 768 * (double)a.out,
             seconds_of(run_task, &input, 5));
    }
    void *all[] = {x, dy, dw, dx, weight};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check(cudaFree(all[i]), "cudaFree");
}

/* ---- attention ---- */

static void attention(int64_t length, int64_t heads, int64_t dim, int64_t sequences, float dropout, const char *with)
{
    const int64_t rows = length * sequences, wide = heads * dim;
    tess_attention_arg a = {.rows = rows,
                            .sequence = length,
                            .heads = heads,
                            .groups = heads,
                            .dim = dim,
                            .scale = 1 / sqrtf((float)dim),
                            .causal = true,
                            .packed = true,
                            .dropout = dropout};
    void *qkv = drawn(rows * 3 * wide, 1), *y = poisoned((size_t)(rows * wide) * 2), *dy = drawn(rows * wide, 1);
    void *scratch = device(tess_attention_scratch(&a, TESS_BF16)), *lse = device((size_t)(rows * heads) * 4),
         *dqkv = poisoned((size_t)(rows * 3 * wide) * 2);
    struct task forward = {tess_cuda_attention_forward_bf16, &a, {{qkv, 0}, {y, 0}, {lse, 0}, {scratch, 0}}, 4};
    struct task backward = {
        tess_cuda_attention_backward_bf16, &a, {{dy, 0}, {qkv, 0}, {y, 0}, {lse, 0}, {dqkv, 0}, {scratch, 0}}, 6};
    double pairs = (double)sequences * (double)heads * (double)length * (double)(length + 1) / 2,
           product = 2 * pairs * (double)dim;
    double f = seconds_of(run_task, &forward, 5), b = seconds_of(run_task, &backward, 5);
    printf("attention_forward_T%lld_d%lld%s %.1f TFLOP/s\n", (long long)length, (long long)dim, with,
           2e-12 * product / f);
    printf("attention_backward_T%lld_d%lld%s %.1f TFLOP/s\n", (long long)length, (long long)dim, with,
           5e-12 * product / b);
    check_written(y, (size_t)(rows * wide) * 2);
    check_written(dqkv, (size_t)(rows * 3 * wide) * 2);
    check(cudaFree(qkv), "cudaFree");
    check(cudaFree(y), "cudaFree");
    check(cudaFree(dy), "cudaFree");
    check(cudaFree(lse), "cudaFree");
    check(cudaFree(scratch), "cudaFree");
    check(cudaFree(dqkv), "cudaFree");
}

static void attentions(const char *with)
{
    attention(4096, 32, 128, 4, 0, with);
    attention(4096, 32, 64, 4, 0, with);
    attention(1024, 25, 64, 32, 0, with);
    attention(1024, 32, 80, 16, 0, with);
    attention(4096, 8, 256, 4, 0, with);
}
/* From here on cuDNN's, where it can. */
static bool by_library(const char *what, tess_body settle)
{
    tess_cudnn_choice arg = {.wanted = true};
    settle(&(tess_work){.arg = &arg});
    printf("%s_library %s\n", what, arg.said);
    return arg.taken;
}

/* ---- convolutions: of a ResNet on 32 images, as PyTorch has them ---- */

static void convolution(int64_t channels, int64_t size, const char *with)
{
    enum { SAMPLES = 32 };
    const int64_t area = size * size, n = SAMPLES * channels * area, weights = channels * channels * 9;
    const double flops = 2.0 * (double)n * (double)channels * 9;
    tess_any_conv_arg a = {.samples = SAMPLES, .groups = 1, .inputs = channels, .outputs = channels, .to = TESS_BF16};
    for (int d = 0; d < TESS_CONV_SPACE; d++) {
        a.in[d] = a.out[d] = d ? size : 1, a.window[d] = d ? 3 : 1, a.pad[d] = d > 0;
        a.step[d] = a.apart[d] = a.between[d] = 1;
        a.x[2 + d] = a.y[2 + d] = d == 2 ? 1 : d ? size : area, a.w[2 + d] = d == 2 ? 1 : d ? 3 : 9;
    }
    a.x[1] = a.y[1] = area, a.x[0] = a.y[0] = channels * area, a.w[1] = 9, a.w[0] = channels * 9, a.w_group = weights;
    void *x = drawn(n, 1), *w = drawn(weights, 1), *y = drawn(n, 1);
    float *dx = device((size_t)n * sizeof *dx), *dw = device((size_t)weights * sizeof *dw);
    tess_any_conv_arg by = a;
    by.to = TESS_F32;
    struct task all[] = {{tess_cuda_any_conv_bf16, &a, {{x, 0}, {w, 0}, {y, 0}}, 3},
                         {tess_cuda_any_conv_input_bf16, &by, {{dx, 0}, {w, 0}, {y, 0}}, 3},
                         {tess_cuda_any_conv_weight_bf16, &by, {{x, 0}, {dw, 0}, {y, 0}}, 3}};
    static const char *const name[] = {"forward", "input", "weight"};
    for (int k = 0; k < 3; k++)
        printf("conv_%s_%lld%s %.1f TFLOP/s\n", name[k], (long long)channels, with,
               1e-12 * flops / seconds_of(run_task, &all[k], 5));
    void *made[] = {x, w, y, dx, dw};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) check(cudaFree(made[i]), "cudaFree");
}
static void convolutions(const char *with)
{
    convolution(64, 56, with);
    convolution(512, 7, with);
}

/* ---- copies ---- */

static const size_t COPY = 1 << 30;
struct copies {
    void *device[2], *host[2];
    cudaStream_t stream[2];
    int which; /* 1: to the device, 2: from it, 3: both at a time */
};
static void copy_device(void *p)
{
    struct copies *c = p;
    check(cudaMemcpyAsync(c->device[0], c->device[1], COPY, cudaMemcpyDeviceToDevice, 0), "copy");
}
static double copy_host(const struct copies *c)
{
    double seconds[RUNS];
    for (int k = 0; k < RUNS; k++) {
        check(cudaDeviceSynchronize(), "copies");
        double start = tess_seconds();
        if (c->which & 1)
            check(cudaMemcpyAsync(c->device[0], c->host[0], COPY, cudaMemcpyHostToDevice, c->stream[0]), "copy");
        if (c->which & 2)
            check(cudaMemcpyAsync(c->host[1], c->device[1], COPY, cudaMemcpyDeviceToHost, c->stream[1]), "copy");
        check(cudaDeviceSynchronize(), "copies");
        seconds[k] = tess_seconds() - start;
    }
    qsort(seconds, RUNS, sizeof *seconds, ascending);
    return seconds[RUNS / 2];
}
static void copies(void)
{
    struct copies c = {.device = {device(COPY), device(COPY)}};
    static const char *const name[] = {"", "to_device", "from_device", "both_ways"};
    void *plain = aligned_alloc(4096, COPY);
    if (!plain) check(cudaErrorMemoryAllocation, "host memory");
    memset(plain, 1, COPY);
    const double begun = tess_seconds();
    check(cudaHostRegister(plain, COPY, cudaHostRegisterPortable), "pinning");
    printf("pinning %.1f GB/s\n", 1e-9 * (double)COPY / (tess_seconds() - begun));
    check(cudaHostUnregister(plain), "unpinning");
    free(plain);
    printf("copy_device %.0f GB/s\n", 2e-9 * (double)COPY / seconds_of(copy_device, &c, 3));
    for (int i = 0; i < 2; i++) {
        check(cudaHostAlloc(&c.host[i], COPY, cudaHostAllocPortable), "cudaHostAlloc");
        check(cudaStreamCreate(&c.stream[i]), "stream");
        memset(c.host[i], 1, COPY);
    }
    for (c.which = 1; c.which <= 3; c.which++)
        printf("copy_pinned_%s %.1f GB/s\n", name[c.which],
               (c.which == 3 ? 2e-9 : 1e-9) * (double)COPY / copy_host(&c));
    printf("copy_host %.0f GB/s\n", tess_copy_rate(tess_cores()) * 1e-9);
}

/* ---- pinning: pieces of fresh RAM as tiles' buffers are had (runtime/tiles/slab.c) ---- */

static const size_t PIECE = 64 << 20, PIECES_AT_ONCE = 64; /* 4 GiB, after which the rate is said */
static const int MOST_PINNED = 384;                        /* 24 GiB */
static struct {
    pthread_mutex_t lock;
    int next, until;
    double touching, pinning, pinning_fresh, longest; /* seconds, of all threads together */
} pins = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Of every other piece each page is written first, so that pinning it brings none. */
static void *pin_pieces(void *unused)
{
    check(cudaSetDevice(0), "the device");
    for (;;) {
        const int k = __atomic_fetch_add(&pins.next, 1, __ATOMIC_RELAXED);
        if (k >= pins.until) return unused;
        char *p = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            fprintf(stderr, "bench_gpu: mmap refuses the piece behind %.1f GiB: %s\n", k / 16.0, strerror(errno));
            exit(1);
        }
        madvise(p, PIECE, MADV_HUGEPAGE);
        const double begun = tess_seconds();
        for (size_t at = 0; k % 2 && at < PIECE; at += 4096) p[at] = 1;
        const double touched = tess_seconds();
        const cudaError_t error = cudaHostRegister(p, PIECE, cudaHostRegisterPortable);
        const double pinned = tess_seconds();
        if (error != cudaSuccess) fprintf(stderr, "bench_gpu: the piece behind %.1f GiB\n", k / 16.0);
        check(error, "pinning");
        pthread_mutex_lock(&pins.lock);
        pins.touching += touched - begun;
        *(k % 2 ? &pins.pinning : &pins.pinning_fresh) += pinned - touched;
        pins.longest = fmax(pins.longest, pinned - begun);
        pthread_mutex_unlock(&pins.lock);
    }
}

/* At most 24 GiB, 20 seconds, and half of what is free. */
static void pinning(void)
{
    enum { THREADS = 15 };
    pthread_t thread[THREADS];
    const int half = (int)((double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 2 / (double)PIECE);
    const int most = half < MOST_PINNED ? half : MOST_PINNED;
    const int threads = tess_cores() < THREADS ? tess_cores() : THREADS;
    const double begun = tess_seconds();
    while (pins.until < most && tess_seconds() - begun < 20) {
        const double from = tess_seconds();
        const int before = pins.until;
        pins.until = before + (int)PIECES_AT_ONCE < most ? before + (int)PIECES_AT_ONCE : most;
        pins.next = before;
        for (int i = 0; i < threads; i++)
            if (pthread_create(&thread[i], NULL, pin_pieces, NULL)) exit(1);
        for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
        printf("%.1f GiB pinned, the last %d pieces in %.2f s, the longest of a piece so far %.2f s\n",
               pins.until / 16.0, pins.until - before, tess_seconds() - from, pins.longest);
        fflush(stdout);
    }
    const double half_bytes = 0.5e-9 * (double)PIECE * pins.until;
    if (!pins.until) return;
    printf("pinned_by_all %.2f GB/s\n", 2 * half_bytes / (tess_seconds() - begun));
    printf("thread_touches %.2f GB/s\n", half_bytes / pins.touching);
    printf("thread_pins %.2f GB/s\n", half_bytes / pins.pinning);
    printf("thread_pins_fresh %.2f GB/s\n", half_bytes / pins.pinning_fresh);
    printf("longest_pin %.2f s\n", pins.longest);
}

int main(int argc, char **argv)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    struct cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "properties");
    printf("device 0 %s\n", properties.name);
    if (argc > 1 && !strcmp(argv[1], "pinning")) {
        pinning();
        return 0;
    }
    work.room = device(ROOM);
    work.room_bytes = ROOM;
    matrices();
    epilogues();
    head();
    attentions("");
    attention(4096, 32, 128, 4, 0.1f, "_dropout"); /* other kernels, which take more registers */
    attention(4096, 32, 64, 4, 0.1f, "_dropout");
    if (by_library("attention", tess_cuda_attention_library)) attentions("_library");
    convolutions("");
    if (by_library("conv", tess_cuda_conv_cudnn)) convolutions("_library");
    copies();
    tess_drive d;
    if (tess_drive_measure(".", &d) == TESS_OK)
        printf("disk_read %.2f GB/s\ndisk_write %.2f GB/s\n", d.read_rate * 1e-9, d.write_rate * 1e-9);
    return 0;
}
