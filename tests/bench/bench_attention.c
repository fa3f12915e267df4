/* Attention of one layer on the CPU, forward and backward: the codelets alone, no task around them. torch_attention.py
 * runs it in turns with PyTorch's.
 *
 *     bench_attention [dtype...]      a table of shapes
 *     bench_attention -               answers lines "DTYPE LENGTH HEADS GROUPS DIM CAUSAL WINDOW THREADS SECONDS" on
 * stdin, each with "FORWARD BACKWARD", the milliseconds of the best run of each
 *
 * Each thread has a sequence of its own, as a worker has. */
#include "codelets/codelets.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct shape {
    tess_dtype dtype;
    int64_t length, heads, groups, dim;
    int causal;
    int64_t window;
} shape;

typedef struct job {
    shape s;
    double budget, best[2];
    pthread_barrier_t *start;
} job;

static void *room(size_t bytes, uint32_t seed, tess_dtype t)
{
    const size_t huge = 2u << 20, all = (bytes + huge - 1) / huge * huge;
    void *x = aligned_alloc(huge, all);
    TESS_ASSERT(x);
    madvise(x, all, MADV_HUGEPAGE);
    memset(x, 0, all);
    for (size_t i = 0; seed && i < bytes / tess_dtype_size(t); i++) {
        seed = seed * 1664525u + 1013904223u;
        tess_store(x, (int64_t)i, t, (float)(seed >> 8) / 8388608.0f - 1);
    }
    return x;
}

/* One thread's sequence, with q, k and v side by side as GPT-2 has them. */
static void *run(void *context)
{
    job *j = context;
    const shape *s = &j->s;
    const size_t size = tess_dtype_size(s->dtype), wide = (size_t)(s->heads * s->dim) * size;
    const size_t rows = (size_t)s->length, all = wide + 2 * (size_t)(s->groups * s->dim) * size;
    const tess_attention_arg a = {.rows = s->length,
                                  .sequence = s->length,
                                  .heads = s->heads,
                                  .groups = s->groups,
                                  .dim = s->dim,
                                  .window = s->window,
                                  .scale = 1 / sqrtf((float)s->dim),
                                  .causal = s->causal,
                                  .packed = true};
    const size_t scratch = tess_attention_scratch(&a, s->dtype);
    const tess_env env = {.train = true};
    const tess_view qkv = {room(rows * all, 1, s->dtype), rows * all},
                    dqkv = {room(rows * all, 0, s->dtype), rows * all};
    const tess_view y = {room(rows * wide, 0, s->dtype), rows * wide},
                    dy = {room(rows * wide, 2, s->dtype), rows * wide};
    const tess_view lse = {room(rows * (size_t)s->heads * 4, 0, TESS_F32), rows * (size_t)s->heads * 4};
    const tess_view own = {room(scratch, 0, TESS_F32), scratch};
    tess_view forward[] = {qkv, y, lse, own}, backward[] = {dy, qkv, y, lse, dqkv, own};
    const tess_work work[] = {{.buf = forward, .nbuf = 4, .arg = &a, .env = &env},
                              {.buf = backward, .nbuf = 6, .arg = &a, .env = &env}};
    const tess_body body[] = {tess_attention_forward[s->dtype].cpu, tess_attention_backward[s->dtype].cpu};
    for (int pass = 0; pass < 2; pass++) {
        j->best[pass] = 1e9;
        body[pass](&work[pass]);
        pthread_barrier_wait(j->start);
        const double begun = tess_seconds();
        for (int round = 0; round < 2 || tess_seconds() - begun < j->budget / 2; round++) {
            const double t = tess_seconds();
            body[pass](&work[pass]);
            const double took = tess_seconds() - t;
            if (took < j->best[pass]) j->best[pass] = took;
        }
    }
    free(qkv.ptr), free(dqkv.ptr), free(y.ptr), free(dy.ptr), free(lse.ptr), free(own.ptr);
    return NULL;
}

enum { THREADS = 64 };
/* Milliseconds in which `threads` sequences are done, one each. */
static void measure(shape s, int threads, double budget, double took[2])
{
    pthread_t thread[THREADS];
    pthread_barrier_t start;
    job jobs[THREADS];
    TESS_ASSERT(threads > 0 && threads <= THREADS);
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        jobs[i] = (job){.s = s, .budget = budget, .start = &start};
        TESS_ASSERT(pthread_create(&thread[i], NULL, run, &jobs[i]) == 0);
    }
    took[0] = took[1] = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        for (int pass = 0; pass < 2; pass++)
            if (jobs[i].best[pass] * 1e3 > took[pass]) took[pass] = jobs[i].best[pass] * 1e3;
    }
    pthread_barrier_destroy(&start);
}

static tess_dtype dtype_of(const char *name)
{
    for (tess_dtype t = TESS_F32; t <= TESS_F16; t++)
        if (!strcmp(name, tess_dtype_name(t))) return t;
    fprintf(stderr, "bench_attention: dtype %s (expected f32, bf16 or f16)\n", name);
    exit(2);
}

static void answer(void)
{
    char name[16];
    shape s;
    long long n[6];
    int threads;
    double budget, took[2];
    while (scanf("%15s %lld %lld %lld %lld %lld %lld %d %lf", name, n, n + 1, n + 2, n + 3, n + 4, n + 5, &threads,
                 &budget) == 9) {
        s = (shape){dtype_of(name), n[0], n[1], n[2], n[3], (int)n[4], n[5]};
        measure(s, threads, budget, took);
        printf("%.4f %.4f\n", took[0], took[1]);
        fflush(stdout);
    }
}

static void table(tess_dtype t)
{
    printf("%-4s %6s %6s %6s %5s %-7s %6s %10s %10s %8s %8s\n", tess_dtype_name(t), "length", "heads", "groups", "dim",
           "", "window", "forward ms", "backward", "GFLOP/s", "");
    for (int causal = 1; causal >= 0; causal--)
        for (int64_t dim = 64; dim <= 128; dim *= 2)
            for (int64_t length = 512; length <= 4096; length *= length == 512 ? 2 : 4) {
                const int64_t heads = (length == 4096 ? 256 : 768) / dim;
                double took[2];
                measure((shape){t, length, heads, heads, dim, causal, 0}, 1, 0.5, took);
                const double seen = causal ? (double)(length + 1) / 2 : (double)length;
                const double product = 2e-6 * (double)(length * heads * dim) * seen;
                printf("     %6lld %6lld %6lld %5lld %-7s %6d %10.2f %10.2f %8.0f %8.0f\n", (long long)length,
                       (long long)heads, (long long)heads, (long long)dim, causal ? "causal" : "all", 0, took[0],
                       took[1], 2 * product / took[0], 5 * product / took[1]);
                fflush(stdout);
            }
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "-")) {
        answer();
        return 0;
    }
    for (int i = 1; i < argc; i++) table(dtype_of(argv[i]));
    if (argc == 1) table(TESS_BF16), table(TESS_F32);
    return 0;
}
