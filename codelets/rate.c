/* What this machine multiplies: the yardstick beside every rate that we print. */
#include "mm_impl.h"
#include "vector_impl.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { CORES = 256 };
static const double SECONDS = 0.15;

struct core {
    pthread_t thread;
    tess_dtype dtype;
    int64_t n;
    pthread_barrier_t *start;
    double rate;
};

/* Large pages, as tiles have. */
static void *new_matrix(int64_t n, tess_dtype t)
{
    const size_t bytes = (size_t)(n * n) * tess_dtype_size(t), page = 2 << 20;
    void *p = NULL;
    if (posix_memalign(&p, page, bytes)) p = tess_alloc(bytes);
    madvise(p, bytes, MADV_HUGEPAGE);
    for (int64_t i = 0; i < n * n; i++) tess_store(p, i, t, (float)(i % 251) / 251);
    return p;
}

static void *multiply(void *arg)
{
    struct core *c = arg;
    const tess_mm d = {.m = c->n,
                       .n = c->n,
                       .k = c->n,
                       .lda = c->n,
                       .ldb = c->n,
                       .ldc = c->n,
                       .in = c->dtype,
                       .out = TESS_F32,
                       .plain = true};
    void *a = new_matrix(c->n, c->dtype), *b = new_matrix(c->n, c->dtype), *y = new_matrix(c->n, TESS_F32);
    tess_mm_run(&d, a, b, y); /* makes the kernel */
    pthread_barrier_wait(c->start);
    int runs = 0;
    const double start = tess_seconds();
    double took = 0;
    for (; runs < 3 || took < SECONDS; runs++) {
        tess_mm_run(&d, a, b, y);
        took = tess_seconds() - start;
    }
    c->rate = 2.0 * (double)(c->n * c->n * c->n) * runs / took;
    free(a);
    free(b);
    free(y);
    return NULL;
}

double tess_matrix_rate(tess_dtype t, int cores, int64_t n)
{
    struct core core[CORES];
    pthread_barrier_t start;
    double rate = 0;
    if (cores > CORES) cores = CORES;
    pthread_barrier_init(&start, NULL, (unsigned)cores);
    for (int i = 0; i < cores; i++) {
        core[i] = (struct core){.dtype = t, .n = n, .start = &start};
        TESS_ASSERT(!pthread_create(&core[i].thread, NULL, multiply, &core[i]));
    }
    for (int i = 0; i < cores; i++) {
        pthread_join(core[i].thread, NULL);
        rate += core[i].rate;
    }
    pthread_barrier_destroy(&start);
    return rate;
}
